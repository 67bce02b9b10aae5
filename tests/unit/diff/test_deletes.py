"""Rows of versions with deletes of all kinds, as the specification defines them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
from dbt.adapters.iceberg_stream.diff.version import find_versions
from tests.unit.delete_histories import STEPS, ZERO, A, History
from tests.unit.local_tables import load, make_catalog

APPENDED = [("append", [A, ZERO, ZERO]), ("append", [A, ZERO])]


@pytest.mark.parametrize("version", [2, 3])
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, pair=st.tuples(st.integers(0, 10), st.integers(0, 10)))
@example(steps=[*APPENDED, ("delete_by_position", 4), ("delete_by_position", 3)], pair=(2, 3))
@example(steps=[*APPENDED, ("delete_by_position", 4), ("delete_by_position", 3)], pair=(3, 1))
@example(steps=[*APPENDED, ("delete_everywhere", (("id",), [ZERO]))], pair=(1, 2))
@example(steps=[*APPENDED, ("upsert", [A])], pair=(2, 1))
def test_rows_that_deletes_leave(
    version: int, steps: list[tuple[str, Any]], pair: tuple[int, int]
) -> None:
    with TemporaryDirectory() as folder:
        lake = make_catalog(Path(folder))
        history = History(lake, version)
        versions: list[tuple[str, set[int]]] = []
        for step, argument in steps:
            getattr(history, step)(argument)
            snapshot_id = load(lake).metadata.get("current-snapshot-id")
            if snapshot_id not in (None, -1):
                versions.append((str(snapshot_id), set(history.live)))
        if not versions:
            return
        (before, old), (after, new) = (versions[number % len(versions)] for number in pair)
        metadata = compare_metadata(*find_versions(lake, history.name, before, after))
        actual = compare_rows(metadata, ["n"], samples=1000).rows
        assert actual is not None
        assert {row["n"] for row in actual.added_rows} == new - old
        assert {row["n"] for row in actual.removed_rows} == old - new
        assert actual.changed == 0
        if metadata.files.rows_after is not None:
            assert metadata.files.rows_after == len(new)
        lake.close()
