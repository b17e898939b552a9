"""The web page: what it is made of and how it is sent; and what a real browser does with it, server and all."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from starlette.testclient import TestClient

from tests.browser import open_browser, wait
from tests.cli.conftest import write_run
from tests.environment import unmeasured
from tests.serve.conftest import GERMAN, translate
from tests.serve.test_server import Server
from transformer_cli.decoding.translation import Confidence
from transformer_cli.decoding.translator import Translator
from transformer_cli.evaluation.calibration import keep_confidence
from transformer_cli.protected.reinsertion import token_places
from transformer_cli.serve import web

FOLDER = Path(web.__file__).parent / "web"
TEXT = "ein hund sieht zwei katze"
MARKUP = '<script>document.title = "taken"</script> ein <img src="x" onerror="alert(1)"> hund'

# --- what it is made of --------------------------------------------------------------------------------------------


def test_it_is_small_and_whole() -> None:
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert set(files) == set(web.KINDS)
    assert sum(map(len, files.values())) <= 60_000
    text = b"".join(files.values()).decode().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search("https?:|//[a-z]|@import|url\\(", text), "nothing comes from elsewhere"
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write|DOMParser|eval|Function\\(", text)
    assert not re.search("<script>|<style| on[a-z]+=| style=", files["index.html"].decode()), "all would be blocked"
    ids = set(re.findall(r'\bid="(\w+)"', files["index.html"].decode()))
    named = set(re.findall(r"\bui\.(\w+)", files["page.js"].decode()))
    assert named <= ids


def test_it_is_sent_with_a_strict_policy(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    for name in re.findall('(?:src|href)="(.*?)"', page.text):
        part = client.get(name)
        assert part.status_code == 200
        assert part.headers["content-type"].startswith(web.KINDS[name.removeprefix("web/")])
        again = client.get(name, headers={"if-none-match": part.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("web/other.js", "web/..%2Fapp.py", "web/"):
        assert client.get(name).status_code == 404


def test_it_is_given_the_names_of_glossaries(client: TestClient) -> None:
    assert client.get("/frontend/settings").json()["glossaries"] == ["terms"]


# --- in a browser --------------------------------------------------------------------------------------------------


class Page:
    """The page of a server, in a browser."""

    def __init__(self, driver: Chrome, serving: Server) -> None:
        self.driver, self.serving = driver, serving
        self.wait = partial(wait, driver)
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": serving.url, "storageTypes": "all"})
        self.open()

    def open(self) -> None:
        self.driver.get(self.serving.url)
        self.wait(lambda: self.all("#to option"))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def inner(self, selector: str) -> list[str]:
        """The texts of elements, seen or not."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def type(self, text: str) -> None:
        self.one("source").send_keys(text)

    def choose(self, name: str, value: str) -> None:
        self.one(name).find_element(By.CSS_SELECTOR, f'option[value="{value}"]').click()

    def says(self, text: str) -> None:
        """Wait until the page says it."""
        self.wait(lambda: text in self.inner("#status")[0])

    def shows(self, text: str) -> None:
        """Wait until this is the translation, and nothing else is under way."""
        self.wait(lambda: self.inner("#translation > div") == text.split("\n"))
        assert self.one("translation").get_attribute("aria-busy") == "false"

    def faults(self) -> list[str]:
        """What the browser has found wrong since it was asked last."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    def answer(self, text: str, **more: Any) -> Any:
        return self.serving.ask(q=text, **translate(details=True, **more))

    def translated(self, text: str, **more: Any) -> Any:
        """Type a text, wait for its translation, and return what the server says of it."""
        self.type(text)
        answer = self.answer(text, **more)
        self.shows(answer["translatedText"])
        return answer


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is served: `de-en`, calibrated, `ar-he`, which are written from right to left, and `terms.tsv`."""
    made = tmp_path_factory.mktemp("page")
    shutil.copytree(models["de-en"], made / "de-en")
    keep_confidence(made / "de-en" / "step-00000004", Confidence([-2.0, -0.5], [0.1, 0.9], 1, 1, 0.0))
    config = (models["de-en"].parent / "de-en.yaml").read_text(encoding="utf-8")
    for key, old, new in (("source", "de", "ar"), ("target", "en", "he")):
        config = config.replace(f"{key}_language: {old}", f"{key}_language: {new}")
    (made / "ar-he.yaml").write_text(config, encoding="utf-8")
    write_run(made / "ar-he.yaml", made / "ar-he", [2])
    (made / "terms.tsv").write_text("hund\thound\n", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def served(models: dict[str, Path], folder: Path) -> Iterator[Server]:
    more = ["--glossary", folder / "terms.tsv", "--suggestions", folder / "suggestions.jsonl", "--quiet"]
    started = Server(folder / "de-en", models["en-de"], folder / "ar-he", *more)
    yield started
    started.end()


@pytest.fixture
def page(driver: Chrome, served: Server) -> Iterator[Page]:
    page = Page(driver, served)
    yield page
    asked = page.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert all(address.startswith(served.url) for address in asked)
    assert page.faults() == [], "nothing is blocked, missing or thrown"


@pytest.mark.medium
def test_it_translates_as_one_types(page: Page) -> None:
    answer = page.translated(f"{TEXT}\n\nzwei maus")
    levels = [one.get_attribute("data-confidence") for one in page.all("#translation > div")]
    wanted = [
        "low" if one < 0.4 else "medium" if one < 0.6 else "high"
        for one in (row["confidence"] for row in answer["details"])
    ]
    assert levels == [wanted[0], None, wanted[1]]
    assert f"{min(row['confidence'] for row in answer['details']):.2f}" in page.one("confidence").text
    assert page.one("translation").get_attribute("aria-live") == "polite"
    page.one("clear").click()
    page.wait(lambda: not page.inner("#translation > div"))
    assert not page.one("confidence").is_displayed()


def test_earlier_requests_are_cancelled(page: Page) -> None:
    """The first one never gets an answer; nothing waits for it."""
    page.run("""
        window.asked = [];
        const real = fetch;
        window.fetch = (path, options) => {
            if (path !== "translate") return real(path, options);
            asked.push(options.signal);
            if (asked.length > 1) return real(path, options);
            return new Promise((_, no) => options.signal.addEventListener("abort", () => no(options.signal.reason)));
        };
    """)
    page.type("ein")
    page.wait(lambda: page.run("return asked.length") == 1)
    page.type(" hund")
    page.shows(page.answer("ein hund")["translatedText"])
    assert page.run("return asked.map(one => one.aborted)") == [True, False]


def test_what_is_typed_in_one_go_is_asked_for_once(page: Page) -> None:
    page.run("window.asked = 0; const real = fetch; window.fetch = (...all) => (asked++, real(...all))")
    page.translated(TEXT)
    page.type(Keys.BACKSPACE + Keys.CONTROL + Keys.ENTER)  # at once
    page.shows(page.answer(TEXT[:-1])["translatedText"])
    assert page.run("return asked") <= 3


def places(text: str) -> list[tuple[int, int]]:
    """Words and signs."""
    return [match.span() for match in re.finditer(r"[^\W_]+|[^\s\w]", text)]


@pytest.mark.medium
def test_a_word_shows_which_source_words_it_came_from(page: Page, folder: Path) -> None:
    """All words, of two lines, with a character that the vocabulary has as bytes only."""
    answer = page.translated("zwei hund\nein \u6f22 katze, und frisst maus.")
    codecs = Translator.load(folder / "de-en", "cpu").codecs
    wanted = []
    for row in answer["details"]:
        sources = token_places(row["source_tokens"], row["source"], codecs.source.tokenizer)
        targets = token_places(row["tokens"], row["translation"], codecs.target.tokenizer)
        assert sources is not None
        assert targets is not None
        for start, end in places(row["translation"]):
            linked = [sources[i] for i, j in row["alignment"] if targets[j][0] < end and start < targets[j][1]]
            words = [(a, b) for a, b in places(row["source"]) if any(a < y and x < b for x, y in linked)]
            wanted.append((row["translation"][start:end], [row["source"][a:b] for a, b in words]))
    assert any(marked for _, marked in wanted)
    for word, (text, marked) in zip(page.all(".word"), wanted, strict=True):
        ActionChains(page.driver, duration=0).move_to_element(word).perform()
        assert word.text == text
        assert page.inner("mark") == marked
    assert page.inner("#mirror") == ["zwei hund\nein \u6f22 katze, und frisst maus.\n"], "it lies behind the same text"

    ActionChains(page.driver, duration=0).move_to_element(page.one("from")).perform()
    page.one("translation").send_keys(Keys.ARROW_RIGHT)
    assert page.inner("mark") == wanted[0][1]
    page.one("translation").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.inner("mark") == wanted[1][1]
    page.says(f"{wanted[1][0]}: {' '.join(wanted[1][1]) or 'no source word'}")
    page.type("x")
    assert page.inner("mark") == [], "the translation is of another text now"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("source", "source_tokens", "marked"),
    [
        ("Foo, Hallo a", ["<unk>", "\uffed,", "Hallo", "a"], ["Foo", ",", "Hallo", "a"]),
        ("ein é Hund", ["\u2581ein", "\u2581", "<0xC3>", "<0xA9>", "\u2581hund"], ["ein", None, "é", "é", "Hund"]),
        ("da nn a", ["d", "a", "\u2581", "n", "n", "\u2581", "a"], ["da", "da", None, "nn", "nn", None, "a"]),
        ("<g0/> an a@b.example", ["<g0/>", "\u2581an", "a@b.example"], [None, "an", None]),
    ],
    ids=["words", "subwords of lower case", "characters", "protected"],
)  # fmt: skip
def test_tokens_of_any_kind_have_their_places(
    source: str, source_tokens: list[str], marked: list[str | None], page: Page
) -> None:
    """The words of the translation are aligned to the source tokens, one by one."""
    words = [f"w{number}" for number in range(len(source_tokens))]
    one = {
        "translation": " ".join(words),
        "tokens": words,
        "alignment": [[place, place] for place in range(len(words))],
    }
    row = {"source": source, "source_tokens": source_tokens, "n_best": [one, {**one, "translation": "other"}, one]}
    answer_with(page, {"translatedText": one["translation"], "details": [row]})
    page.type(source)
    for word, wanted in zip(page.wait(lambda: page.all(".word")), marked, strict=True):
        ActionChains(page.driver, duration=0).move_to_element(word).perform()
        if wanted is not None:
            assert page.inner("mark") == [wanted]
    assert page.inner("#alternativesList button") == ["other"], "each once"


def answer_with(page: Page, answer: dict[str, Any], status: int = 200) -> None:
    """Let the page get this answer to its next request, in the server's stead."""
    script = """
        const real = fetch;
        const [answer, status] = [JSON.stringify(arguments[0]), arguments[1]];
        window.fetch = (path, options) => {
            if (path !== "translate") return real(path, options);
            window.fetch = real;
            const headers = {"Retry-After": "1", "Content-Type": "application/json"};
            return Promise.resolve(new Response(answer, {status, headers}));
        };
    """
    page.run(script, answer, status)


@pytest.mark.medium
def test_languages_swap_with_their_texts(page: Page) -> None:
    answer = page.translated(TEXT)
    page.one("swap").click()
    back = page.serving.ask(q=answer["translatedText"], source="en", target="de")["translatedText"]
    page.shows(back)
    assert page.one("source").get_attribute("value") == answer["translatedText"]
    assert [page.one(name).get_attribute("value") for name in ("from", "to")] == ["en", "de"]
    page.open()
    assert [page.one(name).get_attribute("value") for name in ("from", "to")] == ["en", "de"], "they are remembered"


def test_a_language_is_found_and_named(page: Page) -> None:
    page.choose("from", "auto")
    assert not page.one("swap").is_enabled()
    page.type(GERMAN)
    page.wait(lambda: page.one("from").text.startswith("Detect language: German"))
    page.wait(page.one("swap").is_enabled)
    page.choose("to", "de")
    page.says("The text is in German already")


@pytest.mark.medium
def test_an_alternative_takes_the_place_of_its_line(page: Page) -> None:
    page.translated(f"{TEXT}\nzwei maus")
    first, second = [page.answer(line, alternatives=3) for line in (TEXT, "zwei maus")]
    page.all("#alternatives summary")[0].click()
    others = page.wait(lambda: page.inner("#alternativesList button"))
    assert others == first["alternatives"]
    page.all("#alternativesList button")[1].click()
    page.shows(f"{others[1]}\n{second['translatedText']}")
    assert first["translatedText"] in page.inner("#alternativesList button")
    page.all("#translation > div:last-child .word")[0].click()
    assert page.inner("#alternativesList button") == second["alternatives"]


def test_a_glossary_is_used(page: Page) -> None:
    page.choose("glossary", "terms")
    page.translated("ein hund läuft", glossary="terms")
    assert "hound" in page.inner("#translation")[0]


@pytest.mark.medium
def test_a_translation_is_copied(page: Page) -> None:
    answer = page.translated(f"{TEXT}\nzwei maus")
    for clipboard in ("", "Object.defineProperty(navigator, 'clipboard', {value: undefined})"):  # as without HTTPS
        page.run(clipboard)
        page.one("copy").click()
        page.says("Copied")
        page.one("source").clear()
        page.type(Keys.CONTROL + "v")
        assert page.one("source").get_attribute("value").rstrip("\n") == answer["translatedText"]  # type: ignore[union-attr]
        page.type(Keys.CONTROL + "a" + Keys.NULL + Keys.BACKSPACE)
        page.translated(f"{TEXT}\nzwei maus")


@pytest.mark.medium
def test_a_better_translation_is_kept_line_by_line(page: Page, folder: Path) -> None:
    page.translated(f"{TEXT}\nzwei maus")
    page.one("suggest").click()
    page.one("send").click()
    page.wait(lambda: page.one("suggestingStatus").text == "Nothing was changed yet")
    page.one("better").send_keys(
        Keys.CONTROL + Keys.END + Keys.NULL + Keys.SHIFT + Keys.HOME + Keys.NULL + "two mice\nmore"
    )
    page.one("send").click()
    page.wait(lambda: page.one("suggestingStatus").text.startswith("Keep it in 2 lines"))
    page.one("better").send_keys(Keys.BACKSPACE * 5)
    page.one("send").click()
    page.says("Thank you")
    (kept,) = [json.loads(line) for line in (folder / "suggestions.jsonl").read_bytes().splitlines()]
    assert (kept["source"], kept["target"], kept["source_language"]) == ("zwei maus", "two mice", "de")


@pytest.mark.slow  # each text settles for a second and a half
def test_the_history_stays_in_the_browser(page: Page) -> None:
    page.translated("zwei")
    page.wait(lambda: len(page.inner("#pastList li")) == 1)
    page.type(" maus")
    page.wait(lambda: page.inner("#pastList span:first-child") == ["zwei maus"])
    page.one("clear").click()
    answer = page.translated(TEXT)
    page.wait(lambda: page.inner("#pastList span:first-child") == [TEXT, "zwei maus"])
    page.open()
    page.all("#past summary")[0].click()
    page.all("#pastList button")[0].click()
    page.shows(answer["translatedText"])
    page.one("keep").click()
    page.type(" läuft")
    page.shows(page.answer(f"{TEXT} läuft")["translatedText"])
    page.one("copy").click()
    page.says("Copied")
    assert page.inner("#pastList span:first-child") == [TEXT, "zwei maus"]
    page.one("forget").click()
    assert page.run("return JSON.parse(localStorage.tfm).history") == []
    page.open()
    assert not page.inner("#pastList li")
    assert not page.one("keep").is_selected()


def test_a_file_is_dropped(page: Page, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    (tmp_path / "letter.TXT").write_text(f"{TEXT}\n", encoding="utf-8")
    (tmp_path / "photo.jpg").write_bytes(b"x")
    drop(page, tmp_path / "photo.jpg")
    page.says("photo.jpg cannot be translated; these can: .txt, .srt, .vtt, .html")
    drop(page, tmp_path / "letter.TXT")
    page.says("letter.TXT is translated")
    page.one("download").click()
    done = tmp_path / "letter.en.TXT"
    page.wait(done.exists)
    wanted = page.answer(TEXT)["translatedText"]
    page.wait(lambda: done.read_text(encoding="utf-8") == f"{wanted}\n")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    page.one("upload").send_keys(str(tmp_path / "bad.txt"))
    page.says("bad.txt: Invalid request: the file is not valid UTF-8")
    assert "400" in page.faults()[0]


def drop(page: Page, path: Path) -> None:
    """Drop a file on the page, as a hand would."""
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver"):
        page.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 300, "data": data})
    page.wait(lambda: page.all("main.dropping"))
    page.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": "drop", "x": 300, "y": 300, "data": data})
    assert not page.all("main.dropping")


@pytest.mark.medium
def test_texts_never_become_markup(page: Page) -> None:
    page.translated(MARKUP)
    page.all("#alternatives summary")[0].click()
    page.wait(lambda: page.inner("#alternativesList button"))
    page.wait(lambda: page.inner("#pastList span:first-child") == [MARKUP])
    page.one("suggest").click()
    assert page.one("suggestingSource").text == MARKUP
    assert page.all("body script, main img, dialog img") == []
    with pytest.raises(Exception, match="TrustedHTML"):  # the browser itself refuses
        page.run("document.body.innerHTML = '<b>x</b>'")
    assert "TrustedHTML" in page.faults()[0]
    assert page.driver.title == "Translate · tfm"


def direction(page: Page, selector: str) -> str:
    return str(page.run("return getComputedStyle(document.querySelector(arguments[0])).direction", selector))


@pytest.mark.medium
def test_text_from_right_to_left(page: Page) -> None:
    page.translated("\u05e9\u05dc\u05d5\u05dd hund")
    assert direction(page, "#source") == "rtl"
    page.one("clear").click()
    page.translated(TEXT)
    assert direction(page, "#source") == direction(page, "#translation > div") == "ltr"


def test_languages_from_right_to_left(page: Page) -> None:
    page.choose("from", "ar")
    page.type(TEXT)
    page.wait(lambda: page.all(".word"))
    assert direction(page, "#source") == direction(page, "#mirror") == direction(page, "#translation > div") == "rtl"
    assert page.one("translation").get_attribute("lang") == "he"
    words = page.inner(".word")
    page.one("translation").send_keys(Keys.ARROW_LEFT)
    page.says(f"{words[0]}: ")


@pytest.mark.slow  # two servers; in each run of CI the next test lets a request get no answer
def test_the_server_goes_and_comes_back(driver: Chrome, models: dict[str, Path]) -> None:
    serving = Server(models["de-en"], env=unmeasured())
    page = Page(driver, serving)
    page.translated(TEXT)
    serving.process.kill()
    serving.end()
    page.type(" läuft")
    page.says("The server does not answer; trying again")
    assert page.inner("#translation > div"), "what was there stays"
    port = serving.url.rpartition(":")[2]
    page.serving = Server(*models.values(), "--port", port, env=unmeasured())
    page.shows(page.answer(f"{TEXT} läuft")["translatedText"])
    assert page.one("status").text == ""
    assert page.one("swap").is_enabled(), "it has looked what the server translates now"
    page.serving.end()
    page.faults()


@pytest.mark.medium
def test_it_asks_again_where_the_server_does_not_answer(page: Page) -> None:
    page.translated(TEXT)
    page.run("""
        const real = fetch;
        window.fetch = () => { window.fetch = real; return Promise.reject(new TypeError("Failed to fetch")); };
    """)
    page.type(" läuft")
    page.says("The server does not answer; trying again")
    assert page.inner("#translation > div"), "what was there stays"
    page.shows(page.answer(f"{TEXT} läuft")["translatedText"])
    page.says("")


@pytest.mark.medium
@pytest.mark.parametrize("status", [429, 503])
def test_it_asks_again_where_the_server_is_busy(status: int, page: Page) -> None:
    answer_with(page, {"error": "Too much"}, status)
    page.type(TEXT)
    page.says("Too much; trying again")
    page.shows(page.answer(TEXT)["translatedText"])
    page.says("")


def test_a_server_that_stays_busy_is_left_alone(page: Page) -> None:
    page.run("""
        const [real, wait] = [fetch, setTimeout];
        window.asked = 0;
        window.setTimeout = (job, time) => wait(job, Math.min(time, 20)); // no need to wait as long as people do
        window.fetch = (path, options) => {
            if (path !== "translate") return real(path, options);
            asked += 1;
            const headers = {"Content-Type": "application/json"};
            return Promise.resolve(new Response('{"error": "Too slow"}', {status: 503, headers}));
        };
    """)
    page.type("x")
    page.wait(lambda: page.one("status").text == "Too slow")
    assert page.run("return asked") == 6


@pytest.mark.medium
def test_a_key_is_asked_for_and_limits_are_said(driver: Chrome, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(hashlib.sha256(b"sesame").hexdigest(), encoding="utf-8")
    serving = Server(models["de-en"], "--api-keys", tmp_path / "keys", "--max-characters", "40")
    page = Page(driver, serving)
    page.type(TEXT)
    page.says("Please contact the server operator to get an API key")
    page.one("key").send_keys("open", Keys.ENTER)
    page.says("Invalid API key")
    page.one("key").clear()
    page.one("key").send_keys("sesame", Keys.ENTER)
    page.shows(page.answer(TEXT, api_key="sesame")["translatedText"])
    page.open()
    page.type(f"{TEXT} {TEXT}")
    page.says("exceeds text limit (40)")
    assert serving.end() == 143
    assert "sesame" not in page.run("return JSON.stringify(localStorage)"), "it goes with the tab"
    page.faults()


FOCUS_IS_SEEN = """
    const around = [arguments[0], arguments[0].closest(".pane")].filter(Boolean);
    return around.some(one => getComputedStyle(one).outlineStyle !== "none");
"""


@pytest.mark.medium
def test_a_keyboard_reaches_all_and_all_has_names(page: Page) -> None:
    page.translated(TEXT)
    page.all("#past summary")[0].click()
    page.wait(lambda: page.inner("#pastList li"))
    shown = [one for one in page.all("button, select, textarea, input, summary, output") if one.is_displayed()]
    assert all(one.accessible_name for one in shown)
    reached = set()
    page.run("document.activeElement.blur()")
    for _ in range(len(shown) + 2):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        focused = page.driver.switch_to.active_element
        reached.add(focused.id)
        assert focused.tag_name == "body" or page.run(FOCUS_IS_SEEN, focused)
    assert {one.id for one in shown if one.is_enabled()} <= reached


def brightness(page: Page) -> float:
    color = page.run("return getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", color)[:3]))


def test_light_and_dark(page: Page) -> None:
    def prefer(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    prefer("light")
    light = brightness(page)
    prefer("dark")
    dark = brightness(page)
    assert dark < 150 < 600 < light
    assert page.one("theme").get_attribute("aria-pressed") == "true"
    page.one("theme").click()
    assert brightness(page) == light
    page.open()
    assert brightness(page) == light, "it is remembered"
    prefer("")


@pytest.mark.medium
@pytest.mark.parametrize("width", [320, *(pytest.param(width, marks=pytest.mark.slow) for width in (390, 1280))])
def test_nothing_is_wider_than_the_window(width: int, page: Page) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    answer_with(page, {"translatedText": "one" * 60})
    page.type("ein" * 60)
    page.shows("one" * 60)
    page.all("#past summary")[0].click()
    page.wait(lambda: page.inner("#pastList li"))
    assert page.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    boxes = "html, header, main, section, .bar, #translation, #translation > div, #pastList button"
    wide = "return [...document.querySelectorAll(arguments[0])].filter(one => one.scrollWidth > one.clientWidth)"
    assert page.run(wide, boxes) == [], "nothing is cut off"
    source, translation = page.one("source").rect, page.one("translation").rect
    assert (translation["y"] > source["y"] + 100) == (width < 700), "one below the other on a phone"
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
