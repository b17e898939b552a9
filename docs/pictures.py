"""Draws the pictures of the README and of docs/ from a finished demo: `python -m docs.pictures demo mask-predict`.

`mask-predict` is the model that docs/seeing-inside.md trains on the demo's corpus.

The training curve and the maps of attention are `tfm plot`'s; the terminal session is what the commands really print,
set by rich; the web page is what Chromium makes of it: `python -m docs.pictures demo` draws that alone.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from tests.browser import open_browser, wait
from tests.serve.test_server import Server
from transformer_cli.config import ScheduledSampling
from transformer_cli.plots.diagrams import truth_figure
from transformer_cli.plots.style import save

IMAGES = Path(__file__).parent / "images"
WIDTH = 100  # columns
# rich's own frame, without its web font
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xml:space="preserve"
xmlns="http://www.w3.org/2000/svg">
<style>text {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def session(folder: Path) -> list[tuple[str, str]]:
    """Commands and what they print, after the demo in `folder`."""
    model, corpus = folder / "model", folder / "corpus"
    commands = [
        f"tfm demo --out {folder} --quiet | tail -n 20",
        f'tfm translate {model} "Gestern hat meine Schwester den roten Apfel nicht gegessen."',
        f'echo "Wann ruft deine Schwester den Arzt an?" | tfm translate {model} --n-best 3 --scores',
        f"tfm evaluate {model} --source {corpus}/test.de --reference {corpus}/test.en --quiet",
    ]
    found = []
    for command in commands:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        found.append((command, done.stdout))
    return found


def truths() -> None:
    """The three schedules of scheduled sampling, as docs/scheduled-sampling.md shows them."""
    common = {"steps": 1000, "floor": 0.5, "start_step": 500}
    samplings = [
        (schedule, ScheduledSampling.model_validate({**common, "schedule": schedule}))
        for schedule in ("linear", "exponential", "inverse_sigmoid")
    ]
    save(truth_figure(samplings, steps=5000), IMAGES / "scheduled-sampling.png")


def web_page(folder: Path) -> None:
    """The page of `tfm serve`, light, dark with alternatives, and on a phone, with the demo's model, calibrated."""
    text = "Das Kind spielt gern im Park.\nDer alte Mann hat heute Morgen im Garten gearbeitet."
    text += "\nDie Bank hat heute geschlossen."
    subprocess.run(["tfm", "calibrate", str(folder / "model"), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as place, open_browser(Path(place) / "profile") as driver:
        serving = Server(folder / "model", "--suggestions", Path(place) / "suggestions.jsonl")
        for name, width, height in (("light", 1280, 800), ("dark", 1280, 800), ("phone", 390, 844)):
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 1000}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            driver.get(serving.url)
            driver.find_element(By.ID, "source").send_keys(text)
            wait(driver, lambda: driver.find_elements(By.CSS_SELECTOR, ".word"))
            if name != "light":  # back to light on the phone
                driver.find_element(By.ID, "theme").click()
            if name != "phone":
                driver.find_element(By.CSS_SELECTOR, "#alternatives summary").click()
                wait(driver, lambda: driver.find_elements(By.CSS_SELECTOR, "#alternativesList button"))
            words = driver.find_elements(By.CSS_SELECTOR, ".word")
            ActionChains(driver).move_to_element(next(one for one in words if one.text == "worked")).perform()
            time.sleep(0.5)  # colours change slowly
            file = IMAGES / f"web-page-{name}.png"
            driver.save_screenshot(str(file))
            Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
        serving.end()


def main(folder: Path, mask_predict: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    truths()
    console = Console(record=True, width=WIDTH, file=open("/dev/null", "w", encoding="utf-8"), force_terminal=True)  # noqa: SIM115
    for command, printed in session(folder):
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text(printed))
    console.save_svg(str(IMAGES / "session.svg"), title="tfm", theme=MONOKAI, code_format=FRAME)
    model = shlex.quote(str(folder / "model"))
    sentence = "Gestern hat meine Schwester den roten Apfel nicht gegessen."
    for command in (
        f"tfm plot training {model} --output {IMAGES}/training.png",
        f'tfm plot attention {model} "{sentence}" --mean --output {IMAGES}/attention.png',
        *(
            f'tfm plot attention {model} "{sentence}" --grid --kind {kind} --output {IMAGES}/heads-{kind}.png'
            for kind in ("encoder", "decoder", "cross")
        ),
        f'tfm plot attention {shlex.quote(str(mask_predict))} "{sentence}" --grid --kind decoder'
        f" --output {IMAGES}/heads-mask-predict.png",
        f"tfm plot schedule configs/wmt14_en_de_base.yaml configs/wmt14_en_de_big.yaml --output {IMAGES}/schedule.png",
        f"tfm plot positions --output {IMAGES}/positions.png",
        f'tfm plot mask {model} "Where is the blue book?" "My sister did not eat the red apple yesterday."'
        f" --output {IMAGES}/mask.png",
        f"tfm plot attention {model} --entropy --input {shlex.quote(str(folder))}/corpus/test.de --count 100"
        f" --output {IMAGES}/entropy.png",
    ):
        subprocess.run(["bash", "-c", command], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    web_page(Path(sys.argv[1]))
