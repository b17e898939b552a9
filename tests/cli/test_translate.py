"""`tfm translate`: as many lines out as in, in order, whatever is in them; columns; one line for every mistake."""

import gzip
import io
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured

ODD = [
    "\r",
    "\u2028",
    "\u2029",
    "\x85",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\0",
    "\ufeff",
    "</s>",
    "<unk>",
    "<pad>",
]
LINE_ENDS = re.compile(b"\r|\x0b|\x0c|\x1c|\x1d|\x1e|\xc2\x85|\xe2\x80\xa8|\xe2\x80\xa9")


def translate_bytes(tfm: Any, monkeypatch: pytest.MonkeyPatch, content: bytes, *arguments: object) -> Any:
    """Run `tfm translate` with this on stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    return tfm("translate", *arguments)


def arbitrary_lines(count: int) -> list[bytes]:
    choose = random.Random(7)
    words = ["ein", "Hund", "läuft", "🐕‍🦺", "他喜欢", "Ⅷ", "a\u0301", "\t", "  ", "▁", "￭", ".", '"', "\\"]
    lines = [b"", b" ", b"\t", b"\xff\xfe", "Katze \u2028 Haus\r".encode(), "\ufeffHaus".encode()]
    while len(lines) < count:
        pieces = [choose.choice(words + ODD).encode() for _ in range(choose.randint(0, 5))]
        if choose.random() < 0.2:
            pieces.append(choose.randbytes(3).replace(b"\n", b""))
        lines.append(b" ".join(pieces))
    return lines


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["run", "words"])
def test_n_lines_in_give_n_lines_out_whatever_is_in_them(kind: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    lines = arbitrary_lines(2500)
    lines[1234] = b"wort " * 20_000
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_bytes(b"\n".join(lines) + b"\n")
    done = tfm("translate", getattr(trial, kind), "-i", source, "-o", output, "--greedy")
    assert (done.code, done.out) == (0, "")
    translated = output.read_bytes()
    assert translated.endswith(b"\n")
    assert not LINE_ENDS.search(translated)
    rows = translated.decode("utf-8").split("\n")[:-1]
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        if not line.removesuffix(b"\r").decode("utf-8", "replace").strip():
            assert row == ""
    if kind == "words":
        assert "<unk>" not in "".join(row for line, row in zip(lines, rows, strict=True) if b"<unk>" not in line)
    invalid = sum(b"\xef\xbf\xbd" in line.decode("utf-8", "replace").encode() for line in lines)
    assert f"warning: {invalid} lines held invalid UTF-8" in done.err
    assert "byte-order mark" not in done.err
    assert re.search(r"lines? (was|were) longer than the model takes: cut", done.err)


def test_order_and_batching_change_nothing(trial: Any, tfm: Any, tmp_path: Path) -> None:
    lines = [line for line in arbitrary_lines(60)[3:] if b"\r" not in line]
    forwards, backwards = tmp_path / "a", tmp_path / "b"
    forwards.write_bytes(b"\n".join(lines) + b"\n")
    backwards.write_bytes(b"\n".join(reversed(lines)))  # no line end at the end
    one = tfm("translate", trial.run, "-i", forwards, "--quiet").out.split("\n")[:-1]
    two = tfm("translate", trial.run, "-i", backwards, "--quiet", "--batch-tokens", 30).out.split("\n")[:-1]
    three = tfm("translate", trial.run, "-i", forwards, "--quiet", "--stream").out.split("\n")[:-1]
    assert len(one) == len(lines)
    assert one == two[::-1] == three


def test_arguments_stdin_file_and_gz_give_the_same(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = trial.source.read_text().splitlines()
    packed, output = tmp_path / "source.gz", tmp_path / "output.gz"
    packed.write_bytes(gzip.compress(trial.source.read_bytes()))
    arguments = tfm("translate", trial.run, *lines, "--no-guard")
    assert arguments.code == 0
    assert re.fullmatch("engine: ctranslate2 .*\n", arguments.err)
    arguments = tfm("translate", trial.run, *lines)
    assert len(set(arguments.out.split("\n"))) > 2  # the translations differ: the order is seen
    assert tfm("translate", trial.run, "\n".join(lines)).out == arguments.out
    assert translate_bytes(tfm, monkeypatch, trial.source.read_bytes(), trial.run).out == arguments.out
    assert tfm("translate", trial.run, "-i", trial.source).out == arguments.out
    assert tfm("translate", trial.run, "-i", packed, "-o", output).out == ""
    assert gzip.decompress(output.read_bytes()).decode() == arguments.out


def test_notes_count_what_was_dropped_and_quiet_silences_progress(
    trial: Any, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\xef\xbb\xbfein Hund\r\nzwei\r\ndrei\n"
    done = translate_bytes(tfm, monkeypatch, text, trial.run, "--no-guard")
    assert (done.code, done.out.count("\n")) == (0, 3)
    assert "warning: 2 lines ended in a carriage return, which was dropped\n" in done.err
    assert "byte-order mark" in done.err
    assert re.search(r"^translated: 3 lines in [0-9.]+ s", done.err, re.MULTILINE)
    plain = text.decode("utf-8-sig").replace("\r", "").encode()
    clean = translate_bytes(tfm, monkeypatch, plain, trial.run, "--quiet", "--no-guard")
    assert (clean.out, clean.err) == (done.out, "")
    assert translate_bytes(tfm, monkeypatch, b"", trial.run, "--quiet").out == ""


def test_columns(trial: Any, tfm: Any) -> None:
    lines = ["ein hund schläft", "", "zwei katzen"]
    plain = tfm("translate", trial.run, *lines).out.split("\n")[:-1]
    scored = tfm("translate", trial.run, *lines, "--scores", "--alignments").out.split("\n")[:-1]
    best = tfm("translate", trial.run, *lines, "--scores", "--n-best", 3).out.split("\n")[:-1]
    assert [row.split("\t")[0] for row in scored] == [row.replace("\t", " ") for row in plain]
    for row in scored:
        text, score, alignment = row.split("\t")
        assert float(score) <= 0
        links = [tuple(map(int, link.split("-"))) for link in alignment.split()]
        assert [target for _, target in links] == list(range(len(links)))
        assert bool(links) == bool(text)
    rows = [row.split("\t") for row in best]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"] * 3
    for number, (row, chosen) in enumerate(zip(scored, [rows[0], rows[3], rows[6]], strict=True), start=1):
        assert chosen == [str(number), *row.split("\t")[:2]]
    for start in (0, 3, 6):
        values = [float(row[2]) for row in rows[start : start + 3]]
        assert values == sorted(values, reverse=True)


def test_a_score_is_what_tfm_score_gives(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """Beam score = forced score of the same translation, wherever the text goes back to the same tokens."""
    output = tmp_path / "output"
    rows = tfm("translate", trial.words, "-i", trial.source, "--scores", "--length-penalty", 0.5, "--quiet").out
    output.write_text("".join(row.split("\t")[0] + "\n" for row in rows.split("\n")[:-1]))
    done = tfm("score", trial.words, "--source", trial.source, "--target", output, "--length-penalty", 0.5, "--quiet")
    forced = [float(row.split("\t")[1]) for row in done.out.split("\n")[:-1]]
    found = [float(row.split("\t")[1]) for row in rows.split("\n")[:-1]]
    # a translation cut off at the length limit is scored without </s>: less than the forced score takes away
    assert len(forced) == len(found)
    assert all(one <= other + 1e-4 for one, other in zip(forced, found, strict=True))


def test_sampling_follows_its_seed(trial: Any, tfm: Any) -> None:
    lines = ["ein hund schläft heute hier", "zwei katzen sehen ein haus"]
    draw = ["translate", trial.run, *lines, "--sample", "--n-best", 4, "--seed"]
    one, again, other = tfm(*draw, 1).out, tfm(*draw, 1).out, tfm(*draw, 2).out
    assert one == again != other
    assert (
        tfm("translate", trial.run, *lines, "--sample", "--top-k", 1).out
        == tfm("translate", trial.run, *lines, "--greedy").out
    )


def test_unknown_words_are_copied_unless_kept(trial: Any, tfm: Any) -> None:
    draw = ["translate", trial.words, *["Zyzzyva " * 8] * 12, "--sample", "--seed", 3]  # of random weights: some <unk>
    copied = tfm(*draw).out
    kept = tfm(*draw, "--keep-unknown").out
    assert "<unk>" not in copied
    assert "<unk>" in kept, "nothing unknown: the test shows nothing"
    assert copied == kept.replace("<unk>", "Zyzzyva")


def test_the_output_file_is_whole_or_not_there(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_cli.decoding.translator import Translator

    output = tmp_path / "output"
    output.write_text("old\n")
    output.chmod(0o640)
    real = Translator.translate_lines

    def broken(self: Translator, *arguments: Any, **options: Any) -> Any:
        yield next(iter(real(self, *arguments, **options)))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate_lines", broken)
        done = tfm("translate", trial.run, "-i", trial.source, "-o", output)
    assert done.code == 1
    assert done.err.endswith("error: No space left on device\n")
    assert output.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [output]
    assert tfm("translate", trial.run, "-i", trial.source, "-o", output).code == 0
    assert output.read_text().count("\n") == 6
    assert output.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [output]


def test_a_file_may_be_translated_onto_itself_and_through_a_link(trial: Any, tfm: Any, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(trial.source.read_bytes())
    link.symlink_to(file)
    expected = tfm("translate", trial.run, "-i", trial.source).out
    assert tfm("translate", trial.run, "-i", link, "-o", link).code == 0
    assert link.is_symlink()
    assert file.read_text() == expected
    for stream in ("/dev/stdout", "-"):
        assert tfm("translate", trial.run, "-i", trial.source, "-o", stream, "--quiet").out == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam", 3, "--greedy"], "--beam and --greedy exclude each other"),
        (["--sample", "--greedy"], "--greedy and --sample exclude each other"),
        (["--temperature", 0.5], "--temperature: belongs to --sample"),
        (["--beam", 2, "--top-k", 5], "--top-k: belongs to --sample"),
        (["--top-p", 0.5], "--top-p: belongs to --sample"),
        (["--seed", 5], "--seed: belongs to --sample"),
        (["--sample", "--temperature", 0], "temperature"),
        (["--n-best", 2, "--alignments"], "leave out --n-best"),
        (["--n-best", 4], "beam size 3"),
        (["--n-best", 2, "--greedy"], "greedy search finds one"),
        (["--beam", 0], "allowed: 1 to 1000"),
        (["--device", "tpu"], "tpu"),
        (["-i", "source"], "exclude each other"),
        (["-o", "no/such/output"], "no/such/output: cannot be written: the folder"),
        (["-o", "."], "is a folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[object],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in tfm("translate", trial.run, "ein hund", *arguments).refused()
    assert list(tmp_path.iterdir()) == []


def test_bad_files_and_models_are_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    output = tmp_path / "output"
    cut_off = tmp_path / "cut.gz"
    cut_off.write_bytes(gzip.compress(trial.source.read_bytes())[:-12])
    no_gzip = tmp_path / "no.gz"
    no_gzip.write_bytes(b"ein hund\n")
    for model, source, message in [
        (trial.run, tmp_path / "no.de", "no.de: no such file"),
        (trial.run, tmp_path, f"{tmp_path}: is a folder"),
        (trial.run, cut_off, "cut.gz:"),
        (trial.run, no_gzip, "no.gz:1: is named .gz but holds no gzip data"),
        (tmp_path / "none", trial.source, "none: no such folder"),
        (tmp_path, trial.source, f"{tmp_path}: is neither a run folder"),
        (trial.source, trial.source, "valid.de: is a file"),
    ]:
        assert message in tfm("translate", model, "-i", source, "-o", output).refused()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gz", "no.gz"]


def test_damaged_weights_are_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "model"
    shutil.copytree(trial.run / "step-00000004", model)
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    for change, message in [(content[:-1], "damaged"), (content[:-1] + bytes([content[-1] ^ 1]), "damaged")]:
        weights.write_bytes(change)
        assert message in tfm("translate", model, "ein hund", "--engine", "torch").refused()
    weights.unlink()
    assert "model.safetensors" in tfm("translate", model, "ein hund", "--engine", "torch").refused()


def test_on_a_terminal_each_line_is_answered_at_once(trial: Any) -> None:
    """A true process on a pseudo-terminal: the second line is typed after the first answer came."""
    ours, theirs = pty.openpty()
    run = [sys.executable, "-m", "transformer_cli", "translate", str(trial.run), "--greedy", "--no-guard"]
    with subprocess.Popen(run, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        os.write(ours, b"ein hund\n")
        first = process.stdout.readline()
        os.write(ours, b"zwei katzen\n\x04")
        rest = process.stdout.read()
        notes = process.stderr.read().decode()
        assert process.wait() == 0
        watchdog.cancel()
    os.close(ours)
    assert first.endswith(b"\n")
    assert rest.count(b"\n") == 1
    assert re.fullmatch("reading lines from the terminal; Ctrl-D ends\nengine: .*\n", notes)


def test_sigint_leaves_with_130_and_no_half_file(trial: Any, tmp_path: Path) -> None:
    """A true process, interrupted while it waits for more input."""
    output = tmp_path / "output"
    run = [sys.executable, "-m", "transformer_cli", "translate", str(trial.run), "--stream", "-o", str(output)]
    # a shell starts its background jobs with SIGINT ignored, and they hand that on
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed, env=unmeasured()
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"ein hund\n")
        process.stdin.flush()
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"engine: ")
        assert list(tmp_path.iterdir()), "no file was begun"
        process.send_signal(2)
        assert process.wait(300) == 130
        assert process.stdout is not None
        assert process.stdout.read() + process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []
