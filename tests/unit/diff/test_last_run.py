"""The version before the last run that changed a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.diff.errors import Expired
from dbt.adapters.iceberg_stream.diff.version import find_before_last_run, find_version
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import INVOCATION_ID
from tests.unit.local_tables import NAME, insert, load, make_table, set_metadata

ROWS = pa.table({"id": pa.array([1], pa.int64()), "x": pa.array(["a"], pa.string())})


def history(lake: IcebergCatalog, *runs: str) -> list[int]:
    """Commits of runs, or of programs without an id; `replace` is a compaction."""
    make_table(lake)
    numbers = []
    for run in runs:
        properties = {INVOCATION_ID: run} if run not in ("", "replace") else {}
        numbers.append(insert(lake, ROWS, **properties).snapshot.snapshot_id)
    snapshots = [dict(snapshot) for snapshot in load(lake).metadata["snapshots"]]
    for run, snapshot in zip(runs, snapshots, strict=True):
        if run == "replace":
            snapshot["summary"] = {**snapshot["summary"], "operation": "replace"}
    set_metadata(lake, snapshots=snapshots)
    return numbers


def before(lake: IcebergCatalog, version: str | None = None) -> int | None:
    return find_before_last_run(find_version(lake, NAME, version)).snapshot_id


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (("a", "b"), 0),
        (("a", "b", "b", "b"), 0),
        (("a", "b", "replace", "b", "replace"), 0),
        (("a", "replace", "b"), 0),
        (("a", "", ""), 1),
        (("a", ""), 0),
        (("", "a"), 0),
        (("a",), None),
        (("a", "a", "replace"), None),
        ((), None),
    ],
    ids=str,
)
def test_runs(lake: IcebergCatalog, runs: tuple[str, ...], expected: int | None) -> None:
    numbers = history(lake, *runs)
    assert before(lake) == (None if expected is None else numbers[expected])


def test_before_an_older_version(lake: IcebergCatalog) -> None:
    numbers = history(lake, "a", "b", "c")
    assert before(lake, str(numbers[1])) == numbers[0]


def expire(lake: IcebergCatalog, keep: int, **changed: Any) -> None:
    metadata = load(lake).metadata
    snapshots = [{**snapshot, **changed} for snapshot in metadata["snapshots"][-keep:]]
    if keep == 1:
        # Like a table that was replaced.
        del snapshots[0]["parent-snapshot-id"]
    set_metadata(lake, snapshots=snapshots, snapshot_log=metadata["snapshot-log"][-keep:])


def test_an_expired_parent(lake: IcebergCatalog) -> None:
    history(lake, "a", "b", "b")
    expire(lake, 2)
    with pytest.raises(Expired, match=r"Older snapshots of s\.t have expired"):
        before(lake)


def test_a_replaced_table_whose_older_snapshots_have_expired(lake: IcebergCatalog) -> None:
    history(lake, "a", "b")
    expire(lake, 1)
    with pytest.raises(Expired):
        before(lake)


def test_the_first_commit_of_a_stream_has_many_sequence_numbers(lake: IcebergCatalog) -> None:
    history(lake, "a", "b")
    summary = {"operation": "append", INVOCATION_ID: "b", "iceberg-stream.frontier": "{}"}
    expire(lake, 1, summary=summary)
    assert before(lake) is None
