"""Which word each token of a text belongs to, for links of words that become links of tokens, or the other way.

Words are what stands between white space, as aligners count them. Data and evaluation call it.
"""

from transformer_cli.text.codec import Codec


def token_words(codec: Codec, text: str) -> list[int]:
    """For each token of a text, which word it belongs to, from 0; a separator or a doubled space to the word after it.

    A text whose normalisation changes where words end may give another number of tokens than `codec.encode`.
    """
    last = max(0, len(text.split()) - 1)
    words: list[int] = []
    number = 0  # of the next word
    for unit in codec.tokenizer.words(codec.preparation(text)):
        tokens = len(codec.encode(unit) if unit else codec.tokenizer.tokens(unit))
        words += [min(number, last)] * (tokens + (bool(words) and codec.tokenizer.separator is not None))
        number += len(unit.split())
    return words
