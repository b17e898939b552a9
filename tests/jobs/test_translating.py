"""How to translate is one value: checked when made, sent to other processes, known again by its fingerprint."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.decoding.checkpoints import make_checkpoint
from transformer_cli import config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.decoding import loading
from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.jobs import shards
from transformer_cli.jobs.distilling import distill
from transformer_cli.jobs.layout import Format, Layout
from transformer_cli.jobs.shards import translate_file
from transformer_cli.jobs.training_set import TrainingSet
from transformer_cli.jobs.translating import TranslationOptions

TEXT = ["ba da fa", "", "ga", "ke kö", "ba ba ba", "da ga"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture
def options(folder: Path) -> TranslationOptions:
    return TranslationOptions(FoundModel.at(folder), engine="torch", device="cpu", search={"beam_size": 2})


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_model_is_found_and_its_config_read_once(
    engine: str, folder: Path, options: TranslationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="the ctranslate2 engine needs CTranslate2")
        replace(options, engine=engine).load_translator()  # makes the engine's own copy of the model
    asked: list[str] = []

    def noting(name: str, real: Callable[..., Any], *given: Any) -> Any:
        asked.append(name)
        return real(*given)

    for module, name in ((config, "parse_config"), (loading, "find_model")):
        monkeypatch.setattr(module, name, partial(noting, name, getattr(module, name)))
    chosen = replace(options, model=FoundModel.at(folder), engine=engine)
    loaded = chosen.load()
    chosen.fingerprint()
    assert [translation.line.text for translation in loaded.translate(TEXT)] == TEXT
    assert asked == ["find_model", "parse_config"]


def test_it_can_be_sent_to_other_processes(options: TranslationOptions) -> None:
    sent = pickle.loads(pickle.dumps(options))  # noqa: S301  (our own)
    assert sent == options
    assert sent.fingerprint() == options.fingerprint()
    assert [one.text for one in sent.load().translate(TEXT)] == [one.text for one in options.load().translate(TEXT)]


def test_all_that_may_change_a_line_changes_the_fingerprint(
    options: TranslationOptions, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "terms").write_text("ba\tda\n")
    (tmp_path / "others").write_text("ba\tga\n")
    other = FoundModel.at(make_checkpoint(tmp_path / "model", seed=2))
    changes: list[dict[str, Any]] = [
        {},
        {"model": other},
        {"beside": (other,), "engine": "auto"},
        {"device": "cuda"},
        {"engine": "auto"},
        {"compute_type": "bfloat16"},
        {"search": {"beam_size": 3}},
        {"mbr": True},
        {"guard": False},
        {"alignments": True},
        {"alignment_layer": 1},
        {"alignment_heads": (2,)},
        {"batch_tokens": 7},
        {"keep_unknown": True},
        {"constrained": True},
        {"protect": False},
        {"glossary": tmp_path / "terms"},
        {"glossary": tmp_path / "others"},
        {"tag": ""},
    ]
    found = [str(replace(options, **change).fingerprint()) for change in changes]
    assert len(set(found)) == len(found)
    assert {name for change in changes for name in change} == set(TranslationOptions.__dataclass_fields__)
    same = replace(options.model, name=Path("another/name"))
    assert replace(options, model=same).fingerprint() == options.fingerprint()
    orders = [{"beam_size": 3, "n_best": 2}, {"n_best": 2, "beam_size": 3}]
    assert len({str(replace(options, search=search).fingerprint()) for search in orders}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alignment_layer": 3}, "--alignment-layer: the decoder of .* has 2 of them"),
        ({"alignment_heads": (0, 1)}, "--alignment-heads: the decoder of .* has 3 of them"),
        ({"search": {"n_best": 9}}, "n.best"),
        ({"search": {"iterations": 3}}, "--iterations: is of models with generation: mask_predict"),
        ({"glossary": Path("no/such")}, "no/such: no such file"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_it_is_loaded(
    changes: dict[str, Any], message: str, options: TranslationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "load", lambda *_, **__: pytest.fail("no weights are needed for that"))
    with pytest.raises(UserError, match=message):
        replace(options, **changes)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_file_is_translated_from_python(
    jobs: int, options: TranslationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_LINES", 4)
    loaded = options.load()
    expected = [one.text for one in loaded.translate(TEXT)]
    said: list[str] = []
    notes = translate_file(options, map(Line, TEXT), tmp_path / "plain", jobs=jobs, note=said.append)
    assert notes == loaded.notes != []
    assert (tmp_path / "plain").read_text().split("\n") == [*expected, ""]
    assert said == ["engine: torch"]
    numbered = Layout(format=Format.TSV)
    translate_file(options, map(Line, TEXT), tmp_path / "table", numbered, jobs=jobs)
    rows = [row.split("\t") for row in (tmp_path / "table").read_text().splitlines()]
    assert [(row[0], row[2]) for row in rows] == [(str(number), text) for number, text in enumerate(expected, start=1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "table"]


def test_parts_of_another_layout_are_refused(
    options: TranslationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards.Parts, "remove", lambda self: None)
    translate_file(options, map(Line, TEXT), tmp_path / "out")
    before = sorted(path.name for path in (tmp_path / "out.parts").iterdir())
    for layout in (Layout(), Layout(scores=True), Layout(format=Format.JSON)):
        with pytest.raises(UserError, match="was made with another output format"):
            translate_file(options, map(Line, TEXT), tmp_path / "out", layout)
    assert sorted(path.name for path in (tmp_path / "out.parts").iterdir()) == before


def test_constraints_travel_with_their_lines(options: TranslationOptions, tmp_path: Path) -> None:
    lines = [Line("ba da", Constraints(prefix="more")), Line("ga"), Line("ba da")]
    translate_file(replace(options, constrained=True), lines, tmp_path / "out")
    first, _, last = (tmp_path / "out").read_text().splitlines()
    assert first.startswith("more")
    assert not last.startswith("more")


class Watched:
    """Keeps what a long translation reports."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int, int | None]] = []

    def __enter__(self) -> Any:
        return lambda *reported: self.done.append(reported)

    def __exit__(self, *_: object) -> None:
        pass


def test_a_training_set_is_distilled_from_python(options: TranslationOptions, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in TEXT))
    (tmp_path / "b").write_text("".join(f"{line} x\n" for line in TEXT))
    corpus, made = TextCorpus(tmp_path / "a", tmp_path / "b"), TrainingSet(tmp_path / "out", "train.de", "train.en")
    watched = Watched()
    for times in (1, 2):  # the second call finds it finished
        notes = distill(options, corpus, made, progress=watched, with_original=True)
        assert bool(notes) is (times == 1)  # of the empty line
    expected = [one.text for one in options.load().translate(TEXT)]
    assert (made.folder / made.target).read_text().splitlines() == [*expected, *(f"{line} x" for line in TEXT)]
    assert watched.done == [(6, 0, 6)]
