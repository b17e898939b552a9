"""The sentences of the copy mechanism: names and numbers of the test set are new, and stand on both sides."""

from collections import Counter
from pathlib import Path

import pytest

from data.sample.make.dice import Dice
from data.sample.make.names import SPLITS, TEMPLATES, WORDS, main, sentences, write_names
from transformer_cli import Translator
from transformer_cli.codecs import model_codecs
from transformer_cli.config import load_config
from transformer_cli.text.build import build_codecs
from transformer_cli.training.run import train

CONFIG = Path(__file__).parents[2] / "configs" / "copy_mechanism.yaml"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines of each file."""
    folder = tmp_path_factory.mktemp("names")
    write_names(folder)
    return {path.name: path.read_text(encoding="utf-8").splitlines() for path in folder.iterdir()}


def test_they_are_the_same_every_time(lines: dict[str, list[str]]) -> None:
    again = sentences(Dice(1))
    for pair in zip(lines["train.de"][:200], lines["train.en"][:200], strict=True):
        assert pair == next(again)
    assert {name: len(some) for name, some in lines.items()} == {
        f"{split}.{side}": size for split, size in SPLITS.items() for side in ("de", "en")
    }


def test_a_name_or_number_stands_in_one_pair_alone_and_on_both_sides(lines: dict[str, list[str]]) -> None:
    sources, targets = (
        [line.split() for split in SPLITS for line in lines[f"{split}.{side}"]] for side in ("de", "en")
    )
    counts = Counter(word for line in sources for word in set(line))
    ordinary = {word for word, count in counts.items() if count > 1}
    assert 80 < len(ordinary) < 150
    for source, target in zip(sources, targets, strict=True):
        names = [word for word in source if word not in ordinary]
        assert 2 <= len(names) <= 4
        assert set(names) <= set(target)


def test_the_vocabulary_of_the_config_holds_no_name(lines: dict[str, list[str]]) -> None:
    pairs = list(zip(lines["train.de"], lines["train.en"], strict=True))
    config = load_config(CONFIG)
    codecs = model_codecs(build_codecs(config, lambda: pairs)[0], config)
    unknown = [word for word in codecs.target.vocabulary.get_itos() if any(character.isdigit() for character in word)]
    assert not unknown
    assert len(codecs.target.vocabulary) < 120
    sources, targets = codecs.encode_pairs(lines["test.de"], lines["test.en"])
    assert not any(1 in ids for ids in (*sources, *targets)), "all can be copied"


def test_templates_fit_together() -> None:
    for source, target in TEMPLATES:
        filled = dict.fromkeys(("person", "other", "place", "town", "number", *WORDS), "x")
        assert sorted(source.format(**filled).split()).count("x") == sorted(target.format(**filled).split()).count("x")


@pytest.mark.slow
def test_every_name_and_number_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_names(Path("data/names"))
    run = train(load_config(CONFIG), "copy", quiet=True).run
    sources, wanted = (
        Path(f"data/names/test.{side}").read_text(encoding="utf-8").splitlines() for side in ("de", "en")
    )
    found = Translator.load(run, device="cpu").translate(sources)
    right = sum(a == b for a, b in zip(found, wanted, strict=True))
    assert right >= 0.99 * len(wanted)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "file")])
    assert f"error: {tmp_path / 'file'}: cannot write" in capsys.readouterr().err
