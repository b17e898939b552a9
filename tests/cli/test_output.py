"""Results appear whole or not at all; columns line up; progress is counted."""

import gzip
from pathlib import Path

import pytest

from transformer_cli.cli import streams
from transformer_cli.cli.streams import Progress, align, check_output, open_results
from transformer_cli.errors import UserError


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
def test_a_file_appears_when_the_block_ends_and_not_before(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with open_results(path) as write:
        write("ä\u2028")
        write("")
        assert not path.exists()
    content = path.read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert text == "ä\u2028\n\n".encode()
    with open_results(path) as write:
        write("ä\u2028")
        write("")
    assert path.read_bytes() == content  # no time of day in gzip's header
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failed_block_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with open_results(path) as write:
            write("new")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_are_refused_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "none" / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=str(path)):
            check_output(path)
    for fine in (None, tmp_path / "new", tmp_path / "file", Path("/dev/null"), Path("-")):
        check_output(fine)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    check_output(path)
    with open_results(path) as write:
        write("x")
    assert path.read_text() == "x\n"
    with pytest.raises(UserError, match="cannot be written: File name too long"):
        check_output(tmp_path / ("n" * 256))


def test_columns_line_up() -> None:
    assert align([("", "size", "kind"), ("source", "1,234", "a"), ("t", "5", "bb")]) == [
        "         size  kind",
        "source  1,234  a",
        "t           5  bb",
    ]


def test_progress_logs_now_and_then_and_sums_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "LOG_SECONDS", 0.0)
    with Progress("scored", total=3) as progress:
        progress(1)
        progress(3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == [
        "scored: 1 of 3 lines",
        "scored: 3 lines",
        "scored: 3 lines",
    ]
    with Progress("scored", quiet=True) as progress:
        progress(1)
    with pytest.raises(KeyError), Progress("scored"):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_progress_draws_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("translated", total=2) as progress:
        progress(1)
        progress(2)
    err = capsys.readouterr().err
    assert "translated:" in err
    assert "\r" in err
    assert err.endswith("lines/s)\n")
