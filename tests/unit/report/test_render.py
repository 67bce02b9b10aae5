"""The page: complete, escaped, without secrets, and small."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.report.contents import Contents
from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.project import read_project
from dbt.adapters.iceberg_stream.report.render import MAX_TEXT, render
from dbt.adapters.iceberg_stream.stream.sources.source import Lag
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from tests.unit.local_tables import make_table
from tests.unit.report.lakes import HOSTILE, LATER_RUN, RUN, SECRET, append, fill, properties
from tests.unit.report.pages import Page

# Attributes by which a page loads something.
LOADS = ("src", "srcset", "href", "action", "data", "poster", "background", "xlink:href")


@pytest.fixture
def contents(lake: IcebergCatalog, tmp_path: Path) -> Contents:
    """The project with texts of all kinds."""
    fill(lake, tmp_path)
    return gather(lake, project=read_project(tmp_path / "target"))


@pytest.fixture
def all_contents(lake: IcebergCatalog, contents: Contents) -> Contents:
    """The namespace, which has tables that the project does not know."""
    return gather(lake, ["s"], contents.project)


def test_hostile_texts_are_only_text(all_contents: Contents) -> None:
    page = Page(render(all_contents, ["--target", HOSTILE], [StreamStatus(HOSTILE, HOSTILE)]))
    assert page.text.count(HOSTILE) >= 8
    assert not {"script", "img", "iframe", "object", "form", "base"} & page.tags()
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    # A template within a text is not rendered either.
    assert "{{ 'x' * 7 }}" in page.text and "xxxxxxx" not in page.text


def test_nothing_is_loaded_and_nothing_may_run(all_contents: Contents) -> None:
    html = render(all_contents)
    page = Page(html)
    for name in LOADS:
        assert all(value.startswith("#") or value == "data:," for value in page.attributes(name))
    assert "url(" not in html and "@import" not in html
    (policy,) = (a["content"] for _, a in page.elements if "http-equiv" in a)
    assert policy is not None and "default-src 'none'" in policy and "script-src" not in policy


def test_links_lead_somewhere_and_ids_are_unique(all_contents: Contents) -> None:
    page = Page(render(all_contents))
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    links = {link.removeprefix("#") for link in page.attributes("href") if link != "data:,"}
    references = {one for text in page.attributes("aria-labelledby") for one in text.split()}
    assert links | references <= set(ids)


def test_no_secret(all_contents: Contents, lake: IcebergCatalog) -> None:
    unreadable = {"x": f"GET https://u:{SECRET}@host/?token={SECRET} failed"}
    html = render(replace(all_contents, unreadable=unreadable))
    assert SECRET not in html
    assert "secret_access_key=…" in html and "token=… failed" in html


def test_long_texts_are_cut(contents: Contents) -> None:
    unreadable = {"x": "a" * 100_000}
    html = render(replace(contents, unreadable=unreadable))
    assert "a" * MAX_TEXT + "…" in html
    assert "a" * (MAX_TEXT + 1) not in html


def test_what_the_page_says(contents: Contents) -> None:
    words = Page(render(contents, ["--target", "prod"])).words
    assert words.startswith("shop: tables")
    assert "3 tables of the catalog lake" in words
    assert "dbt's manifest of 2026-11-23 00:00:00." in words
    # The last run wrote 16 rows on top of 44, in 12.34 seconds as dbt recorded it.
    assert f"1 table, by {HOSTILE} (run {LATER_RUN})" in words
    assert "s.orders 1 16 0 0 100 bytes 44 60 12.3" in words
    assert f"1 table, by ada (run {RUN})" in words
    assert "model.shop.events" in words and "has read up to" in words
    assert "iceberg-stream run serves this page" in words


def test_advice_with_its_command(all_contents: Contents) -> None:
    words = Page(render(all_contents, ["--target", "prod"])).words
    assert "s.deleted: equality-deletes." in words
    assert "Gain: about 29.6 s of 30.2 s for each full scan, 100 files." in words
    assert "iceberg-stream maintain s.deleted --only convert_deletes --target prod" in words
    assert "s.deleted 1 to do" in words


def test_unreadable_tables_are_listed(all_contents: Contents) -> None:
    words = Page(render(all_contents)).words
    assert "s.gone: Its metadata cannot be read (FileNotFoundError" in words
    assert "6 tables of the catalog" in words


def test_running_streams(contents: Contents) -> None:
    waiting = StreamStatus("events", "running", changes=12, lag=Lag(1_234, "rows"))
    words = Page(render(contents, running=[waiting, StreamStatus("other")])).words
    assert "events running 1,234 rows 12" in words
    assert "not measured yet" in words and "none yet" in words
    assert "Reload the page for newer figures." in words


def test_charts_have_a_text(contents: Contents) -> None:
    page = Page(render(contents))
    charts = [a for tag, a in page.elements if tag == "svg" and a.get("class") == "chart"]
    labels = [str(chart["aria-label"]) for chart in charts]
    assert all(chart["role"] == "img" for chart in charts)
    assert (
        "Rows over time. rows of data files: from 10 to 60, at least 10, at most 60; deletes: from "
        "0 to 0, at least 0, at most 0. The table of writes has the same figures." in labels
    )


def test_a_source_is_not_linked_to_the_table_of_the_same_name(contents: Contents) -> None:
    html = render(contents)
    assert re.search(r'<a href="#table-\d">events</a>', html)
    assert '">kafka.events</a>' not in html


def test_without_tables(lake: IcebergCatalog) -> None:
    words = Page(render(gather(lake))).words
    assert "0 tables of the catalog lake" in words and "There are no tables." in words
    assert "There is no manifest of dbt, so there is no lineage." in words
    assert "No stream writes to these tables." in words
    assert "No snapshot records a run of dbt." in words


def test_tables_that_were_not_examined(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    contents = gather(lake, ["s"], time_limit=0)
    assert [table.health for table in contents.tables] == [None] * 6
    words = Page(render(contents)).words
    assert "Not examined within the time limit of the page: 6 tables" in words
    assert "Nothing is worth doing" not in words


def test_a_long_history_is_cut(lake: IcebergCatalog) -> None:
    make_table(lake)
    for number in range(70):
        append(lake, ("s", "t"), number=str(number), **properties("t", f"run-{number:03}"))
    contents = gather(lake, ["s"])
    words = Page(render(contents)).words
    assert "The latest 50 of 70 snapshots" in words
    assert "50 older runs are left out." in words
    assert "run-069" in words and "run-050" in words and "(run run-049)" not in words


def test_hundreds_of_tables_stay_small(contents: Contents) -> None:
    (orders,) = (table for table in contents.tables if table.name == ("s", "orders"))
    busy = replace(orders, writes=list(orders.writes) * 100, snapshots=200)
    tables = [replace(busy, name=("s", f"a_table_with_a_long_name_{n}")) for n in range(500)]
    html = render(replace(contents, tables=tables))
    assert len(html.encode()) < 5_000_000
    words = Page(html).words
    assert "The latest 10 of 200 snapshots" in words
    assert "400 tables have no charts" in words
