"""What an engine is, and what it speaks: ids, constraints on ids, hypotheses.

`TorchEngine` is one, `CTranslate2Engine` another; `Translator` knows no more, and searches speak the same. No torch.
An engine's methods may be called from several threads at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class TokenConstraints:
    """Constraints on the translation of one sentence, in target ids. Raises `UserError` for what nothing can satisfy.

    The length limit gives way where prefix and required tokens need more room.
    """

    prefix: tuple[int, ...] = ()  # what it begins with
    required: tuple[tuple[int, ...], ...] = ()  # each of them occurs in it; what is listed twice, twice
    forbidden: tuple[tuple[int, ...], ...] = ()  # none of them occurs in it

    def __post_init__(self) -> None:
        for name, sequences in (("required", self.required), ("forbidden", self.forbidden)):
            if not all(sequences):
                raise UserError(f"an empty text cannot be {name}: give at least one word")
        for sequence in (self.prefix, *self.required, *self.forbidden):
            if not {PAD, BOS, EOS}.isdisjoint(sequence):
                raise UserError(f"the tokens {list(sequence)} hold <pad>, <s> or </s>: no translation does")
        for sequence in self.forbidden:
            for name, text in (("prefix", self.prefix), *(("required", text) for text in self.required)):
                if occurs(sequence, text):
                    raise UserError(f"the tokens {list(sequence)} are forbidden, but {name} text holds them: drop one")


UNCONSTRAINED = TokenConstraints()


def occurs(sequence: Sequence[int], text: Sequence[int]) -> bool:
    """Return whether the text holds the sequence's tokens one after another."""
    size = len(sequence)
    return any(tuple(text[place : place + size]) == tuple(sequence) for place in range(len(text) - size + 1))


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found."""

    ids: list[int]  # without </s>
    score: float  # log_probability / penalty(len(ids)), plus the coverage penalty if asked for; the higher the better
    log_probability: float  # Σ log p of the ids, and of </s> if ended; the model's own, whatever the constraints
    ended: bool  # False: cut off at the length limit


@dataclass(frozen=True)
class SearchBatch:
    """Sentences that are searched together, and what each asks for; `Engine.search` takes these beside the options."""

    sources: Sequence[Sequence[int]]
    keys: Sequence[tuple[int, ...]] | None = None  # seed the draws of each in sampling; None: its place
    constraints: Sequence[TokenConstraints] | None = None  # None: of no sentence anything


class Engine(Protocol):
    """What searches, scores and aligns. Ids come and go without specials, which the engine adds."""

    @property
    def name(self) -> str: ...

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens, `</s>` not counted, that are searched for at once; None: any number."""

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens, `</s>` not counted; None: any number."""

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        """Yield for each batch, in order, the `n_best` hypotheses of each source, best first.

        It may work on some batches while it reads the next ones. Raises `UserError` for what the model cannot do.
        """

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p of each target token and of `</s>` after them, given the source and the tokens before it."""

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return for each target token the place of its source token by the cross-attention (see `own_sources`).

        The weights are those of `layer` (counted as Python does), the mean over `heads` (None: all of them). `skip`:
        how many tokens each source begins with that are nobody's, those of a tag; places count from after them, and
        what attends to one most belongs to the best of the others. Needs no empty source, nor one that is all skipped.
        Raises `UserError` where there is no such layer or head.
        """


class LoadedEngine(NamedTuple):
    """An engine, and what of its model is text."""

    engine: Engine
    codecs: Codecs
    config: Config


def torch_needs(options: SearchOptions) -> list[str]:
    """Return what of these options only the torch engine has, by name.

    CTranslate2 has some of it too, but not alike: where it forbids a token, the others share its probability.
    """
    wishes = {
        "sampling": options.method == "sample",
        "diverse beam search": options.diversity_groups > 1,
        "the exact stopping rule": options.method == "beam" and options.stopping == "exact",
        "the coverage penalty": options.coverage_penalty > 0,
        "a least length": options.min_length > 1,
    }
    return [name for name, wished in wishes.items() if wished]


def batch_needs(
    batch: SearchBatch, options: SearchOptions, longest: int, positions: int, target_tokens: int
) -> list[str]:
    """Return what of a batch only the torch engine can do, by name.

    longest: tokens of the longest source with `</s>`, or of the longest translation there may be; positions: rows of
    the CTranslate2 model's position tables; target_tokens: size of the target vocabulary.
    """
    wishes = {
        "words that must or must not appear": any(one != UNCONSTRAINED for one in batch.constraints or ()),
        f"texts of {longest:,} tokens (here {positions:,} are the most)": longest > positions,
        "a beam of half the vocabulary": options.method == "beam"
        and 2 * options.beam_size + len(SPECIALS) > target_tokens,
        "an empty source": not all(map(len, batch.sources)),
    }
    return [name for name, wished in wishes.items() if wished]


# Added to what a source token gets in all, so that one which no step looks at is nobody's, and the only token of a
# target belongs to what it looks at most. The error rate is the same within 0.006 from 0 to 0.2.
FLOOR = 0.05


def own_sources(weights: "npt.NDArray[Any]") -> list[int]:
    """Return the place of each target token's source token, from attention weights (T, S) as each of T is predicted.

    A weight counts by its share of all that the source token gets, so that a full stop which every step looks at is
    not everybody's. S must be 1 or more; `</s>` and padding do not belong in `weights`.
    """
    import numpy as np  # not at the top: it takes a while

    weights = np.asarray(weights, dtype=np.float64)
    shares = weights / (weights.sum(axis=0, keepdims=True) + FLOOR)
    places: list[int] = shares.argmax(axis=1).tolist()
    return places
