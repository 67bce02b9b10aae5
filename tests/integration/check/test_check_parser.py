"""`iceberg-stream check` agrees with Iceberg's own parser about what cannot be read."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from tests.integration.filled_tables import fill
from tests.servers.iceberg_parser import refusal
from tests.unit.local_tables import insert, load, make_catalog, make_table

Place = tuple[Any, ...]
DELETE, NEXT, TWICE = "delete it", "add one", "repeat it"
EDITS = (DELETE, NEXT, TWICE, None, -1, 0, 1, 2, 77, "x", [], {}, True)
IN_CI = 300


@pytest.fixture(scope="module", params=[1, 2, 3])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedTable:
    lake = make_catalog(tmp_path_factory.mktemp("checked"))
    if request.param == 1:
        make_table(lake, 1)
        for _ in range(2):
            insert(lake, pa.table({"id": [1], "x": ["a"]}))
    else:
        fill(lake, request.param)
    return load(lake)


def places(node: Any, at: Place = ()) -> Iterator[Place]:
    if at:
        yield at
    for key in (
        node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    ):
        yield from places(node[key], (*at, key))


def edited(metadata: Any, place: Place, edit: Any) -> Any:
    changed = copy.deepcopy(metadata)
    *above, last = place
    node = changed
    for key in above:
        node = node[key]
    if edit == DELETE:
        del node[last]
    elif edit == NEXT and isinstance(node[last], int):
        node[last] += 1
    elif edit == TWICE and isinstance(node, list):
        node.append(node[last])
    elif edit not in (NEXT, TWICE):
        node[last] = edit
    return changed


def disagreements(table: LoadedTable, count: int | None, folder: Path) -> list[str]:
    """Of each value of the metadata, changed in each way."""
    chosen = list(itertools.product(places(table.metadata), EDITS))
    random.Random(14).shuffle(chosen)
    wrong = []
    for number, (place, edit) in enumerate(chosen[:count]):
        metadata = edited(table.metadata, place, edit)
        if place == ("format-version",) and metadata.get(*place) in (-1, 0):
            continue  # which Iceberg takes for 1, and nobody writes
        file = folder / f"{number}.metadata.json"
        file.write_text(json.dumps(metadata))
        reason = refusal(str(file))
        findings = check_table(replace(table, metadata=metadata)).findings
        if reason and not any(finding.severity == "error" for finding in findings):
            wrong.append(f"{place} {edit!r}: not reported: {reason}")
        if not reason and any(finding.kind.refused for finding in findings):
            wrong.append(f"{place} {edit!r}: reported, but not refused: {findings[0]}")
    return wrong


def test_some_changes(table: LoadedTable, parser: None, tmp_path: Path) -> None:
    assert disagreements(table, IN_CI, tmp_path) == []


@pytest.mark.slow
def test_all_changes(table: LoadedTable, parser: None, tmp_path: Path) -> None:
    assert disagreements(table, None, tmp_path) == []
