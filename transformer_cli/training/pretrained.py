"""Embeddings that begin with word vectors of others: `training.source_vectors` and `target_vectors`.

`beginning` looks whether the files will do, `session` loads them; a run that goes on from a checkpoint needs neither.
"""

import torch

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.vectors import check_vectors, read_vectors


def check_vector_files(config: Config) -> None:
    """Raise `UserError` for what can be told from the beginnings of the files."""
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
    """The files that the config names, by key."""
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
