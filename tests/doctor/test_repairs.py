"""Repairs of damaged words are named where ftfy is installed; without it, one line says how to see them."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tests.data.quality.conftest import Pairs
from transformer_cli.data.quality.judge import Bounds
from transformer_cli.doctor import repairs as module
from transformer_cli.doctor.findings import Report, examine
from transformer_cli.doctor.page import as_html
from transformer_cli.doctor.repairs import HINT, repairs
from transformer_cli.doctor.report import as_json, as_text

DAMAGED = [("Ist FranÃ§ois da?", "Is FranÃ§ois <b>\x1b</b> there?"), ("schÃ¶n \ufffd", "fine"), ("a \ufffd b", "a c")]


def judge() -> Report:
    return examine({"train": Pairs(DAMAGED)}, Bounds())


@pytest.fixture(params=["absent", "a folder"])
def no_ftfy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found = None if request.param == "absent" else ModuleSpec("ftfy", None)
    monkeypatch.setattr(module, "find_spec", lambda name: found)
    monkeypatch.setitem(sys.modules, "ftfy", None)  # to import it would fail


@pytest.fixture
def ftfy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ftfy does, in the one case that the tests need: a stand-in, so that they run without it."""
    stand_in = ModuleType("ftfy")
    table = {"Ã§": "ç", "Ã¶": "ö"}
    stand_in.fix_encoding = lambda text: text.replace("Ã§", table["Ã§"]).replace("Ã¶", table["Ã¶"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ftfy", stand_in)
    monkeypatch.setattr(module, "find_spec", lambda name: ModuleSpec(name, None, origin="a file"))


def test_repairs_are_named_in_text_json_and_html(ftfy: None) -> None:
    report = judge()
    damage = next(one for one in json.loads(as_json(report))["findings"] if one["kind"] == "encoding_damage")
    assert [one.get("repair") for one in damage["examples"]] == [{"FranÃ§ois": "François"}, {"schÃ¶n": "schön"}, None]
    assert damage["examples"][0]["source"] == DAMAGED[0][0]  # as it is
    text = "\n".join(as_text(report))
    assert f"{'repair':>20}  FranÃ§ois → François\n" in text
    assert text.count("repair") == 2
    page = as_html(report, "x")
    assert "FranÃ§ois → François</td>" in page
    assert HINT not in page + text


def test_what_a_repair_holds_is_escaped(ftfy: None) -> None:
    report = examine({"train": Pairs([("FranÃ§<script>\x1b", "a")])}, Bounds())
    assert "FranÃ§&lt;script&gt;\\x1b → Franç&lt;script&gt;" in as_html(report, "x")
    assert not any("\x1b" in line for line in as_text(report))


def test_without_ftfy_one_line_says_how_to_see_them(no_ftfy: None) -> None:
    report = judge()
    text = "\n".join(as_text(report))
    assert text.count("transformer-cli[ftfy]") == 1
    assert as_html(report, "x").count("transformer-cli[ftfy]") == 1
    assert 'repair"' not in as_json(report)
    assert "transformer-cli[ftfy]" not in "\n".join(as_text(examine({"train": Pairs([("a", "a b")])}, Bounds())))


def test_the_real_ftfy_repairs_words() -> None:
    pytest.importorskip("ftfy", reason="the extra ftfy is not installed")
    assert repairs("Ist FranÃ§ois da?", "cafÃ© â€œnowâ€\x9d, yes", "François") == {
        "FranÃ§ois": "François",
        "cafÃ© â€œnowâ€\x9d,": "café “now”,",
    }
