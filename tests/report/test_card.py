"""The model card: Hugging Face's own parsers read it, nothing in it is guessed, and only what is ours is replaced."""

import html.parser
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load, parse_eval_result_entries

from tests.report.making import make_run
from tests.report.test_outputs import silent
from transformer_cli.config import Config, HubDataset
from transformer_cli.errors import UserError
from transformer_cli.report import card as of_card
from transformer_cli.report.card import check_card, eval_results, front_matter, judge_data, write_card
from transformer_cli.report.outputs import Examined, examine_run
from transformer_cli.report.run_page import as_html, data_rows, setting_rows
from transformer_cli.report.runs import read_run

HUB = HubDataset(dataset="someone/news", name="de-en", split="test", revision="abc")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    path = make_run(tmp_path_factory.mktemp("cards") / "run", "data.source_language=no")
    return examine_run(read_run(path), "cpu", None, silent)


@pytest.fixture
def at(one: Examined, tmp_path: Path) -> Callable[..., Examined]:
    """Call it with changes of `data`: the same run in a folder of its own."""

    def move(**changes: Any) -> Examined:
        (tmp_path / "run").mkdir(exist_ok=True)
        data = one.run.config.data.model_copy(update=changes)
        return replace(
            one, run=replace(one.run, path=tmp_path / "run", config=one.run.config.model_copy(update={"data": data}))
        )

    return move


def test_hugging_face_reads_it(at: Callable[..., Examined]) -> None:
    one = at(license="cc-by-4.0")
    (path,) = write_card(one, ["said <b>by</b> doctor"])
    train: Any = one.run.config.data.train
    assert train.source not in path.read_text(), "nobody else has these folders"
    assert os.path.basename(train.source) in path.read_text()
    card: Any = ModelCard.load(path)
    front: Any = metadata_load(path)
    assert card.data.language == ["no", "en"], "not False, which `no` is to YAML 1.1"
    assert (card.data.license, card.data.library_name, card.data.pipeline_tag) == (
        "cc-by-4.0",
        "transformer-cli",
        "translation",
    )
    assert card.data.metrics == ["bleu", "chrf", "ter"]
    results = card.data.eval_results
    assert results is not None
    assert len(results) == 6
    test = one.outputs[0].scores
    assert [(found.metric_type, found.metric_value) for found in results[:3]] == [
        (score.metric, round(score.score, 2)) for score in test
    ]
    assert [found.metric_args["signature"] for found in results[:3]] == [score.signature for score in test]
    assert {(found.task_type, found.dataset_split) for found in results} == {
        ("translation", "test"),
        ("translation", "valid[:4]"),  # as many as in training, of 6
    }
    assert front["model-index"][0]["name"] == "run"
    assert "datasets" not in front
    headings = ("License", "Intended use", "Limits", "How to use it", "Training data", "Evaluation", "Size and speed")
    for heading in (*headings, "Environmental cost"):
        assert f"\n## {heading}\n" in card.content
    assert "said \\<b\\>by\\</b\\> doctor" in card.content
    assert "cpu (Z80, 1 thread), fp32" in card.content
    assert "2 min (100 s)" in card.content
    assert str(one.run.path.parent) not in card.content.replace(str(at), ""), "no place on this machine"


def test_the_score_of_a_part_is_no_score_of_the_test_set(at: Callable[..., Examined]) -> None:
    one = at(test=HUB)
    one = replace(one, outputs=[replace(outputs, left_out=2) for outputs in one.outputs])
    (path,) = write_card(one, [])  # no results for the hub
    front: Any = metadata_load(path)
    splits = [result["dataset"]["split"] for result in front["model-index"][0]["results"]]
    assert splits == [f"{outputs.split}[:{len(outputs.sources)}]" for outputs in one.outputs]


def test_what_is_one_or_short_is_said_once(at: Callable[..., Examined]) -> None:
    one = at()
    one = replace(one, run=replace(one.run, seconds=40.0), failures={"empty": [0], "repeats itself": [0, 1]})
    (path,) = write_card(one, [])
    text = path.read_text(encoding="utf-8")
    assert "Time of training, measured: 40 s\n" in text
    assert re.search(r", 1 translation \([\d.]+%\): empty", text)
    assert re.search(r", 2 translations \([\d.]+%\): repeats itself", text)


def test_a_license_is_never_guessed(at: Callable[..., Examined]) -> None:
    (path,) = write_card(at(), [])
    assert "license" not in (metadata_load(path) or {"license": ""})
    assert "Not stated. Set `data.license`" in path.read_text(encoding="utf-8")


def test_results_of_a_test_set_on_the_hub(at: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch) -> None:
    one = at(test=HUB)
    assert front_matter(one)["datasets"] == ["someone/news"]
    readme, results = write_card(one, [])
    entries = parse_eval_result_entries(yaml.safe_load(results.read_text(encoding="utf-8")))
    assert [(entry.dataset_id, entry.task_id, entry.dataset_revision) for entry in entries] == [
        ("someone/news", "de-en", "abc")
    ] * 3
    assert [entry.value for entry in entries] == [round(score.score, 2) for score in one.outputs[0].scores]
    assert one.outputs[0].scores[0].signature in (entries[0].notes or "")
    front: Any = metadata_load(readme)
    assert front["model-index"][0]["results"][0]["dataset"]["type"] == "someone/news"
    check_card(one.run.path)
    monkeypatch.chdir(one.run.path)
    Path("someone/news").mkdir(parents=True)
    assert eval_results(one) == [], "a folder of that name is no data set of the hub"
    assert write_card(one, []) == [readme]
    assert not results.exists(), "scores of an earlier card"


def test_only_what_is_ours_is_replaced(at: Callable[..., Examined]) -> None:
    one = at(test=HUB)
    readme, results = write_card(one, [])
    write_card(one, ["again"])
    assert "again" in readme.read_text(encoding="utf-8")
    for path in (results, readme):
        text = path.read_text(encoding="utf-8")
        for foreign in (text + "mine\n", "# Mine\n", "", "\udcff"):
            path.write_bytes(foreign.encode(errors="surrogateescape"))
            with pytest.raises(UserError, match=f"{path.name}: was not written by tfm, or was edited since"):
                write_card(one, [])
            assert path.read_bytes() == foreign.encode(errors="surrogateescape")
        path.write_text(text, encoding="utf-8")
    results.unlink()
    results.mkdir()
    with pytest.raises(UserError, match="was not written by tfm"):
        write_card(one, [])


def test_doctor_judges_the_data_within_bounds(one: Examined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = make_run(tmp_path / "gone" / "run", "data.test=null")
    train = [gone.parent / f"train.{language}" for language in ("de", "en")]
    for path in train:
        with path.open("a", encoding="utf-8") as file:
            file.write("ein Satz, der auf beiden Seiten steht\n")
    said = judge_data(read_run(gone), progress=False)
    assert said[0] == "tfm doctor looked at 61 pairs, before filters, and found this:"
    assert "too_small: 61, there are few pairs" in said
    assert "identical_sides: 1 (1.6%), the translation is a copy of the source" in said
    monkeypatch.setattr(of_card, "JUDGED", 20)
    said = judge_data(one.run, progress=False)
    assert "looked at the first 20 pairs" in said[0]
    whole = read_run(gone)
    (source,) = whole.config.data.sources.values()
    mixed = whole.config.data.model_copy(update={"train": [source, source.model_copy(update={"tag": "<bt>"})]})
    mixture = replace(whole, config=whole.config.model_copy(update={"data": mixed}))
    said = judge_data(mixture, progress=False)
    assert "looked at the first 20 pairs" in said[0], "as many in all"
    assert {line.split(":")[0] for line in said[1:]} >= {"too_small in train"}
    train[0].unlink()
    (said_why,) = judge_data(read_run(gone), progress=False)
    assert said_why.startswith("tfm doctor did not look at it: ")
    assert "train.de: no such file" in said_why
    assert judge_data(replace(one.run, model=None), progress=False) == []


def test_a_run_that_was_not_evaluated_has_a_card_too(at: Callable[..., Examined]) -> None:
    run = replace(at().run, seconds=None, hardware=[])
    (path,) = write_card(Examined(run), [])
    text = path.read_text(encoding="utf-8")
    card: Any = ModelCard(text)
    assert card.data.eval_results is None
    assert "Not evaluated." in text
    assert "Time of training, measured: not recorded" in text
    assert "Hardware: not recorded" in text


class Outline(html.parser.HTMLParser):
    """The headings of a page, and the pictures without an alternative text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.bare, self._heading = 0, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._heading = tag in ("h1", "h2", "h3")
        self.bare += tag == "svg" and not given.get("aria-label") and given.get("aria-hidden") != "true"
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "href"} & {*given}

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.headings.append(data)
        self._heading = False


def test_a_page_of_one_run_answers_in_order(one: Examined) -> None:
    text = as_html([one], "my <run>")
    outline = Outline(text)
    assert outline.headings == [
        *("my <run>", "Scores", "Where it fails", "Best and worst sentences of the test set", "Attention", "Training"),
        *("Data", "Size and speed", "Settings that are not the defaults", "How to use it"),
    ]
    assert outline.bare == 0
    assert len(text.encode()) < 200_000
    for score in one.outputs[0].scores:
        assert f"{score.score:.2f}" in text
        assert score.signature in text
    assert "60 pairs before filters" in text
    assert f"<br>tfm evaluate {one.run.path}</code>" in text, "each command has a line"
    assert "\\x0a" not in text
    assert "sentences a second, measured with the test set" in text


def test_a_page_of_several_runs_begins_with_their_table(one: Examined, at: Callable[..., Examined]) -> None:
    other = at(max_length=20)
    text = as_html(
        [replace(one, failures={}), replace(other, outputs=(), training=None, attentions=(), notes=["gone"])], "2 runs"
    )
    assert Outline(text).headings[:3] == ["2 runs", "Runs", "run"]
    assert "data.max_length" in text
    assert "run, validation" in text, "the legend of the curves"
    assert text.count("<figcaption>Loss") == 1
    assert "Missing: gone." in text
    assert "No translation is empty" in text


def test_the_data_of_a_mixture_has_a_row_for_each_source(one: Examined) -> None:
    tree = one.run.config.model_dump(mode="json", exclude_unset=True)
    plain = {"source": "a.de", "target": "a.en"}
    tree["data"] |= {
        "train": [plain, {**plain, "tag": "<bt>", "weight": 0.5, "filters": [{"length_ratio": 3.0}, "markup"]}],
        "filters": ["empty_side"],
        "valid": None,
    }
    config = Config.model_validate_json(json.dumps(tree))
    assert data_rows(config)[:3] == [
        ["train.0", "a.de, a.en", "", "1", "empty_side"],
        ["train.1", "a.de, a.en", "<bt>", "0.5", "length_ratio, markup"],
        ["valid", "held out of the training data", "", "", ""],
    ]
    assert ["model.d_model", "16"] in setting_rows(config)
    assert not any(key.startswith("data.") for key, _ in setting_rows(config))
