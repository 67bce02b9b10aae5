"""Which snapshots have outlived the retention of branches, tags and the table."""

from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.maintenance.properties import PropertyError
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots, freed_bytes

DAY = 24 * 60 * 60 * 1000
NOW = 100 * DAY


def metadata(*days: int, **more: Any) -> dict[str, Any]:
    """Snapshots 1, 2, … of main, committed so many days ago."""
    snapshots = [
        {
            "snapshot-id": number,
            "timestamp-ms": NOW - ago * DAY,
            "summary": {"removed-files-size": str(10**number)},
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
        }
        for number, ago in enumerate(days, 1)
    ]
    table = {"format-version": 2, "snapshots": snapshots, "current-snapshot-id": len(days) or -1}
    return table | {key.replace("_", "-"): value for key, value in more.items()}


def branch(snapshot_id: int, **more: int) -> dict[str, Any]:
    settings = {key.replace("_", "-"): value for key, value in more.items()}
    return {"snapshot-id": snapshot_id, "type": "branch", **settings}


@pytest.mark.parametrize(
    ("properties", "expirable"),
    [
        ({}, {1, 2}),
        ({"history.expire.max-snapshot-age-ms": str(8 * DAY)}, {1}),
        ({"history.expire.max-snapshot-age-ms": "1"}, {1, 2, 3}),
        ({"history.expire.max-snapshot-age-ms": "0"}, {1, 2, 3}),
        ({"history.expire.min-snapshots-to-keep": "3"}, {1}),
        ({"history.expire.min-snapshots-to-keep": "9"}, set()),
    ],
)
def test_properties_of_the_table(properties: dict[str, str], expirable: set[int]) -> None:
    table = metadata(10, 7, 4, 0, properties=properties)
    assert expirable_snapshots(table, NOW) == expirable


def test_a_property_that_is_not_a_number() -> None:
    table = metadata(9, properties={"history.expire.max-snapshot-age-ms": "5 days"})
    with pytest.raises(
        PropertyError, match="max-snapshot-age-ms is `5 days`, which is not a whole"
    ):
        expirable_snapshots(table, NOW)


def test_a_cycle_of_parents_ends() -> None:
    table = metadata(10, 7, 0)
    table["snapshots"][0]["parent-snapshot-id"] = 2
    assert expirable_snapshots(table, NOW) == {1, 2}


def test_tables_without_snapshots() -> None:
    assert expirable_snapshots(metadata(), NOW) == set()
    assert expirable_snapshots({"format-version": 2}, NOW) == set()


def test_the_current_snapshot_stays_however_old() -> None:
    assert expirable_snapshots(metadata(90, 80), NOW) == {1}


@pytest.mark.parametrize(
    ("refs", "expirable"),
    [
        ({"old": {"snapshot-id": 2, "type": "tag"}}, {1, 3}),
        ({"old": branch(2)}, {1, 3}),
        ({"old": branch(2, min_snapshots_to_keep=2)}, {3}),
        ({"old": branch(2, max_snapshot_age_ms=60 * DAY)}, {3}),
        ({"old": {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 20 * DAY}}, {1, 2, 3}),
    ],
)
def test_tags_and_branches_keep_their_own(refs: dict[str, Any], expirable: set[int]) -> None:
    table = metadata(50, 40, 30, 0, refs={"main": branch(4), **refs})
    assert expirable_snapshots(table, NOW) == expirable


def test_snapshots_of_no_branch_stay_by_age() -> None:
    """As after a rollback to the second snapshot."""
    table = metadata(9, 8, 7, 1, refs={"main": branch(2)})
    assert expirable_snapshots(table, NOW) == {1, 3}


def test_files_are_free_when_the_snapshots_before_their_removal_expire() -> None:
    table = metadata(10, 7, 4, 0)
    assert freed_bytes(table, expirable_snapshots(table, NOW)) == 10**2 + 10**3
    assert freed_bytes(table, set()) == 0
