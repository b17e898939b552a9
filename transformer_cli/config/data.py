"""Where the sentence pairs come from: the config section `data`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from transformer_cli.config.section import Language, Section


class TextFiles(Section):
    """Two text files, plain or `.gz`, such as `{source: a.de, target: a.en}`."""

    source: str  # the file with one source sentence a line
    target: str  # the file with their translations, line by line


class TableFile(Section):
    """One table, such as `{file: a.tsv, source_column: german, target_column: english}`."""

    file: str  # its name ends in `.tsv`, `.csv` or `.jsonl`, each also with `.gz`, or in `.parquet`
    source_column: str | None = None  # null: the column named as the source language
    target_column: str | None = None  # null: the column named as the target language


class HubDataset(Section):
    """A Hugging Face dataset, such as `{dataset: bentrevett/multi30k, split: train}`; needs
    `pip install 'transformer-cli[datasets]'`, as Parquet files do."""

    dataset: str  # its name on the Hugging Face hub, or a local folder of one
    name: str | None = None  # which configuration of the dataset, where it has several
    split: str  # such as `train` or `validation`
    revision: str | None = None  # commit, branch or tag of the dataset; null: the newest
    source_column: str | None = None  # null: the source language; a dot reaches into a nested column (`translation.de`)
    target_column: str | None = None  # null: the target language; as above


def _source_kind(value: Any) -> str:
    keys = value if isinstance(value, Mapping) else vars(value) if isinstance(value, Section) else {}
    return "dataset" if "dataset" in keys else "file" if "file" in keys else "text"


DataSource = Annotated[
    Annotated[TextFiles, Tag("text")] | Annotated[TableFile, Tag("file")] | Annotated[HubDataset, Tag("dataset")],
    Discriminator(_source_kind),
]


class DataConfig(Section):
    """Where the sentence pairs come from."""

    source_language: Language  # translated from, such as `de`; also names columns, and the spaCy tokeniser
    target_language: Language  # translated into; also chooses the tokeniser of BLEU
    train: DataSource  # what the model learns from
    valid: DataSource  # what decides which checkpoint is best
    test: DataSource | None = None  # what `tfm evaluate` takes where no files are given; training never looks at it
    # Tokens of a training pair's longer side, `</s>` not counted; longer pairs are left out and counted. Longer text to
    # translate is cut into pieces.
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 256
    # Processes that encode and batch beside the training one; 0: none.
    workers: Annotated[int, Field(ge=0, le=256)] = 2
