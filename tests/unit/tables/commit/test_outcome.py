from __future__ import annotations

import pytest
from dbt_common.events.contextvars import log_contextvars

from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.tables.commit.outcome import (
    find_file_delete,
    find_outcome,
    read_outcome,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    WRITE_ID,
    new_write_id,
    snapshot_properties,
    spark_settings,
)

MERGE = "spark.merge-into.num-target-rows-"


def snapshot(operation: str, **properties: str) -> SnapshotSummary:
    named = {key.replace("_", "-"): value for key, value in properties.items()}
    return SnapshotSummary(7, 1, {"operation": operation, **named})


def test_append() -> None:
    result = read_outcome(snapshot("append", added_records="5", added_files_size="90"))
    assert (result.rows_affected, result.rows_inserted, result.bytes_written) == (5, 5, 90)


def test_replace_counts_the_new_rows() -> None:
    result = read_outcome(
        snapshot("overwrite", added_records="5", deleted_records="3", total_records="5")
    )
    assert result.rows_affected == 5


def test_copy_on_write_delete_counts_the_balance() -> None:
    result = read_outcome(snapshot("delete", added_records="97", deleted_records="100"))
    assert (result.rows_affected, result.rows_deleted) == (3, 3)


def test_position_deletes_count_on_balance() -> None:
    result = read_outcome(
        snapshot("delete", added_position_deletes="7", removed_position_deletes="4")
    )
    assert (result.rows_affected, result.rows_deleted) == (3, 3)


def test_delete_files_of_the_table() -> None:
    assert read_outcome(snapshot("overwrite", total_delete_files="150")).total_delete_files == 150
    assert read_outcome(snapshot("append", total_delete_files="0")).total_delete_files == 0
    assert read_outcome(snapshot("append")).total_delete_files is None


@pytest.mark.parametrize("copied", ["0", "1000"])
def test_merge_counts_what_spark_counted(copied: str) -> None:
    summary = {
        "operation": "overwrite",
        f"{MERGE}inserted": "1",
        f"{MERGE}updated": "2",
        f"{MERGE}deleted": "3",
        f"{MERGE}copied": copied,
        "added-records": copied,
    }
    result = read_outcome(SnapshotSummary(7, 1, summary))
    assert (result.rows_affected, result.rows_updated) == (6, 2)


def test_a_merge_that_rewrites_all_files_counts_deleted_rows() -> None:
    counts = {f"{MERGE}inserted": "15", f"{MERGE}updated": "0", f"{MERGE}deleted": "3"}
    files = {"added-records": "20", "deleted-records": "8", "total-records": "20"}
    summary = SnapshotSummary(7, 1, {"operation": "overwrite", **counts, **files})
    assert read_outcome(summary).rows_affected == 18


def test_stamps_reach_spark_as_snapshot_properties() -> None:
    with log_contextvars(node_info={"unique_id": "model.p.m", "node_name": "m"}):
        settings = spark_settings(snapshot_properties("w", "uma"))
    assert settings["spark.sql.iceberg.snapshot-property.iceberg-stream.write-id"] == "w"
    assert settings["spark.sql.iceberg.snapshot-property.iceberg-stream.node-id"] == "model.p.m"
    assert settings["spark.sql.iceberg.snapshot-property.iceberg-stream.principal"] == "uma"
    assert new_write_id() != new_write_id()


def test_rows_before_and_after() -> None:
    result = read_outcome(
        snapshot("overwrite", added_records="5", deleted_records="3", total_records="12")
    )
    assert (result.rows_before, result.rows_after) == (10, 12)
    assert (result.rows_removed, result.replaced_all) == (3, False)


def test_rows_before_and_after_with_position_deletes() -> None:
    result = read_outcome(
        snapshot(
            "overwrite",
            added_records="5",
            total_records="15",
            added_position_deletes="2",
            total_position_deletes="3",
        )
    )
    assert (result.rows_before, result.rows_after, result.rows_removed) == (9, 12, 2)


def test_equality_deletes_hide_an_unknown_number_of_rows() -> None:
    added = snapshot(
        "delete", total_records="9", added_equality_deletes="1", total_equality_deletes="1"
    )
    result = read_outcome(added)
    assert (result.rows_before, result.rows_after, result.rows_removed) == (9, None, 0)
    assert read_outcome(snapshot("append", added_records="5")).rows_after is None


def test_a_replaced_table() -> None:
    """`create or replace table` begins a new line of snapshots: its totals begin at 0."""
    staged = SnapshotSummary(5, 3, {"operation": "append", "total-records": "99"})
    before = SnapshotSummary(4, 2, {"operation": "append", "total-records": "40"})
    replacing = SnapshotSummary(
        7,
        4,
        {"operation": "overwrite", "added-records": "6", "total-records": "6", WRITE_ID: "w"},
        previous_id=4,
    )
    result = find_outcome([replacing, staged, before], "w")
    assert result is not None
    assert (result.rows_before, result.rows_after, result.rows_removed) == (40, 6, 40)
    assert result.replaced_all
    created = find_outcome([replacing], "w")
    assert created is not None
    assert (created.rows_before, created.replaced_all) == (0, False)
    assert find_outcome([staged, before], "w") is None


def test_a_delete_of_whole_files() -> None:
    """It has no write id; other snapshots since the statement began may have one, or none."""

    def commit(number: int, operation: str, **properties: str) -> SnapshotSummary:
        summary = {"operation": operation, "deleted-records": str(number), **properties}
        return SnapshotSummary(number, number, summary)

    spark = {"spark.app.id": "app-1"}
    before = commit(1, "delete", **spark)
    history = [
        commit(5, "append", **spark),
        commit(4, "delete", **spark, **{WRITE_ID: "other"}),
        commit(3, "delete", **spark),
        commit(2, "delete"),
        before,
    ]
    deleted = find_file_delete(history, since=1)
    assert deleted is not None
    assert (deleted.snapshot_id, deleted.rows_deleted) == (3, 3)
    assert find_file_delete([*history[:2], *history[3:]], since=1) is None
    first = find_file_delete([before], since=None)
    assert first is not None
    assert first.snapshot_id == 1
