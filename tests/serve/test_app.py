"""The contract: what LibreTranslate's and DeepL's clients send is answered as they read it; errors are JSON."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.cli.conftest import GLOSSES
from tests.serve.conftest import ENGLISH, GERMAN, Client, translate
from transformer_cli.cli.app import main
from transformer_cli.errors import UserError
from transformer_cli.serve.app import NO_KEY
from transformer_cli.serve.languages import Detected
from transformer_cli.serve.limits import Keys
from transformer_cli.serve.suggestions import Suggestions


def answer(client: TestClient, path: str = "/translate", **parameters: Any) -> Any:
    response = client.post(path, json=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def lines(count: int) -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices(list(GLOSSES), k=draw.randint(1, 30))) + " ." for _ in range(count)]


# --- translate -----------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_answers_are_those_of_the_command(
    client: TestClient, models: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is asked for beside it, alone, in lists, and in texts of several lines."""
    texts = [*lines(60), "see https://example.org/x and %s", "", "  ", "ein hund. zwei katze. drei maus."]
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    assert main(["translate", str(models["de-en"]), "-i", str(tmp_path / "in"), "--quiet"]) == 0
    wanted = capfd.readouterr().out.split("\n")[:-1]
    wanted = [own if text.strip() else text for text, own in zip(texts, wanted, strict=True)]  # blanks stay
    assert answer(client, q=texts, **translate())["translatedText"] == wanted
    assert answer(client, q="\n".join(texts), **translate())["translatedText"] == "\n".join(wanted)
    with ThreadPoolExecutor(8) as threads:
        one_by_one = threads.map(lambda text: answer(client, q=text, **translate())["translatedText"], texts[:60])
        assert list(one_by_one) == wanted[:60]


def test_a_form_is_answered_as_json_is(client: TestClient) -> None:
    given = {"q": "ein hund & katze", **translate()}
    wanted = answer(client, **given)
    assert list(wanted) == ["translatedText"]
    assert client.post("/translate", data=given).json() == wanted
    assert client.post("/translate", files={"none": b""}, data=given).json() == wanted
    assert client.post("/translate", params=given).json() == wanted  # as some scripts do
    assert client.post("/translate", content=json.dumps(given).encode("utf-8-sig")).json() == wanted
    texts = {**given, "q": ["ein hund & katze", "ein hund & katze"]}
    for files in (None, {"none": b""}):
        found = client.post("/translate", data=texts, files=files).json()
        assert found["translatedText"] == [wanted["translatedText"]] * 2


def test_codes_are_matched_without_case(client: TestClient) -> None:
    wanted = answer(client, q="ein hund", **translate())
    assert answer(client, q="ein hund", source="DE_at", target="EN-us") == wanted


def test_each_text_of_a_list_is_judged_by_itself(client: TestClient) -> None:
    found = answer(client, q=[GERMAN, ENGLISH, "123"], source="auto", target="en")
    assert [one["language"] for one in found["detectedLanguage"]] == ["de", "en", "de"]
    assert found["detectedLanguage"][0]["confidence"] > 90
    assert found["detectedLanguage"][2]["confidence"] == 0
    assert found["translatedText"][1] == ENGLISH, "what is in the target's language stays"
    assert answer(client, q=ENGLISH, source="auto", target="de")["detectedLanguage"]["language"] == "en"


def test_alternatives_are_others_than_the_translation(client: TestClient) -> None:
    found = answer(client, q=["ein hund", "zwei katze"], alternatives=2, **translate())
    for text, others in zip(found["translatedText"], found["alternatives"], strict=True):
        assert text not in others
        assert 1 <= len(others) <= 2
    alone = answer(client, q="ein hund", alternatives=2, **translate())
    assert alone["alternatives"] == found["alternatives"][0]
    assert alone["translatedText"] == answer(client, q="ein hund", **translate())["translatedText"]


def test_details_are_those_of_the_command(
    client: TestClient, models: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    texts = ["ein hund sieht zwei katze", "drei maus"]
    assert main(["translate", str(models["de-en"]), *texts, "--format", "json", "--alignments", "--quiet"]) == 0
    wanted = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert answer(client, q="\n".join(texts), details=True, **translate())["details"] == wanted


def test_a_glossary_is_used_by_name(client: TestClient) -> None:
    assert "hound" in answer(client, q="ein hund läuft", glossary="terms", **translate())["translatedText"]
    assert "hound" not in answer(client, q="ein hund läuft", **translate())["translatedText"]
    assert client.post("/translate", json=translate(q="x", glossary="other")).status_code == 400


def test_protected_text_is_a_matter_of_the_request(client: TestClient) -> None:
    text = "ein hund: https://example.org/a"
    assert "https://example.org/a" in answer(client, q=text, **translate())["translatedText"]
    assert "https://example.org/a" not in answer(client, q=text, protect=False, **translate())["translatedText"]


def test_a_stream_gives_each_sentence(client: TestClient) -> None:
    response = client.post("/translate", json=translate(q="Ein Hund schläft.  Zwei Katze.\n\nDrei Maus.", stream=True))
    found = [json.loads(line)["translatedText"] for line in response.text.splitlines()]
    sentences = ["Ein Hund schläft.", "Zwei Katze.", "Drei Maus."]
    wanted = answer(client, q=sentences, **translate())["translatedText"]
    assert [one for one in found if one] == wanted
    assert found[2] == ""
    auto: dict[str, Any] = {"source": "auto", "target": "en"}
    same = client.post("/translate", json={"q": ENGLISH, **auto, "stream": True}).json()
    assert same == answer(client, q=ENGLISH, **auto)
    more = {"alternatives": 2, "details": True, **auto}
    alone = client.post("/translate", json={"q": GERMAN, "stream": True, **more}).json()
    assert alone == answer(client, q=GERMAN, **more)


def test_a_form_asks_for_numbers_and_more_in_words(client: TestClient) -> None:
    form = client.post("/translate", data=translate(q="ein hund", alternatives="2", details="true")).json()
    assert form == answer(client, q="ein hund", alternatives=2, details=True, **translate())


def test_a_text_that_only_seems_to_be_in_the_target_language_is_translated(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = serving("de-en").load()
    for confidence, language in ((60.0, "de"), (95.0, "en")):
        found = [Detected(confidence, "en"), Detected(100 - confidence, "de")]
        monkeypatch.setattr(models, "detect", lambda *_, found=found: found)
        assert models.detect_source("taxi", "en").language == language


# --- as clients send it ----------------------------------------------------------------------------------------------


def test_weblate_sends_lists(client: TestClient) -> None:
    codes = [one["code"] for one in client.get("/languages").json()]
    batch = [*lines(18), "", "ein %(count)s hund\n"]
    found = answer(client, api_key="", q=batch, source=codes[0], target=codes[1])["translatedText"]
    assert len(found) == 20
    assert found[:3] == [answer(client, q=text, **translate())["translatedText"] for text in batch[:3]]
    assert found[18] == ""
    assert found[19].endswith("\n")
    assert "%(count)s" in found[19]


def test_mastodon_sends_lists_of_html(client: TestClient) -> None:
    mention = (
        '<span class="h-card" translate="no"><a href="https://a.example/@b" class="u-url">@<span>b</span></a></span>'
    )
    texts = [f"<p>{mention} ein hund <br/>schläft &amp; läuft</p><p>zwei katze</p>", "ein hund"]
    found = answer(client, q=texts, source="de", target="en", format="html", api_key="")["translatedText"]
    assert found[0].startswith("<p>")
    assert mention in found[0]
    assert found[0].count("<p>") == found[0].count("</p>") == 2
    assert "<br/>" in found[0]


def test_mastodon_asks_for_the_language_of_each_text(client: TestClient) -> None:
    kind = {"content-type": "application/json"}
    languages = client.get("/languages", headers=kind).json()
    assert {one["code"]: {*one["targets"]} - {one["code"]} for one in languages} == {"de": {"en"}, "en": {"de"}}
    given = {"q": [f"<p>{GERMAN}</p>", "ein hund"], "source": "auto", "target": "en", "format": "html", "api_key": None}
    found = client.post("/translate", json=given).json()
    assert len(found["translatedText"]) == 2
    assert [found["detectedLanguage"][place]["language"] for place in (0, 1)] == ["de", "de"]


def test_jellyfin_sends_lines_with_auto(client: TestClient) -> None:
    found = answer(client, q=f"{GERMAN}\n{GERMAN}", source="auto", target="en", format="text")
    assert found["translatedText"].count("\n") == 1
    assert found["detectedLanguage"]["language"] == "de"


def test_deepl_clients_get_their_shape(client: TestClient) -> None:
    given: dict[str, Any] = {"text": [GERMAN, "ein hund"], "target_lang": "EN-US"}
    found = answer(client, "/v2/translate", **given)["translations"]
    wanted = answer(client, q=given["text"], **translate())["translatedText"]
    assert [one["text"] for one in found] == wanted
    assert found[0]["detected_source_language"] == "DE"
    form = client.post("/v2/translate", content=b"text=ein+hund&text=zwei&source_lang=DE&target_lang=EN", headers=FORM)
    assert len(form.json()["translations"]) == 2
    tagged = answer(client, "/v2/translate", text="<x>ein hund</x> <y/>zwei", target_lang="en", tag_handling="xml")
    assert sorted(tagged["translations"][0]["text"].count(tag) for tag in ("<x>", "</x>", "<y/>")) == [1, 1, 1]


def test_deepl_clients_get_details_too(client: TestClient) -> None:
    (found,) = answer(client, "/v2/translate", text="ein hund", target_lang="en", source_lang="de", details=True)[
        "translations"
    ]
    assert found["details"] == answer(client, q="ein hund", details=True, **translate())["details"]


def test_what_deepl_has_and_we_have_not_is_refused(client: TestClient) -> None:
    response = client.post("/v2/translate", json={"text": "x", "target_lang": "EN", "tag_handling": "docx"})
    assert (response.status_code, response.json()["message"]) == (400, "tag_handling docx is not supported")


FORM = {"content-type": "application/x-www-form-urlencoded"}


# --- the other routes ------------------------------------------------------------------------------------------------


def test_languages(client: TestClient) -> None:
    wanted = [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    assert client.get("/languages").json() == wanted
    assert client.request("GET", "/languages", content=b"api_key=x", headers=FORM).json() == wanted


def test_detection_gives_the_likeliest_first(client: TestClient) -> None:
    found = answer(client, "/detect", q=GERMAN)
    assert found[0]["language"] == "de"
    assert found[0]["confidence"] > 90
    assert answer(client, "/detect", q="?!") == [{"confidence": 0.0, "language": "de"}]


def test_settings_and_health(client: TestClient) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["language"]["source"] == {"code": "de", "name": "German"}
    assert not settings["suggestions"]
    assert client.get("/health").json() == {"status": "ok"}


def test_the_description_names_every_route(client: TestClient) -> None:
    spec = client.get("/spec").json()
    routes = {route.path for route in client.app.routes}  # type: ignore[attr-defined]
    assert set(spec["paths"]) == routes
    assert spec["openapi"].startswith("3.")


def test_metrics_count_without_texts(client: TestClient) -> None:
    answer(client, q="ein geheimnis", **translate())
    client.get("/a/secret/path")
    text = client.get("/metrics").text
    assert 'tfm_requests_total{path="/translate",status="200"}' in text
    assert "geheimnis" not in text
    assert "secret" not in text
    assert "tfm_batch_lines_count" in text


def test_suggestions_are_kept_where_they_are_asked_for(client: TestClient, make_client: Client, tmp_path: Path) -> None:
    given = translate(q="ein hund", s="the dog\u2028thing")
    assert client.post("/suggest", json=given).status_code == 403
    file = tmp_path / "more.jsonl"
    file.write_text('{"source": "a", "target": "b"}\n')
    taking = make_client("de-en", service={"suggestions": Suggestions(file)})
    assert answer(taking, "/suggest", **given) == {"success": True}
    answer(taking, "/suggest", **translate(q="ein hund\nzwei", s=" a dog\ntwo\n"))
    before, first, *lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    assert before == '{"source": "a", "target": "b"}'
    kept = json.loads(first)
    assert (kept["source"], kept["target"], kept["model"]) == ("ein hund", "the dog\u2028thing", "de-en")
    assert kept["translation"] == answer(taking, q="ein hund", **translate())["translatedText"]
    assert [(one["source"], one["target"]) for one in map(json.loads, lines)] == [
        ("ein hund", "a dog"),
        ("zwei", "two"),
    ]
    answer(taking, "/suggest", q=GERMAN, s=ENGLISH, source="auto", target="en")
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["source_language"] == "de"
    assert taking.post("/suggest", json=translate(q="a")).status_code == 400
    assert not list(tmp_path.glob("*.set-aside.jsonl"))


@pytest.mark.parametrize(
    ("source", "better", "fault"),
    [
        ("ein hund", "  ", "empty_side"),
        ("der hund läuft", "<script>alert(1)</script> the dog runs", "markup"),
        ("der hund läuft", "buy at https://example.com", "url_mismatch"),
        ("hund", "a dog " * 60, "length_ratio"),
        ("und das wasser", "und das wasser", "identical_sides"),
        (
            "the dog and the water run",
            "der hund und das wasser laufen mit diesem ding und das wasser",
            "wrong_language",
        ),
        ("ein hund", "a\ndog", "misaligned"),
        ("ein hund", "a dog\u0007", "control_characters"),
    ],
)
def test_what_can_be_no_translation_is_set_aside(
    make_client: Client, tmp_path: Path, source: str, better: str, fault: str
) -> None:
    suggestions = Suggestions(tmp_path / "more.jsonl")
    taking = make_client("de-en", service={"suggestions": suggestions})
    assert answer(taking, "/suggest", **translate(q=source, s=better)) == {"success": True}
    assert not suggestions.path.exists()
    (aside,) = map(json.loads, suggestions.set_aside.read_text(encoding="utf-8").splitlines())
    assert (aside["source"], aside["target"]) == (source, better)
    assert fault in aside["faults"]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("a.txt", "ein hund\r\n\r\nzwei katze\n", ["\r\n\r\n"]),
        ("../../etc/passwd.TXT", "ein hund", []),
        ("a.srt", "\ufeff1\n00:00:01,000 --> 00:00:02,000\nein hund\nschläft\n\n2\n00:00:03,000 --> 00:00:04,000\n\n",
         ["1\n00:00:01,000 --> 00:00:02,000\n", "\n\n2\n00:00:03,000"]),
        ("a.vtt", "WEBVTT\n\nNOTE ein hund\n\n00:01.000 --> 00:02.000\n- ein <i>hund</i>\n",
         ["WEBVTT\n\nNOTE ein hund\n"]),
        ("a.html", "<!doctype html><title>ein hund</title><p class='a'>zwei</p>",
         ["<!doctype html><title>", "<p class='a'>"]),
    ],
)  # fmt: skip
def test_a_file_comes_back_in_its_form(name: str, content: str, kept: list[str], client: TestClient) -> None:
    response = client.post("/translate_file", files={"file": (name, content.encode())}, data=translate())
    url = response.json()["translatedFileUrl"]
    assert url.endswith(name[-4:].lower())
    found = client.get(url)
    text = found.content.decode()
    assert "attachment" in found.headers["content-disposition"]
    assert all(part in text for part in kept)
    assert text.count("\n") == content.count("\n")
    assert text != content


@pytest.mark.parametrize(
    ("name", "content"), [("a.exe", b"x"), ("a", b"x"), ("a.txt", b"\xff\xfe"), ("a.txt", b"x" * 300_000)]
)
def test_a_file_that_is_none_of_these_is_refused(name: str, content: bytes, client: TestClient) -> None:
    response = client.post("/translate_file", files={"file": (name, content)}, data=translate())
    assert (response.status_code, "error" in response.json()) == (400, True)


def test_a_file_in_the_target_language_comes_back_as_it_is(client: TestClient) -> None:
    asked = {"source": "auto", "target": "en"}
    response = client.post("/translate_file", files={"file": ("a.txt", ENGLISH.encode())}, data=asked)
    assert client.get(response.json()["translatedFileUrl"]).text == ENGLISH
    assert client.post("/translate_file", data=asked).json()["error"] == "Invalid request: missing file parameter"


def test_nobody_fetches_what_is_not_theirs(client: TestClient) -> None:
    for name in ("x.txt", "..%2F..%2Fetc%2Fpasswd", "%00"):
        assert client.get(f"/download_file/{name}").status_code == 404


# --- errors ----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "Invalid request: missing q parameter"),
    ({"q": ""}, "Invalid request: missing q parameter"),
    ({"q": "x"}, "Invalid request: missing source parameter"),
    ({"q": "x", "source": "de"}, "Invalid request: missing target parameter"),
    ({"q": "x", "source": "xx", "target": "en"}, "xx is not supported"),
    ({"q": "x", "source": "de", "target": "xx"}, "xx is not supported"),
    ({"q": 5, "source": "de", "target": "en"}, "should be a text"),
    ({"q": ["x", 5], "source": "de", "target": "en"}, "should be a text"),
    ({"q": "x", "source": ["de"], "target": "en"}, "source should be a text"),
    (translate(q="x", format="pdf"), "pdf format is not supported"),
    (translate(q="x", alternatives=-1), "alternatives"),
    (translate(q="x", alternatives=True), "alternatives"),
    (translate(q="x", alternatives=99), "alternatives parameter must be <= 10"),
    (translate(q="x", details="maybe"), "details should be true or false"),
    (translate(q="x", details=3), "details should be true or false"),
    (translate(q=["x"], stream=True), "stream"),
    (translate(q="x" * 200_001), "request (200001) exceeds text limit (200000)"),
    (translate(q=["x"] * 1001), "request (1001) exceeds batch limit (1000)"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_what_is_wrong_is_said_in_json(given: dict[str, Any], says: str, client: TestClient) -> None:
    response = client.post("/translate", json=given)
    assert response.status_code == 400
    assert says in response.json()["error"]


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b"[1]", b"5", b'{"q": ' + b"[" * 100_000, b'{"q": 1' + b"0" * 9999 + b"}"]
)
def test_a_body_that_is_no_request_is_refused(body: bytes, client: TestClient) -> None:
    response = client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "error" in response.json()


def test_a_broken_form_is_refused(client: TestClient) -> None:
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        response = client.post("/translate", content=b"--x\r\n\r\nabc", headers={"content-type": kind})
        assert (response.status_code, "error" in response.json()) == (400, True)


def test_texts_that_no_answer_can_hold_are_answered(client: TestClient) -> None:
    body = b'{"q": "ein \\ud800 hund \\u0000", "source": "de", "target": "en"}'
    assert client.post("/translate", content=body, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/languages/", 404),
        ("GET", "/translate", 405),
        ("DELETE", "/languages", 405),
        ("POST", "/", 405),
    ],
)
def test_what_is_not_there_is_said_in_json(method: str, path: str, status: int, client: TestClient) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert "error" in response.json()


def test_a_pair_that_no_model_has_is_refused(make_client: Client) -> None:
    response = make_client("de-en").post("/translate", json={"q": "x", "source": "en", "target": "de"})
    assert (response.status_code, response.json()["error"]) == (
        400,
        "de is not available as a target language from en",
    )


def test_a_large_body_is_refused(make_client: Client) -> None:
    small = make_client("de-en", max_body=1000)
    assert small.post("/translate", json=translate(q="x" * 900)).status_code == 200
    response = small.post("/translate", json=translate(q="x" * 1000))
    assert (response.status_code, "error" in response.json()) == (413, True)
    assert small.post("/translate", content=b"x" * 5000).status_code == 413
    in_parts = small.post("/translate", content=iter([b"x" * 600] * 2))
    assert in_parts.status_code == 413


def test_what_takes_too_long_is_given_up(make_client: Client) -> None:
    response = make_client("de-en", max_seconds=0.0001).post("/translate", json=translate(q="ein hund"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "error" in response.json()


def test_a_full_queue_says_when_to_come_again(make_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_cli.serve.batching import Batcher, QueueFull

    async def full(*_: object) -> None:
        raise QueueFull

    busy = make_client("de-en")
    monkeypatch.setattr(Batcher, "translate", full)
    response = busy.post("/translate", json=translate(q="ein hund"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    streamed = busy.post("/translate", json=translate(q="ein hund", stream=True))
    assert "error" in streamed.json()


def test_a_fault_of_ours_shows_no_stack_and_no_text(
    make_client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformer_cli.serve.batching import Batcher

    async def broken(*_: object) -> None:
        raise RuntimeError("ein geheimnis")

    faulty = make_client("de-en")
    monkeypatch.setattr(Batcher, "translate", broken)
    response = faulty.post("/translate", json=translate(q="ein geheimnis"))
    assert (response.status_code, response.json()["error"]) == (500, "Internal error")
    said = capfd.readouterr().err
    assert said.startswith("error: internal: RuntimeError at ")
    assert "geheimnis" not in said


def test_what_a_model_refuses_is_the_requests_fault(make_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_cli.serve.batching import Batcher

    async def refuse(*_: object) -> None:
        raise UserError("it cannot be")

    client = make_client("de-en")
    monkeypatch.setattr(Batcher, "translate", refuse)
    response = client.post("/translate", json=translate(q="ein hund"))
    assert (response.status_code, response.json()["error"]) == (400, "Invalid request: it cannot be")


def test_an_answer_that_has_begun_is_broken_off(make_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_cli.serve.batching import Batcher

    async def broken(*_: object) -> None:
        raise RuntimeError

    client = make_client("de-en")
    monkeypatch.setattr(Batcher, "translate", broken)
    with pytest.raises(ConnectionAbortedError):
        client.post("/translate", json=translate(q="ein hund", stream=True))


# --- who may ask -----------------------------------------------------------------------------------------------------


def test_keys(make_client: Client, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "keys"
    file.write_text(f"# ours\n{hashlib.sha256(b'open sesame').hexdigest()}  -\n")
    locked = make_client("de-en", service={"keys": Keys(file)})
    given = translate(q="ein hund")
    none = locked.post("/translate", json=given)
    assert (none.status_code, none.json()["error"]) == (403, NO_KEY)
    wrong = locked.post("/translate", json={**given, "api_key": "x"})
    assert (wrong.status_code, wrong.json()["error"]) == (403, "Invalid API key")
    assert locked.post("/translate", json={**given, "api_key": "open sesame"}).status_code == 200
    for scheme in ("Bearer", "DeepL-Auth-Key"):
        headers = {"authorization": f"{scheme} open sesame"}
        assert locked.post("/translate", json=given, headers=headers).status_code == 200
    assert locked.post("/translate", json=given, headers={"authorization": "Basic open sesame"}).status_code == 403
    assert locked.get("/metrics").status_code == 403
    assert locked.get("/health").status_code == locked.get("/languages").status_code == 200
    assert locked.get("/spec").json().get("security") is None


def test_a_client_has_so_much_a_minute(make_client: Client) -> None:
    limited = make_client("de-en", requests_per_minute=3)
    found = [limited.post("/translate", json=translate(q="ein")).status_code for _ in range(4)]
    assert found == [200, 200, 200, 429]
    response = limited.post("/detect", json={"q": "x"})
    assert "Slowdown" in response.json()["error"]
    assert 1 <= int(response.headers["retry-after"]) <= 21


def test_other_origins_may_ask_where_they_are_let(client: TestClient, make_client: Client) -> None:
    origin = {"origin": "https://a.example"}
    assert "access-control-allow-origin" not in client.get("/languages", headers=origin).headers
    sharing = make_client("de-en", service={"cors": ["https://a.example"]})
    assert sharing.get("/languages", headers=origin).headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" in sharing.get("/nope", headers=origin).headers
    asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert sharing.options("/translate", headers=asked).status_code == 200
