"""Which of the two languages of a corpus a text is in, learned from the corpus itself, whatever the languages.

Naive Bayes over the n-grams of characters (Cavnar and Trenkle 1994, Dunning 1994), hashed into tables of fixed size. It
finds sides that are swapped, copied or in a third language, and is saved with a run. No torch.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from transformer_cli.storage.publishing import manifest_names, verify

ORDERS = (1, 2, 3, 4)  # characters of an n-gram …
LONG = slice(2, 4)  # … and those that tell a third language from rare words
BITS = 15  # of a table's places, for each order and side
SMOOTHING = 0.5  # added to each count
ROUNDS = 3  # of learning: each leaves out what the one before found to be in another language
FOREIGN_ODDS = 0.4  # of the median by which a side's texts are its own language's: less is suspicious …
DOUBTFUL_ODDS = 0.6  # … and less than this is not learned from
FOREIGN_FIT = -4.0  # … if its n-grams are as rare as this many standard deviations below the median
SURE_FIT = -7.0  # rarer than this is foreign whatever the odds
LEAST_CHARACTERS = 12  # of a text that is judged
LEAST_LEARNED = 200  # texts of each side
LEAST_ODDS = 0.25  # by which a side's texts are its own language's: two halves of one language come to 0.1
FILE = "languages.safetensors"  # in vocab/ of a run

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Scores:
    """How some texts fare under the tables of both languages, by character n-gram."""

    odds: Array  # (N,) mean log p(own language) - log p(other language)
    fit: Array  # (N,) mean log p(own language), of long n-grams
    characters: NDArray[np.int64]  # (N,)


@dataclass(frozen=True, eq=False)
class LanguageIdentifier:
    """Two languages, called by their codes, and what texts of each look like."""

    languages: tuple[str, str]
    tables: Array  # (2, orders, places): log p of an n-gram
    odds: tuple[float, float]  # the median of each side's own texts
    fit: tuple[tuple[float, float], tuple[float, float]]  # median and standard deviation of each side's own texts

    @classmethod
    def learn(
        cls, sources: Sequence[str], targets: Sequence[str], languages: tuple[str, str] = ("source", "target")
    ) -> "LanguageIdentifier | None":
        """Learn from two sides of a corpus, of which a part may be in the wrong language; None: they look alike."""
        if min(len(sources), len(targets)) < LEAST_LEARNED:
            return None
        sides = [[_Grams.of(part) for part in _parts(texts)] for texts in (sources, targets)]
        kept = [np.ones(len(texts), dtype=bool) for texts in (sources, targets)]
        for _ in range(ROUNDS):
            tables = np.stack([_table(grams, keep) for grams, keep in zip(sides, kept, strict=True)])
            of_sides = [_scores(grams, tables, side) for side, grams in enumerate(sides)]
            found = cls(
                languages,
                tables,
                cast(tuple[float, float], tuple(float(np.median(one.odds)) for one in of_sides)),
                cast(tuple[tuple[float, float], tuple[float, float]], tuple(_spread(one.fit) for one in of_sides)),
            )
            kept = [
                ~(found.is_other(one, side) | found.is_foreign(one, side, DOUBTFUL_ODDS))
                for side, one in enumerate(of_sides)
            ]
        return found if min(found.odds) >= LEAST_ODDS else None

    def score(self, texts: Sequence[str], side: int) -> Scores:
        """Return how texts of a side (0: source, 1: target) fare."""
        return _scores([_Grams.of(part) for part in _parts(texts)], self.tables, side)

    def is_other(self, scores: Scores, side: int) -> NDArray[np.bool_]:
        """Return which texts of a side are in the other one's language."""
        return (scores.odds < 0) & (scores.characters >= LEAST_CHARACTERS)

    def is_foreign(self, scores: Scores, side: int, odds: float = FOREIGN_ODDS) -> NDArray[np.bool_]:
        """Return which texts of a side are in neither language, or in the other one."""
        median, deviation = self.fit[side]
        fit = (scores.fit - median) / deviation
        found = ((scores.odds < odds * self.odds[side]) & (fit < FOREIGN_FIT)) | (fit < SURE_FIT)
        return found & (scores.characters >= LEAST_CHARACTERS)

    def identify(self, text: str) -> tuple[str, float]:
        """Return the language that a text is in, and how sure that is, from 0.5 to 1."""
        odds = float(self.score([text], 0).odds[0])
        return self.languages[odds < 0], float(1 / (1 + np.exp(-min(abs(odds) * len(text.strip()), 50.0))))

    def save(self, path: Path) -> None:
        """Write all of it into a file of less than a megabyte."""
        from safetensors.numpy import save_file

        numbers = np.array([*self.odds, *self.fit[0], *self.fit[1]], dtype=np.float32)
        save_file(
            {"tables": self.tables.astype(np.float16), "numbers": numbers},
            path,
            {"languages": " ".join(self.languages)},
        )

    @classmethod
    def load(cls, path: Path) -> "LanguageIdentifier":
        """Read what `save` wrote."""
        from safetensors import safe_open

        with safe_open(path, "np") as file:
            first, second = file.metadata()["languages"].split()
            a, b, c, d, e, f = map(float, file.get_tensor("numbers"))
            return cls((first, second), file.get_tensor("tables").astype(np.float32), (a, b), ((c, d), (e, f)))


def find_identifier(model: Path) -> LanguageIdentifier | None:
    """Return what the run of a trained model saved in its vocab/; None where it saved none, or is not beside the model.

    Raises `UserError` where the file is damaged.
    """
    folders = [Path(path).parent / "vocab" for path in (os.path.abspath(model), os.path.realpath(model))]
    for folder in filter(os.path.isdir, folders):
        if FILE in manifest_names(folder):
            verify(folder, [FILE])
            return LanguageIdentifier.load(folder / FILE)
    return None


@dataclass(frozen=True, eq=False)
class _Grams:
    """The n-grams of some texts, by order: their places in the tables, and the text that each belongs to."""

    count: int
    places: list[NDArray[np.int32]]
    owners: list[NDArray[np.int32]]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "_Grams":
        joined = "\n".join(f" {' '.join(text.lower().split())} " for text in texts)
        codes = np.frombuffer(joined.encode("utf-32-le", errors="replace"), dtype=np.uint32)
        owner = np.cumsum(codes == ord("\n"), dtype=np.int32)
        says_nothing = (codes == ord("\n")) | ((codes >= ord("0")) & (codes <= ord("9")))
        until = np.cumsum(says_nothing, dtype=np.int32)
        places, owners = [], []
        hashed = np.zeros(len(codes), dtype=np.uint32)
        for order in ORDERS:
            length = max(0, len(codes) - order + 1)
            hashed = hashed[:length] * np.uint32(0x9E3779B1) + codes[order - 1 :] + np.uint32(1)
            whole = until[order - 1 :] - until[:length] + says_nothing[:length] == 0  # within one text, without numbers
            mixed = (hashed ^ (hashed >> np.uint32(15))) * np.uint32(0x85EBCA6B)
            places.append((mixed >> np.uint32(32 - BITS))[whole].astype(np.int32))
            owners.append(owner[:length][whole])
        return cls(len(texts), places, owners)


def _parts(texts: Sequence[str], size: int = 5000) -> list[Sequence[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def _table(parts: Sequence[_Grams], kept: NDArray[np.bool_]) -> Array:
    """Return log p of each n-gram in the texts that are kept: (orders, places)."""
    counts = np.full((len(ORDERS), 1 << BITS), SMOOTHING)
    start = 0
    for part in parts:
        keep = kept[start : start + part.count]
        start += part.count
        for order, (places, owners) in enumerate(zip(part.places, part.owners, strict=True)):
            counts[order] += np.bincount(places[keep[owners]], minlength=1 << BITS)
    return np.asarray(np.log(counts / counts.sum(axis=1, keepdims=True)), dtype=np.float32)


def _scores(parts: Sequence[_Grams], tables: Array, side: int) -> Scores:
    odds, fits, lengths = [], [], []
    for part in parts:
        own, other, counts = (np.zeros((part.count, len(ORDERS)), dtype=np.float32) for _ in range(3))
        for order, (places, owners) in enumerate(zip(part.places, part.owners, strict=True)):
            for sums, table in ((own, tables[side]), (other, tables[1 - side])):
                sums[:, order] = np.bincount(owners, weights=table[order][places], minlength=part.count)
            counts[:, order] = np.bincount(owners, minlength=part.count)
        odds.append((own - other).sum(axis=1) / np.maximum(counts.sum(axis=1), 1))
        fits.append(own[:, LONG].sum(axis=1) / np.maximum(counts[:, LONG].sum(axis=1), 1))
        lengths.append(counts[:, 0].astype(np.int64))
    empty = np.zeros(0, dtype=np.float32)
    return Scores(
        np.concatenate([empty, *odds]),
        np.concatenate([empty, *fits]),
        np.concatenate([empty.astype(np.int64), *lengths]),
    )


def _spread(values: Array) -> tuple[float, float]:
    """Return the median, and the standard deviation by the median's own distances, which outliers do not move."""
    median = float(np.median(values))
    return median, max(1e-3, 1.4826 * float(np.median(np.abs(values - median))))
