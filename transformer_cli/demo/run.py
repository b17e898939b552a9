"""`tfm demo`: the whole tool once through on the sample corpus, from raw text to a judged translator and its pictures.

One folder holds it all: `corpus/`, `config.yaml` to copy, the run folder `model/`, the pictures. The same folder again
continues where an earlier demo stopped.
"""

import gzip
import json
import os
import re
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from transformer_cli.config import load_config
from transformer_cli.decoding.devices import choose_device
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import evaluate, read_test_set
from transformer_cli.storage.publishing import atomic_write
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.run import TrainingResult, train

EXAMPLES = 10  # translations shown


@dataclass(frozen=True)
class Example:
    """A test sentence, its reference and what the model made of it."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Scored:
    """BLEU of a part of the test set."""

    sentences: int
    bleu: float
    signature: str


@dataclass(frozen=True)
class DemoResult:
    """What the demo trained and found out; paths lie in its folder."""

    training: TrainingResult
    test: Scored
    unseen: Scored  # the test sentences whose verb and noun never occur together in training
    examples: list[Example]
    pictures: list[Path]  # none without matplotlib


def prepare(folder: Path) -> Path:
    """Write the corpus and the config into `folder`, unless an earlier demo did; return the config's path.

    Raises `UserError` where something else lies there, so that nothing of the user's is written over.
    """
    config = folder / "config.yaml"
    text = config_text(folder)
    if config.exists():
        if config.read_text(encoding="utf-8") != text:
            raise UserError(f"{config}: is not this version's demo config; choose another folder with --out")
        return config
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another folder with --out")
    if folder.exists() and any(entry.name != "corpus" and entry.name[0] != "." for entry in folder.iterdir()):
        raise UserError(f"{folder}: holds other files; choose another folder with --out")
    write_corpus(folder / "corpus")
    atomic_write(config, text)
    return config


def write_corpus(folder: Path) -> None:
    """Write the sample corpus: `train`, `valid`, `test` and `test-unseen` as `.de` and `.en`.

    Raises `UserError` where the folder cannot be written, or has other files of these names.
    """
    files = (resources.files("transformer_cli.demo") / "corpus").iterdir()
    texts = {folder / file.name.removesuffix(".gz"): gzip.decompress(file.read_bytes()) for file in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            if os.path.lexists(path) and not (path.is_file() and path.read_bytes() == text):
                raise UserError(f"{path}: is not the sample corpus's; choose another folder with --out")
        for path, text in texts.items():
            if not path.exists():
                atomic_write(path, text)
    except OSError as error:
        raise UserError(f"{folder}: cannot write the sample corpus: {error.strerror}; name another folder") from None


def config_text(folder: Path) -> str:
    """Return the demo's config, for a corpus in `folder`."""
    template = (resources.files("transformer_cli.demo") / "config.yaml").read_text(encoding="utf-8")

    def place(match: re.Match[str]) -> str:
        if match[0].startswith('"'):  # a JSON string is a YAML string
            return json.dumps(f"{folder}/", ensure_ascii=False).removesuffix('"')
        return " ".join(f"{folder}/".split())  # in a comment

    return re.sub(r'"?\bdemo/', place, template)


def demo(folder: Path, *, device: str = "auto", quiet: bool = False) -> DemoResult:
    """Train on the sample corpus in `folder`, or continue there; score, translate examples, draw.

    Raises `UserError` as `train` does, and `Interrupted` after SIGINT or SIGTERM: the same call continues.
    """
    choose_device(device)  # before anything is written
    RunFolder(folder).check_writable()
    config, pictures = load_config(prepare(folder)), places_of_pictures(folder)
    if not quiet:
        print(f"corpus       German–English everyday sentences, in {folder / 'corpus'}", file=sys.stderr)
    training = train(config, folder / "model", device=device, quiet=quiet)
    translator = Translator.load(training.run, device)
    test = read_test_set(folder / "corpus" / "test.de", [folder / "corpus" / "test.en"])
    unseen = read_test_set(folder / "corpus" / "test-unseen.de", [folder / "corpus" / "test-unseen.en"])
    of_test, of_unseen = (
        evaluate(translator, part.sources, part.references, metrics=["bleu"]) for part in (test, unseen)
    )
    every = max(1, len(test.sources) // EXAMPLES)
    examples = [
        Example(*row)
        for row in zip(test.sources[::every], test.references[0][::every], of_test.translations[::every], strict=True)
    ][:EXAMPLES]
    if pictures:
        draw(pictures, training.run, examples[0].source)
    return DemoResult(
        training,
        Scored(len(test.sources), of_test.scores[0].score, of_test.scores[0].signature),
        Scored(len(unseen.sources), of_unseen.scores[0].score, of_unseen.scores[0].signature),
        examples,
        pictures,
    )


def places_of_pictures(folder: Path) -> list[Path]:
    """Return where the training curve and the attention map go; nowhere without matplotlib.

    Raises `UserError` where a file of the user's is there.
    """
    try:
        from transformer_cli.plots.style import check_free
    except UserError:  # it says how to install it; so does the demo
        return []
    pictures = [folder / "training.png", folder / "attention.png"]
    for picture in pictures:
        check_free(picture)
    return pictures


def draw(pictures: list[Path], run: Path, sentence: str) -> None:
    """Draw the training curve and the attention map of a sentence."""
    from transformer_cli.inside.attention import attend
    from transformer_cli.plots.attention import attention_figure
    from transformer_cli.plots.style import save
    from transformer_cli.plots.training import training_figure

    save(training_figure([run]), pictures[0])
    attention = attend(Translator.load(run, engine="torch"), sentence)
    save(attention_figure(attention, mean=True), pictures[1])
