"""Prefix, required and forbidden words: of every line and of each line; what nothing can obey is refused at once."""

import json
from pathlib import Path
from typing import Any

import pytest

LINES = ["ein hund schläft", "", "zwei katze sieht", "drei haus"]


def words(text: str) -> list[str]:
    return text.split()


def test_every_translation_obeys_what_is_demanded_of_all(trial: Any, tfm: Any) -> None:
    plain = tfm("translate", trial.words, *LINES, "--beam", 3)
    first = next(word for word in words(plain.out))
    constraint = ["--prefix", "two", "--require", "mouse", "--require", "green tree", "--forbid", first]
    done = tfm("translate", trial.words, *LINES, "--beam", 3, *constraint)
    assert done.code == 0, done.err
    rows = done.out.split("\n")[:-1]
    assert rows[1] == ""
    for row in (rows[0], rows[2], rows[3]):
        assert row.startswith("two")
        assert "mouse" in words(row)
        assert "green tree" in row
        assert first not in words(row)


@pytest.mark.parametrize("way", [[], ["--stream"], ["--jobs", 1]], ids=str)
def test_each_line_obeys_its_own(way: list[object], trial: Any, tfm: Any, tmp_path: Path) -> None:
    source, file, output = tmp_path / "source", tmp_path / "constraints.jsonl", tmp_path / "output"
    source.write_text("\n".join(LINES) + "\n")
    objects = [{"require": ["cat"]}, {"require": ["dog"]}, None, {"prefix": "one big", "forbid": ["house"]}]
    file.write_text("".join((json.dumps(one) if one else "") + "\n" for one in objects))
    run = ["translate", trial.words, "-i", source, "-o", output, "--constraints", file, "--prefix", "red"]
    done = tfm(*run, *way)
    assert done.code == 0, done.err
    rows = output.read_text().split("\n")[:-1]
    assert rows[1] == ""
    assert [row.startswith("red") for row in rows] == [True, False, True, False]
    assert "cat" in words(rows[0])
    assert rows[3].startswith("one big")
    assert "house" not in words(rows[3])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "constraints:2: is not JSON"),
        ("[" * 100_000, "constraints:2: is not JSON"),
        ("[1]", 'constraints:2: is not a JSON object; write one such as {"require"'),
        ('{"required": ["a"]}', "unknown key 'required'; allowed: prefix, require or forbid"),
        ('{"require": "a"}', "constraints:2: require should be a list of texts"),
        ('{"forbid": [1]}', "constraints:2: forbid should be a list of texts"),
        ('{"prefix": null}', "constraints:2: prefix should be a text"),
        ('{"require": [""]}', "constraints:2: require: a text is empty"),
        ('{"require": ["a b"], "forbid": ["b"]}', "constraints:2: 'b' is forbidden, but a required text holds it"),
        ("{}\n{}", "more than the 2 lines that there are to translate"),
        (None, "constraints: has 1 lines, but there are more to translate"),
    ],
)
def test_a_faulty_file_is_refused(line: str | None, message: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    file, output = tmp_path / "constraints", tmp_path / "output"
    file.write_text("{}\n" + (line + "\n" if line is not None else ""))
    said = tfm("translate", trial.words, "ein", "zwei", "--constraints", file, "-o", output).refused()
    assert message in said
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--constraints", "no/such"], "no/such: no such file"),
        (["--constraints", "."], "is a folder"),
        (["--require", " "], "require: a text is empty"),
        (["--require", "a b", "--forbid", "b"], "'b' is forbidden, but a required text holds it"),
        (["--prefix", "b c", "--forbid", "b"], "'b' is forbidden, but the prefix holds it"),
        (["--require", "Zyzzyva"], "Zyzzyva"),
    ],
)
def test_constraints_that_nothing_can_obey_are_refused(
    arguments: list[str], message: str, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in tfm("translate", trial.words, "ein", *arguments, "-o", "output").refused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "  "])
def test_an_empty_prefix_constrains_nothing(prefix: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    """As where a script's variable is empty: not even another engine."""
    tfm("translate", trial.run, "ein hund")  # the first says which files it makes
    plain = tfm("translate", trial.run, "ein hund")
    assert tfm("translate", trial.run, "ein hund", "--prefix", prefix) == plain
    file = tmp_path / "constraints"
    file.write_text(json.dumps({"prefix": prefix}))
    assert tfm("translate", trial.run, "ein hund", "--prefix", "red", "--constraints", file).out == plain.out
