"""The scripts in examples/, on the sample corpus."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.serve.test_server import Server, Start, start  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "data" / "sample"
CONFIG = """
data:
  source_language: de
  target_language: en
  train: {train}
  valid: {{source: {sample}/valid.de, target: {sample}/valid.en}}
  test: {{source: {sample}/test.de, target: {sample}/test.en}}
  workers: 0
vocabulary: {{algorithm: bpe, size: 600}}
model: {{encoder_layers: 1, decoder_layers: 1, d_model: 64, heads: 2, d_ff: 128, norm: pre, dropout: 0.0}}
training: {{batch_tokens: 1500, max_steps: {steps}, schedule: cosine, warmup_steps: 20, peak_learning_rate: {rate},
  precision: fp32, validate_every: {steps}, save_every: {steps}, validation_sentences: 50}}
decoding: {{beam_size: 1}}
"""


def tfm(*arguments: object) -> str:
    command = [sys.executable, "-m", "transformer_cli", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def example(script: object, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a script, with the `tfm` that is tested."""
    process = begin(script, *arguments)
    said, complaints = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, complaints)


def begin(script: object, *arguments: object) -> "subprocess.Popen[str]":
    """Start a script as the first of a group of processes."""
    scripts = Path("scripts")
    scripts.mkdir(exist_ok=True)
    (scripts / "tfm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transformer_cli "$@"\n')
    (scripts / "tfm").chmod(0o755)
    environment = os.environ | {"PATH": f"{scripts.absolute()}:{os.environ['PATH']}"}
    command = ["sh", str(ROOT / "examples" / str(script)), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)


@pytest.mark.slow
def test_corrections_become_a_better_translator_that_is_served(
    start: Start,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sides = [(SAMPLE / f"train.{language}").read_text("utf-8").split("\n")[:2200] for language in ("de", "en")]
    for name, side in zip(("few.de", "few.en"), sides, strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in side[:2000]), encoding="utf-8")
    few = "{source: few.de, target: few.en}"
    Path("first.yaml").write_text(CONFIG.format(train=few, sample=SAMPLE, steps=40, rate=0.003))
    tfm("train", "first.yaml", "--out", "runs/first", "--quiet")
    Path("live").symlink_to("runs/first")

    server = start("live", "--suggestions", "corrections.jsonl", "--greedy")
    for source, better in zip(sides[0][2000:2200], sides[1][2000:2200], strict=True):
        server.ask("/suggest", q=source, s=better, source="de", target="en")
    server.ask("/suggest", q="Guten Tag.", s="see https://example.com", source="de", target="en")
    assert len(Path("corrections.jsonl").read_text("utf-8").splitlines()) >= 195
    aside = json.loads(Path("corrections.set-aside.jsonl").read_text("utf-8").splitlines()[-1])
    assert "url_mismatch" in aside["faults"]

    made = "{file: corrections.jsonl, source_column: source, target_column: target, weight: 3}"
    Path("next.yaml").write_text(CONFIG.format(train=f"[{few}, {made}]", sample=SAMPLE, steps=150, rate=0.003))
    done = example("improve.sh", "live", "next.yaml", server.process.pid)
    assert done.returncode == 0, done.stderr
    assert "is better by" in done.stdout
    new = Path("live").resolve()
    assert new.parent == Path("runs").resolve()
    assert new.name != "first"
    assert Path("runs/first/checkpoints.json").exists()
    server.hear("loaded anew")
    text = "Wo ist der Bahnhof?"
    assert (
        server.ask(q=text, source="de", target="en")["translatedText"]
        == tfm("translate", new, text, "--greedy").strip()
    )

    Path("same.yaml").write_text(CONFIG.format(train=few, sample=SAMPLE, steps=21, rate=1e-9))
    done = example("improve.sh", "live", "same.yaml")
    assert done.returncode == 1
    assert "not better" in done.stderr
    assert Path("live").resolve() == new


def test_what_is_no_link_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    done = example("improve.sh", "run", "next.yaml")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no symbolic link" in done.stderr
    assert example("improve.sh", "run").returncode == 2


@pytest.mark.slow
def test_the_best_from_little_learns_from_both_directions_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language in ("de", "en"):
        lines = (SAMPLE / f"train.{language}").read_text("utf-8").splitlines()[:400]
        Path(f"few.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    small = ["model.d_model=64", "model.d_ff=128", "vocabulary.size=500", "data.workers=0"]
    brief = ["training.max_steps=200", "training.validate_every=200", "training.batch_tokens=500"]
    options = [part for setting in [*small, *brief] for part in ("--set", setting)]
    monkeypatch.setenv("MODELS", "2")
    monkeypatch.setenv("FINAL", "--set model.d_ff=192 --set training.max_steps=250")
    command = ("best.sh", "de", "en", "few", SAMPLE / "valid", "out", "--quiet", *options)
    killed = begin(*command)
    while not Path("out/backward/config.yaml").exists():  # the third of five trainings
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    finished = {path: path.stat().st_mtime_ns for path in Path("out").glob("forward*/*/*.safetensors")}
    assert len(finished) >= 2
    done = example(*command)
    assert done.returncode == 0, done.stderr
    assert finished == {path: path.stat().st_mtime_ns for path in finished}, "what was finished is not trained again"
    runs = ("forward", "forward-2", "backward-2", "final")
    forward, second, backward, final = (yaml.safe_load(Path(f"out/{run}/config.yaml").read_text()) for run in runs)
    assert final["model"] == forward["model"] | {"d_ff": 192}
    assert final["training"]["max_steps"] == 250
    assert second["training"] == backward["training"] == forward["training"] | {"seed": 2}
    assert backward["data"]["source_language"] == "en"
    alone = tfm("translate", "out/forward", "--input", "few.de", "--quiet").splitlines()
    assert Path("out/translated/train.en").read_text().splitlines() != alone
    assert final["training"]["r_drop"] == forward["training"]["r_drop"] > 0
    trained_on = final["data"]["train"]
    assert [one["source"] for one in trained_on] == ["few.de", "out/translated/train.de", "out/backtranslated/train.de"]
    assert Path("out/translated/train.de").read_text() == Path("few.de").read_text()
    assert set(Path("out/backtranslated/train.en").read_text().splitlines()) <= set(
        Path("few.en").read_text().splitlines()
    )
    assert tfm("translate", "out/final", "Wo ist der Bahnhof?", "--greedy").strip()

    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.safetensors")}
    assert example(*command).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.safetensors")}


def test_the_best_from_little_says_how_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = example("best.sh", "de", "en")
    assert done.returncode == 2
    assert "SOURCE TARGET TRAIN VALID OUT" in done.stderr
    done = example("best.sh", "de", "en", "train", "valid", "out", "--quiet", "--fresh")
    assert done.returncode == 2
    assert "--fresh: not here" in done.stderr
    assert not [*tmp_path.glob("[!s]*")]


def test_deployments_call_the_server_as_it_is_called() -> None:
    """Each option that they give it is one, and what they mount is what they name."""
    folder = ROOT / "examples" / "serving"
    pods, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text("utf-8"))
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    unit = (folder / "tfm.service").read_text("utf-8")
    started = [*re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.M), " ".join(container["args"])]
    started += re.findall(r"tfm-serve (/models.*)$", (folder / "Dockerfile").read_text("utf-8"), re.M)
    assert len(started) == 3
    known = tfm("serve", "--help")
    for line in started:
        options = re.findall(r"--[a-z-]+", line)
        assert "--api-keys" in options
        assert [one for one in options if one not in known] == []
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pods["spec"]["template"]["spec"]["volumes"]
    }
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"/health"}
    assert service["spec"]["selector"] == pods["spec"]["template"]["metadata"]["labels"]
