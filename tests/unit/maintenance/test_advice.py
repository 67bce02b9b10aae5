"""What is advised for tables of several shapes, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.maintenance.advice import (
    GIB,
    HOUR_MS,
    Advice,
    Thresholds,
    advise,
    in_bytes,
)
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes, ScanCost
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth

NOW = 10**12
COST = ScanCost(100 * 2**20, 1000, 10)
HEALTHY = TableHealth(
    name=("s", "t"),
    format_version=3,
    data_files=1000,
    data_bytes=COST.bytes,
    rows=10**6,
    small_files=0,
    files_saved=0,
    equality_files=0,
    equality_keys=0,
    position_files=0,
    position_rows=0,
    vectors=0,
    vector_rows=0,
    manifests=10,
    small_manifests=0,
    manifests_saved=0,
    snapshots=10,
    expirable_snapshots=0,
    expirable_bytes=0,
    metadata_versions=20,
    metadata_version=500,
    metadata_limit=20,
    last_commit_ms=NOW,
    partitions=1,
    largest_partition_bytes=COST.bytes,
    median_partition_bytes=COST.bytes,
    is_sorted=False,
    branches=(),
    streams=(),
    cost=COST,
    cost_after_convert=COST,
    cost_after_compact=COST,
    cost_after_manifests=COST,
)


def with_equality_deletes(split_keys: int) -> TableHealth:
    cost = replace(COST, equality=Deletes(split_keys=split_keys))
    after = replace(COST, positional=Deletes(vectors=10, positions=1000))
    return replace(
        HEALTHY,
        cost=cost,
        cost_after_convert=after,
        cost_after_compact=cost,
        cost_after_manifests=cost,
    )


def with_positions(rows: int, scan: ScanCost = COST) -> TableHealth:
    cost = replace(scan, positional=Deletes(vectors=10, positions=rows))
    return replace(
        HEALTHY,
        data_bytes=scan.bytes,
        vectors=10,
        vector_rows=rows,
        cost=cost,
        cost_after_convert=cost,
        cost_after_compact=replace(scan, bytes=scan.bytes // 2),
        cost_after_manifests=cost,
    )


def with_small_files(saved: int) -> TableHealth:
    after = replace(COST, data_files=COST.data_files - saved)
    return replace(HEALTHY, small_files=saved, files_saved=saved, cost_after_compact=after)


def with_manifests(saved: int) -> TableHealth:
    cost = replace(COST, manifests=saved + 1)
    return replace(
        HEALTHY,
        manifests_saved=saved,
        cost=cost,
        cost_after_convert=cost,
        cost_after_compact=cost,
        cost_after_manifests=replace(COST, manifests=1),
    )


def only(health: TableHealth, **thresholds: float) -> Advice:
    (advice,) = advise([health], Thresholds(**thresholds), NOW)
    return advice


def test_a_healthy_table_needs_nothing() -> None:
    assert advise([HEALTHY], Thresholds(min_gain=0.001), NOW) == []


@pytest.mark.parametrize(
    ("health", "code", "step"),
    [
        (with_equality_deletes(10**8), "equality-deletes", "convert_deletes"),
        (with_positions(5 * 10**6), "position-deletes", "compact"),
        (with_small_files(900), "small-files", "compact"),
        (with_manifests(800), "manifests", "rewrite_manifests"),
        (replace(HEALTHY, expirable_snapshots=100), "snapshots", "expire_snapshots"),
        (
            replace(HEALTHY, expirable_snapshots=1, expirable_bytes=2 * GIB),
            "snapshots",
            "expire_snapshots",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_problem_has_its_step(health: TableHealth, code: str, step: str) -> None:
    advice = only(health)
    assert (advice.code, advice.urgency) == (code, "worth")
    assert advice.command == ("maintain", "s.t", "--only", step)


@pytest.mark.parametrize(
    "health",
    [
        with_equality_deletes(10**6),
        with_positions(10**4),
        with_small_files(600),
        with_manifests(400),
        replace(HEALTHY, expirable_snapshots=99, expirable_bytes=GIB - 1),
        replace(HEALTHY, metadata_limit=None, metadata_version=99),
    ],
)
def test_little_gain_is_not_worth_it(health: TableHealth) -> None:
    assert advise([health], Thresholds(), NOW) == []


def test_the_least_gain_is_a_choice() -> None:
    assert only(with_small_files(600), min_gain=0.5).seconds == pytest.approx(0.9)
    assert advise([with_small_files(900)], Thresholds(min_gain=2), NOW) == []


def test_a_large_table_is_not_compacted_for_few_deleted_rows() -> None:
    """Three seconds of 100,000 are not worth writing 10 TB again."""
    large = ScanCost(10**13, 10**5, 10)
    health = with_positions(10**7, large)
    health = replace(health, cost_after_compact=large, is_sorted=True)
    assert health.cost.seconds - health.cost_after_compact.seconds > 3
    assert advise([health], Thresholds(), NOW) == []


def test_deleted_rows_are_storage_and_time() -> None:
    advice = only(with_positions(5 * 10**6))
    assert advice.bytes == 50 * 2**20
    assert advice.seconds == pytest.approx(0.008 + 1.5 + 0.524, abs=0.001)


def test_metadata_files_without_limit() -> None:
    advice = only(replace(HEALTHY, metadata_limit=None))
    assert (advice.code, advice.files, advice.command) == ("metadata-files", 500, ())
    assert "alter table s.t set tblproperties ('write.metadata.delete-after-" in advice.cure


def test_the_largest_gain_comes_first() -> None:
    tables = [
        replace(with_small_files(900), name=("s", "small")),
        replace(HEALTHY, name=("s", "sparse"), expirable_snapshots=100),
        replace(with_equality_deletes(10**8), name=("s", "debt")),
        replace(HEALTHY, name=("s", "big"), expirable_snapshots=2, expirable_bytes=3 * GIB),
        replace(HEALTHY, name=("s", "hint"), data_bytes=50 * GIB),
        replace(HEALTHY, name=("s", "stopped"), streams=(StreamHealth("x", None, None, "Gone."),)),
    ]
    order = ["stopped", "debt", "small", "big", "sparse", "hint"]
    assert [one.table[1] for one in advise(tables, Thresholds(), NOW)] == order


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"data_bytes": 10 * GIB}, ["no-sort-order"]),
        ({"data_bytes": 10 * GIB, "is_sorted": True}, []),
        ({"data_bytes": GIB}, []),
        ({"partitions": 8, "largest_partition_bytes": 20 * GIB}, ["skewed-partitions"]),
        ({"partitions": 3, "largest_partition_bytes": 20 * GIB}, []),
        ({"partitions": 8, "largest_partition_bytes": GIB}, []),
        (
            {"partitions": 8, "largest_partition_bytes": 20 * GIB}
            | {"median_partition_bytes": 2 * GIB},
            [],
        ),
    ],
)
def test_hints(changes: dict[str, Any], codes: list[str]) -> None:
    advice = advise([replace(HEALTHY, **changes)], Thresholds(), NOW)
    assert [one.code for one in advice] == codes
    assert all(one.urgency == "hint" and one.command == () for one in advice)


def stream(hours: float | None, problem: str | None = None) -> TableHealth:
    last = None if hours is None else NOW - int(hours * HOUR_MS)
    return replace(HEALTHY, streams=(StreamHealth("model.p.m", None, last, problem),))


def test_a_stream_that_is_late() -> None:
    assert advise([stream(47), stream(None)], Thresholds(), NOW) == []
    advice = only(stream(49))
    assert (advice.code, advice.urgency) == ("stream-late", "broken")
    assert "no progress for 49 hours" in advice.problem
    assert "iceberg-stream streams s.t forget model.p.m" in advice.cure
    assert advice.command == ("streams", "s.t")
    assert advise([stream(49)], Thresholds(max_stream_age=50), NOW) == []


def test_a_stream_that_cannot_continue_is_not_late_as_well() -> None:
    advice = only(stream(900, "The table was rolled back."))
    assert (advice.code, advice.command) == ("stream-stopped", ("resume", "s.t"))
    assert "The table was rolled back." in advice.problem


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 * GIB, "5.0 GiB"),
        (2**50 * 2, "2,048.0 TiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert in_bytes(size) == text
