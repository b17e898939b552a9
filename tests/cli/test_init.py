"""`tfm init`: from what people have to a model, and one line for what cannot be read."""

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_tmx import memory, unit
from transformer_cli.data.corpora import open_split
from transformer_cli.storage.origin import load_found_config

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
QUICK = [
    *("model.preset=null", "model.d_model=16", "model.d_ff=16", "model.heads=2", "model.encoder_layers=1"),
    *("model.decoder_layers=1", "vocabulary.size=400", "training.max_steps=2", "training.warmup_steps=1"),
    *("training.batch_tokens=300", "training.validation_sentences=2", "data.workers=0"),
]


def pairs() -> list[tuple[str, str]]:
    german, english = ((SAMPLE / f"train.{end}").read_text(encoding="utf-8").splitlines() for end in ("de", "en"))
    return [*zip(german, english, strict=True)][:300]


def as_text(folder: Path) -> list[str]:
    for place, end in enumerate(("de", "en")):
        (folder / f"own.{end}").write_text("".join(f"{pair[place]}\n" for pair in pairs()), encoding="utf-8")
    return ["own.de", "own.en"]


def as_tmx(folder: Path) -> list[str]:
    text = memory("".join(unit(*pair) for pair in pairs()), encoding="utf-16").replace('srclang="en"', 'srclang="de"')
    (folder / "own.tmx").write_bytes(text.encode("utf-16"))
    return ["own.tmx"]


def as_moses(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "own.zip", "w") as archive:
        for name in as_text(folder):
            archive.writestr(f"own.de-en.{name[-2:]}", (folder / name).read_bytes())
        archive.writestr("README", "x")
    return ["own.zip"]


def as_csv(folder: Path) -> list[str]:
    with open(folder / "own.csv", "w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("German", "English"), *pairs()])
    return ["own.csv"]


def as_jsonl(folder: Path) -> list[str]:
    rows = [json.dumps({"translation": {"de": source, "en": target}}) for source, target in pairs()]
    (folder / "own.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return ["own.jsonl"]


@pytest.mark.medium
@pytest.mark.parametrize("write", [as_text, as_tmx, as_moses, as_csv, as_jsonl])
def test_every_kind_of_file_leads_to_the_same_data(
    write: Callable[[Path], list[str]], tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = tfm("init", *write(tmp_path))
    assert outcome.code == 0, outcome
    assert "de to en" in outcome.out
    assert outcome.out.endswith("next       tfm train own.yaml\n")
    read = {
        split: [
            tuple(pair)
            for pair in zip(
                *(
                    (tmp_path / "data" / "own" / f"{split}.{end}").read_text("utf-8").splitlines()
                    for end in ("de", "en")
                ),
                strict=True,
            )
        ]
        for split in ("train", "valid", "test")
    }
    assert len(read["valid"]) == len(read["test"]) == 15
    assert sorted(pair for split in read.values() for pair in split) == sorted(pairs())
    drawn = json.dumps(read["test"])
    as_text(tmp_path)
    tfm("init", "own.de", "own.en", "--out", "again")
    again = [(tmp_path / "data" / "again" / f"test.{end}").read_text("utf-8").splitlines() for end in ("de", "en")]
    assert drawn == json.dumps([*zip(*again, strict=True)])


@pytest.mark.slow  # the README's test runs the three commands too
def test_from_a_memory_to_a_translation(tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's three commands; and TMX and a Moses zip as they are, named by a config."""
    monkeypatch.chdir(tmp_path)
    as_tmx(tmp_path)
    as_moses(tmp_path)
    assert tfm("init", "own.tmx").code == 0
    settings = [word for setting in QUICK for word in ("--set", setting)]
    assert tfm("train", "own.yaml", *settings, "--quiet").code == 0
    outcome = tfm("translate", "checkpoints/own", "Wo ist das blaue Buch?", "--quiet")
    assert (outcome.code, outcome.out.count("\n")) == (0, 1)
    shown = []
    for source in ("{tmx: own.tmx}", "{moses: own.zip}"):
        out = tmp_path / source.split()[0].strip("{:")
        given = ["--out", out, *settings, "--set", f"data.train={source}", "--quiet"]
        shown.append(tfm("build-vocab", "own.yaml", *given).out)
        monkeypatch.chdir("/")  # the saved config finds the file from any folder
        data = load_found_config(out / "config.yaml").data
        assert list(open_split(data, "train").pairs()) == pairs()
        monkeypatch.chdir(tmp_path)
    assert shown[0] == shown[1] != ""


def test_a_language_that_may_be_meant_as_a_country_is_named(
    tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in as_text(tmp_path):
        (tmp_path / name).rename(tmp_path / name.replace(".de", ".se"))
    outcome = tfm("init", "own.se", "own.en")
    assert outcome.code == 0
    assert "note       se is Northern Sami; Swedish is sv\n" in outcome.out


TRADOS = """<?xml version="1.0" encoding="utf-16"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header creationtool="TRADOS Workbench" creationtoolversion="8" datatype="rtf" segtype="sentence" adminlang="EN-US"
 srclang="DE-DE" o-tmf="TW4Win"><prop type="RTFFontTable">{\\fonttbl}</prop></header>
<body>
"""
OMEGAT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx11.dtd">
<tmx version="1.1">
<header creationtool="OmegaT" o-tmf="OmegaT TMX" adminlang="EN-US" datatype="plaintext" creationtoolversion="6.0"
 segtype="sentence" srclang="de"/>
<body>
<!-- Default translations -->
"""
BPT, EPT = '<bpt i="1" x="1">&lt;b&gt;</bpt>', '<ept i="1">&lt;/b&gt;</ept>'


def as_trados(folder: Path) -> None:
    units = "".join(
        f'<tu creationdate="20240101T000000Z"><prop type="Txt::X">1</prop><tuv xml:lang="DE-DE">\r\n'
        f'<seg>{BPT}{source}{EPT}<ph x="2">{{\\field}}</ph></seg></tuv><tuv xml:lang="EN-US">'
        f'<seg><it pos="begin">&lt;i&gt;</it>{target}'
        f"<ut>{{\\cf6 &lt;x&gt;}}</ut></seg></tuv></tu>\r\n"
        for source, target in pairs()
    )
    (folder / "memory.tmx").write_bytes((TRADOS + units + "</body></tmx>\r\n").encode("utf-16"))


def as_omegat(folder: Path) -> None:
    units = "".join(
        f'<tu><note>seen</note><tuv lang="de"><seg>{source}<ph>&lt;br0/&gt;</ph></seg></tuv>\n'
        f'<tuv lang="en" changeid="me"><seg>{BPT}{target}{EPT}</seg></tuv></tu>\n'
        for source, target in pairs()
    )
    (folder / "memory.tmx").write_text(f"\ufeff{OMEGAT}{units}</body></tmx>\n", encoding="utf-8")


@pytest.mark.parametrize("write", [as_trados, as_omegat])
def test_what_translation_memories_write_becomes_plain_pairs(
    write: Callable[[Path], None], tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline tags, `lang` or `xml:lang`, codes with a region, UTF-16, a DTD that is named: only the texts are left."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    outcome = tfm("init", "memory.tmx")
    assert (outcome.code, outcome.err) == (0, "")
    assert "languages  de to en" in outcome.out
    read = []
    for split in ("train", "valid", "test"):
        files = [(tmp_path / f"data/memory/{split}.{end}").read_text("utf-8").splitlines() for end in ("de", "en")]
        read += [*zip(*files, strict=True)]
    assert sorted(read) == sorted(pairs())


def test_what_is_refused_is_one_line_and_nothing_written(
    tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    laughs = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><tmx><body><tu>&b;</tu></body></tmx>'
    (tmp_path / "laughs.tmx").write_text(laughs)
    (tmp_path / "broken.tmx").write_text(memory(unit("a", "b"))[:-10])
    (tmp_path / "french.tmx").write_text(memory(unit("a", "b", ("fr", "it")) * 20))
    (tmp_path / "few.tmx").write_text(memory(unit("a", "b") * 9))
    (tmp_path / "columns.csv").write_text("one,two\n1,2\n")
    (tmp_path / "a.txt").write_text("a\n" * 20)
    (tmp_path / "b.txt").write_text("b\n" * 20)
    with zipfile.ZipFile(tmp_path / "bomb.de-en.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.de", bytes(20_000_000))
        archive.writestr("a.en", "x\n")
    with zipfile.ZipFile(tmp_path / "lonely.zip", "w") as archive:
        archive.writestr("a.de", "x\n")
    halves = unit("a", "b", ("de", "fr")) * 20 + unit("a", "b", ("it", "en")) * 20
    (tmp_path / "halves.tmx").write_text(memory(halves))
    for name, count in (("nine", 9), ("enough", 90)):
        for end in ("de", "en"):
            (tmp_path / f"{name}.{end}").write_text("".join(f"{end} {place}\n" for place in range(count)))
    (tmp_path / "taken.yaml").write_text("mine")
    (tmp_path / "data" / "other").mkdir(parents=True)
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    said = {
        ("laughs.tmx",): "has a DTD inside",
        ("broken.tmx",): "broken.tmx:8: column",
        ("french.tmx", "--from", "de", "--to", "en"): "its 20 units are in fr (20), it (20)",
        ("few.tmx",): "has 9 pairs",
        ("columns.csv",): "such as de,en",
        ("a.txt", "b.txt"): "--from de --to en",
        ("a.txt", "b.txt", "--from", "de", "--to", "de"): "both source and target",
        ("bomb.de-en.zip",): "would unpack to",
        ("lonely.zip",): "no pair of files",
        ("none.tmx",): "no such file",
        ("halves.tmx", "--from", "de", "--to", "en"): "in de (20), fr (20), it (20), en (20)",
        ("nine.de", "nine.en"): "has 9 pairs",
        ("enough.de", "enough.en", "--out", "taken"): "taken.yaml: exists",
        ("enough.de", "enough.en", "--out", "other"): "data/other: exists",
        ("empty.zip",): "the archive is empty",
    }
    before = sorted(tmp_path.rglob("*"))
    for arguments, text in said.items():
        assert text in tfm("init", *arguments).refused()
        assert sorted(tmp_path.rglob("*")) == before
