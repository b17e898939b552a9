"""Which word each token of a text belongs to, for links of words that become links of tokens, or the other way.

Words are what stands between white space, as aligners count them. Data and evaluation call it.
"""

from transformer_cli.text.codec import Codec


def token_words(codec: Codec, text: str) -> list[int]:
    """For each token of a text (words apart by one space), which word it belongs to; a separator to that after it."""
    words: list[int] = []
    for number, word in enumerate(text.split()):
        tokens = len(codec.encode(word))
        words += [number] * (tokens + (number > 0 and codec.tokeniser.separator is not None))
    return words
