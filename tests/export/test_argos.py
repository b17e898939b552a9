"""Packages for Argos Translate: what it would do with them gives our translations; what it cannot do is refused."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sentencepiece

from tests.export.conftest import left_in, write_text
from transformer_cli.codecs import load_text_side
from transformer_cli.config import load_config
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.export import verify as verifying
from transformer_cli.export.argos import export_argos
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.run_folder import find_model
from transformer_cli.training.run import train

Checkpoint = Callable[..., Path]
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample"
BEAM, PENALTY = 4, 0.2  # Argos Translate's
TRANSLATE = """
import sys
from argostranslate import package, sbd, translate
package.install_from_path(sys.argv[1])
sbd.MiniSBDSentencizer.split_sentences = sbd.StanzaSentencizer.split_sentences = lambda self, text: [text]
there = translate.get_translation_from_codes("de", "en")
for line in sys.stdin.read().split("\\n")[:-1]:
    print(there.hypotheses(line, 1)[0].value)
"""


def translate(folder: Path, lines: list[str]) -> list[str]:
    """What we find when we search as Argos Translate does."""
    options = SearchOptions(beam_size=BEAM, length_penalty=PENALTY)
    return [one.text for one in Translator.load(folder, "cpu").translate_batch(lines, options, alignments=False)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check with few sentences."""
    monkeypatch.setattr(verifying, "SENTENCES", 20)


def test_a_package_holds_the_model_and_its_subwords(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Read as Argos Translate reads it, which prepares text by the subword model alone."""
    folder = checkpoint(norm="pre")
    report = export_argos(folder, tmp_path / "below" / "de-en.argosmodel")
    assert report is not None
    assert report.startswith("verified with 20 sentences")
    assert left_in(tmp_path / "below") == ["de-en.argosmodel"]
    with zipfile.ZipFile(tmp_path / "below" / "de-en.argosmodel") as package:
        package.extractall(tmp_path / "installed")
    (installed,) = (tmp_path / "installed").iterdir()
    metadata = json.loads((installed / "metadata.json").read_text("utf-8"))
    assert [metadata[name] for name in ("from_code", "to_code", "from_name", "to_name")] == [
        *("de", "en"),
        *("German", "English"),
    ]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(installed / "sentencepiece.model"))
    _, codecs = load_text_side(folder)
    write_text(tmp_path)
    for line in (tmp_path / "text.de").read_text("utf-8").split("\n")[:-1]:
        tokens = pieces.encode(line, out_type=str)
        ids = codecs.source.encode(line)
        assert tokens == codecs.source.vocabulary.lookup_tokens(ids)
        assert pieces.decode_pieces(tokens) == codecs.target.decode(ids) == line
    assert ctranslate2.Translator(str(installed / "model")).translate_batch([tokens], max_decoding_length=8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"vocabulary": {"tokenizer": "whitespace"}}, "vocabulary.tokenizer: whitespace"),
        ({"vocabulary": {"shared": False}, "tie_embeddings": "decoder"}, "vocabulary.shared: false"),
        ({"vocabulary": {"lowercase": True}}, "vocabulary.lowercase: true"),
        ({"vocabulary": {"normalization": "nfkc"}}, "vocabulary.normalization: nfkc"),
        ({"vocabulary": {"symbols": ["<2en>"]}, "decoding": {"tag": "<2en>"}}, "decoding.tag: <2en>"),
    ],
)
def test_what_argos_cannot_do_is_named(
    checkpoint: Checkpoint, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        export_argos(checkpoint(**options), tmp_path / "de-en.argosmodel")
    with pytest.raises(UserError, match=r"name a package, such as de-en\.argosmodel"):
        export_argos(checkpoint(**options), tmp_path / "de-en")
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_argos_translate_itself_installs_it(tmp_path: Path) -> None:
    """The current one, from the package index, in an environment of its own: 500 translations are ours."""
    parts = ("train", "valid", "test")
    files = [f"data.{one}={{source: {SAMPLE / one}.de, target: {SAMPLE / one}.en}}" for one in parts]
    config = load_config(ROOT / "transformer_cli" / "demo" / "config.yaml", [*files, "training.max_steps=300"])
    trained = train(config, tmp_path / "run", device="cpu", quiet=True).run
    export_argos(find_model(trained), tmp_path / "de-en.argosmodel")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    (tmp_path / "torch").write_text("torch==2.13.0\n")  # the build for a CPU
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", tmp_path / "torch", "argostranslate"], check=True)
    lines = (SAMPLE / "test.de").read_text("utf-8").split("\n")[:-1]
    given = "".join(f"{line}\n" for line in lines)
    environment = {
        "HOME": str(tmp_path),
        "PATH": "",
        "ARGOS_COMPUTE_TYPE": "float32",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    command = [str(python), "-c", TRANSLATE, str(tmp_path / "de-en.argosmodel")]
    done = subprocess.run(command, input=given, check=True, capture_output=True, text=True, env=environment)
    theirs = done.stdout.split("\n")[:-1]
    assert len(theirs) == len(lines) == 500
    # Argos counts </s> in the length of a translation, which chooses another one now and then.
    assert sum(one == other for one, other in zip(theirs, translate(find_model(trained), lines), strict=True)) >= 485
