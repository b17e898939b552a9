"""Links of words: written as `0-1`, and what they mean for tokens."""

from collections.abc import Callable

import pytest

from tests.text.conftest import configure
from transformer_cli.errors import UserError
from transformer_cli.text.alignments import AlignedPair, aligned_pair, token_links, token_words
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs


def test_sure_links_are_possible_too() -> None:
    pair = aligned_pair("a b", "c d", "0-0 1?1  0-0", possible=True)
    assert pair == AlignedPair("a b", "c d", {(0, 0)}, {(0, 0), (1, 1)})
    assert aligned_pair("a b", "c d", "") == AlignedPair("a b", "c d", set(), set())


@pytest.mark.parametrize("possible", [False, True])
@pytest.mark.parametrize("link", ["0--1", "0+1", "٠-0", "0-0,1-1", "99999999999-0", "2-0", "0-2"])
def test_anything_else_is_refused(link: str, possible: bool) -> None:
    with pytest.raises(UserError, match="links a word that is not there" if link in ("2-0", "0-2") else "not a link"):
        aligned_pair("a b", "c d", f"0-0 {link}", possible=possible)


def test_a_possible_link_is_refused_where_there_may_be_none() -> None:
    with pytest.raises(UserError, match="not a link"):
        aligned_pair("a b", "c d", "0-0 0?1")


def test_links_of_words_become_links_of_all_their_tokens() -> None:
    codecs, _ = build_codecs(configure("character"), lambda: [("ab c", "de")])
    links = {(0, 1), (1, 0)}
    pair = AlignedPair("ab c", "d ef", links, links)  # tokens: a b ▁ c and d ▁ e f
    assert token_links(codecs, pair, (4, 4)).tolist() == [
        [0, 2],
        [0, 3],
        *[[1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]],
    ]
    assert token_links(codecs, pair._replace(sure=set()), (4, 4)).shape == (0, 2)
    assert token_links(codecs, pair, (4, 5)).shape == (0, 2)


@pytest.mark.parametrize("text", ["ba de fi", "  ba   de fi ", "ba\u00a0de\tfi", "ba", "de \x00 ba", "ﬁ ½ ¨ba de"])
@pytest.mark.parametrize("tokenizer", ["whitespace", "bpe"])
def test_every_token_has_a_word(text: str, tokenizer: str, codecs: Callable[..., Codecs]) -> None:
    codec = codecs(tokenizer).source
    words = token_words(codec, text)
    assert len(words) == len(codec.encode(text))
    assert words == sorted(words)
    assert set(words) <= set(range(len(text.split())))
