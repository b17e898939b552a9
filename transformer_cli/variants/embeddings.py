"""Embeddings of other origin or kind: pretrained word vectors, embeddings that begin near those of their translations,
and one-hot vector × matrix as it is taught."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from tqdm import tqdm

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.model.embedding import Embedding, TokenEmbedding
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.codec import Codec, Codecs, fixed_tokens
from transformer_cli.text.lines import TextLines, read_lines
from transformer_cli.text.tokenizers import JOINER, SPACE, unescape
from transformer_cli.variants.lexicon import Lexicon


class OneHotEmbedding(TokenEmbedding):
    """√d_model · (one-hot(ids) E): row `id` of E by a product, where `TokenEmbedding` reads it from its place."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        matrix = self.table.weight  # (V, D)
        vectors = one_hot(ids, len(matrix)).to(matrix.dtype)  # (B, T, V): 1 at the id, else 0
        with torch.autocast(matrix.device.type, enabled=False):  # a look-up rounds nothing
            return (vectors @ matrix) * self.scale


SHOWN = 40  # characters of a word in a message
LARGEST = 1e30  # what a number may be: its square must be finite too

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """What a file has for a vocabulary."""

    ids: npt.NDArray[np.int64]  # (N,) of the tokens that it knows, in order
    vectors: Matrix  # (N, D)
    words: int  # in the file


def check_vectors(path: str | Path, size: int) -> None:
    """Raise `UserError` where the file cannot be read, or does not begin as one with vectors of this size does."""
    with read_lines(path) as lines:
        next(_entries(lines, size), None)


def read_vectors(path: str | Path, size: int, codec: Codec, progress: bool = False) -> WordVectors:
    """Return the vectors of this size for the tokens of a codec's vocabulary, specials left out.

    A token takes the vector of the word that it is: as it is, else without its mark (`￭`, `▁`), else lowercased. A
    piece within a word is not a word: it takes one only of a file whose words are pieces too. Of a word that is there
    twice the first counts. With `progress`, a bar is drawn on stderr if that is a terminal. Raises `UserError` with
    file and line.
    """
    wanted = _wanted(codec)
    rank = np.full(len(codec.vocabulary), 99)
    table = np.zeros((len(codec.vocabulary), size), dtype=np.float32)
    words, of_pieces, hidden = 0, False, None if progress else True  # None: where stderr is no terminal
    with read_lines(path) as lines:
        entries = _entries(lines, size)
        for word, numbers in tqdm(entries, desc=f"reading {path}", unit=" words", unit_scale=True, disable=hidden):
            words += 1
            of_pieces |= word.startswith(SPACE)
            better = [(place, token) for place, token in wanted.get(word, ()) if place < rank[token]]
            if better:
                vector = _vector(lines, word, numbers)
                for place, token in better:
                    rank[token], table[token] = place, vector
    if codec.is_subword and not of_pieces:
        starts = [token.startswith(SPACE) for token in codec.vocabulary.get_itos()]
        rank[~np.array(starts)] = 99
    ids = (rank < 99).nonzero()[0]
    return WordVectors(ids, table[ids], words)


def _wanted(codec: Codec) -> dict[str, list[tuple[int, int]]]:
    """Return for each word that is looked for the tokens (by id) that it may be, each with its rank: 0 is the best."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for token_id, token in enumerate(codec.vocabulary.get_itos()):
        if token_id < len(codec.vocabulary.specials):
            continue
        bare = unescape(token).removeprefix(SPACE if codec.is_subword else JOINER)
        for place, word in enumerate(dict.fromkeys([token, bare, token.lower(), bare.lower()])):
            if word:
                wanted.setdefault(word, []).append((place, token_id))
    return wanted


def _entries(lines: TextLines, size: int) -> Iterator[tuple[str, str]]:
    """Yield each word and its numbers, as text; a word may hold spaces. Raises `UserError` where a line has too few."""
    promised, found = None, 0
    for line in lines:
        line = line.replace("\t", " ").rstrip(" ")
        spaces = line.count(" ")
        if lines.number == 1:
            if promised := _promise(line):
                if promised[1] != size:
                    raise _wrong_size(lines, promised[1], size)
                continue
            if spaces != size:
                raise _wrong_size(lines, spaces, size)
        if spaces < size:
            if not line:  # the file's last, as a rule
                continue
            word = line.partition(" ")[0][:SHOWN]
            raise UserError(f"{lines.name}:{lines.number}: {word!r} has {spaces} numbers, not {size}; fix the line")
        found += 1
        word, numbers = line.split(" ", 1) if spaces == size else _split_last(line, size)
        yield word, numbers
    if not found:
        raise UserError(f"{lines.name}: holds no word vectors; a line is a word and its numbers, with spaces between")
    if promised and promised[0] != found:
        raise UserError(f"{lines.name}:1: promises {promised[0]:,} words, but {found:,} are there; copy the file again")


def _promise(line: str) -> tuple[int, int] | None:
    """Return the count and size of the vectors, where the line is such a first line."""
    fields = line.split(" ")
    if len(fields) == 2 and all(field.isascii() and field.isdigit() and len(field) < 16 for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _split_last(line: str, size: int) -> tuple[str, str]:
    """Return the word, with its spaces, and the last `size` fields."""
    word, *numbers = line.rsplit(" ", size)
    return word, " ".join(numbers)


def _vector(lines: TextLines, word: str, numbers: str) -> npt.NDArray[Any]:
    try:
        vector = np.array([float(number) for number in numbers.split(" ")])
    except ValueError:
        vector = np.array([np.nan])
    if not (np.abs(vector) < LARGEST).all():  # NaN is not below anything
        raise UserError(
            f"{lines.name}:{lines.number}: {word[:SHOWN]!r} has a field that is not a finite number; fix the line"
        )
    return vector


def _wrong_size(lines: TextLines, found: int, size: int) -> UserError:
    where = f"{lines.name}:{lines.number}"
    if found < 2:
        return UserError(f"{where}: is not a word vector; a line is a word and its {size} numbers, with spaces between")
    return UserError(
        f"{where}: has {found} numbers per word, but model.d_model is {size}; take vectors of that size, or set "
        f"d_model: {found}"
    )


def check_vector_files(config: Config) -> None:
    """Raise `UserError` for what the beginnings of the files show."""
    for key, path in _files(config).items():
        try:
            check_vectors(path, config.model.d_model)
        except UserError as error:
            raise UserError(f"training.{key}: {error}") from None


def load_vectors(config: Config, model: Transformer, codecs: Codecs, progress: bool = False) -> list[str]:
    """Give the embeddings of a fresh model the vectors of the config's files; returns lines to show.

    Raises `UserError` with file and line, also where a file has no vector of use.
    """
    sides = {
        "source_vectors": (model.source_embedding, codecs.source),
        "target_vectors": (model.target_embedding, codecs.target),
    }
    return [_load(key, path, *sides[key], progress) for key, path in _files(config).items()]


def _files(config: Config) -> dict[str, str]:
    """Return the files that the config names, by key."""
    named = {key: getattr(config.training, key) for key in ("source_vectors", "target_vectors")}
    return {key: path for key, path in named.items() if path is not None}


def _load(key: str, path: str, embedding: Embedding, codec: Codec, progress: bool) -> str:
    """Fill the rows of the tokens that a file knows, rescaled; the others stay as they were drawn.

    One factor brings all of them to the root mean square of rows that were drawn, d_model^-0.5: so √d_model times a
    vector stands to its position as in any model, and lengths and angles among the vectors stay as they are.
    """
    table = embedding.tokens.table.weight
    try:
        found = read_vectors(path, table.size(1), codec, progress)
    except UserError as error:
        raise UserError(f"training.{key}: {error}") from None
    vectors = torch.from_numpy(found.vectors)
    size = float(vectors.double().square().mean().sqrt()) if len(vectors) else 0.0
    if not size:
        raise UserError(
            f"training.{key}: {path}: none of its {found.words:,} words is in the vocabulary, or all of their numbers "
            "are 0; take vectors of this language"
        )
    with torch.no_grad():
        table[torch.from_numpy(found.ids)] = vectors * (table.size(1) ** -0.5 / size)
    specials, counts = len(codec.vocabulary.specials), codec.vocabulary.counts
    types = len(codec.vocabulary) - specials
    tokens, all_tokens = sum(counts[number] for number in found.ids), sum(counts[specials:])
    running = f", {tokens / all_tokens:.1%} of running tokens" if all_tokens else ""
    share = f"{len(found.ids):,} of {types:,} types ({len(found.ids) / types:.1%}){running}"
    return f"vectors      {key.removesuffix('_vectors')}: {share} have one of the {found.words:,} in {path}"


OWN = 0.5  # how much of its own vector a source token keeps, beside the mean of its translations


@torch.no_grad()
def begin_near_translations(config: Config, model: Transformer, codecs: Codecs, lexicon: Lexicon) -> list[str]:
    """Bring a fresh model's embeddings of tokens that translate each other close together; returns lines to show.

    A source token's vector becomes the mean of the target tokens that a lexicon links it to, weighted by confidence,
    plus OWN times its own. Then each target token adds the mean of the source tokens that it is linked to. Vectors keep
    their lengths; specials, separators and symbols, tags among them, stay. So what a token means in the other language
    need not be learned token by token: one linear map, the same for all, leads from source to output; and target tokens
    with the same translations, such as forms of one word, begin alike. Remy et al. 2024 ("Trans-Tokenization and
    Cross-lingual Vocabulary Transfers") take such means to transfer a language model to another language.
    """
    source, target = (side.tokens.table.weight for side in (model.source_embedding, model.target_embedding))
    ours, theirs, confidence = lexicon.links()
    words = _are_words(ours, codecs.source, config) & _are_words(theirs, codecs.target, config)
    places, size = torch.stack([ours[words], theirs[words]]), (len(source), len(target))
    links = torch.sparse_coo_tensor(places, confidence[words], size, check_invariants=True)
    _turn(source, links @ normalize(target), OWN)
    _turn(target, links.t() @ normalize(source), 1.0)
    counts = [
        f"{len(torch.unique(ids)):,} of {len(codec.vocabulary) - len(codec.vocabulary.specials):,} {side} tokens"
        for side, ids, codec in zip(("source", "target"), places, (codecs.source, codecs.target), strict=True)
    ]
    return [f"embeddings   {' and '.join(counts)} begin near those that translate them"]


def _are_words(ids: Tensor, codec: Codec, config: Config) -> Tensor:
    """Return which ids are of the vocabulary (those that a pointer copies are not), and of text, not of its marks."""
    vocabulary = codec.vocabulary
    fixed = vocabulary.lookup_indices(fixed_tokens(codec.tokenizer, config.vocabulary))
    marks = torch.tensor([*range(len(vocabulary.specials)), *fixed])
    return (ids < len(vocabulary)) & ~torch.isin(ids, marks)


def _turn(table: Tensor, towards: Tensor, own: float) -> None:
    """Turn each row of a table (V, D) to its row in `towards`, plus `own` times its own; lengths stay.

    Both count as directions. A row stays where `towards` is zero.
    """
    turned = normalize(normalize(towards) + own * normalize(table)) * table.norm(dim=1, keepdim=True)
    table.copy_(torch.where(towards.any(dim=1, keepdim=True), turned, table))
