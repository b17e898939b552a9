"""A Chromium that tests of our pages drive; where it, or its driver, is not installed, they are skipped."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", *QUIET]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
T = TypeVar("T")


@contextmanager
def open_browser(profile: Path) -> Iterator[Chrome]:
    """Open a Chromium of its own, or skip the test; profile: a folder that does not exist yet."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def wait(driver: Chrome, condition: Callable[[], T], seconds: float = 60) -> T:
    """Return what a condition gives as soon as that is true; it may meet elements that have just been replaced."""
    patient = WebDriverWait(driver, seconds, 0.05, [StaleElementReferenceException])
    return patient.until(lambda _: condition())
