"""Keys that a stream with `sequence_by` has deleted, and what becomes of their files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.orphans import Orphan, unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import Fenced
from dbt.adapters.iceberg_stream.stream.key_index import deleted_keys, late_changes, snapshot_index
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import (
    DAY,
    deleted_keys_files,
    deleted_keys_locations,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import ChangeOrder
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from dbt.adapters.iceberg_stream.tables.deletes import snapshot_files
from tests.integration.streams import NAME, SINK, make_table, open_sink
from tests.integration.tables import LATER, duckdb_rows, insert, read_by_duckdb, write

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "value", StringType(), required=False),
    NestedField(3, "at", LongType(), required=True),
)
# A key, its value (None deletes it), and the order of the change.
Change = tuple[int, str | None, int]


@pytest.fixture(autouse=True)
def table(lake: IcebergCatalog) -> None:
    properties = {"format-version": "2"}
    staged = lake.stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, properties)
    lake.commit(staged, (AssertCreate(),), ())


def opened(lake: IcebergCatalog, days: float = 7.0) -> Sink:
    sink = open_sink(lake)
    sink.load_index(1000, False, ChangeOrder(("at",), days))
    return sink


def written(
    sink: Sink,
    *changes: Change,
    watermark: int | None = 9,
    indexed: bool = True,
    by: str = "at",
) -> WrittenBatch:
    plan = sink.plan("w", ordered=False, max_keys=99, sequence_by=(by,), keeps_keys=indexed)
    ids, values, orders = ([change[n] for change in changes] for n in range(3))
    rows: dict[str, Any] = {"id": ids, "value": pa.array(values, pa.string()), by: orders}
    rows |= {f"{ORDER}0": orders, f"{ORDER}1": list(range(len(ids)))}
    batches = pa.table(rows | {DELETED: [value is None for value in values]}).to_batches()
    batch = WrittenBatch(BatchRange(None, {"n": 1}), [write_changes(plan, batches)])
    return sink.add_to_index(batch, watermark) if indexed else batch.with_early_deletes(7.0)


def apply(sink: Sink, *changes: Change, **settings: Any) -> None:
    sink.commit("w", [written(sink, *changes, **settings)])


def rows(lake: IcebergCatalog) -> list[tuple[Any, ...]]:
    return duckdb_rows(lake, NAME[1], "id, value")


def metadata(lake: IcebergCatalog) -> Metadata:
    base = lake.load(NAME)
    assert base is not None
    return base.metadata


def orphans(lake: IcebergCatalog) -> list[Orphan]:
    base = lake.load(NAME)
    assert base is not None
    return unreferenced_files(base, LATER)


def paths(lake: IcebergCatalog) -> list[Path]:
    return [Path(path.removeprefix("file://")) for path in deleted_keys_locations(metadata(lake))]


def test_a_key_that_never_had_a_row(lake: IcebergCatalog) -> None:
    apply(opened(lake), (1, None, 5))
    apply(opened(lake), (1, "late", 4), (2, "new", 4))
    assert rows(lake) == [(2, "new")]


def test_keys_are_forgotten_after_some_days(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(opened(lake), (1, None, 5))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6.5 * DAY / 1000)
    apply(opened(lake), (2, None, 5))
    (both,) = deleted_keys_files(metadata(lake), SINK)
    assert both.rows == 2
    monkeypatch.setattr(time, "time", lambda: now + 7.5 * DAY / 1000)
    apply(opened(lake), (3, None, 5), (4, None, 5))
    (left,) = deleted_keys_files(metadata(lake), SINK)
    assert left.rows == 3
    apply(opened(lake), (1, "late", 4), (2, "late", 4))
    assert rows(lake) == [(1, "late")]


def test_keys_that_were_deleted_before_all_late_changes_are_not_read(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_keys, "ROW_GROUP", 2)
    for order in range(8):
        apply(opened(lake), (order, None, order), (order + 10, None, order))
    sink = opened(lake)
    groups: list[int] = []
    read = snapshot_files.read_rows

    def counted(parquet: Any, schema: Any, group: int) -> pa.Table:
        groups.append(group)
        return read(parquet, schema, group)

    monkeypatch.setattr(snapshot_files, "read_rows", counted)
    apply(sink, (7, "late", 6), (16, "not late", 6), watermark=8)
    # Of eight groups, those of the orders 6 and 7.
    assert len(groups) == 2
    apply(sink, (0, "late", -1), (99, "new", -1), watermark=8)
    assert rows(lake) == [(16, "not late"), (99, "new")]


def test_keys_that_are_kept_forever(lake: IcebergCatalog) -> None:
    for key in range(3):
        apply(opened(lake, days=float("inf")), (key, None, 5))
    apply(opened(lake), (1, "late", 4), (2, "late", 4), (3, "new", 4))
    assert rows(lake) == [(3, "new")]


def test_old_files_are_removed_unread(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(opened(lake), (1, None, 5))
    (path,) = paths(lake)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * DAY / 1000)
    apply(opened(lake), (2, None, 5))
    assert not path.exists()
    assert [each.rows for each in deleted_keys_files(metadata(lake), SINK)] == [1]


def test_a_file_that_another_engine_has_removed(lake: IcebergCatalog) -> None:
    apply(opened(lake), (1, None, 5))
    (path,) = paths(lake)
    path.unlink()
    sink = opened(lake)
    apply(sink, (1, "late", 4))
    assert rows(lake) == [(1, "late")]
    apply(sink, (2, None, 6))
    apply(sink, (2, "late", 5))
    assert rows(lake) == [(1, "late")]


def test_keys_that_equality_deletes_have_deleted(lake: IcebergCatalog) -> None:
    """Of earlier runs, which had no index."""
    without_index = open_sink(lake)
    apply(without_index, (1, "old", 3), (2, "old", 3), watermark=None, indexed=False)
    apply(without_index, (1, None, 5), watermark=None, indexed=False)
    apply(opened(lake), (1, "late", 4), (2, "new", 4))
    assert rows(lake) == [(2, "new")]


def test_files_are_merged_and_none_is_left(lake: IcebergCatalog) -> None:
    sink = opened(lake)
    for key in range(20):
        apply(sink, (key, None, 5))
        assert orphans(lake) == []
    # The digits of 20 in the binary system.
    assert [file.rows for file in deleted_keys_files(metadata(lake), SINK)] == [16, 4]
    apply(sink, *((key, "late", 4) for key in range(21)))
    assert rows(lake) == [(20, "late")]


def test_a_refused_commit_leaves_no_file(lake: IcebergCatalog) -> None:
    sink = opened(lake)
    opened(lake)
    with pytest.raises(Exception, match="has taken over"):
        apply(sink, (1, None, 5))
    assert orphans(lake) == []


def test_files_of_an_unknown_commit_stay(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(lake)

    def lost(*_: Any) -> None:
        raise CommitStateUnknown("no response")

    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.sink.sink.Committer.commit", lost)
    with pytest.raises(CommitStateUnknown):
        apply(sink, (1, None, 5))
    (orphan,) = orphans(lake)
    assert "deleted-keys" in orphan.path


def test_several_files_are_read(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "MOST_ROWS", 1)
    sink = opened(lake)
    apply(sink, (1, None, 5))
    apply(sink, (2, None, 5))
    assert len(paths(lake)) == 2
    apply(sink, (1, "late", 4), (2, "late", 4), (3, "new", 4))
    assert rows(lake) == [(3, "new")]


def append_by_others(lake: IcebergCatalog, *keys: int) -> None:
    schema = pa.schema({"id": pa.int64(), "value": pa.string(), "at": pa.int64()})
    values = {"id": list(keys), "value": ["other"] * len(keys), "at": [5] * len(keys)}
    insert(lake, NAME[1], *pa.table(values, schema).to_batches())


def test_rows_of_others_that_could_not_be_indexed(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a merge of small files the index follows, and the next commit tries that again."""
    monkeypatch.setattr(small_files, "MERGED_FILES", 2)
    sink = opened(lake)
    apply(sink, (1, "old", 5), watermark=None)
    apply(sink, (2, "old", 5), watermark=None)
    append_by_others(lake, 3)
    with monkeypatch.context() as broken:
        broken.setattr(snapshot_index, "read_keys", Mock(side_effect=OSError("no storage today")))
        assert sink.maintenance.merge_small_files()
    apply(sink, (1, "late", 4), (2, "new", 6), (4, "new", 4))
    assert sorted(rows(lake)) == [(1, "old"), (2, "new"), (3, "other"), (4, "new")]


def test_no_file_is_left_of_deleted_keys_that_cannot_be_written(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(lake)
    apply(sink, (1, "old", 5), (2, "old", 5), watermark=None)
    monkeypatch.setattr(deleted_keys, "_write", Mock(side_effect=OSError("no storage today")))
    with pytest.raises(OSError, match="no storage today"):
        apply(sink, (1, None, 6))
    assert orphans(lake) == []


def test_a_refused_commit_of_several_tables_leaves_no_file(lake: IcebergCatalog) -> None:
    make_table(lake, name=("s", "u"))
    sink, other = opened(lake), open_sink(lake, ("s", "u"))
    batches = [written(sink, (1, "unused", 5)), written(sink, (1, None, 6))]
    opened(lake)
    unchanged = WrittenBatch(BatchRange(None, {"n": 1}), [])
    with pytest.raises(Fenced, match="has taken over"):
        commit_batches("w", [(sink, batches), (other, [unchanged])])
    assert orphans(lake) == []


def test_a_refresh_orders_changes_by_a_new_column(lake: IcebergCatalog) -> None:
    sink = open_sink(lake)
    sink.claim(refresh=True)
    sink.replace_with(pa.schema({"id": pa.int64(), "value": pa.string(), "n": pa.int64()}))
    sink.load_index(1000, True, ChangeOrder(("n",), 7.0))
    apply(sink, (1, "new", 5), (2, None, 5), by="n")
    apply(sink, (1, "late", 4), (2, "late", 4), by="n")
    assert rows(lake) == [(1, "new")]


def test_a_compaction_whose_old_files_are_removed_before_the_next_commit(
    lake: IcebergCatalog,
) -> None:
    sink = opened(lake)
    apply(sink, (1, "old", 5), (2, "old", 5), watermark=None)
    first = written(sink, (3, "new", 6), watermark=5)
    base = lake.load(NAME)
    assert base is not None
    (old,) = live_files(base.io, base.metadata)
    merged = read_by_duckdb(base.location)
    files = write(lake, NAME[1], *merged.to_batches())
    change = TableChange(Operation.REPLACE, (AddedFiles(tuple(files)),), removed=(old,))
    Committer(lake, NAME, change, base).commit()
    Path(old.file_path.removeprefix("file://")).unlink()
    second = written(sink, (1, "late", 4), (2, "new", 7), (3, "late", 5))
    sink.commit("w", [first, second])
    assert sorted(rows(lake)) == [(1, "old"), (2, "new"), (3, "new")]
    assert orphans(lake) == []


def test_only_files_with_live_rows_of_the_keys_are_read(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(lake)
    for at in range(5):
        apply(sink, (1, "old", at), (10 + at, "old", at), watermark=at - 1)
    read = Mock(side_effect=late_changes.read_rows_at)
    monkeypatch.setattr(late_changes, "read_rows_at", read)
    apply(sink, (1, "late", 3))
    assert read.call_count == 1
    assert (1, "old") in rows(lake)


def test_a_row_that_another_writer_has_added_since_the_last_commit(lake: IcebergCatalog) -> None:
    sink = opened(lake)
    apply(sink, (9, "first", 5))
    schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("at", pa.int64())])
    other = pa.RecordBatch.from_pylist([{"id": 1, "value": "other", "at": 6}], schema)
    base = lake.load(NAME)
    assert base is not None
    change = append(*write(lake, NAME[1], other), properties={})
    Committer(lake, NAME, change, base).commit()
    apply(sink, (1, "late", 4))
    assert rows(lake) == [(1, "other"), (9, "first")]
