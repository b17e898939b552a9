"""A tiny corpus, its config, and a run folder with two checkpoints of random weights, for tests of the commands."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.cli.app import main
from transformer_cli.decoding.translator import Translator

# fmt: off
GLOSSES = {
    "ein": "one", "zwei": "two", "drei": "three", "hund": "dog", "katze": "cat", "maus": "mouse",
    "haus": "house", "baum": "tree", "läuft": "runs", "schläft": "sleeps", "frisst": "eats", "sieht": "sees",
    "rot": "red", "grün": "green", "blau": "blue", "groß": "big", "klein": "small",
}
# fmt: on

CONFIG = """
data:
  source_language: de
  target_language: en
  train: {{source: {folder}/train.de, target: {folder}/train.en}}
  valid: {{source: {folder}/valid.de, target: {folder}/valid.en}}
  max_length: 24
  workers: 0
vocabulary: {{tokenizer: {tokenizer}, algorithm: bpe, size: 400}}
model:
  {{encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 16, positions: {positions}, max_positions: 26}}
training:
  {{batch_tokens: 256, max_steps: 4, warmup_steps: 2, validate_every: 2, save_every: 2, validation_sentences: 4}}
decoding: {{beam_size: 3, max_length_ratio: 0.5, max_length_extra: 2}}
"""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    def refused(self) -> str:
        """The one line of a refusal."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        assert self.err.startswith("error: "), self
        return self.err


@pytest.fixture
def tfm(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process, as the shell would."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return run


def write_corpus(folder: Path, pairs: int = 60) -> None:
    """Word-by-word translations: `train.de`, `train.en`, `valid.de`, `valid.en`."""
    choose = random.Random(1)
    for name, count in (("train", pairs), ("valid", 6)):
        lines = [choose.choices(list(GLOSSES), k=choose.randint(1, 6)) for _ in range(count)]
        for language, words in (("de", {word: word for word in GLOSSES}), ("en", GLOSSES)):
            text = "".join(" ".join(words[word] for word in line) + " .\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Trial:
    """The files that the tests share; nobody writes into them."""

    folder: Path
    run: Path  # subwords, checkpoints step-00000002 and step-00000004 (best)
    words: Path  # a word model with 26 learned positions: one checkpoint

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def source(self) -> Path:
        return self.folder / "valid.de"

    @property
    def reference(self) -> Path:
        return self.folder / "valid.en"


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("trial")
    write_corpus(folder)
    for name, tokenizer, positions in (("config", "sentencepiece", "sinusoidal"), ("words", "whitespace", "learned")):
        text = CONFIG.format(folder=folder, tokenizer=tokenizer, positions=positions)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    write_run(folder / "config.yaml", folder / "run", [2, 4])
    write_run(folder / "words.yaml", folder / "words", [2])
    return Trial(folder, folder / "run", folder / "words")


def write_run(config_path: Path, path: Path, steps: list[int]) -> None:
    import torch

    from transformer_cli.build import build_model
    from transformer_cli.config import load_config
    from transformer_cli.data.corpora import open_split
    from transformer_cli.storage.checkpoint import save_model
    from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, step_name
    from transformer_cli.text.build import build_codecs

    config = load_config(config_path)
    codecs, _ = build_codecs(config, open_split(config.data, "train").pairs)
    sizes = len(codecs.source.vocabulary), len(codecs.target.vocabulary)
    run = RunFolder(path)
    run.create()
    for step in steps:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            model = build_model(config.model, *sizes)
        run.publish(step_name(step), partial(save_model, model=model, config=config, codecs=codecs))
    run.write_index(CheckpointIndex(steps=steps, best=steps[-1:], last=steps[-1]))


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All lines that a model of this process was given, one after the other."""
    lines: list[str] = []
    real = Translator.translate_lines

    def noting(self: Translator, texts: Any, *arguments: Any, **options: Any) -> Any:
        texts = list(texts)
        lines.extend(one if isinstance(one, str) else one.text for one in texts)
        return real(self, iter(texts), *arguments, **options)

    monkeypatch.setattr(Translator, "translate_lines", noting)
    return lines
