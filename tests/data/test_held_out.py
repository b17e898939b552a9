"""Pairs held out of the training text: which they are, that none is learned from, that they come back as saved."""

import gzip
import json
import random
from pathlib import Path

import pytest

from transformer_cli.config import Config
from transformer_cli.data import held_out as module
from transformer_cli.data.held_out import HeldOut, normalized, open_corpora, open_saved, split_tag
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import RunFolder

Pairs = list[tuple[str, str]]
# Characters that have more than one spelling, or that some reader of lines would lose.
WORDS = ["Hund", "Katze", "straße", "Ａ", "\u2028", "\ufeffx", "it's", "é", "e\u0301"]


def some_pairs(count: int, seed: int = 1) -> Pairs:
    rng = random.Random(seed)
    return [tuple(f"{' '.join(rng.choices(WORDS, k=4))} {side}{row}" for side in "st") for row in range(count)]  # type: ignore[misc]


def write_text(folder: Path, pairs: Pairs) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    for place, name in enumerate(("a.de", "a.en")):
        (folder / name).write_text("".join(f"{pair[place]}\n" for pair in pairs), encoding="utf-8", newline="\n")
    return {"source": str(folder / "a.de"), "target": str(folder / "a.en")}


def configure(train: dict[str, str], seed: int = 1) -> Config:
    data = {"source_language": "de", "target_language": "en", "train": train}
    return Config.model_validate({"data": data, "training": {"seed": seed}})


def chosen(folder: Path, pairs: Pairs, seed: int = 1) -> HeldOut:
    config = configure(write_text(folder, pairs), seed)
    held_out = open_corpora(config, RunFolder(folder / "run"), resuming=False).held_out
    assert held_out is not None
    return held_out


def test_one_pair_in_twenty_is_held_out_and_a_thousand_at_most(tmp_path: Path) -> None:
    assert len(chosen(tmp_path, some_pairs(200))) == 10
    assert len(chosen(tmp_path, some_pairs(3_019))) == 150
    assert len(chosen(tmp_path, some_pairs(30_000))) == 1_000


def test_neither_order_nor_spelling_nor_repetition_changes_what_is_held_out(tmp_path: Path) -> None:
    pairs = some_pairs(600)
    first = list(chosen(tmp_path, pairs).pairs())
    assert len(first) == 30
    assert {source for source, _ in first} < {source.replace("\u2028", " ").lstrip("\ufeff") for source, _ in pairs}
    again = [*pairs, *pairs[:300], *((source.upper(), f" {target} ") for source, target in pairs)]
    random.Random(3).shuffle(again)
    keys = [tuple(map(normalized, pair)) for pair in first]
    assert [tuple(map(normalized, pair)) for pair in chosen(tmp_path, again).pairs()] == keys
    spelled = list(chosen(tmp_path, again).pairs())
    assert list(chosen(tmp_path, again[::-1]).pairs()) == spelled
    random.Random(4).shuffle(pairs)
    assert list(chosen(tmp_path, pairs).pairs()) == first
    assert list(chosen(tmp_path, pairs, seed=2).pairs()) != first


def test_no_sentence_that_is_held_out_is_on_either_side_of_what_is_left(tmp_path: Path) -> None:
    pairs = some_pairs(400)
    (source, target), *_ = chosen(tmp_path, pairs).pairs()
    pairs += [
        (f"\t{source.upper()}", "one"),
        ("two", f"{target}  "),
        (target, "three"),
        ("four", source),
        ("five", "six"),
    ]
    corpora = open_corpora(configure(write_text(tmp_path, pairs)), RunFolder(tmp_path / "run"), resuming=False)
    assert corpora.held_out is not None
    held = {normalized(text) for pair in corpora.held_out.pairs() for text in pair}
    left = list(corpora.train.pairs())
    assert left == [pair for pair in pairs if not held & {*map(normalized, pair)}]
    assert not {*left} & {*pairs[400:404]}
    repeated = 405 - 20 - len(left)
    assert repeated >= 3  # of these four, one may be held out itself
    assert "data.valid is not set: 20 pairs held out of data.train" in corpora.notes[0]
    assert corpora.notes[0].endswith(f"; {repeated} pairs that repeat one of their sentences are left out")
    assert str(tmp_path / "run" / "held-out" / "source.de") in corpora.notes[0]
    assert corpora.train.content_hash() != corpora.sources[0].whole.content_hash()
    assert corpora.valid is corpora.held_out


def test_repetitions_are_counted_only_where_there_are_some(tmp_path: Path) -> None:
    notes = []
    for repeated in (0, 1):
        pairs = some_pairs(200 + repeated)
        corpora = open_corpora(
            configure(write_text(tmp_path, pairs[:200])), RunFolder(tmp_path / "run"), resuming=False
        )
        assert corpora.held_out is not None
        if repeated:
            first = next(corpora.held_out.pairs())
            corpora = open_corpora(
                configure(write_text(tmp_path, [*pairs[:200], (first[0], "another translation")])),
                RunFolder(tmp_path / "run"),
                resuming=False,
            )
        notes += corpora.notes
    assert "repeat" not in notes[0]
    assert notes[1].endswith("; 1 pair that repeats one of their sentences is left out")


def test_what_is_encoded_is_known_by_what_is_held_out_too(tmp_path: Path) -> None:
    """Else the cache would give one run what another has left."""
    train = write_text(tmp_path, some_pairs(200))
    run = RunFolder(tmp_path / "run")
    hashes = [open_corpora(configure(train, seed), run, resuming=False).train.content_hash() for seed in (1, 2, 1)]
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "gz", "hub"])
def test_every_kind_of_source_gives_the_same_pairs(tmp_path: Path, kind: str) -> None:
    pairs = [(source.replace("\u2028", ""), target) for source, target in some_pairs(220)]
    expected = list(chosen(tmp_path, pairs).pairs())
    file = tmp_path / f"a.{kind}"
    if kind == "tsv":
        file.write_text("de\ten\n" + "".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    elif kind == "csv":
        file.write_text("de,en\r\n" + "".join(f'"{source}","{target}"\r\n' for source, target in pairs), "utf-8")
    elif kind == "jsonl":
        file.write_text("".join(json.dumps({"de": source, "en": target}) + "\n" for source, target in pairs), "utf-8")
    train: dict[str, str] = {"file": str(file)}
    if kind == "gz":
        train = {side: f"{path}.gz" for side, path in write_text(tmp_path, pairs).items()}
        for path in train.values():
            Path(path).write_bytes(gzip.compress(Path(path).with_suffix("").read_bytes()))
    elif kind == "hub":
        pytest.importorskip("datasets", reason="hub datasets need the extra datasets")
        (tmp_path / "hub").mkdir()
        rows = "".join(json.dumps({"de": source, "en": target}) + "\n" for source, target in pairs)
        (tmp_path / "hub" / "train.jsonl").write_text(rows, "utf-8")
        train = {"dataset": str(tmp_path / "hub"), "split": "train"}
    corpora = open_corpora(configure(train), RunFolder(tmp_path / "run"), resuming=False)
    assert list(corpora.valid.pairs()) == expected


def test_what_is_saved_is_what_comes_back(tmp_path: Path) -> None:
    pairs = [("\ufeff\ufeffa\x85b\r", "c\u2029\x0cd"), *some_pairs(199, seed=5)]
    pairs = [(f"{source.replace(chr(10), ' ')}", target) for source, target in pairs]
    held_out = chosen(tmp_path, pairs)
    publish(tmp_path / "held-out", held_out.save)
    config = configure({"source": "gone", "target": "gone"})
    back = HeldOut.load(tmp_path / "held-out", config.data)
    assert list(back.pairs()) == list(held_out.pairs())
    assert back.content_hash() == held_out.content_hash()
    assert back.notes == []
    files = {path.name for path in (tmp_path / "held-out").iterdir()}
    assert files == {"source.de", "target.en", "manifest.json"}
    first = (tmp_path / "held-out" / "source.de").read_text("utf-8").split("\n")[0]
    assert first == next(held_out.pairs())[0]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (some_pairs(199), "data.train has 199 different pairs, too few .* 200"),
        (some_pairs(20) * 50, "data.train has 20 different pairs"),
        ([*some_pairs(199), ("", "x"), (" \t", "y"), ("z", "")], "data.train has 199 different pairs"),
        ([(source, "OK") for source, _ in some_pairs(300)], "15 pairs held out .* 300 of its 300 pairs are lost"),
    ],
)
def test_text_that_gives_no_validation_pairs_is_refused(tmp_path: Path, pairs: Pairs, message: str) -> None:
    with pytest.raises(UserError, match=f"data.valid: is not set, and .*{message}.*; name validation files"):
        chosen(tmp_path, pairs)


def test_a_folder_that_is_not_the_runs_is_never_written_over(tmp_path: Path) -> None:
    config = configure(write_text(tmp_path, some_pairs(200)))
    (tmp_path / "run" / "held-out").mkdir(parents=True)
    with pytest.raises(UserError, match=r"held-out: is in the way .*--out"):
        open_corpora(config, RunFolder(tmp_path / "run"), resuming=False)


def test_a_models_validation_pairs_lie_beside_it(tmp_path: Path) -> None:
    config = configure(write_text(tmp_path, some_pairs(200)))
    held_out = chosen(tmp_path, some_pairs(200))
    run = tmp_path / "run"
    (run / "step-00000001").mkdir(parents=True)
    publish(run / "held-out", held_out.save)
    (tmp_path / "link").symlink_to(run / "step-00000001")
    for model in (run / "step-00000001", tmp_path / "link"):
        assert list(open_saved(config.data, "valid", model).pairs()) == list(held_out.pairs())
    (tmp_path / "copied").mkdir()
    with pytest.raises(UserError, match=r"held-out: no such folder; .* not beside the model"):
        open_saved(config.data, "valid", tmp_path / "copied")


def test_choosing_holds_no_more_pairs_than_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, however long the text is."""
    sizes = []

    class Watched(module.Smallest):
        def add(self, rank: int, pair: tuple[str, str]) -> None:
            super().add(rank, pair)
            sizes.append((self._capacity, len(self.pairs), len(self._heap)))

    monkeypatch.setattr(module, "Smallest", Watched)
    monkeypatch.setattr(module, "MOST", 10)
    config = configure(write_text(tmp_path, some_pairs(1_000)))
    corpora = open_corpora(config, RunFolder(tmp_path / "run"), resuming=False)
    assert corpora.held_out is not None
    assert len(corpora.held_out) == 10
    assert all(pairs == kept <= capacity for capacity, pairs, kept in sizes)
    assert {capacity for capacity, _, _ in sizes} == {10, 200}


def test_a_split_has_its_own_tag_else_that_of_the_decoding_and_held_out_pairs_that_of_their_sources() -> None:
    files, tagged = {"source": "a", "target": "b"}, {"source": "c", "target": "d", "tag": "<x>"}

    def tags(**data: object) -> tuple[str | None, str | None]:
        config = Config.model_validate(
            {
                "data": {"source_language": "de", "target_language": "en", **data},
                "vocabulary": {"symbols": ["<x>", "<y>"]},
                "decoding": {"tag": "<y>"},
            }
        )
        return split_tag(config, "valid"), split_tag(config, "test")

    assert tags(train=files, valid=files, test=tagged) == ("<y>", "<x>")
    assert tags(train=files, valid=tagged, test=files) == ("<x>", "<y>")
    assert tags(train=[tagged], test=files)[0] == "<x>"
    assert tags(train=[tagged, files], test=files)[0] is None
