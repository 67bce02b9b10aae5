"""Random histories of changes in any order, whose stream has a key index, against a plain model.

A change that is older than the row or the delete of its key has no effect, whatever happens between
them: commits, restarts, compactions by others, merged files, rows of any time that others append
before or after the change is compared with the table. DuckDB reads.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict
from dbt.adapters.iceberg_stream.stream.key_index import deleted_keys, index_runs
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import ChangeOrder
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from tests.integration.streams import NAME
from tests.integration.tables import LATER, duckdb_rows, write
from tests.lost_files import ForeignFiles, assert_nothing_lost
from tests.unit.local_tables import live_deletes

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "value", StringType(), required=False),
    NestedField(3, "at", LongType(), required=False),
    NestedField(4, "n", LongType(), required=False),
)
COLUMNS = {"id": pa.int64(), "value": pa.string(), "at": pa.int64(), "n": pa.int64()}
Row = tuple[int | None, str | None, int, int]
KEYS = st.one_of(st.none(), st.integers(0, 4))
# Rows; a change without a value deletes its key.
CHANGES = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.sampled_from("xyz")), st.integers(0, 9), st.just(0)),
    min_size=1,
    max_size=6,
)

ORDERED_KEYS = st.tuples(KEYS, st.integers(0, 11), st.integers(0, 2))


@dataclass
class Truth:
    """Rows, the newest delete of each key, and the watermark."""

    rows: list[Row] = field(default_factory=list)
    deleted: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    watermark: int | None = None

    def copy(self) -> Truth:
        return Truth([*self.rows], {**self.deleted}, self.watermark)

    def after(self, changes: list[Row]) -> Truth:
        truth = self.copy()
        last: dict[int | None, Row] = {}
        for change in sorted(changes, key=lambda change: change[2:]):
            last[change[0]] = change
        for key, change in last.items():
            before = [row[2:] for row in truth.rows if row[0] == key]
            before += [truth.deleted[key]] if key in truth.deleted else []
            if any(order > change[2:] for order in before):
                continue
            truth.rows = [row for row in truth.rows if row[0] != key]
            if change[1] is None:
                truth.deleted[key] = change[2:]
            else:
                truth.rows.append(change)
        highest = [change[2] for change in changes]
        truth.watermark = max([*highest, *([self.watermark] if self.watermark is not None else [])])
        return truth


def arrow(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    named = zip(COLUMNS.items(), columns, strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in named})


class LateChanges(RuleBasedStateMachine):
    """One table and its stream."""

    version = 3
    sequence_by: tuple[str, ...] = ("at",)

    @initialize(rows=st.lists(KEYS, max_size=3, unique=True))
    def create(self, rows: list[int | None]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.foreign = ForeignFiles.create(Path(self.folder.name))
        backend = SqliteBackend("lake", Path(self.folder.name))
        backend.create_namespace("s")
        self.lake = IcebergCatalog("lake", backend)
        properties = {"format-version": str(self.version)}
        staged = self.lake.stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, properties)
        self.lake.commit(staged, (AssertCreate(),), ())
        self.uppers = itertools.count(1)
        self.truth, self.pending = Truth(), []
        self.sink = self.open()
        self.append([(key, 0, 0) for key in rows], True)

    def open(self) -> Sink:
        sink = Sink(self.lake, NAME, Progress("model.shop.t"), ("id",))
        self.claim(sink)
        return sink

    def claim(self, sink: Sink) -> None:
        sink.claim()
        sink.load_index(1000, False, ChangeOrder(self.sequence_by, 7.0))

    @property
    def ahead(self) -> Truth:
        """The truth after all pending batches."""
        return self.after(self.pending)

    def after(self, batches: list[tuple[str, WrittenBatch, list[Row]]]) -> Truth:
        truth = self.truth
        for _, _, changes in batches:
            truth = truth.after(changes)
        return truth

    @rule(changes=CHANGES, chunk=st.integers(1, 4), tasks=st.integers(1, 2), data=st.data())
    def write(self, changes: list[Row], chunk: int, tasks: int, data: st.DataObject) -> None:
        if len(self.sequence_by) > 1:
            changes = [(*c[:3], data.draw(st.integers(0, 2), "n")) for c in changes]
        write_id = uuid.uuid4().hex
        plan = self.sink.plan(
            write_id,
            chunk_bytes=1,
            ordered=False,
            max_keys=1000,
            sequence_by=self.sequence_by,
            keeps_keys=True,
        )
        parts = [[c for c in changes if hash(c[0]) % tasks == task] for task in range(tasks)]
        deltas = [write_changes(plan, self.as_changes(part, chunk)) for part in parts if part]
        watermark = self.ahead.after(changes).watermark
        batch_range = BatchRange(None, {"offset": next(self.uppers)})
        batch = WrittenBatch(batch_range, deltas, watermark=watermark)
        batch = self.sink.add_to_index(batch, self.ahead.watermark)
        self.pending.append((write_id, batch, changes))

    def as_changes(self, changes: list[Row], chunk: int) -> list[pa.RecordBatch]:
        rows = arrow(changes)
        orders = [*(rows[name] for name in self.sequence_by), pa.array(range(len(changes)))]
        for number, column in enumerate(orders):
            rows = rows.append_column(f"{ORDER}{number}", column)
        deleted = pa.array([change[1] is None for change in changes], pa.bool_())
        return rows.append_column(DELETED, deleted).to_batches(max_chunksize=chunk)

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        first, self.pending = self.pending[:count], self.pending[count:]
        self.sink.commit(first[-1][0], [batch for _, batch, _ in first])
        self.truth = self.after(first)

    @rule(new=st.lists(ORDERED_KEYS, max_size=3), has_bounds=st.booleans())
    def append(self, new: list[tuple[int | None, int, int]], has_bounds: bool) -> None:
        """Of another writer, who adds keys that have no row, and may not know that they had one."""
        rows: list[Row] = []
        for key, at, n in new:
            # Of two columns, the second one decides between rows and changes of the same time.
            n = n if len(self.sequence_by) > 1 else 0
            if key not in {row[0] for row in self.truth.rows + rows}:
                rows.append((key, "other", at, n))
        if rows:
            files = write(self.lake, NAME[1], *arrow(rows).to_batches())
            if not has_bounds:
                for file in files:
                    file.upper_bounds.clear()
            self.commit_change(append(*files, properties={}))
            self.truth = self.truth.copy()
            self.truth.rows += rows

    @rule()
    def compact(self) -> None:
        base = self.load()
        removed = (*live_files(base.io, base.metadata), *live_deletes(base.io, base.metadata))
        if removed:
            rows = arrow(self.truth.rows).to_batches()
            files = write(self.lake, NAME[1], *rows) if self.truth.rows else []
            added = (AddedFiles(tuple(files)),) if files else ()
            self.commit_change(TableChange(Operation.OVERWRITE, added, removed=removed))

    @rule()
    def merge_small_files(self) -> None:
        self.sink.maintenance.merge_small_files()
        self.sink.maintenance.rewrite_deleted_rows()

    @rule(same=st.booleans())
    def restart(self, same: bool) -> None:
        self.sink.discard([batch for _, batch, _ in self.pending])
        self.pending = []
        if same:
            self.claim(self.sink)
        else:
            self.sink = self.open()

    @rule(changes=CHANGES, data=st.data())
    def truncate(self, changes: list[Row], data: st.DataObject) -> None:
        if self.pending:
            self.commit(len(self.pending))
        self.sink.replace_rows()
        self.truth = Truth(watermark=self.truth.watermark)
        self.write(changes, 100, 1, data)
        self.commit(1)

    def load(self) -> LoadedTable:
        base = self.lake.load(NAME)
        assert base is not None
        return base

    def commit_change(self, change: TableChange) -> None:
        Committer(self.lake, NAME, change, self.load()).commit()

    @invariant()
    def rows_are_the_truth(self) -> None:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        assert Counter(duckdb_rows(self.lake, NAME[1], names)) == Counter(self.truth.rows)

    def teardown(self) -> None:
        if hasattr(self, "sink"):
            self.sink.discard([batch for _, batch, _ in self.pending])
            assert unreferenced_files(self.load(), LATER) == []
            assert_nothing_lost(self.lake)
            self.foreign.assert_unchanged()
            self.lake.close()
            self.folder.cleanup()


class LateChangesOfTwoColumns(LateChanges):
    version = 2
    sequence_by = ("at", "n")


@pytest.mark.parametrize("has_bounds", [True, False])
@pytest.mark.parametrize("is_pending", [True, False])
def test_a_row_of_another_writer_is_newer(has_bounds: bool, is_pending: bool) -> None:
    """Also one that is added after the change was compared with the table."""
    history = LateChanges()
    history.create([])
    changes = [(1, "x", 3, 0), (2, None, 3, 0), (3, "x", 9, 0), (4, None, 9, 0)]
    # Nobody keeps others from writing a key twice.
    others = [(1, 5, 0), (2, 5, 0), (3, 5, 0), (4, 5, 0), (3, 5, 0), (4, 5, 0)]
    if is_pending:
        history.write(changes, 4, 1, None)
    history.append(others, has_bounds)
    if not is_pending:
        history.write(changes, 4, 1, None)
    history.commit(1)
    assert sorted(history.truth.rows) == [(1, "other", 5, 0), (2, "other", 5, 0), (3, "x", 9, 0)]
    history.rows_are_the_truth()
    history.teardown()


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_delete_of_another_stream_is_newer(is_pending: bool) -> None:
    history = LateChanges()
    history.create([])
    ours, history.sink = history.sink, Sink(history.lake, NAME, Progress("other"), ("id",))
    add_stream(history.lake, NAME, "other")
    history.claim(history.sink)
    theirs = history.sink

    def write(sink: Sink, *changes: Row) -> None:
        history.sink = sink
        history.write([*changes], 4, 1, None)

    if is_pending:
        write(ours, (1, "x", 3, 0), (2, "x", 9, 0))
    mine, history.pending = history.pending, []
    write(theirs, (1, None, 5, 0), (2, None, 5, 0))
    history.commit(1)
    history.sink, history.pending = ours, mine
    if not is_pending:
        write(ours, (1, "x", 3, 0), (2, "x", 9, 0))
    history.commit(1)
    assert history.truth.rows == [(2, "x", 9, 0)]
    history.rows_are_the_truth()


def test_a_row_that_comes_before_the_commit_of_equality_deletes() -> None:
    """Without an index, Spark compares rows, which it does if the batch is written again."""
    history = LateChanges()
    history.create([])
    sink = history.sink
    sink.index = None
    sink.compare_rows(("at",))
    for at, is_conflict in ((3, True), (5, False)):
        plan = sink.plan(uuid.uuid4().hex, ordered=False, max_keys=9, sequence_by=("at",))
        delta = write_changes(plan, history.as_changes([(1, "x", at, 0)], 1))
        batch = WrittenBatch(BatchRange(None, {"offset": at}), [delta], delta.first, delta.last)
        history.append([(1, 5, 0)], True)
        if is_conflict:
            with pytest.raises(StreamConflict, match="may be newer than changes"):
                sink.commit(plan.write_id, [batch])
        else:
            sink.commit(plan.write_id, [batch])
            history.truth = history.truth.after([(1, "x", at, 0)])
        history.rows_are_the_truth()
    history.teardown()


@pytest.mark.parametrize(
    "machine, most_rows",
    [
        (LateChanges, 3),
        (LateChangesOfTwoColumns, 1_000_000),
        pytest.param(LateChanges, 1_000_000, marks=pytest.mark.slow),
        pytest.param(LateChangesOfTwoColumns, 3, marks=pytest.mark.slow),
    ],
)
def test_histories(machine: Any, most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_runs, "MERGED_RUNS", 2)
    monkeypatch.setattr(small_files, "MERGED_FILES", 2)
    monkeypatch.setattr(deleted_keys, "MOST_ROWS", most_rows)
    monkeypatch.setattr(deleted_keys, "ROW_GROUP", 2)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
