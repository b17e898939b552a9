"""`data.filters`: what is left out of training is counted, known to the cache, and the same when a run continues."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.data.quality.conftest import Pair
from transformer_cli.config import Config
from transformer_cli.data.held_out import open_corpora
from transformer_cli.data.quality.languages import find_identifier
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder, find_model
from transformer_cli.training.run import train
from transformer_cli.training.start import build_vocabulary

FAULTS = [("der Hund schläft heute im Garten", "der Hund schläft heute im Garten"), ("a b", "c \x01 d")]


def write(folder: Path, name: str, pairs: list[Pair]) -> dict[str, str]:
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")
    return {"source": str(folder / f"{name}.de"), "target": str(folder / f"{name}.en")}


@pytest.fixture
def faulty(sample: list[Pair]) -> list[Pair]:
    """300 pairs, 3 of which come twice, and 2 faulty ones."""
    return [*sample[:150], *FAULTS, *sample[150:300], *sample[10:13]]


def configure(folder: Path, pairs: list[Pair], filters: list[Any], valid: list[Pair] | None, **training: Any) -> Config:
    data = {"source_language": "de", "target_language": "en", "workers": 0, "filters": filters}
    data |= {"train": write(folder, "train", pairs)}
    data |= {"valid": write(folder, "valid", valid)} if valid else {}
    return Config.model_validate(
        {
            "data": data,
            "vocabulary": {"tokenizer": "whitespace"},
            "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16},
            "training": {"max_steps": 2, "validate_every": 2, "save_every": 1, "validation_sentences": 4, **training},
        }
    )


ALL = ["duplicate_pair", "identical_sides", "control_characters"]


def test_faulty_pairs_are_left_out_and_counted(tmp_path: Path, faulty: list[Pair], sample: list[Pair]) -> None:
    config = configure(tmp_path, faulty, ALL, sample[400:420])
    corpora = open_corpora(config, RunFolder(tmp_path / "run"), resuming=False)
    assert [*corpora.train.pairs()] == sample[:300]
    assert corpora.train.notes == [
        "data.filters leave out 5 of 305 pairs: 3 duplicate_pair, 1 identical_sides, 1 control_characters"
    ]
    assert [*corpora.sources[0].whole.pairs()] == faulty


def test_of_several_sources_each_names_what_its_filters_leave_out(tmp_path: Path, faulty: list[Pair]) -> None:
    config = configure(tmp_path, faulty, ALL, faulty[:20])
    data = config.data.model_copy(update={"train": [config.data.train]})
    corpora = open_corpora(config.model_copy(update={"data": data}), RunFolder(tmp_path / "run"), resuming=False)
    assert len([*corpora.train.pairs()]) == 300
    (note,) = corpora.train.notes
    assert re.match(r"filters leave out 5 of 305 pairs of .*train\.de.*: 3 duplicate_pair, ", note)


def test_a_source_with_a_tag_is_compared_with_both_sides(tmp_path: Path, sample: list[Pair]) -> None:
    """It may be of the other direction, so that the target of one is the source of the other."""
    exchanged = [(target, source) for source, target in sample[:30]]
    config = configure(tmp_path, exchanged, ["overlap_valid"], sample[20:25])
    shared, hashes = {*sample[20:25]}, []
    for tag, some in ((None, exchanged), ("<2de>", [pair for pair in exchanged if pair[::-1] not in shared])):
        train = config.data.train.model_copy(update={"tag": tag})  # type: ignore[union-attr]
        tagged = config.model_copy(update={"data": config.data.model_copy(update={"train": train})})
        corpora = open_corpora(tagged, RunFolder(tmp_path / "run"), resuming=False)
        assert [*corpora.train.pairs()] == some
        hashes.append(corpora.train.content_hash())
    assert hashes[0] != hashes[1]


def test_each_filter_is_known_to_the_cache(tmp_path: Path, faulty: list[Pair], sample: list[Pair]) -> None:
    hashes = []
    for filters in ([], ALL, ALL[:1], [*ALL, {"length_ratio": 3.0}], [*ALL, {"length_ratio": 2.0}], ALL):
        config = configure(tmp_path, faulty, filters, sample[400:420])
        hashes.append(open_corpora(config, RunFolder(tmp_path / "run"), resuming=False).train.content_hash())
    assert hashes[1] == hashes[5]
    assert len({*hashes}) == 5


def test_what_validation_shares_is_left_out(tmp_path: Path, faulty: list[Pair], sample: list[Pair]) -> None:
    config = configure(tmp_path, faulty, ["overlap_valid"], sample[5:8])
    left = [*open_corpora(config, RunFolder(tmp_path / "run"), resuming=False).train.pairs()]
    assert not {*sample[5:8]} & {*left}
    assert len(left) <= len(faulty) - 3


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("own", [False, True])
def test_a_filter_without_what_it_compares_with_is_refused(
    tmp_path: Path, sample: list[Pair], split: str, own: bool
) -> None:
    config = configure(tmp_path, sample[:50], [] if own else [f"overlap_{split}"], None)
    if own:
        source = config.data.train.model_copy(update={"filters": [f"overlap_{split}"]})  # type: ignore[union-attr]
        config = config.model_copy(update={"data": config.data.model_copy(update={"train": source})})
    where = r"data\.train\.filters" if own else r"data\.filters"
    with pytest.raises(UserError, match=rf"^{where}: overlap_{split} compares with data\.{split}, which is not set;"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_pairs_are_held_out_of_what_is_left(tmp_path: Path, faulty: list[Pair]) -> None:
    config = configure(tmp_path, faulty, ALL, None)
    corpora = open_corpora(config, RunFolder(tmp_path / "run"), resuming=False)
    assert corpora.held_out is not None
    assert not {*FAULTS} & {*corpora.held_out.pairs()}
    assert not {*FAULTS} & {*corpora.train.pairs()}


@pytest.mark.parametrize("held_out", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_continues_with_the_same_pairs(
    tmp_path: Path, faulty: list[Pair], sample: list[Pair], held_out: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    valid = None if held_out else sample[400:420]
    for name, steps in (("once", [2]), ("twice", [1, 2])):
        for step in steps:
            capsys.readouterr()
            train(configure(tmp_path, faulty, ALL, valid, max_steps=step), tmp_path / name)
            assert "data.filters leave out 5 of 305 pairs" in capsys.readouterr().err or step > steps[0]
    once, twice = (tmp_path / name / "step-00000002" / "model.safetensors" for name in ("once", "twice"))
    assert once.read_bytes() == twice.read_bytes()


def test_guided_alignments_stay_with_their_pairs(tmp_path: Path, faulty: list[Pair], sample: list[Pair]) -> None:
    """The file has a line for each line of data.train, those that are left out too."""
    pairs = [(source, source.upper()) for source, _ in faulty]
    lines = [" ".join(f"{word}-{word}" for word in range(len(source.split()))) for source, _ in pairs]
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in lines))  # a shifted line would name missing words
    guide = {"prior": "alignments", "alignments": str(tmp_path / "a")}
    config = configure(tmp_path, pairs, ["duplicate_pair"], sample[400:420], max_steps=1, guided_attention=guide)
    train(config, tmp_path / "run", quiet=True)


def test_the_languages_are_saved_with_the_run(tmp_path: Path, sample: list[Pair]) -> None:
    config = configure(tmp_path, sample[:400], [], sample[400:420], max_steps=1)
    train(config, tmp_path / "run", quiet=True)
    build_vocabulary(config, tmp_path / "built")
    for model in (find_model(tmp_path / "run"), tmp_path / "built" / "step-00000001"):
        found = find_identifier(model)
        assert found is not None
        assert found.identify("Der Hund schläft.")[0] == "de"
        assert found.identify("The dog sleeps.")[0] == "en"
    small = configure(tmp_path, sample[:50], [], sample[400:420], max_steps=1)
    train(small, tmp_path / "small", quiet=True)
    assert find_identifier(find_model(tmp_path / "small")) is None


@pytest.mark.parametrize("filters", [["spelling"], [{"length_ratio": 0.5}], [{"markup": 2}], "markup"])
def test_what_is_no_filter_is_refused(tmp_path: Path, sample: list[Pair], filters: Any) -> None:
    with pytest.raises((UserError, ValueError), match="filters"):
        configure(tmp_path, sample[:20], filters, None)
