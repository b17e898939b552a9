"""How often a model gets those words right that its target vocabulary lacks: names, numbers, rare words. For example:

    .venv/bin/python experiments/copying.py checkpoints/copy_mechanism checkpoints/copy_mechanism_softmax \\
        --source data/names/test.de --reference data/names/test.en

A word of a reference is right where the translation holds it, as often as it stands in both; its words are the tokens
of the model's own tokenizer. `in the source` are those that the source holds as they are. Lines are right where they
are the reference, letter by letter. `--translations` counts what was written before, by the one model's vocabulary.
`--keep-unknown` leaves an <unk> as it is, where a model else copies the word that attention points at. Prints a
Markdown table; with `--mean` its last line is the mean of the models, which differ in their seeds, and their spread.
"""

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_cli import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import corpus_metric, read_test_set
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import read_lines


class Copied(NamedTuple):
    """What became of the words of the references that the vocabulary lacks."""

    words: int
    right: int
    in_source: int  # of these words, those that the source holds too …
    right_in_source: int  # … and how many of them are right


def count_copied(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str], codecs: Codecs
) -> Copied:
    """Count over all lines; a word that stands twice in a reference must stand twice in the translation."""
    totals = Counter[str]()
    for source, reference, translation in zip(sources, references, translations, strict=True):
        tokens = Counter(token for token in codecs.target.tokenize(reference) if token not in codecs.target.vocabulary)
        found = tokens & Counter(codecs.target.tokenize(translation))
        there = set(codecs.source.tokenize(source))
        totals.update(
            words=tokens.total(),
            right=found.total(),
            in_source=sum(count for token, count in tokens.items() if token in there),
            right_in_source=sum(count for token, count in found.items() if token in there),
        )
    return Copied(totals["words"], totals["right"], totals["in_source"], totals["right_in_source"])


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="run folders or checkpoint folders")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--translations", type=Path, help="count these, made before")
    parser.add_argument("--keep-unknown", action="store_true")
    parser.add_argument("--mean", action="store_true", help="of all models, with the standard deviation")
    options = parser.parse_args()
    test_set = read_test_set(options.source, [options.reference])
    sources, (references,) = test_set.sources, test_set.references
    print("| model | BLEU | unknown words right | in the source, right | lines right |\n|---|---|---|---|---|")
    rows: list[tuple[float, ...]] = []
    for model in options.models:
        translator = Translator.load(model, device="cpu", engine="torch")
        if options.keep_unknown:
            decoding = translator.config.decoding.model_copy(update={"copy_unknown": False})
            translator.config = translator.config.model_copy(update={"decoding": decoding})
        if options.translations is None:
            found = translator.translate(sources)
        else:
            found = list(read_lines(options.translations))
            if len(found) != len(references):
                raise UserError(
                    f"{options.translations}: has {len(found)} lines, but {options.reference} {len(references)}"
                )
        counts = count_copied(sources, references, found, translator.codecs)
        bleu = corpus_metric("bleu", found, [references], translator.config.data.target_language).score
        whole = sum(one == other for one, other in zip(found, references, strict=True))
        shares = percent(counts.right, counts.words), percent(counts.right_in_source, counts.in_source)
        rows.append((bleu, *shares, percent(whole, len(references))))
        print(
            f"| {Path(model).name} | {bleu:.2f} | {shares[0]:.1f} % of {counts.words:,} "
            f"| {shares[1]:.1f} % of {counts.in_source:,} | {rows[-1][-1]:.1f} % |",
            flush=True,
        )
    if options.mean and len(rows) > 1:
        cells = [
            f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in zip(*rows, strict=True)
        ]
        print(f"| mean ± standard deviation | {' | '.join(cells)} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
