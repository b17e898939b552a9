"""The process: its signals, its socket, real clients, and clients that are too slow; all on the loopback."""

import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from libretranslatepy import LibreTranslateAPI

from tests.cli.conftest import GLOSSES
from tests.environment import unmeasured
from tests.serve.conftest import ENGLISH, GERMAN, translate
from transformer_cli.errors import UserError
from transformer_cli.serve import server

Start = Callable[..., "Server"]


def heed() -> None:
    """Let SIGINT end the process: a shell starts its background jobs with SIGINT ignored, and they hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    """A `tfm serve` of its own."""

    def __init__(self, *arguments: object, env: dict[str, str] | None = None, before: str = "pass") -> None:
        """before: what its process runs first."""
        code = f"import sys; {before}; from transformer_cli.cli.app import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=heed)
        self.said: list[str] = []
        self.url = self.hear("serving on ").rpartition(" ")[2]

    def hear(self, what: str) -> str:
        """The next line of stderr that has it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))
            if what in line:
                return self.said[-1]
        raise AssertionError(f"never said {what!r}: {self.said}")

    def ask(self, path: str = "/translate", **parameters: Any) -> Any:
        body = json.dumps(parameters).encode() if parameters else None
        request = urllib.request.Request(self.url + path, body, {"content-type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  (our own server)
            return json.load(response)

    def read(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:  # noqa: S310  (our own server)
            return str(response.read().decode())

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.said += self.process.stderr.read().splitlines()
        self.process.stderr.close()
        return code


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Server] = []

    def begin(*arguments: object, **options: Any) -> Server:
        started.append(Server(*arguments, **options))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()


@pytest.mark.medium
def test_real_clients(start: Start, models: dict[str, Path]) -> None:
    serving = start(*models.values(), "--quiet")
    texts = [GERMAN, "ein hund & zwei"]
    wanted = serving.ask(q=texts, **translate())["translatedText"]

    libretranslate = LibreTranslateAPI(serving.url)
    assert [libretranslate.translate(text, "de", "en") for text in texts] == wanted
    assert libretranslate.detect(GERMAN)[0]["language"] == "de"
    assert [one["code"] for one in libretranslate.languages()] == ["de", "en"]

    with contextlib.closing(deepl.Translator("any", server_url=serving.url, send_platform_info=False)) as client:
        found = client.translate_text(texts, target_lang="EN-US")
        assert [one.text for one in found] == wanted  # type: ignore[union-attr]
        assert found[0].detected_source_lang == "DE"  # type: ignore[index]
        tagged = client.translate_text(
            "<p>ein <b>hund</b></p>", source_lang="DE", target_lang="EN-US", tag_handling="html"
        )
        assert "<b>" in tagged.text  # type: ignore[union-attr]
        with pytest.raises(deepl.DeepLException, match="XX is not supported"):
            client.translate_text("x", target_lang="xx")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        libretranslate.translate("x", "de", "xx")

    assert serving.end() == 143
    assert serving.said == [f"serving on {serving.url}"]


def test_sigterm_finishes_what_has_begun(start: Start, models: dict[str, Path]) -> None:
    serving = start(models["de-en"], "--beam", "20")
    texts = [" ".join(random.Random(number).choices(list(GLOSSES), k=20)) for number in range(300)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        begun = threads.submit(lambda: serving.ask(q=texts, **translate()))
        time.sleep(0.3)
        assert not begun.done()
        ended = threads.submit(serving.end)
        assert len(begun.result()["translatedText"]) == 300
        assert ended.result() == 143


def test_what_sigterm_leaves_undone_is_told_so_in_json(start: Start, models: dict[str, Path]) -> None:
    before = "from transformer_cli.serve import server; server.LAST_SECONDS = 0.2"
    serving = start(models["de-en"], "--beam", "20", before=before)
    texts = [" ".join(random.Random(number).choices(list(GLOSSES), k=20)) for number in range(1000)]
    body = json.dumps(translate(q=texts)).encode()
    with serving.connect() as waiting:
        waiting.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: "tfm_batch_lines_count 0.0" not in serving.read("/metrics"))
        assert serving.end() == 143
        head, _, content = waiting.recv(10_000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head
    assert json.loads(content)["error"] == "The server is stopping"


def test_a_search_that_nobody_waits_for_is_left(start: Start, models: dict[str, Path]) -> None:
    before = (
        "import time; from transformer_cli.serve import models, server; server.LAST_SECONDS = 0.2;"
        "models.ServedModel._search = lambda *_: time.sleep(60)"
    )
    serving = start(models["de-en"], before=before)
    body = json.dumps(translate(q="ein hund")).encode()
    with serving.connect() as waiting:
        waiting.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: "tfm_batch_lines_count 0.0" not in serving.read("/metrics"))
        assert serving.end() == 143, "in less than the 30 seconds that it is given"


def test_ctrl_c_ends_it(start: Start, models: dict[str, Path]) -> None:
    serving = start(models["de-en"])
    assert serving.end(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in serving.said)


@pytest.mark.medium
def test_sighup_takes_the_new_model_or_keeps_the_old(start: Start, models: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(models["de-en"], run)
    index = json.loads((run / "checkpoints.json").read_text())
    serving = start(run, "--beam", "20")
    text = "ein hund sieht zwei katze und drei maus"

    def ask() -> str:
        return str(serving.ask(q=text, **translate())["translatedText"])

    first = ask()
    (run / "checkpoints.json").write_text(json.dumps(index | {"best": [2]}))
    texts = [" ".join(random.Random(number).choices(list(GLOSSES), k=20)) for number in range(600)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        begun = threads.submit(lambda: serving.ask(q=texts, **translate()))
        time.sleep(0.3)
        serving.process.send_signal(signal.SIGHUP)
        pending = [threads.submit(ask) for _ in range(60)]
        serving.hear("loaded anew")
        answers = [one.result() for one in pending]
        assert len(begun.result()["translatedText"]) == 600
    second = ask()
    assert second != first
    assert len(answers) == 60
    assert {*answers} <= {first, second}, "no request is lost, and none is answered by half a model"

    weights = next((run / "step-00000002").glob("model.safetensors"))
    shutil.rmtree(run / "step-00000004")
    weights.write_bytes(b"damaged")
    (run / "step-00000002" / "config.yaml").write_text("damaged: true")
    serving.process.send_signal(signal.SIGHUP)
    serving.hear("the models before stay")
    assert ask() == second
    assert serving.end() == 143


def test_it_starts_without_torch(start: Start, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('torch is imported')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())])])
    serving = start(models["de-en"], "--compute-type", "int8", env=unmeasured(PYTHONPATH=path))
    assert serving.ask(q="ein hund", **translate())["translatedText"]
    assert "int8" in serving.said[0]


@pytest.mark.medium
def test_slow_clients_are_cut(start: Start, models: dict[str, Path]) -> None:
    before = "from transformer_cli.serve import server; server.HEADER_SECONDS = 1.0"
    serving = start(models["de-en"], "--max-seconds", 2, before=before)
    silent, slow = [serving.connect() for _ in range(50)], [serving.connect() for _ in range(50)]
    body, kept = serving.connect(), serving.connect()
    body.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    kept.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200 OK" in kept.recv(1000)
    begun = time.monotonic()
    for one in slow:
        one.sendall(b"POST /transl")
    assert serving.ask("/health") == {"status": "ok"}
    assert time.monotonic() - begun < 1.0
    for one in [*silent, *slow]:
        assert one.recv(1000) == b""
        one.close()
    assert b"503" in body.recv(1000)
    with serving.connect() as gone:
        gone.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    garbage = serving.connect()
    garbage.sendall(b"what is this\r\n\r\n")
    answer = b""
    while part := garbage.recv(1000):
        answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    for one in (body, kept, garbage):
        one.close()
    assert serving.end() == 143


@pytest.mark.medium
def test_nothing_of_a_text_is_said(start: Start, models: dict[str, Path]) -> None:
    serving = start(models["de-en"])
    serving.ask(q="ein geheimnis", **translate())
    serving.ask("/languages?q=geheimnis")
    with pytest.raises(urllib.error.HTTPError):
        serving.ask("/geheimnis", q="geheimnis")
    serving.end()
    assert not any("geheimnis" in line for line in serving.said)
    assert ENGLISH not in serving.said


def test_a_port_that_is_taken_is_refused() -> None:
    with server.open_socket("127.0.0.1", 0) as bound:
        bound.listen()
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with socket.create_connection(bound.getsockname()), bound.accept()[0] as client:
                assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0, "who reads nothing is cut"
        port = bound.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: cannot be listened on: Address already in use"):
            server.open_socket("127.0.0.1", port)
    with pytest.raises(UserError, match=r"--host no\.such.host.invalid"):
        server.open_socket("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("host", "public"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True), ("a.example", True)],
)
def test_who_can_reach_a_host(host: str, public: bool) -> None:
    assert server.is_public(host) == public


# --- several workers -------------------------------------------------------------------------------------------------


def workers_of(serving: Server) -> list[int]:
    """The processes that answer, oldest first."""
    rows = subprocess.run(["ps", "-Aww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    found = [row.split(maxsplit=2) for row in rows.splitlines()]
    own = str(serving.process.pid)
    return sorted(int(pid) for pid, parent, command in found if parent == own and "spawn_main" in command)


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@contextlib.contextmanager
def halted(worker: int) -> Iterator[None]:
    """Let the other one answer."""
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


ANSWERED = 'tfm_requests_total{path="/translate",status="200"}'


def test_workers_have_limits_files_and_counts_in_common(start: Start, models: dict[str, Path]) -> None:
    serving = start(models["de-en"], "--workers", 2, "--requests-per-minute", 6)
    first, second = workers_of(serving)
    assert serving.said[0].startswith("de to en: de-en, engine: ")
    boundary = "x"
    parts = {"source": "de", "target": "en", 'file"; filename="a.txt': "ein hund\n"}
    form = "".join(
        f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items()
    )
    with halted(first):
        kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
        body = f"{form}--x--\r\n".encode()
        asked = urllib.request.Request(serving.url + "/translate_file", body, kind)  # noqa: S310
        with urllib.request.urlopen(asked, timeout=30) as response:  # noqa: S310
            url = json.load(response)["translatedFileUrl"]
        one = [serving.ask(q="ein hund", **translate()) for _ in range(2)]
        until = time.monotonic() + 30
        while f"{ANSWERED} 2.0" not in serving.read("/metrics"):  # an answer is counted once it is out
            assert time.monotonic() < until
            time.sleep(0.01)
    with halted(second):
        assert serving.read(url.removeprefix(serving.url)).strip() == one[0]["translatedText"]
        assert [serving.ask(q="ein hund", **translate()) for _ in range(3)] == [one[0]] * 3
        with pytest.raises(urllib.error.HTTPError, match="429"):
            serving.ask(q="ein hund", **translate())
        counts = serving.read("/metrics")
    assert f"{ANSWERED} 5.0" in counts
    assert serving.end() == 143
    assert not workers_of(serving)


def test_a_worker_that_dies_is_replaced_and_all_load_anew(
    start: Start, models: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(models["de-en"], run)
    index = json.loads((run / "checkpoints.json").read_text())
    serving = start(run, "--workers", 2, "--quiet")
    text = "ein hund sieht zwei katze und drei maus"

    def ask() -> str:
        return str(serving.ask(q=text, **translate())["translatedText"])

    def ask_again() -> str | None:
        try:
            return ask()
        except OSError:  # it was at the one that died
            return None

    old, first = workers_of(serving), ask()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        begun = [threads.submit(ask_again) for _ in range(40)]
        os.kill(old[0], signal.SIGKILL)
        serving.hear("a worker was killed by signal 9; another one takes its place")
        with halted(old[1]):
            assert ask() == first, "by the new one"
        answers = [one.result() for one in begun]
        assert {*answers} <= {first, None}
        assert answers.count(None) <= 4, "no other request than those it had"

        (run / "checkpoints.json").write_text(json.dumps(index | {"best": [2]}))
        serving.process.send_signal(signal.SIGHUP)
        pending = [threads.submit(ask) for _ in range(40)]
        serving.hear("the models were loaded anew")
        found = {one.result() for one in pending}
    new = workers_of(serving)
    assert old[1] in new
    second = ask()
    assert second != first
    assert found <= {first, second}
    for worker in new:
        with halted(worker):
            assert ask() == second
    serving.process.kill()
    serving.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in new))


@pytest.mark.medium
def test_what_no_worker_can_load_is_said_once(models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["de-en"], tmp_path / "run")
    for weights in tmp_path.glob("run/*/model.safetensors"):
        weights.write_bytes(b"damaged")
    command = [sys.executable, "-m", "transformer_cli", "serve", str(tmp_path / "run"), "--port", "0", "--workers", "2"]
    command += ["--engine", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: ")
    assert "damaged" in done.stderr or "sha256" in done.stderr
