"""Noise on the sentences of the source in training: capitals, title case, typos, no final punctuation.

The loader calls it for every pair in every epoch. What it does follows from its arguments alone; no torch.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli.config import Config, Noise
from transformer_cli.data.quality.pair_checks import ADDRESS, MARKUP
from transformer_cli.text.build import CHUNK, Pairs, in_chunks

AS_WRITTEN, CAPITALS, TITLE_CASE = range(3)  # the cases of a sentence

FINAL = ".!?…。．｡！？؟۔।॥։።។"  # punctuation at the end of a sentence, in many scripts
_PLACEHOLDER = r"[$#%]?\{[^{}]*\}|%(?:\(\w+\))?[-+#0-9.$]*[a-zA-Z@](?![^\W_])"
_SIGNS = ("@", "://", "www.", "<", "&", "{", "%")  # a text without any of them has none of these; most texts do not
_FIRST_LETTER = re.compile(r"(?<!\S)([^\w\s]*)([^\W\d_])")  # of a word: quotation marks and brackets may be before it
_WORD = re.compile(r"(?<!\w)[^\W\d_]{4,}(?!\w)")


def noise_of(config: Config) -> "SourceNoise | None":
    """Return the noise of a config; None: it has none."""
    noise = config.training.noise
    return None if noise is None else SourceNoise(noise, tuple(config.vocabulary.symbols))


def with_noise(pairs: Pairs, noise: "SourceNoise", seed: int) -> Iterator[tuple[str, str]]:
    """Yield sentence pairs with noise on their sources, drawn by line number as in the first epoch: what a model will
    see, for its vocabulary to be made of."""
    first = 0
    for chunk in in_chunks(pairs, CHUNK):
        cases = noise.cases(seed, 0, np.arange(first, first + len(chunk))).tolist()
        for number, ((source, target), case) in enumerate(zip(chunk, cases, strict=True), start=first):
            yield noise.disturb(noise.in_case(source, case), noise_rng(seed, 0, number)), target
        first += len(chunk)


def noise_rng(seed: int, epoch: int, pair: int) -> random.Random:
    """Return what the typos and the punctuation of a pair are drawn from in an epoch."""
    return random.Random(int.from_bytes(hashlib.sha256(f"{seed} {epoch} {pair} noise".encode()).digest()[:8]))


@dataclass(frozen=True)
class SourceNoise:
    """The noise of a config. The user's symbols, addresses, placeholders and markup stay as they are. Picklable."""

    options: Noise
    symbols: tuple[str, ...] = ()  # vocabulary.symbols, and with them the tags of sources

    def cases(self, seed: int, epoch: int, pairs: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Return the case of each pair's source in an epoch: `AS_WRITTEN`, `CAPITALS` or `TITLE_CASE`."""
        bounds = np.cumsum([self.options.capitals, self.options.title_case])
        kinds = np.array([CAPITALS, TITLE_CASE, AS_WRITTEN])
        return kinds[np.searchsorted(bounds, _uniform(f"{seed} {epoch} case", pairs), side="right")]

    def in_case(self, text: str, case: int) -> str:
        """Return a text in capitals or title case.

        Capitals are Python's `str.upper`, whatever the language: `ß` becomes `SS`, and `i` never the Turkish `İ`. In
        title case the first letter of what stands between spaces is a capital, and all others are as before.
        """
        parts = self._split(text)
        if case == CAPITALS:
            parts[::2] = map(str.upper, parts[::2])
        elif case == TITLE_CASE:
            parts[::2] = [_FIRST_LETTER.sub(lambda found: found[1] + found[2].title(), part) for part in parts[::2]]
        return "".join(parts)

    def disturb(self, text: str, rng: random.Random) -> str:
        """Return a text with typos, and without its final punctuation where this is drawn."""
        typos, parts = self.options.typos, self._split(text)

        def mistype(found: re.Match[str]) -> str:
            return _mistype(found[0], text, rng) if rng.random() < typos else found[0]

        if typos:
            parts[::2] = [_WORD.sub(mistype, part) for part in parts[::2]]
        if rng.random() < self.options.no_final_punctuation:
            ended = [*parts[:-1], _without_end(parts[-1])]
            if any(character.isalnum() for part in ended[::2] for character in part):  # else nothing would be left
                parts = ended
        return "".join(parts)

    def _split(self, text: str) -> list[str]:
        """Return a text in parts, what stays as it is at the odd places."""
        some = any(sign in text for sign in (*_SIGNS, *self.symbols))
        return self._kept.split(text) if some else [text]

    @cached_property
    def _kept(self) -> re.Pattern[str]:
        symbols = map(re.escape, sorted(self.symbols, key=len, reverse=True))
        return re.compile(f"({'|'.join([*symbols, ADDRESS.pattern, MARKUP.pattern, _PLACEHOLDER])})")


def _mistype(word: str, text: str, rng: random.Random) -> str:
    """Return the word with one typo behind its first letter: swapped, left out, doubled or replaced letters are equally
    likely (as in Karpukhin et al. 2019, but for doubling), and a letter is replaced by one of its text."""
    place, kind = 1 + _draw(len(word) - 1, rng), _draw(4, rng)
    letter, typed = word[place], word
    if kind == 0:
        place = min(place, len(word) - 2)
        typed = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    elif kind == 1:
        typed = word[:place] + letter + word[place:]
    elif kind == 2:
        upper = letter.isupper()
        others = [other for other in text if other.isalpha() and other.isupper() == upper and other != letter]
        typed = word[:place] + others[_draw(len(others), rng)] + word[place + 1 :] if others else word
    return typed if typed != word else word[:place] + word[place + 1 :]


def _draw(count: int, rng: random.Random) -> int:
    """Return a number below a count; `random` alone gives the same in every version of Python."""
    return int(rng.random() * count)


def _without_end(text: str) -> str:
    """Return a text without its final punctuation, and without the spaces around that."""
    text_alone = text.rstrip()
    ended = text_alone.rstrip(FINAL)
    return ended.rstrip() if ended != text_alone else text


def _uniform(key: str, numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """Return what is drawn for each number, uniform in [0, 1): SplitMix64 (Steele et al. 2014), begun at the key."""
    begin = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]))
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + begin
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
