"""Of several translations, sequence-level interpolation takes the one most like the reference."""

from sacrebleu.metrics.chrf import CHRF

from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.jobs.distilling import closest
from transformer_cli.jobs.shards import Shard


def candidate(text: str) -> Candidate:
    return Candidate(text, -1.0, -1.0, text.split(), None, ended=True)


def test_the_closest_is_the_one_of_the_highest_chrf() -> None:
    """By sacreBLEU's sentence chrF; of equals the first, and where the reference is empty."""
    hypotheses = [
        ["a dog runs", "the dog is running", "a dog sleeps here"],
        ["one", "two", "three"],
        ["same", "same", "other"],
    ]
    references = ["the dog was running fast", "", "else"]
    shard = Shard(0, 7, [Line("x")] * 3, references)
    chosen = list(
        closest(shard, [Translation(Line("x"), [], [candidate(text) for text in texts]) for texts in hypotheses])
    )
    for texts, reference, text in zip(hypotheses, references, chosen, strict=True):
        scores = [CHRF().sentence_score(one, [reference]).score if reference else 0.0 for one in texts]
        assert text == texts[scores.index(max(scores))]
    assert chosen[0] == "the dog is running"


def test_a_shards_name_tells_its_references() -> None:
    lines = [Line("x")]
    assert len({Shard(0, 0, lines, references).name("r") for references in ([], ["a"], ["b"])}) == 3
