"""Whatever rows a search picks, each goes on reading its own sentence's memory, and beams share one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.decoding.engines.torch_engine import SearchCache
from transformer_cli.model.attention import DecoderCache, KeysValues


def start(sentences: int) -> SearchCache:
    """Each sentence's memory, source and mask hold its number."""
    numbers = torch.arange(sentences)
    both = numbers.view(-1, 1, 1, 1).expand(-1, 2, 3, 4).float()
    decoder = DecoderCache((KeysValues(both, 2),), (KeysValues(both, 2),))
    return SearchCache.start(decoder, numbers[:, None], numbers.view(-1, 1, 1, 1))


def read(cache: SearchCache) -> list[int]:
    """The sentence that each row reads, whichever way it is asked; memory serves rows in equal shares."""
    places, memory = cache.places, cache.decoder.memory[0].both[:, 0, 0, 0].long()
    assert len(memory) == len(cache.source) == len(cache.source_mask)
    assert len(places) == len(cache.decoder.decoded[0].both)  # type: ignore[union-attr]
    if len(memory):
        width = len(places) // len(memory)
        assert places.tolist() == [row // width for row in range(width * len(memory))]
    found = memory[places]
    assert torch.equal(found, cache.source[places, 0])
    assert torch.equal(found, cache.source_mask[places, 0, 0, 0])
    return found.tolist()


@given(st.data())
def test_rows_go_on_reading_their_own_sentence(data: st.DataObject) -> None:
    cache = start(data.draw(st.integers(1, 5), label="sentences"))
    expected = read(cache)
    for _ in range(4):
        rows = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=12), label="rows")
        cache, expected = cache.select(torch.tensor(rows)), [expected[row] for row in rows]
        assert read(cache) == expected
        assert cache.decoder.decoded[0].both[:, 0, 0, 0].long().tolist() == expected  # type: ignore[union-attr]


def test_beams_share_their_sentences_memory() -> None:
    cache = start(3).select(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert len(cache.decoder.memory[0].both) == 3
    moved = cache.select(torch.tensor([1, 0, 3, 3, 4, 4]))
    assert moved.decoder.memory is cache.decoder.memory, "beams changed places within their sentences only"
    fewer = cache.select(torch.tensor([4, 5, 0, 0]))
    assert len(fewer.decoder.memory[0].both) == 2
    assert read(fewer) == [2, 2, 0, 0]
