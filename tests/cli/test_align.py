"""`tfm align`: one line of links per pair, of words that are there, as guided attention reads them."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.data.corpora import TextCorpus
from transformer_cli.variants.guided_attention import AlignedCorpus


@pytest.mark.parametrize("kind", ["run", "words"])
def test_every_target_word_is_linked_to_a_word_that_is_there(kind: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    output = tmp_path / "links.gz"
    align = ["align", getattr(trial, kind), "--source", trial.source, "--target", trial.reference]
    result = tfm(*align, "-o", output)
    assert (result.code, result.out) == (0, "")
    pairs = list(AlignedCorpus(TextCorpus(trial.source, trial.reference), output).pairs())
    assert len(pairs) == 6
    for pair, line in zip(pairs, gzip.decompress(output.read_bytes()).decode().splitlines(), strict=True):
        assert {target for _, target in pair.sure} == set(range(len(pair.target.split())))
        assert line == " ".join(f"{source}-{target}" for source, target in sorted(pair.sure))
    printed = tfm(*align, "--engine", "torch", "--batch-tokens", 30, "--quiet")
    assert printed.out == gzip.decompress(output.read_bytes()).decode()
    tokens = tfm(*align, "--tokens").out.splitlines()
    assert all(len(line.split()) >= len(pair.target.split()) for line, pair in zip(tokens, pairs, strict=True))
    if kind == "words":
        assert tokens == printed.out.splitlines()


def test_lines_are_kept(trial: Any, tfm: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("ein  hund\n\nzwei\n \n")
    target.write_text("dog\none\n\n\n")
    result = tfm("align", trial.run, "--source", source, "--target", target)
    first, *rest = result.out.split("\n")
    assert first in ("0-0", "1-0", "0-0 1-0")
    assert rest == ["", "", "", ""]
    target.write_text("dog\n")
    assert "target: has 1 lines, but" in tfm("align", trial.run, "--source", source, "--target", target).refused()
