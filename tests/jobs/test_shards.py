"""Shards hold each line once, in order; a part's name tells its lines and its recipe; parts are whole."""

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Constraints, Line
from transformer_cli.errors import UserError
from transformer_cli.jobs import shards as sharding
from transformer_cli.jobs.shards import NAME, Parts, Shard, run_jobs, shards, wait_for_parts


def test_shards_are_the_text_and_none_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SHARD_LINES", 3)
    monkeypatch.setattr(sharding, "SHARD_CHARACTERS", 100)
    lines = ["a", "", "b", "c", "x" * 1000, "d", "e", "f", "g"]
    found = list(shards(map(Line, lines)))
    assert [line.text for shard in found for line in shard.lines] == lines
    assert [shard.number for shard in found] == [0, 1, 2, 3]
    assert [shard.first for shard in found] == [0, 3, 5, 8]
    assert [len(shard.lines) for shard in found] == [3, 2, 3, 1]
    assert list(shards([])) == []


def test_no_more_is_read_than_the_shard_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SHARD_LINES", 2)
    lines = map(Line, "abcdef")
    next(shards(lines))
    assert next(lines) == Line("c")


def test_a_name_tells_place_lines_and_recipe() -> None:
    def shard(number: int, first: int, *lines: str, constraints: Constraints = NO_CONSTRAINTS) -> Shard:
        return Shard(number, first, [Line(line, constraints) for line in lines])

    others = [shard(2, 5, "a", "b"), shard(1, 6, "a", "b"), shard(1, 5, "a\nb"), shard(1, 5, "a", "c")]
    others.append(shard(1, 5, "a", "b", constraints=Constraints(required=("x",))))
    names = {
        shard(1, 5, "a", "b").name("r"),
        shard(1, 5, "a", "b").name("other"),
        *(other.name("r") for other in others),
    }
    assert len(names) == 7
    assert all(NAME.fullmatch(name) for name in names)
    assert shard(1, 5, "a", "b").name("r") in names


def test_a_part_comes_back_as_it_was(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out")
    rows = ["a\tb", "", "\u2028\r\x85", '{"x": 1}', "\udcff"]
    name = Shard(0, 0, [Line("x")]).name("r")
    with parts.held():
        assert not parts.has(name)
        parts.keep(name, rows, Counter(cut_lines=2))
        assert parts.has(name)
    assert list(parts.rows([name])) == [*rows[:-1], "?"]
    assert parts.total([name, name]) == Counter(cut_lines=4)
    assert [path.name for path in tmp_path.iterdir()] == ["out.parts"]
    assert parts.names() == [path.name for path in parts.folder.iterdir()] == [name]


@pytest.mark.parametrize("damaged", ["", "\n", "{}\ny\n", "[]\ny\n", '{"counts": {}, "sha256": "0"}\ny\n'])
def test_a_damaged_part_is_neither_joined_nor_deleted(damaged: str, tmp_path: Path) -> None:
    parts, name = Parts(tmp_path / "out"), Shard(0, 0, [Line("x")]).name("r")
    with parts.held():
        (parts.folder / name).write_text(damaged)
        for read in (lambda: list(parts.rows([name])), lambda: parts.total([name])):
            with pytest.raises(UserError, match="is damaged; delete it"):
                read()
        parts.remove()
    assert (parts.folder / name).read_text() == damaged


def test_removing_takes_parts_and_nothing_else(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out")
    mine = {"mine", ".tmp-half", "recipe.json", ".tmp-part-0123abcd", f"000001-{'0' * 32}"}
    with parts.held():
        parts.keep(Shard(0, 0, [Line("x")]).name("r"), ["y"], Counter())
        parts.keep(Shard(0, 0, [Line("other")]).name("r"), ["y"], Counter())
        for name in mine:
            (parts.folder / name).write_text("mine")
        parts.remove()
    assert {path.name for path in parts.folder.iterdir()} == mine
    for name in mine:
        (parts.folder / name).unlink()
    with parts.held():
        pass
    assert not parts.folder.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.parts").write_text("")
    with pytest.raises(UserError, match=r"out\.parts: cannot be made"), Parts(tmp_path / "out").held():
        pass


class Machines:
    """A cluster whose workers end with the last shard first."""

    def map(self, prepare: Any, items: Any) -> Iterator[Any]:
        work = prepare(0)
        yield from reversed([(number, item, work(item)) for number, item in enumerate(items)])

    def __str__(self) -> str:
        return "2 workers of the cluster"


class Lost(Machines):
    def map(self, prepare: Any, items: Any) -> Iterator[Any]:
        raise ChildProcessError(errno.ECHILD, "no machine of the cluster is left")


def test_what_machines_find_is_kept_here(tmp_path: Path) -> None:
    found = [Shard(number, number, [Line(text)]) for number, text in enumerate("abc")]
    kept: list[tuple[int, list[str]]] = []

    def keep(shard: Shard, rows: list[str], counts: Counter[str], engine: str) -> tuple[int, str]:
        kept.append((shard.number, rows))
        return len(rows), engine

    def work(jobs: Any) -> Any:
        def load(_: int) -> Any:
            return lambda shard: ([line.text.upper() for line in shard.lines], Counter(), "torch")

        return SimpleNamespace(jobs=jobs, load=load, keep=keep)

    assert list(run_jobs(work(Machines()), found)) == 3 * [(1, "torch, on 2 workers of the cluster")]
    assert kept == [(2, ["C"]), (1, ["B"]), (0, ["A"])]
    with pytest.raises(ChildProcessError, match="no machine of the cluster is left; what is done is kept"):
        list(run_jobs(work(Lost()), found))


def test_parts_of_others_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([1.0, 31.0, 31.0, 32.0])
    said: list[str] = []
    missing: list[set[str]] = [{"a", "b"}, {"b"}, set()]
    monkeypatch.setattr("time.sleep", lambda _: missing.pop(0))
    monkeypatch.setattr("time.monotonic", lambda: next(waits))
    parts: Any = SimpleNamespace(has=lambda name: name not in missing[0])
    wait_for_parts(parts, ["a", "b", "c"], said.append)
    assert said == ["waiting for 2 of 3 parts, which other processes translate"]
    assert missing == [set()]
