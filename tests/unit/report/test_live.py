"""The page of a service, by itself and over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.report import live
from dbt.adapters.iceberg_stream.report.live import LivePage
from dbt.adapters.iceberg_stream.stream.service import Service, endpoint
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from tests.unit.report.lakes import fill
from tests.unit.report.pages import Page


def get(port: int, path: str = "/") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_service_serves_the_report(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    service = Service(streams={"model.shop.events": StreamStatus("events", "idle")})
    page = LivePage(lake, tmp_path / "target", lambda: list(service.streams.values()))
    with endpoint(service, "127.0.0.1", 0, page) as port:
        status, kind, html = get(port)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        words = Page(html).words
        assert "Running in this service" in words and "3 tables of the catalog" in words
        assert get(port, "/health")[0] == 200
        assert get(port, "/report")[::2] == (404, "/, /health or /metrics\n")


def test_without_a_page() -> None:
    with endpoint(Service(), "127.0.0.1", 0) as port:
        assert get(port)[0] == 404


@pytest.mark.parametrize("error", [DbtRuntimeError, OSError])
def test_a_page_that_cannot_be_written(error: type[Exception]) -> None:
    def page() -> str:
        raise error("https://ada:pass@catalog does not answer: é")

    with endpoint(Service(), "127.0.0.1", 0, page) as port:
        status, kind, text = get(port)
    assert (status, kind) == (503, "text/plain; charset=utf-8")
    assert text == "The page cannot be written: https://…@catalog does not answer: é\n"


def test_pages_are_served_again_while_they_are_fresh(
    lake: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    gathered = []

    def slow_gather(*arguments: Any, **named: Any) -> str:
        gathered.append(1)
        clock[0] += 2.0
        return "contents"

    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live, "gather", slow_gather)
    monkeypatch.setattr(live, "render", lambda *_: f"page {len(gathered)}")
    page = LivePage(lake, tmp_path, list)
    assert page() == "page 1"
    # It took 2 s, so it is fresh for 20 s.
    clock[0] += 19.9
    assert page() == "page 1"
    clock[0] += 0.2
    assert page() == "page 2"
