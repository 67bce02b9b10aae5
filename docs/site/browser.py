"""Headless Chromium, and what the checks of pages share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from selenium import webdriver

# Chromium asks for pages of its own otherwise.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # One of the machine: Selenium would look for others on the network.
    chrome = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield chrome
    finally:
        chrome.quit()


def console(chrome: webdriver.Chrome) -> list[str]:
    """Messages of the browser's console since they were last read."""
    return [entry["message"] for entry in chrome.get_log("browser")]


def set_window(chrome: webdriver.Chrome, width: int) -> None:
    """Give the window the width of a desktop's or a telephone's, which is less than 500 pixels."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def report(problems: Iterable[str]) -> None:
    """Print problems and exit: with 1 if there are any."""
    listed = list(problems)
    for problem in listed:
        print(problem)
    print(f"{len(listed)} problem(s)")
    sys.exit(bool(listed))
