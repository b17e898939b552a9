"""`tfm serve`: what cannot be served is said in one line, before anything is loaded or listened on."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Trial
from transformer_cli.serve import server


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served, in place of serving it."""
    found: list[Any] = []

    def run(service: Any, bound: Any, ready: str) -> None:
        found.extend([service, ready])
        bound.close()

    monkeypatch.setattr(server, "run", run)
    return found


def test_options_reach_the_server(trial: Trial, tfm: Any, served: list[Any], tmp_path: Path) -> None:
    (tmp_path / "names.tsv").write_text("hund\thound\n")
    limits = ["--max-characters", 5, "--max-texts", 2, "--max-seconds", 1.5, "--requests-per-minute", 3, "--cache", 7]
    files = ["--glossary", tmp_path / "names.tsv", "--suggestions", tmp_path / "s.jsonl"]
    result = tfm("serve", trial.run, "--port", 0, *limits, *files, "--cors", "*", "--greedy")
    assert (result.code, result.out) == (0, "")
    service, ready = served
    assert result.err.startswith("de to en: run, engine: ")
    assert ready.startswith("serving on http://127.0.0.1:")
    found = service.limits
    assert (found.max_characters, found.max_texts, found.max_seconds, found.cache) == (5, 2, 1.5, 7)
    assert (found.requests_per_minute, found.characters_per_minute) == (3, None)
    assert service.models.glossaries == ["names"]
    assert list(service.cors) == ["*"]
    assert service.models.models[0].loaded.options.search_options.method == "greedy"
    assert not (tmp_path / "s.jsonl").exists()


def test_a_public_address_without_keys_warns(trial: Trial, tfm: Any, served: list[Any], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("0" * 64 + "\n")
    open_to_all = tfm("serve", trial.run, "--port", 0, "--host", "0.0.0.0", "-q")
    assert "warning: --host 0.0.0.0: whoever can reach" in open_to_all.err
    assert tfm("serve", trial.run, "--port", 0, "--host", "0.0.0.0", "--api-keys", tmp_path / "keys", "-q").err == ""
    assert served[0].keys is None
    assert served[2].keys is not None
    assert tfm("serve", trial.run, "--port", 0, "--host", "::1", "-q").err == ""
    assert served[5].startswith("serving on http://[::1]:")


def test_what_cannot_be_served_is_refused(trial: Trial, tfm: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    (tmp_path / "x").mkdir()
    for name in ("a.tsv", "x/a.tsv", "b.tsv"):
        (tmp_path / name).write_text("one\ttwo\n")
    (tmp_path / "b.tsv").write_text("one\n")
    with server.open_socket("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        for words, says in [
            ([tmp_path / "none"], "none"),
            ([trial.run, trial.words], "both translate de to en"),
            ([trial.run, "--port", port], f"--port {port}: cannot be listened on"),
            ([trial.run, "--api-keys", tmp_path / "keys"], "keys:1: is not the SHA-256"),
            ([trial.run, "--api-keys", tmp_path / "none"], "no such file"),
            ([trial.run, "--suggestions", tmp_path / "none" / "s"], "none"),
            ([trial.run, "--suggestions", "/"], "folder"),
            ([trial.run, "--glossary", tmp_path / "a.tsv", "--glossary", tmp_path / "x" / "a.tsv"], "the same name"),
            ([trial.run, "--glossary", tmp_path / "b.tsv"], "b.tsv:1"),
            ([trial.run, "--compute-type", "int3"], "int3"),
        ]:
            assert says in tfm("serve", *words).refused()


def test_what_it_is_made_of_is_named_where_it_is_missing(
    trial: Trial, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [one for one in sys.modules if one.startswith("transformer_cli.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "tfm serve needs uvicorn, which is not installed" in tfm("serve", trial.run).refused()
