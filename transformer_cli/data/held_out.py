"""Validation pairs held out of the training text, for a config without `data.valid`.

They are chosen by hash, so that neither the order of the text nor the number of processes matters, and saved with the
run: from then on its files count. Training opens its corpora here, other commands a model's validation data. No torch.
"""

import hashlib
import heapq
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_cli.config import Config, DataConfig
from transformer_cli.data.corpora import Corpus, JoinedCorpus, TextCorpus, open_corpus, open_split, training_sources
from transformer_cli.errors import UserError
from transformer_cli.storage.origin import find_data
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import HELD_OUT, RunFolder
from transformer_cli.text.lines import one_line, with_bar, with_tag

if TYPE_CHECKING:
    from transformer_cli.data.encoded import LinkedCorpus
    from transformer_cli.data.quality.filters import Filters

MOST, ONE_OF, LEAST = 1_000, 20, 10  # so many pairs at most, else 1 of 20 different ones; fewer than 10 say nothing

Pair = tuple[str, str]


def normalized(text: str) -> str:
    """Return what two texts share that count as the same sentence: NFKC, case and runs of white space don't matter."""
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold().replace("\ufeff", "")
    return " ".join(text.split())


def sentences_of(pairs: Iterable[Pair]) -> frozenset[str]:
    """Return the sentences of pairs, of both sides, normalized: no pair that has one of them is trained on."""
    return frozenset(normalized(text) for pair in pairs for text in pair)


class HeldOut:
    """Validation pairs that were taken from the training text: a `Corpus` in memory."""

    def __init__(self, pairs: list[Pair], data: DataConfig, where: Path):
        """where: the folder that has them, or will have."""
        self.notes: list[str] = []
        self.where = where
        self.names = (f"source.{data.source_language}", f"target.{data.target_language}")
        self._pairs = pairs
        self._sentences = sentences_of(pairs)

    @classmethod
    def load(cls, folder: Path, data: DataConfig) -> "HeldOut":
        """Read what `save` wrote; raises `UserError` where a file is missing or not what was written."""
        held_out = cls([], data, folder)
        verify(folder, held_out.names)
        return cls([*TextCorpus(*(folder / name for name in held_out.names)).pairs()], data, folder)

    def save(self, folder: Path) -> None:
        """Write two text files, one sentence per line."""
        for name, texts in zip(self.names, zip(*self._pairs, strict=True), strict=True):
            (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")

    def __len__(self) -> int:
        return len(self._pairs)

    def pairs(self) -> Iterator[Pair]:
        """Yield all pairs."""
        yield from self._pairs

    def content_hash(self) -> str:
        """Return a hash of the texts."""
        return hashlib.sha256("\n".join(("held out", *map("\n".join, self._pairs))).encode()).hexdigest()

    def describe(self) -> str:
        """Return both paths."""
        return f"{self.where / self.names[0]} and {self.names[1]}"

    def shares_a_sentence(self, source: str, target: str) -> bool:
        """Return whether one of two texts is, normalized, a sentence of these pairs, on whichever side."""
        return normalized(source) in self._sentences or normalized(target) in self._sentences


class WithoutHeldOut:
    """The pairs of a corpus that share no sentence with those held out of it."""

    def __init__(self, corpus: "Corpus | LinkedCorpus", held_out: HeldOut):
        self.corpus, self.held_out = corpus, held_out

    @property
    def notes(self) -> list[str]:
        """Return what the last whole pass dropped."""
        return self.corpus.notes

    def pairs(self) -> Iterator[Any]:
        """Yield what the corpus yields, with links if it has them."""
        shares = self.held_out.shares_a_sentence
        yield from (pair for pair in self.corpus.pairs() if not shares(pair[0], pair[1]))

    def content_hash(self) -> str:
        """Return a hash of the corpus and of what is held out."""
        parts = f"without {self.corpus.content_hash()} {self.held_out.content_hash()}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def describe(self) -> str:
        """Return what the corpus is."""
        return self.corpus.describe()


# --- choosing -----------------------------------------------------------------------------------------------------


class Smallest:
    """The pairs of the smallest ranks, each rank once, however many are added."""

    def __init__(self, capacity: int) -> None:
        self.pairs: dict[int, Pair] = {}
        self._capacity, self._heap = capacity, list[int]()  # of negative ranks: the largest is the first

    def add(self, rank: int, pair: Pair) -> None:
        if rank in self.pairs:
            self.pairs[rank] = min(pair, self.pairs[rank])  # spellings of one pair: not the first, but always the same
        elif len(self._heap) < self._capacity:
            heapq.heappush(self._heap, -rank)
            self.pairs[rank] = pair
        elif rank < -self._heap[0]:
            del self.pairs[-heapq.heapreplace(self._heap, -rank)]
            self.pairs[rank] = pair


def hold_out(train: Corpus, config: Config, where: Path, progress: bool = False) -> tuple[HeldOut, int]:
    """Choose validation pairs in one pass over the text; in another, count those that repeat a sentence of them.

    Of different pairs (normalized), one in ONE_OF and MOST at most: those with the smallest hashes of `training.seed`
    and text. Raises `UserError` where the text has too few, or says the same again and again.
    """
    smallest, different = Smallest(MOST), Smallest(MOST * ONE_OF)
    for source, target in with_bar(train.pairs(), "choosing validation pairs", progress):
        key = normalized(source), normalized(target)
        if all(key):
            rank = rank_of(config.training.seed, key)
            smallest.add(rank, (as_line(source), as_line(target)))
            different.add(rank, ("", ""))
    count = len(different.pairs) // ONE_OF
    if count < LEAST:
        raise UserError(
            f"data.valid: is not set, and data.train has {len(different.pairs):,} different pairs, too few to hold "
            f"validation pairs out of them (it takes {LEAST * ONE_OF}); name validation files"
        )
    held_out = HeldOut([smallest.pairs[rank] for rank in sorted(smallest.pairs)[:count]], config.data, where)
    total = left_out = 0
    for source, target in with_bar(train.pairs(), "counting their repetitions", progress):
        total += 1
        left_out += held_out.shares_a_sentence(source, target)
    if 2 * left_out > total:
        raise UserError(
            f"data.valid: is not set, and with {count:,} pairs held out of data.train for it, {left_out:,} of its "
            f"{total:,} pairs are lost, for they repeat sentences of those; name validation files"
        )
    return held_out, left_out - count


def rank_of(seed: int, key: Pair) -> int:
    """Return a number by which pairs, normalized, are in an order that is like drawn, but the same for a seed."""
    text = f"{seed}\n{key[0]}\n{key[1]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())


def as_line(text: str) -> str:
    """Return the text as a file of lines gives it back."""
    return one_line(text).lstrip("\ufeff")


# --- opening ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSource:
    """One source of `data.train`."""

    whole: Corpus  # as it is
    tag: str | None = None  # a symbol put before its source sentences
    weight: float = 1.0  # how many times an epoch takes its pairs
    filters: "Filters | None" = None

    def select(self, held_out: HeldOut | None, whole: "Corpus | LinkedCorpus | None" = None) -> Any:
        """Return what the model learns from, without the tag: pairs of the source, or of `whole`, which are the same
        with more to them."""
        corpus = self.whole if whole is None else whole
        filtered = corpus if self.filters is None else self.filters.select(corpus)
        return filtered if held_out is None else WithoutHeldOut(filtered, held_out)


@dataclass(frozen=True)
class Corpora:
    """What a run trains and validates on."""

    sources: list[TrainingSource]
    valid: Corpus
    valid_tag: str | None = None
    held_out: HeldOut | None = None  # where `data.valid` is not set: `valid`, and no part of what is trained on
    notes: list[str] = field(default_factory=list)  # how it was chosen, for the user to see

    @property
    def train(self) -> Corpus:
        """What the model learns from: all sources, whatever their tags and weights."""
        return _join([source.select(self.held_out) for source in self.sources])

    @property
    def untagged(self) -> Corpus | None:
        """What of it is in the languages of the config, for tags may say otherwise; None: every source has another."""
        return None if _languages_differ(self.sources) else _join(_untagged(self.sources, self.held_out))


class TaggedCorpus:
    """The pairs of a corpus, a symbol before each source that is not blank."""

    def __init__(self, corpus: Corpus, tag: str):
        self.corpus, self.tag = corpus, tag

    @property
    def notes(self) -> list[str]:
        """Return what the last whole pass dropped."""
        return self.corpus.notes

    def pairs(self) -> Iterator[Pair]:
        """Yield all pairs."""
        for source, target in self.corpus.pairs():
            yield with_tag(source, self.tag), target

    def content_hash(self) -> str:
        """Return a hash of the corpus and of the tag."""
        return hashlib.sha256(f"tagged {self.tag} {self.corpus.content_hash()}".encode()).hexdigest()

    def describe(self) -> str:
        """Return what the corpus is."""
        return self.corpus.describe()


def tagged(corpus: Any, tag: str | None) -> Any:
    """Return the corpus with its tag, if it has one."""
    return corpus if tag is None else TaggedCorpus(corpus, tag)


def _untagged(sources: Sequence[TrainingSource], held_out: HeldOut | None = None) -> list[Corpus]:
    """Return the sources without a tag; all, where every source has one."""
    plain = [source for source in sources if source.tag is None] or sources
    return [source.select(held_out) for source in plain]


def _languages_differ(sources: Sequence[TrainingSource]) -> bool:
    """Return whether every source has a tag, and they differ."""
    tags = {source.tag for source in sources}
    return None not in tags and len(tags) > 1


def _join(corpora: Sequence[Corpus]) -> Corpus:
    return corpora[0] if len(corpora) == 1 else JoinedCorpus(corpora)


def open_corpora(config: Config, run: RunFolder, *, resuming: bool, progress: bool = False) -> Corpora:
    """Open `data.train` and `data.valid`; where this is not set, the pairs that the run holds out, chosen or saved.

    Those are chosen from the sources without a tag, if there are any. resuming: what is in the run folder counts.
    Raises `UserError` for faulty data, for a filter that has nothing to compare with, and for damaged or missing files
    of the run.
    """
    data, folder = config.data, run.held_out_path
    _check_filters(data)
    sources = open_sources(config, progress)
    if data.valid is not None:
        return Corpora(sources, open_split(data, "valid"), split_tag(config, "valid"))
    if _languages_differ(sources):
        raise UserError(
            f"data.valid: is not set, and the sources of data.train have different tags ({', '.join(data.tags)}), of "
            "which validation pairs have one; name validation files, with their tag"
        )
    tag = split_tag(config, "valid")
    if resuming and (os.path.lexists(folder) or run.vocab_path.exists() or run.index().steps):
        try:
            held_out = HeldOut.load(folder, data)
        except UserError as error:
            raise UserError(f"{error} (it holds the run's validation pairs), or start again with --fresh") from None
        note = f"data.valid is not set: {len(held_out):,} pairs held out of data.train are in {held_out.describe()}"
        return Corpora(sources, held_out, tag, held_out, [note])
    if os.path.lexists(folder) and not run.exists():
        raise UserError(f"{folder}: is in the way of the run's validation pairs; choose another folder with --out")
    held_out, repeated = hold_out(_join(_untagged(sources)), config, folder, progress)
    note = (
        f"data.valid is not set: {len(held_out):,} pairs held out of data.train (drawn by training.seed), kept as "
        f"{held_out.describe()}"
    )
    if repeated:
        which = "1 pair that repeats" if repeated == 1 else f"{repeated:,} pairs that repeat"
        note += f"; {which} one of their sentences {'is' if repeated == 1 else 'are'} left out"
    return Corpora(sources, held_out, tag, held_out, [note])


def _check_filters(data: DataConfig) -> None:
    """Raise `UserError` for a filter that would find nothing, since what it compares with is not named."""
    for key, source in data.sources.items():
        kinds, where = data.filters_of(source), "data.filters" if source.filters is None else f"{key}.filters"
        for split in ("valid", "test"):
            if f"overlap_{split}" in kinds and getattr(data, split) is None:
                raise UserError(
                    f"{where}: overlap_{split} compares with data.{split}, which is not set; set it, or leave out "
                    "the filter"
                )


def split_tag(config: Config, split: Literal["valid", "test"]) -> str | None:
    """Return the tag of `data.valid` or `data.test`: its own, else `decoding.tag`; of pairs that are held out of
    `data.train` that of its sources, None where one has none."""
    source = getattr(config.data, split)
    if source is not None:
        return source.tag or config.decoding.tag
    tags = [source.tag for source in config.data.sources.values()]
    return tags[0] if tags and None not in tags else None


def open_sources(config: Config, progress: bool = False) -> list[TrainingSource]:
    """Open the sources of `data.train`, with their filters."""
    data = config.data
    languages = data.source_language, data.target_language
    others: dict[str, Corpus] = {}
    opened = []
    for source in training_sources(data).values():
        corpus, filters = open_corpus(source, *languages), None
        kinds = data.filters_of(source)
        for split, other in (("valid", data.valid), ("test", data.test)):
            if f"overlap_{split}" in kinds and other is not None and split not in others:
                others[split] = open_corpus(other, *languages)
        if kinds:  # only then is what they need imported
            from transformer_cli.data.quality.filters import Filters
            from transformer_cli.data.quality.judge import either_side

            known = either_side(others) if source.tag is not None else others
            filters = Filters(corpus, kinds, data, known, seed=config.training.seed, progress=progress)
        opened.append(TrainingSource(corpus, source.tag, source.weight, filters))
    return opened


def open_saved(data: DataConfig, split: Literal["valid", "test"], model: Path) -> Corpus:
    """Return the corpus that the config of a trained model names, which is found from any folder; where it names no
    `data.valid`, the pairs that its run held out, which lie beside the model.

    Raises `UserError` where they do not, as `open_corpus` does, and for a file that is gone, with where it was.
    """
    if split == "test" or data.valid is not None:
        return open_split(find_data(data, split, model), split)
    if data.train is None:
        raise UserError("data.valid: is not set, as no data is known of an imported model")
    held_out = find_held_out(data, model)
    if held_out is None:
        raise UserError(
            f"{Path(os.path.abspath(model)).parent / HELD_OUT}: no such folder; the model's run held its validation "
            "pairs out of data.train, and they are not beside the model"
        )
    return held_out


def open_trained(config: Config, model: Path, progress: bool = False, either_side: bool = True) -> Corpus:
    """Return what the run of a trained model learned from, found from any folder: `data.train` as it is today, filtered
    as it was, without what was held out, where that lies beside the model.

    either_side: a source with a tag, which may be of the other direction, comes a second time, with its sides
    exchanged. Raises `UserError` where it is gone, or cannot be read.
    """
    found = config.model_copy(update={"data": find_data(config.data, "train", model)})
    held_out = find_held_out(config.data, model)
    sources = open_sources(found, progress)
    every = [source.select(held_out) for source in sources]
    if either_side and any(source.tag is not None for source in sources):
        from transformer_cli.data.quality.judge import EitherSide

        every = [EitherSide(one) if source.tag else one for source, one in zip(sources, every, strict=True)]
    return _join(every)


def find_held_out(data: DataConfig, model: Path) -> HeldOut | None:
    """Return the pairs that the run of a trained model held out; None where there are none, or not beside the model."""
    folders = [Path(path).parent / HELD_OUT for path in (os.path.abspath(model), os.path.realpath(model))]
    folder = next(filter(os.path.isdir, folders), None)
    return HeldOut.load(folder, data) if folder is not None and data.valid is None else None
