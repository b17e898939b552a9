"""Which target tokens a CTranslate2 model chooses from: a list for each source token, learned from the training data.

`export_ctranslate2` writes it into the folder, and the engine that loads it multiplies by the rows of these tokens
alone. What is in a list is what the tokens of a corpus most likely translate to (see `variants.lexicon`).
"""

from typing import NamedTuple

import numpy as np

from transformer_cli.build import LoadedModel
from transformer_cli.data.encoded import encode_corpus
from transformer_cli.data.held_out import open_trained
from transformer_cli.errors import UserError
from transformer_cli.text.vocabulary import SPECIALS
from transformer_cli.variants.lexicon import SPAN, Lexicon, learn_lexicon

FILE = "vmap.txt"  # as CTranslate2 calls it
COMMON = 100  # target tokens that are on every list: those that most often translate nothing, such as articles


class Shortlist(NamedTuple):
    """Lists for each source token of the target tokens that it may become; by default none."""

    common: int = 0  # tokens that are on every list
    text: str = ""  # of FILE


def learn_shortlist(loaded: LoadedModel, size: int, progress: bool = False) -> Shortlist:
    """Return the lists of a model, `size` translations of each source token, as CTranslate2 reads them.

    A line is a source token, a tab and its target tokens; that of no source token holds those that are always there
    (CTranslate2's documentation, "Dynamic vocabulary reduction"). Raises `UserError` where the training data is gone.
    """
    config, codecs = loaded.config, loaded.codecs
    source, target = codecs.source.vocabulary.get_itos(), codecs.target.vocabulary.get_itos()
    try:
        corpus = open_trained(config, loaded.folder, progress, either_side=False)
        most, workers = config.data.max_length, config.data.workers
        lexicon = learn_lexicon(encode_corpus(corpus, codecs, max_length=most, workers=workers, progress=progress))
    except UserError as error:
        raise UserError(f"--shortlist: is learned from the model's training data, but {error}") from None
    often = np.argsort(-lexicon.forward.nothing.numpy()[: len(target)], kind="stable").tolist()
    common = [target[index] for index in often if index >= len(SPECIALS)][:COMMON]
    lists, known = translations(lexicon, size), set(target)
    lines = [f"\t{' '.join(common)}"]
    for index, token in enumerate(source[len(SPECIALS) :], start=len(SPECIALS)):
        own = [target[other] for other in lists.get(index, [])]
        if token in known and token not in own:  # a name or a number stays as it is
            own.append(token)
        if own:
            lines.append(f"{token}\t{' '.join(own)}")
    return Shortlist(len(common), "".join(f"{line}\n" for line in lines))


def translations(lexicon: Lexicon, size: int) -> dict[int, list[int]]:
    """Return the `size` likeliest translations of each source id, likeliest first."""
    sources, targets = np.divmod(lexicon.keys.numpy(), SPAN)
    order = np.lexsort((-lexicon.forward.probability.numpy(), sources))
    sources, targets = sources[order], targets[order]
    kept = np.arange(len(sources)) - np.searchsorted(sources, sources) < size  # the place in its own list
    found: dict[int, list[int]] = {}
    for source, target in zip(sources[kept].tolist(), targets[kept].tolist(), strict=True):
        found.setdefault(source, []).append(target)
    return found
