"""`tfm translate --trace`: what is printed of a sentence's way, and which options it does not go with."""

import re
from typing import Any

import pytest
from rich.cells import cell_len

from transformer_cli.cli.inspect import WIDTH, _columns, _end

SENTENCE = "ein hund läuft ."


@pytest.mark.parametrize("model", ["run", "words"])
@pytest.mark.parametrize("options", [[], ["--greedy"], ["--beam", "2", "--max-length", "3"]], ids=" ".join)
def test_a_trace_ends_with_what_is_translated(model: str, options: list[str], trial: Any, tfm: Any) -> None:
    path = getattr(trial, model)
    result = tfm("translate", path, "--trace", SENTENCE, *options)
    assert result.code == 0, result.err
    translated = tfm("translate", path, SENTENCE, "--engine", "torch", *options)
    assert result.out.splitlines()[-1].strip() == translated.out.strip()


def test_stages_are_numbered_and_shapes_named(trial: Any, tfm: Any) -> None:
    shown = tfm("translate", trial.words, "--trace", SENTENCE).out
    titles = re.findall(r"^(\d)\. (\w+)", shown, re.MULTILINE)
    names = ["text", "words", "tokens", "embedding", "encoder", "decoder", "decoding", "ids", "text"]
    assert titles == [(str(number), name) for number, name in enumerate(names, start=1)]
    assert shown.startswith("B = 1 sentence, S = 5 source tokens, T = ")
    assert "√d_model = 4.00" in shown
    assert re.search(r"^   memory +\(B, S, D\) +\(1, 5, 16\) ", shown, re.MULTILINE)
    assert re.search(r"^   log-probabilities +\(B, T, V\) +\(1, 1, \d+\) ", shown, re.MULTILINE)
    steps = re.findall(r"^ +(\d+)  <s>", shown, re.MULTILINE)
    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    assert len(steps) == shown.count(">") - shown.count("<s>") - shown.count("</s>") - shown.count("<unk>") - 1
    assert max(map(len, shown.splitlines())) <= WIDTH


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_trace_fits_the_terminal(columns: int, trial: Any, tfm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer values and fewer of the next tokens where it is narrow; the chosen one is always there."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = tfm("translate", trial.run, "--trace", f"{SENTENCE} katze sieht maus").out.splitlines()
    assert min(columns, 150) - 45 < max(map(cell_len, shown)) <= columns
    first = next(number for number, line in enumerate(shown) if "decoding:" in line)
    steps = [line for line in shown[first:] if re.match(r" +(>|[^ ]+ \d\.\d{3}  ).*\d\.\d{3}", line)]
    assert steps
    assert all(">" in re.sub("<[^>]*>", "", line) for line in steps)
    memory = next(line for line in shown if line.startswith("   memory"))
    assert 1 <= len(re.findall(r"-?\d\.\d{3}", memory)) <= 5


def test_several_sentences_follow_each_other(trial: Any, tfm: Any) -> None:
    both = tfm("translate", trial.run, "--trace", "ein hund", "katze .").out
    one, other = (tfm("translate", trial.run, "--trace", text).out for text in ("ein hund", "katze ."))
    assert both == f"{one}\n{other}"


def test_ids_stand_below_their_tokens_however_wide_these_are() -> None:
    tokens = ["漢字", "a", "\x1b[2J", *(["word"] * 30)]
    rows = list(_columns(60, tokens, map(str, range(33))))
    assert max(len(row.rstrip()) for row in rows) <= 60
    assert rows[0].split()[:3] == ["漢字", "a", "<U+001B>[2J"]
    assert (rows[0].index("a") + 2, rows[0].index("<") + 2) == (rows[1].index("1"), rows[1].index("2"))
    assert " ".join(rows[1::2]).split() == [str(number) for number in range(33)]


def test_what_was_written_so_far_is_cut_at_tokens() -> None:
    assert _end(["<s>", "a"], 5) == "<s> a"
    assert _end(["<s>", "ab", "cd"], 7) == "… ab cd"
    assert _end(["<s>", "ab", "cd"], 6) == "… cd"
    assert _end(["<s>", "abcdefghi"], 6) == "… abcdefghi"


REFUSED: dict[str, tuple[list[str], str]] = {
    "no text": ([], "missing TEXT"),
    "a file": (["-i", "{source}"], "--input and --trace exclude each other"),
    "a place for results": ([SENTENCE, "-o", "out"], "--output and --trace"),
    "another format": ([SENTENCE, "--format", "json"], "--format and --trace"),
    "sampling": ([SENTENCE, "--sample"], "--sample and --trace"),
    "words": ([SENTENCE, "--require", "dog"], "--require and --trace"),
    "a prefix": ([SENTENCE, "--prefix", ""], "--prefix and --trace"),
    "risk": ([SENTENCE, "--mbr", "2"], "--mbr and --trace"),
    "several models": ([SENTENCE, "--with", "{run}"], "--with and --trace"),
    "several translations": ([SENTENCE, "--n-best", "2"], "--n-best and --trace"),
    "scores": ([SENTENCE, "--scores"], "--scores and --trace"),
    "alignments": ([SENTENCE, "--alignments"], "--alignments and --trace"),
    "confidence": ([SENTENCE, "--min-confidence", "0"], "--min-confidence and --trace"),
    "a stream": ([SENTENCE, "--stream"], "--stream and --trace"),
    "processes": ([SENTENCE, "--jobs", "2"], "--jobs and --trace"),
    "a glossary": ([SENTENCE, "--glossary", "{source}"], "--glossary and --trace"),
    "the other engine": ([SENTENCE, "--engine", "ctranslate2"], "only torch shows what is inside"),
    "what only the other engine computes in": ([SENTENCE, "--compute-type", "int8"], "int8"),
    "an empty sentence": ([" "], "has no tokens"),
    "a long sentence": (["hund " * 30], "takes at most 24 at once"),
    "a link": (["ein https://a.example"], "--no-protect"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_a_trace_does_not_go_with_is_refused(fault: str, trial: Any, tfm: Any) -> None:
    arguments, message = REFUSED[fault]
    words = [word.format(source=trial.source, run=trial.run) for word in arguments]
    assert message in tfm("translate", trial.run, "--trace", *words).refused()


def test_a_second_sentence_at_fault_is_told_before_the_first_is_shown(trial: Any, tfm: Any) -> None:
    assert "has no tokens" in tfm("translate", trial.run, "--trace", "ein hund", " ").refused()


def test_a_link_goes_in_where_nothing_is_protected(trial: Any, tfm: Any) -> None:
    assert "https://a.example" in tfm("translate", trial.words, "--trace", "ein https://a.example", "--no-protect").out
