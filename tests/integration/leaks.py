"""Looks for secrets in all that jobs and their engine show and leave behind."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.request import urlopen

import psutil

from tests.file_contents import file_contents

SAMPLE_SECONDS = 0.3
REST_PAGES = ("environment", "sql?details=true&length=1000", "jobs", "stages", "allexecutors")
HTML_PAGES = ("environment/", "SQL/", "connect/", "executors/threadDump/?executorId=driver")


@contextlib.contextmanager
def command_lines_to(file: Path) -> Iterator[None]:
    """Meanwhile, write down what `ps -ef` shows of all processes."""
    ended = threading.Event()

    def sample() -> None:
        seen: set[str] = set()
        while not ended.wait(SAMPLE_SECONDS):
            lines = {" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])}
            with open(file, "a") as output:
                output.writelines(f"{line}\n" for line in lines - seen)
            seen |= lines

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    yield
    ended.set()
    sampler.join()


def write_spark_ui(port: int, folder: Path) -> None:
    """Save what Spark's web pages and REST API show to anybody on this machine."""
    folder.mkdir()
    root = f"http://127.0.0.1:{port}"
    (application,) = json.loads(_page(f"{root}/api/v1/applications"))
    api = f"{root}/api/v1/applications/{application['id']}"
    statements = json.loads(_page(f"{api}/{REST_PAGES[1]}"))
    pages = [f"{api}/{page}" for page in REST_PAGES]
    pages += [f"{root}/{page}" for page in HTML_PAGES]
    pages += [f"{root}/SQL/execution/?id={statement['id']}" for statement in statements]
    for number, page in enumerate(pages):
        (folder / str(number)).write_bytes(page.encode() + b"\n" + _page(page))


def _page(url: str) -> bytes:
    with urlopen(url, timeout=20) as answer:
        text: bytes = answer.read()
        return text


def leaks(folder: Path, secrets: Mapping[str, str], but: Path) -> list[str]:
    """Which secret stands in which file, all but one."""
    return [
        f"{name} in {file.relative_to(folder)}"
        for file, content in file_contents(folder)
        if file != but
        for name, secret in secrets.items()
        if essence(secret) in content
    ]


def essence(secret: str) -> bytes:
    """The part without which it is worth nothing: of a JWT, some of its signature."""
    return secret.rpartition(".")[2][:24].encode()
