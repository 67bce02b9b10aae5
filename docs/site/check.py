"""Look at each page of the built site in headless Chromium, as a reader would.

Reports links that lead nowhere, messages of the browser's console, and tables and code that cannot
be read: wider than the page without a way to scroll.

Usage: python docs/site/check.py build/site
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag

from browser import browser, console, report, set_window

# A desktop's window, and a telephone's.
WIDTHS = (1280, 400)
LINKS = "return [...document.querySelectorAll('a[href]')].map(link => link.href)"
IDS = "return [...document.querySelectorAll('[id]')].map(element => element.id)"
# Elements that stick out of the page though no element around them scrolls.
CUT_OFF = """
const scrolls = element => {
  for (let each = element; each && each !== document.body; each = each.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(each).overflowX)) return true;
  return false;
};
return [...document.querySelectorAll('article table, article pre, article img')]
  .filter(element => element.getBoundingClientRect().right > window.innerWidth + 1)
  .filter(element => !scrolls(element))
  .map(element => element.tagName + ': ' + element.innerText.slice(0, 60));
"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Requests are not of interest."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def problems(site: Path) -> Iterator[str]:
    """What a reader of the site would stumble over."""
    pages = sorted(path.name for path in site.glob("*.html"))
    with served(site) as address, browser() as chrome:
        ids, links = {}, []
        for page in pages:
            for width in WIDTHS:
                set_window(chrome, width)
                chrome.get(f"{address}/{page}")
                for element in chrome.execute_script(CUT_OFF):
                    yield f"{page} at {width} pixels: cut off: {element!r}"
            ids[page] = set(chrome.execute_script(IDS))
            links += [(page, link) for link in chrome.execute_script(LINKS)]
            yield from (f"{page}: {message}" for message in console(chrome))
        for page, link in links:
            if link.startswith(address):
                yield from _dead_link(page, link.removeprefix(address).lstrip("/"), ids)


def _dead_link(page: str, link: str, ids: dict[str, set[str]]) -> Iterator[str]:
    target, anchor = urldefrag(link)
    target = target or "index.html"
    if target not in ids:
        yield f"{page}: no page {target}"
    elif anchor and unquote(anchor) not in ids[target]:
        yield f"{page}: {target} has no #{anchor}"


if __name__ == "__main__":
    report(problems(Path(sys.argv[1])))
