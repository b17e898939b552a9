"""What files are is told by their names and first lines; what cannot be told is asked for in one line."""

import gzip
import zipfile
from pathlib import Path

import pytest

from tests.data.test_tmx import memory, unit
from tests.sampling import one_of_each
from transformer_cli.data.corpora import open_split
from transformer_cli.data.recognize import Recognized, Wanted, recognize, settle, split_of
from transformer_cli.errors import UserError

NOTHING: Wanted = (None, None)
PAIR = [("Hallo, Welt", 'say "hello"'), ("a;b", "c")]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def texts(folder: Path, *names: str) -> list[Path]:
    for place, name in enumerate(names):
        write(folder, name, "".join(f"{pair[place % 2]}\n" for pair in PAIR))
    return [folder / name for name in names]


def check(found: Recognized, languages: tuple[str, str] = ("de", "en")) -> None:
    """The pairs are there, and again where a config names them."""
    assert found.languages == languages
    assert list(found.pairs()) == PAIR
    if found.source is not None:
        from transformer_cli.config import config_of_tree

        data = {"source_language": languages[0], "target_language": languages[1], "train": found.source}
        config = config_of_tree({"data": data}, "a.yaml").data
        assert list(open_split(config, "train").pairs()) == PAIR


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["train.de", "train.en"], NOTHING),
        (["a.de.gz", "a.en.gz"], NOTHING),
        (["Europarl.de-en.de", "Europarl.de-en.en"], NOTHING),
        (["train-de.txt", "train-en.txt"], NOTHING),
        (["de.txt", "en.txt"], NOTHING),
        (["a.txt", "b.txt"], ("de", "en")),
        (["a.de", "a.en"], ("de", None)),
        (["a.de", "a.en"], (None, "en")),
        (["src.txt", "tgt.txt"], ("de", "en")),
    ],
)
def test_two_text_files(names: list[str], wanted: Wanted, tmp_path: Path) -> None:
    found = recognize(texts(tmp_path, *names), wanted)
    assert list(found) == ["train"]
    check(found["train"])
    assert found["train"].source is not None


def test_names_count_more_than_the_order_where_the_options_say_the_direction(tmp_path: Path) -> None:
    files = texts(tmp_path, "a.de", "a.en")
    check(recognize(files[::-1], ("de", "en"))["train"])
    check(recognize(files[::-1], ("de", None))["train"])
    turned = recognize(files, ("en", "de"))["train"]
    assert list(turned.pairs()) == [(english, german) for german, english in PAIR]


def test_a_file_named_by_a_country(tmp_path: Path) -> None:
    files = texts(tmp_path, "a.en", "a.jp")
    with pytest.raises(UserError, match=r"a\.jp: 'jp' is not .* did you mean ja\? Name it with --to"):
        recognize(files, NOTHING)
    with pytest.raises(UserError, match=r"^--from: 'jp' is not a language code; jp is a country"):
        recognize(files, ("jp", "en"))
    named = recognize(files, ("ja", "en"))["train"]  # the other file is English, whichever comes first
    assert (named.languages, [*named.pairs()]) == (("ja", "en"), [(second, first) for first, second in PAIR])


QUOTED = ['"Hallo, Welt"{0}"say ""hello"""', '"a;b"{0}c']
TABLES = {
    "a.tsv": "de\ten\n" + "".join(f"{source}\t{target}\n" for source, target in PAIR),
    "plain.csv": "\n".join(["de,en", *QUOTED]).format(","),
    "bom.csv": "\ufeff" + "\r\n".join(["de,en", *QUOTED]).format(","),
    "semicolons.csv": "\ufeff" + "\r\n".join(["de;en", *QUOTED]).format(";"),
    "said.csv": "\ufeff" + "\r\n".join(["sep=;", "de;en", *QUOTED]).format(";"),
    "tabs.csv": "\n".join(["de\ten", *QUOTED]).format("\t"),
    "names.csv": "\n".join(["German,English", *QUOTED]).format(","),
    "regions.csv": "\n".join(["de-DE,en_US", *QUOTED]).format(","),
    "sides.de-en.csv": "\n".join(["Source,Target", *QUOTED]).format(","),
    "more.csv": "\n".join(["id,de,score,en", *(f"1,{row}" for row in QUOTED)]).format(",0.5,"),
    "flat.jsonl": '{"id": "1", "de": "Hallo, Welt", "en": "say \\"hello\\""}\n{"id": "2", "de": "a;b", "en": "c"}\n',
    "deep.jsonl": '{"translation": {"de": "Hallo, Welt", "en": "say \\"hello\\""}}\n'
    '{"translation": {"de": "a;b", "en": "c"}}\n',
}


@pytest.mark.parametrize(
    ("name", "how"), one_of_each([pytest.param(name, how) for how in ("plain", "gz", "zip")] for name in TABLES)
)
def test_tables(name: str, how: str, tmp_path: Path) -> None:
    content = TABLES[name]
    if how == "zip":
        path = tmp_path / "table.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"folder/{name}", content)
    else:
        path = write(tmp_path, name + ".gz" * (how == "gz"), content)
    found = recognize([path], NOTHING)["train"]
    check(found)
    config_can = how != "zip" and name not in ("semicolons.csv", "said.csv", "tabs.csv")
    assert (found.source is not None) == config_can


def test_the_options_choose_among_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "fr,de,en\nx,Hallo,hello\n")
    assert list(recognize([path], ("en", "fr"))["train"].pairs()) == [("hello", "x")]
    with pytest.raises(UserError, match=r"a\.csv:1: is in fr, de and en; name the two"):
        recognize([path], NOTHING)


@pytest.mark.parametrize("how", ["plain", "gz", "zip"])
def test_tmx(how: str, tmp_path: Path) -> None:
    content = memory("".join(unit(source, target) for source, target in PAIR)).replace('"en"', '"de"', 1)
    path = tmp_path / ("a.zip" if how == "zip" else "a.tmx" + ".gz" * (how == "gz"))
    if how == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.tmx", content)
    else:
        write(tmp_path, path.name, content)
    check(recognize([path], NOTHING)["train"])
    assert recognize([path], ("en", None))["train"].languages == ("en", "de")


@pytest.mark.parametrize("name", ["de-en.txt.zip", "other.zip"])
def test_a_moses_zip(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for place, language in enumerate(("de", "en")):
            archive.writestr(f"Books.de-en.{language}", "".join(f"{pair[place]}\n" for pair in PAIR))
        archive.writestr("README", "x")
        archive.writestr("Books.de-en.xml", "x")
    found = recognize([tmp_path / name], NOTHING)["train"]
    check(found)
    assert found.source == {"moses": str(tmp_path / name)}


def test_splits_keep_their_parts(tmp_path: Path) -> None:
    files = texts(tmp_path, "train.de", "train.en", "dev.de", "dev.en", "test_2016_flickr.de", "test_2016_flickr.en")
    found = recognize(files, NOTHING)
    assert list(found) == ["train", "valid", "test"]
    for split in found.values():
        check(split)
    assert list(recognize(texts(tmp_path, "corpus.de", "corpus.en", "test.de", "test.en"), NOTHING)) == [
        "train",
        "test",
    ]
    with pytest.raises(UserError, match="is for valid or test, as its name says; name the training files too"):
        recognize(files[2:], NOTHING)
    assert list(recognize(files[2:4], NOTHING)) == ["train"]  # nothing else to train on


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.de", "train"),
        ("val.tsv", "valid"),
        ("newstest2014.de", "test"),
        ("testament.de", ""),
        ("a.dev.en", "valid"),
    ],
)
def test_the_split_in_a_name(name: str, split: str) -> None:
    assert split_of(name) == split


def test_several_memories_are_one_corpus(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{name}.tmx", memory(unit(name, name.upper()))) for name in ("a", "b")]
    found = recognize(files, ("de", "en"))["train"]
    assert list(found.pairs()) == [("a", "A"), ("b", "B")]
    assert found.source is None


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        (["a.txt", "b.txt"], NOTHING, "nothing says which languages this is in; name the two: --from de --to en"),
        (["src.txt", "tgt.txt"], NOTHING, "nothing says which languages"),
        (["a.txt", "b.txt"], ("de", None), "name the two: --from de --to en"),
        (["a.de", "a.en"], ("de", "DE"), "de would be both source and target"),
        (["a.de", "a.en"], ("german", "en"), "--from: 'german' is not a language code; german is de"),
        (["a.de"], NOTHING, "is one text file; name two"),
        (["a.de", "a.en", "b.de"], NOTHING, "is the first of 3 text files"),
        (["a.xlsx"], NOTHING, "no kind of file that tfm init reads; save the sheet as CSV"),
        (["a.sdlxliff", "a.en"], NOTHING, "export it as TMX"),
        (["a.csv"], NOTHING, r"a\.csv:1: cannot tell which columns hold the texts: .* such as de,en"),
        (["a.tsv"], ("de", "en"), r"a\.tsv:1: cannot tell .* such as de<TAB>en"),
        (["a.jsonl"], NOTHING, r"a\.jsonl:1: is not a JSON object"),
    ],
)
def test_what_cannot_be_told(names: list[str], wanted: Wanted, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        recognize(texts(tmp_path, *names), wanted)
    assert "\n" not in str(error.value)


def test_a_file_named_twice_or_not_there(tmp_path: Path) -> None:
    (path,) = texts(tmp_path, "a.de")
    (tmp_path / "a.en").symlink_to(path)
    with pytest.raises(UserError, match=r"a\.en: is named twice"):
        recognize([path, tmp_path / "a.en"], NOTHING)
    with pytest.raises(UserError, match="no such file"):
        recognize([tmp_path / "none.tmx"], NOTHING)


@pytest.mark.parametrize(
    ("tags", "wanted", "languages"),
    [
        (["de-DE", "en-US", "en-GB"], NOTHING, ("de", "en")),
        (["pt-BR", "pt-PT"], NOTHING, ("pt-BR", "pt-PT")),
        (["de", "en", "fr"], ("fr", "de"), ("fr", "de")),
        (["de", "en"], ("en", None), ("en", "de")),
        (["de", "en"], (None, "de-AT"), ("en", "de-AT")),
        ([], ("de", "en"), ("de", "en")),
    ],
)
def test_languages_are_settled(tags: list[str], wanted: Wanted, languages: tuple[str, str]) -> None:
    assert settle(tags, wanted, "a") == languages
