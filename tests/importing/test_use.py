"""An imported model is a model like any other: every command takes it, and training starts from it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.importing.conftest import Make, sentences
from tests.importing.test_huggingface import import_model
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.cli.app import main
from transformer_cli.storage.run_folder import find_model

Run = Callable[..., str]


@pytest.fixture
def tfm(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command, which must succeed; return what it printed."""

    def run(*arguments: object) -> str:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        printed, said = capfd.readouterr()
        assert code == 0, said
        return printed + said

    return run


@pytest.fixture
def run(marian: Make, tmp_path: Path) -> Path:
    made = marian(tags=[">>fra<<", ">>eng<<"])
    import_model(made.folder, tmp_path / "run")
    for language in ("de", "en"):
        lines = sentences(language, 30, 6000)
        (tmp_path / f"test.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path / "run"


def test_it_is_a_whole_run_folder(run: Path, tfm: Run) -> None:
    assert find_model(run) == run / "step-00000000"
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints.json", "config.yaml", "step-00000000", "vocab"]
    assert (run / "config.yaml").read_bytes() == (run / "step-00000000" / "config.yaml").read_bytes()


@pytest.mark.medium
def test_every_command_takes_it(run: Path, tmp_path: Path, tfm: Run) -> None:
    source, target = tmp_path / "test.de", tmp_path / "test.en"
    assert len(tfm("translate", run, "-i", source, "-q", "--no-guard").splitlines()) == 30
    assert "https://example.org/a?b=1" in tfm(
        "translate", run, "Der ｗeiße Hund ﬁndet https://example.org/a?b=1 heute."
    )
    assert "BLEU" in tfm("evaluate", run, "--source", source, "--reference", target)
    assert len(tfm("score", run, "--source", source, "--target", target, "-q").splitlines()) == 30
    aligned = tfm("align", run, "--source", source, "--target", target, "-q").splitlines()
    assert sum(bool(re.fullmatch(r"(\d+-\d+ ?)+", line)) for line in aligned) > 25
    assert "generator" in tfm("inspect", run)
    tfm("plot", "attention", run, "Ein Hund.", "-o", tmp_path / "a.svg")
    tfm("calibrate", run, "--source", source, "--reference", target)
    (tmp_path / "small.yaml").write_text(re.sub(r"\n +tag: .*", "", fine_tuning(run)), encoding="utf-8")
    tfm(
        "distill", run, tmp_path / "small.yaml", "--out", tmp_path / "distilled", "--set", f"data.train={few(tmp_path)}"
    )
    tfm("export", run, "--format", "safetensors", "--out", tmp_path / "copied")
    assert "identical" in tfm("export", run, "--format", "huggingface", "--out", tmp_path / "hf", "--sentences", source)
    assert "verified" in tfm("export", run, "--format", "ctranslate2", "--out", tmp_path / "ct", "--sentences", source)


def few(folder: Path) -> str:
    return f"{{source: {folder}/test.de, target: {folder}/test.en}}"


def fine_tuning(run: Path) -> str:
    """A config as docs/importing.md says: the model's vocabulary and shape, own data."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    paths: dict[str, Any] = {"train": {}, "valid": {}}
    for split, first in (("train", 0), ("valid", 7000)):
        for side, language in (("source", "de"), ("target", "en")):
            lines = sentences(language, 600 if split == "train" else 40, first)
            (run.parent / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            paths[split][side] = f"{run.parent}/{split}.{language}"
    training = {
        "init_from": str(run),
        "max_steps": 12,
        "warmup_steps": 2,
        "factor": 0.05,
        "batch_tokens": 512,
        "validate_every": 12,
        "validation_sentences": 4,
        "save_every": 12,
    }
    data: dict[str, Any] = {"source_language": "de", "target_language": "en", "workers": 0, **paths}
    data["train"]["tag"] = data["valid"]["tag"] = ">>eng<<"
    sections = {key: config[key] for key in ("vocabulary", "model")}
    return yaml.safe_dump({"data": data, **sections, "training": training})


@pytest.mark.medium
def test_training_starts_from_it(run: Path, tmp_path: Path, tfm: Run) -> None:
    """With its vocabulary; losses stay finite and get smaller, and what it learned has its shape."""
    (tmp_path / "fine.yaml").write_text(fine_tuning(run), encoding="utf-8")
    tfm("train", tmp_path / "fine.yaml", "--out", tmp_path / "fine", "--device", "cpu")
    before, after = (load_model(path) for path in (run, tmp_path / "fine"))
    assert before.codecs.fingerprint == after.codecs.fingerprint
    assert before.config.model == after.config.model
    changed = [
        name
        for (name, one), other in zip(before.model.named_parameters(), after.model.parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert len(changed) == len(list(before.model.parameters()))
    lines = [json.loads(line) for line in (tmp_path / "fine" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["valid_loss"] for line in lines if "valid_loss" in line]
    assert all(0 < loss < 20 for loss in losses)


def test_its_own_config_trains_nothing(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "build-vocab", "doctor"):
        out = [] if command == "doctor" else ["--out", str(tmp_path / "new")]
        assert main([command, str(run / "config.yaml"), *out]) == 2
        assert capfd.readouterr().err.startswith("error: data.train: is null, as it is not known of an imported model")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_child_may_have_a_vocabulary_of_its_own(marian: Make, tmp_path: Path, tfm: Run, tied: bool) -> None:
    """A piece at the beginning of a word is the same whichever sentencepiece cut it; all other weights are theirs."""
    import_model(marian(separate=not tied, tie_word_embeddings=tied).folder, tmp_path / "run")
    config = yaml.safe_load(re.sub(r" *tag: .*\n", "", fine_tuning(tmp_path / "run")))
    config["training"] |= {
        "init_vocabulary": "own",
        "max_steps": 1,
        "peak_learning_rate": 1e-12,
        "schedule": "constant",
    }
    del config["training"]["factor"]
    config["vocabulary"] = {"size": 350, "byte_fallback": False, "shared": tied}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert "with a vocabulary of its own" in tfm("train", tmp_path / "own.yaml", "--out", tmp_path / "own")
    parent, child = load_model(tmp_path / "run"), load_model(tmp_path / "own")
    for name, tensor in child.model.state_dict().items():
        if "table" not in name and "generator" not in name:
            torch.testing.assert_close(tensor, parent.model.state_dict()[name])
    for side in ("source", "target"):
        old, new = (getattr(model.codecs, side).vocabulary for model in (parent, child))
        common = [piece for piece in new.get_itos() if piece.startswith("▁") and piece[1:] and piece in old]
        assert len(common) > 20
        before, after = (getattr(model.model, f"{side}_embedding").tokens.table.weight for model in (parent, child))
        torch.testing.assert_close(after[new.lookup_indices(common)], before[old.lookup_indices(common)])


@pytest.mark.parametrize("command", ["train", "build-vocab"])
def test_its_tokenizer_is_not_trained(run: Path, tmp_path: Path, capfd: Any, command: str) -> None:
    config = yaml.safe_load(fine_tuning(run))
    del config["training"]["init_from"]
    (tmp_path / "fine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main([command, str(tmp_path / "fine.yaml"), "--out", str(tmp_path / "new")]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: vocabulary.tokenizer: marian is the tokenizer of an imported model")
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.medium
def test_a_language_is_chosen_by_tag(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As a token before the text, whoever puts it there; only one that the model has."""
    translator = Translator.load(run, engine="torch")
    codec = translator.codecs.source
    assert codec.encode_tag(">>fra<<") == [codec.vocabulary[">>fra<<"]]
    texts = sentences("de", 40, 5000)
    tagged = [one.text for one in translator.translate_batch(texts, tag=">>fra<<")]
    assert tagged == translator.translate([f">>fra<< {text}" for text in texts])
    assert tagged != translator.translate(texts)
    assert main(["translate", str(run), "Ein Hund.", "--tag", ">>xyz<<"]) == 2
    assert ">>fra<<" in capfd.readouterr().err


@pytest.mark.medium
def test_both_engines_agree(run: Path) -> None:
    texts = sentences("de", 40, 5000)
    found = {name: Translator.load(run, engine=name, guard=False).translate(texts) for name in ("torch", "ctranslate2")}
    same = sum(one == other for one, other in zip(found["torch"], found["ctranslate2"], strict=True))
    assert same >= 39  # near ties of random weights may fall either way


@pytest.mark.parametrize("stated", [None, "cc-by-4.0"])
def test_the_card_says_where_it_comes_from_and_its_license(marian: Make, tmp_path: Path, tfm: Run, stated: Any) -> None:
    folder = Path(shutil.copytree(marian().folder, tmp_path / "opus-mt-de-en"))
    if stated:
        (folder / "README.md").write_text(f"---\nlicense: {stated}\n---\n")
    said = tfm("import", folder, "--out", tmp_path / "run")
    assert f"license: {stated or 'not stated by the model'}" in said
    tfm("report", tmp_path / "run", "--card")
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "Others trained it; it was imported from" in card
    assert "opus" in card
    assert "Trained from scratch" not in card
    assert ("license: cc-by-4.0" in card) == bool(stated)
    assert ("Not stated." in card) != bool(stated)
    assert "trained for" not in card
    assert "steps" not in tfm("report", tmp_path / "run")


def test_a_child_keeps_where_its_parent_comes_from(marian: Make, tmp_path: Path, tfm: Run) -> None:
    folder = Path(shutil.copytree(marian().folder, tmp_path / "opus-mt-de-en"))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    tfm("import", folder, "--out", tmp_path / "run")
    (tmp_path / "fine.yaml").write_text(re.sub(r" *tag: .*\n", "", fine_tuning(tmp_path / "run")), encoding="utf-8")
    tfm("train", tmp_path / "fine.yaml", "--out", tmp_path / "fine", "--set", "training.max_steps=1")
    tfm("report", tmp_path / "fine", "--card")
    tfm("report", tmp_path / "fine", "-o", tmp_path / "page.html")
    card = (tmp_path / "fine" / "README.md").read_text(encoding="utf-8").replace("\\", "")
    for text in (card, (tmp_path / "page.html").read_text(encoding="utf-8")):
        assert "trained for 1 steps" in text
        assert f"Its training started from another model, {tmp_path}/run. Others trained that one; " in text
        assert f"it was imported from {folder} (license: cc-by-4.0)." in text
