"""`tfm train`: options reach the training function; a true run from raw text to raw text; signals keep the state."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.cli.app import main
from transformer_cli.storage.run_folder import RunFolder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `training.run.train` was called with, in place of training."""
    from transformer_cli.training import run

    calls: dict[str, Any] = {}

    def train(config: Any, path: Path, **options: Any) -> None:
        calls.update(config=config, path=path, **options)
        if config.training.seed in (signal.SIGINT, signal.SIGTERM):
            raise run.Interrupted(config.training.seed)

    monkeypatch.setattr(run, "train", train)
    return calls


def test_options_reach_the_function(trial: Any, tfm: Any, asked: dict[str, Any]) -> None:
    assert tfm("train", trial.config).code == 0
    assert (asked["path"], asked["resume"], asked["fresh"]) == (Path("checkpoints/config"), None, False)
    assert (asked["device"], asked["quiet"]) == ("auto", False)
    options = ["--out", "x/y", "--set", "training.max_steps=7", "--set", "training.seed=5", "--device", "cpu", "-q"]
    assert tfm("train", trial.config, "--resume", *options).code == 0
    assert (asked["path"], asked["resume"], asked["fresh"]) == (Path("x/y"), True, False)
    assert (asked["device"], asked["quiet"]) == ("cpu", True)
    assert (asked["config"].training.max_steps, asked["config"].training.seed) == (7, 5)
    assert asked["profile"] is None
    assert tfm("train", trial.config, "--fresh", "--profile", "trace.json").code == 0
    assert (asked["resume"], asked["fresh"], str(asked["profile"])) == (None, True, "trace.json")
    assert "exclude each other" in tfm("train", trial.config, "--dry-run", "--profile", "trace.json").refused()
    assert "exclude each other" in tfm("train", trial.config, "--dry-run", "--until", "5").refused()
    assert "exclude each other" in tfm("train", trial.config, "--fresh", "--resume").refused()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_its_exit_code(number: int, trial: Any, tfm: Any, asked: dict[str, Any]) -> None:
    result = tfm("train", trial.config, "--set", f"training.seed={number}")
    assert (result.code, result.out, result.err) == (128 + number, "", "")


def test_from_raw_text_to_raw_text(trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tfm: Any) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    run = RunFolder(tmp_path / "run")
    assert tfm("build-vocab", trial.config, "--out", run.path, "--quiet").code == 0
    trained = tfm("train", trial.config, "--out", run.path, "--device", "cpu")
    assert trained.code == 0, trained.err
    assert run.index().last == 4
    again = tfm("train", trial.config, "--out", run.path, "--device", "cpu")
    assert again.code == 0
    assert "finished" in again.err
    longer = tfm("train", trial.config, "--out", run.path, "--device", "cpu", "--set", "training.max_steps=6")
    assert longer.code == 0, longer.err
    assert run.index().last == 6
    changed = tfm("train", trial.config, "--out", run.path, "--set", "model.d_ff=32")
    assert changed.code == 2
    assert "model.d_ff" in changed.err.splitlines()[-1]
    assert tfm("translate", run.path, "ein hund", "").out.count("\n") == 2
    assert tfm("average", run.path, "--last", 2, "--out", tmp_path / "mean").code == 0
    for model in (run.path, tmp_path / "mean"):
        files = ("--source", trial.source, "--reference", trial.reference)  # which the model was trained on
        result = tfm("evaluate", model, *files, "--no-overlap", "--quiet")
        assert (result.code, result.out.count("\n")) == (0, 6)  # of each metric score and signature


def test_a_dry_run_prints_and_writes_nothing(
    trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tfm: Any
) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    dry = ["--out", tmp_path / "run", "--device", "cpu", "--dry-run"]
    result = tfm("train", trial.config, *dry)
    assert (result.code, result.err) == (0, "")
    for name in ("data", "model", "parameters", "schedule", "first batch", "memory", "time"):
        assert f"\n{name} " in f"\n{result.out}"
    assert "nothing to resume" in tfm("train", trial.config, *dry, "--resume").refused()
    assert "lines" in tfm("train", trial.config, *dry, "--set", f"data.train.target={trial.reference}").refused()
    assert not (tmp_path / "run").exists()


def test_a_preset_is_the_same_in_build_vocab_and_in_training(
    trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tfm: Any
) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    text = trial.config.read_text()
    (tmp_path / "auto.yaml").write_text(text[: text.index("model:")] + "model: {preset: auto, d_model: 16, d_ff: 16}\n")
    run = RunFolder(tmp_path / "run")
    steps = ["--set", "training.max_steps=2", "--set", "training.validation_sentences=2"]
    built = tfm("build-vocab", tmp_path / "auto.yaml", "--out", run.path, *steps)
    assert built.code == 0, built.err
    chosen = [line for line in built.err.splitlines() if "for 60 pairs" in line]
    before = run.config_path.read_bytes()
    for more in ([], ["--resume"]):
        trained = tfm("train", tmp_path / "auto.yaml", "--out", run.path, "--device", "cpu", *steps, *more)
        assert trained.code == 0, trained.err
        assert trained.err.splitlines()[0] == chosen[0]
        assert run.config_path.read_bytes() == before
    assert "finished" in tfm("train", run.config_path, "--out", run.path, "--device", "cpu").err  # needs no preset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "nothing to resume"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "tpu"], "tpu"),
        (["--set", "model.heads=3"], "heads"),
        (["--set", "data.train.target={folder}/valid.en"], "lines"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    arguments: list[str], message: str, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    given = [argument.format(folder=trial.folder) for argument in arguments]
    assert message in tfm("train", trial.config, "--out", tmp_path / "run", *given).refused()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_state_and_the_same_command_continues(number: int, trial: Any, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    rarely = [f"training.{key}=100000" for key in ("validate_every", "save_every")]
    overrides = [part for override in [*rarely, "training.log_every=1"] for part in ("--set", override)]
    arguments = ["train", str(trial.config), "--out", str(run.path), "--device", "cpu", *overrides, "--set"]
    command = [sys.executable, "-m", "transformer_cli", *arguments]
    first = [*command, "training.max_steps=100000"]
    with subprocess.Popen(first, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not run.metrics.path.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (128 + number, ""), err
    assert "Traceback" not in err
    step = run.index().last
    assert step is not None
    second = subprocess.run([*command, f"training.max_steps={step + 1}"], capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert run.index().last == step + 1


@pytest.mark.slow
def test_a_profile_from_the_shell(trial: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transformer_cli", "train", str(trial.config), "--out", "run", "--device", "cpu"]
    more = ["--set", "training.max_steps=14", "--profile", "trace.json"]
    done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "profile      8 updates in" in done.stderr
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))


@pytest.mark.medium
def test_it_starts_without_what_it_has_no_use_for(trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler, which torch's optimizers look for, and pandas, which pyarrow does: seconds of every start."""
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    code = "import sys; from transformer_cli.cli.app import main; code = main(sys.argv[1:])\n"
    code += "print(*{'torch', 'pyarrow', 'pandas', 'sympy', 'torch._dynamo'} & {*sys.modules}); sys.exit(code)"
    command = ["train", str(trial.config), "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=300)
    assert (done.returncode, {*done.stdout.split()}) == (0, {"torch", "pyarrow"}), done.stderr


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, trained from two files in the working directory, without `data.valid`."""
    folder = tmp_path_factory.mktemp("two-files")
    words = {"hund": "dog", "katze": "cat", "maus": "mouse", "haus": "house", "baum": "tree", "läuft": "runs"}
    rows = [[word for place, word in enumerate(words) if row >> place & 1] + [str(row)] for row in range(480)]
    for language in ("de", "en"):
        lines = (" ".join(words.get(word, word) if language == "en" else word for word in row) for row in rows)
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "my.yaml").write_text(
        "data: {source_language: de, target_language: en, train: {source: train.de, target: train.en}, workers: 0}\n"
        "vocabulary: {tokenizer: whitespace}\n"
        "model: {encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 16}\n"
        "training: {max_steps: 2, validate_every: 1, validation_sentences: 4}\n"
        "decoding: {max_length_ratio: 0.5, max_length_extra: 2}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "my.yaml", "--out", "run", "--quiet"]) == 0
    return folder


@pytest.mark.medium
def test_what_reads_validation_data_finds_what_was_held_out(
    two_files: Path, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text itself may be gone by then, and the run elsewhere."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(two_files / "run", tmp_path / "run")
    calibrated = tfm("calibrate", "run", "--json", "-q")
    assert calibrated.code == 0, calibrated.err
    figures = json.loads(calibrated.out)
    assert figures["sentences_fitted"] + figures["sentences_measured"] == 24
    assert tfm("plot", "mask", "run", "--side", "target", "-o", "mask.png", "-q").code == 0
    exported = tfm("export", "run", "--format", "ctranslate2", "--out", "exported")
    assert exported.code == 0, exported.err
    held_out = tmp_path / "run" / "held-out"
    given = ["--source", held_out / "source.de", "--reference", held_out / "target.en"]
    assert tfm("evaluate", "run", *given, "--metric", "chrf", "-q").code == 0
    shutil.copytree(tmp_path / "run" / "step-00000002", tmp_path / "alone" / "model")
    assert "give --source and --reference" in tfm("calibrate", "alone/model").refused()


def test_distilling_leaves_out_what_the_teachers_run_held_out(
    two_files: Path, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_files)
    assert tfm("distill", "run", "my.yaml", "--out", tmp_path / "made", "-q").code == 0
    sources = (tmp_path / "made" / "train.de").read_text(encoding="utf-8").splitlines()
    held_out = (two_files / "run" / "held-out" / "source.de").read_text(encoding="utf-8").splitlines()
    whole = (two_files / "train.de").read_text(encoding="utf-8").splitlines()
    assert len(held_out) == 24
    assert sources == [line for line in whole if line not in held_out]
