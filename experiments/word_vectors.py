"""Word vectors of a text in one language, to begin a translator's embeddings with: word2vec's text format.

    pip install gensim
    .venv/bin/python experiments/word_vectors.py train.de --language de -o vectors.de

Skip-gram with negative sampling (Mikolov et al. 2013), learned by gensim from the words that spaCy's rules find. One
thread and a seed, so that the same text gives the same vectors.
"""

import argparse
from pathlib import Path

from gensim.models import Word2Vec

from transformer_cli.text.lines import read_lines
from transformer_cli.text.tokenizers import SpacySplitter

ROUNDS = 20


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a sentence on each line; .gz as well")
    parser.add_argument("--language", required=True, help="chooses spaCy's rules, such as de")
    parser.add_argument("--dimensions", type=int, default=300)
    parser.add_argument("--output", "-o", type=Path, required=True)
    options = parser.parse_args()
    split = SpacySplitter(options.language)
    sentences = [[part for word in line.split() for part in split(word)] for line in read_lines(options.text)]
    model = Word2Vec(
        sentences, vector_size=options.dimensions, sg=1, negative=10, min_count=1, epochs=ROUNDS, seed=1, workers=1
    )
    model.wv.save_word2vec_format(str(options.output))
    print(f"{len(sentences):,} sentences, vectors of {len(model.wv):,} words in {options.output}")


if __name__ == "__main__":
    main()
