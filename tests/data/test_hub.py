"""Parquet files and datasets give the texts of two columns as they stand, or are refused in one line."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_cli.config import HubDataset, TableFile
from transformer_cli.data.corpora import Corpus, open_corpus
from transformer_cli.data.hub import open_dataset
from transformer_cli.errors import UserError

NESTED = ("translation.de", "translation.en")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`datasets` keeps its copies away from the user's, and asks no hub."""
    with pytest.MonkeyPatch.context() as patch:
        import datasets.config
        import huggingface_hub.constants

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield


def parquet(path: Path, rows: list[dict[str, Any]], columns: tuple[str, str] = ("de", "en")) -> Corpus:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return open_parquet(path, columns)


def open_parquet(path: Path, columns: tuple[str, str] = ("de", "en")) -> Corpus:
    return open_corpus(TableFile(file=str(path)), *columns)


def jsonl_folder(folder: Path, pairs: list[tuple[str, str]]) -> str:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"de": source, "en": target}) + "\n" for source, target in pairs]
    (folder / "train.jsonl").write_text("".join(lines))
    return str(folder)


def test_parquet(tmp_path: Path) -> None:
    pairs = [("NA", "null"), ('"', "a\u2028b"), ("", " x "), *((f"s{i}", f"t{i}") for i in range(2500))]
    corpus = parquet(tmp_path / "a[1]*.parquet", [{"de": source, "en": target, "id": 1} for source, target in pairs])
    assert list(corpus.pairs()) == pairs
    assert list(corpus.pairs()) == pairs


def test_nested_columns_and_line_breaks(tmp_path: Path) -> None:
    rows = [{"translation": {"de": "a\nb", "en": "c\r\nd"}}]
    assert list(parquet(tmp_path / "a.parquet", rows, NESTED).pairs()) == [("a b", "c d")]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([{"de": "x", "fr": "y"}], ("de", "en"), "a.parquet: no column 'en', only 'de', 'fr'"),
        ([{"translation": {"de": "x"}}], NESTED, "a.parquet: no column 'translation.en', only 'de'"),
        ([{"translation": "x"}], NESTED, "a.parquet: no column 'translation.de'"),
        ([{"de": "x", "en": "y"}] * 1500 + [{"de": None, "en": "y"}], ("de", "en"), "row 1501: 'de' is null"),
        ([{"de": "x", "en": None}], ("de", "en"), "row 1: 'en' is null"),
        ([{"translation": {"de": "x", "en": "y"}}, {"translation": None}], NESTED, "row 2: 'translation.de' is null"),
        ([{"de": "x", "en": 5}], ("de", "en"), "column 'en' holds int64, not text"),
    ],
)
def test_parquet_refused(tmp_path: Path, rows: list[Any], columns: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(parquet(tmp_path / "a.parquet", rows, columns).pairs())


def test_empty_damaged_and_missing_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"de": pa.array([], pa.string()), "en": pa.array([], pa.string())}), path)
    with pytest.raises(UserError, match="has no rows"):
        list(open_parquet(path).pairs())
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"a\.parquet: is damaged or not a Parquet file") as error:
        open_parquet(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"nowhere\.parquet: no such file"):
        open_parquet(tmp_path / "nowhere.parquet")


def test_an_edited_file_is_seen(tmp_path: Path) -> None:
    first = parquet(tmp_path / "a.parquet", [{"de": "x", "en": "y"}])
    before = first.content_hash()
    second = parquet(tmp_path / "a.parquet", [{"de": "x", "en": "z"}])
    assert list(second.pairs()) == [("x", "z")]
    assert second.content_hash() != before


@pytest.mark.parametrize("split", ["train", "train[:2]"])  # streamed and mapped
def test_a_folder_and_an_edit_in_it(tmp_path: Path, split: str) -> None:
    hashes = []
    for pairs in ([("a", "b"), ("c", "d")], [("a", "b"), ("c", "e")]):
        source = HubDataset(dataset=jsonl_folder(tmp_path / "folder", pairs), split=split)
        corpus = open_dataset(source, ("de", "en"))
        assert list(corpus.pairs()) == pairs
        hashes.append(corpus.content_hash())
        assert corpus.content_hash() == hashes[-1]
    assert hashes[0] != hashes[1]


def test_unknown_split_and_name(tmp_path: Path) -> None:
    folder = jsonl_folder(tmp_path / "folder", [("a", "b")])
    with pytest.raises(UserError, match=r"folder, split nope: cannot be loaded: .*check name and split"):
        open_dataset(HubDataset(dataset=folder, split="nope"), ("de", "en"))
    with pytest.raises(UserError, match="folder, split train: cannot be loaded: "):
        open_dataset(HubDataset(dataset=folder, name="other", split="train"), ("de", "en"))


def test_the_hub_out_of_reach() -> None:
    with pytest.raises(UserError, match="check name and network, or use local files") as error:
        open_dataset(HubDataset(dataset="bentrevett/multi30k", split="train"), ("de", "en"))
    assert "\n" not in str(error.value)


def test_the_package_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'transformer-cli\[datasets\]'"):
        parquet(tmp_path / "a.parquet", [{"de": "x", "en": "y"}])
