"""What only the torch engine does, and a CTranslate2 model leaves to it. Imports neither."""

from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.options import NO_DEMANDS, SearchOptions
from transformer_cli.text.vocabulary import SPECIALS


def torch_needs(options: SearchOptions) -> list[str]:
    """What of these options only the torch engine has, by name.

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
    """What of a batch only the torch engine can do, by name.

    longest: tokens of the longest source with `</s>`, or of the longest translation there may be; positions: rows of
    the CTranslate2 model's position tables; target_tokens: size of the target vocabulary.
    """
    wishes = {
        "words that must or must not appear": any(one != NO_DEMANDS for one in batch.demands or ()),
        f"texts of {longest:,} tokens (here {positions:,} are the most)": longest > positions,
        "a beam of half the vocabulary": options.method == "beam"
        and 2 * options.beam_size + len(SPECIALS) > target_tokens,
        "an empty source": not all(map(len, batch.sources)),
    }
    return [name for name, wished in wishes.items() if wished]
