"""Look at the page of `iceberg-stream report` in headless Chromium, as a reader would.

Opens it from its file and without a network. Reports messages of the browser's console, parts that
the keyboard does not reach, pages that are wider than the window, and text that is hard to read on
its background, in light and in dark.

Usage: python docs/site/check_report.py build/report.html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from browser import browser, console, report, set_window
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

# A desktop's window, and a telephone's.
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
# Of text on its background (WCAG 2.1, success criterion 1.4.3).
LEAST_CONTRAST = 4.5
MAX_TABS = 1_000

FOCUSABLE = """
return [...document.querySelectorAll('a[href], summary, [tabindex="0"]')]
  .filter(element => element.checkVisibility())
  .map(element => element.tagName + ' ' + (element.getAttribute('aria-label') ||
    element.textContent.trim().slice(0, 40)));
"""
FOCUSED = """
const element = document.activeElement;
return element === document.body ? '' : element.tagName + ' ' +
  (element.getAttribute('aria-label') || element.textContent.trim().slice(0, 40));
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
UNNAMED = """
return [...document.querySelectorAll('[role="region"], [role="img"], svg')]
  .filter(each => !each.getAttribute('aria-label')).map(each => each.outerHTML.slice(0, 80));
"""
# Text whose contrast with the next background around it is too low.
FAINT = """
const channels = color => color.match(/[\\d.]+/g).map(Number);
const luminance = color => {
  const [r, g, b] = channels(color).map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = element => {
  for (let each = element; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (channels(color)[3] !== 0) return color;
  }
  return 'rgb(255, 255, 255)';
};
const faint = [];
for (const element of document.querySelectorAll('main *, header *')) {
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const text = element.closest('svg') ? style.fill : style.color;
  const [light, dark] = [luminance(text), luminance(background(element))].sort((a, b) => b - a);
  const contrast = (light + 0.05) / (dark + 0.05);
  if (contrast < arguments[0])
    faint.push(contrast.toFixed(1) + ': ' + element.textContent.trim().slice(0, 40));
}
return faint;
"""


def problems(page: Path) -> Iterator[str]:
    """What a reader of the page would stumble over."""
    with browser() as chrome:
        chrome.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        chrome.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        for scheme in SCHEMES:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            for width in WIDTHS:
                for problem in _at(chrome, page, width):
                    yield f"{scheme}, {width} pixels: {problem}"
        yield from console(chrome)


def _at(chrome: webdriver.Chrome, page: Path, width: int) -> Iterator[str]:
    set_window(chrome, width)
    chrome.get(page.resolve().as_uri())
    yield from _unreachable(chrome)
    yield from _links(chrome)
    chrome.execute_script(OPEN_ALL)
    wide = chrome.execute_script("return document.documentElement.scrollWidth")
    if wide > width:
        yield f"the page is {wide} pixels wide"
    yield from (f"without a name: {each}" for each in chrome.execute_script(UNNAMED))
    yield from (f"contrast {each}" for each in chrome.execute_script(FAINT, LEAST_CONTRAST))


def _unreachable(chrome: webdriver.Chrome) -> Iterator[str]:
    """Go through the page with the Tab key, as it is when it opens."""
    expected, reached = chrome.execute_script(FOCUSABLE), []
    body = chrome.switch_to.active_element
    for _ in range(MAX_TABS):
        body.send_keys(Keys.TAB)
        body = chrome.switch_to.active_element
        name = chrome.execute_script(FOCUSED)
        if not name or len(reached) >= len(expected):
            break
        reached.append(name)
    if reached != expected:
        yield f"the keyboard reaches {len(reached)} of {len(expected)} parts: {reached[-1:]}"


def _links(chrome: webdriver.Chrome) -> Iterator[str]:
    """Follow each link with the Enter key: what it leads to must be visible."""
    for link in chrome.find_elements("css selector", "a[href^='#']"):
        if not link.is_displayed():
            continue
        target = link.get_dom_attribute("href").removeprefix("#")
        link.send_keys(Keys.ENTER)
        if not chrome.find_element("id", target).is_displayed():
            yield f"#{target} stays hidden"


if __name__ == "__main__":
    report(problems(Path(sys.argv[1])))
