"""Random histories of a table with all versions of its keys, against a plain model; DuckDB reads.

The key index finds all versions of a key: those of late changes, of other writers, and those that
were compacted. What it finds decides which versions begin and end; Spark's part is played by the
model, and is tested in `test_located_versions.py`.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
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
from dbt.adapters.iceberg_stream.stream.key_index import index, index_runs
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import RowLookup
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from dbt.adapters.iceberg_stream.tables.keys import codes
from tests.integration.streams import NAME
from tests.integration.tables import LATER, duckdb_rows, write
from tests.integration.version_model import (
    Change,
    Delete,
    Version,
    changed_versions,
    deletes_of,
    first_changes,
    may_change,
)
from tests.lost_files import ForeignFiles, assert_nothing_lost
from tests.unit.local_tables import live_deletes

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "value", StringType(), required=False),
    NestedField(3, "__START_AT", LongType(), required=False),
    NestedField(4, "__END_AT", LongType(), required=False),
)
COLUMNS = {"id": pa.int64(), "value": pa.string(), "__START_AT": pa.int64(), "__END_AT": pa.int64()}
KEYS = st.one_of(st.none(), st.integers(0, 3))
CHANGES = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.sampled_from("xyz")), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


def arrow(versions: list[Version]) -> pa.Table:
    columns = zip(*versions, strict=True) if versions else ([], [], [], [])
    named = zip(COLUMNS.items(), columns, strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in named})


class Versions(RuleBasedStateMachine):
    """One table and its stream, whose batches are committed one by one."""

    version = 3

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.foreign = ForeignFiles.create(Path(self.folder.name))
        backend = SqliteBackend("lake", Path(self.folder.name))
        backend.create_namespace("s")
        self.lake = IcebergCatalog("lake", backend)
        properties = {"format-version": str(self.version)}
        staged = self.lake.stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, properties)
        self.lake.commit(staged, (AssertCreate(),), ())
        self.uppers = itertools.count(1)
        self.truth: list[Version] = []
        self.deletes: set[Delete] = set()
        self.open()

    def open(self) -> None:
        self.sink = Sink(self.lake, NAME, Progress("model.shop.t"), ("id", "__START_AT"))
        self.claim()

    def claim(self) -> None:
        self.sink.claim()
        self.sink.load_index(1000, False, prefix=1)

    def written(self, changes: list[Change], chunk: int) -> tuple[str, WrittenBatch]:
        """A batch of the versions that changes begin, end and remove."""
        first = first_changes(changes)
        keys = pa.table({"id": pa.array(first, pa.int64()), "__START_AT": [*first.values()]})
        period = ("__START_AT", "__END_AT")
        located = self.sink.rows_of(RowLookup(keys, list(COLUMNS), 1000, 10_000, period))
        assert located is not None
        before = list(zip(*(located[name].to_pylist() for name in COLUMNS), strict=True))
        assert Counter(before) == Counter(v for v in self.truth if may_change(v, first))
        after = changed_versions(before, changes, self.deletes)
        starts = {(version[0], version[2]) for version in after}
        removed = [version for version in before if (version[0], version[2]) not in starts]
        new = [version for version in after if version not in before]
        rows = arrow([*removed, *new])
        for number in (0, 1):
            rows = rows.append_column(f"{ORDER}{number}", pa.array(range(rows.num_rows)))
        deleted = pa.array([*(True for _ in removed), *(False for _ in new)], pa.bool_())
        rows = rows.append_column(DELETED, deleted)
        write_id = uuid.uuid4().hex
        plan = self.sink.plan(
            write_id, chunk_bytes=1, ordered=False, max_keys=1000, keeps_keys=True
        )
        delta = write_changes(plan, rows.to_batches(max_chunksize=chunk))
        batch = WrittenBatch(BatchRange(None, {"offset": next(self.uppers)}), [delta])
        return write_id, self.sink.add_to_index(batch)

    @rule(changes=CHANGES, chunk=st.integers(1, 4))
    def write(self, changes: list[Change], chunk: int) -> None:
        write_id, batch = self.written(changes, chunk)
        self.sink.commit(write_id, [batch])
        self.truth = changed_versions(self.truth, changes, self.deletes)
        self.deletes |= deletes_of(changes)

    @rule(changes=CHANGES, same=st.booleans(), stored=st.booleans())
    def restart(self, changes: list[Change], same: bool, stored: bool) -> None:
        """The run ends with a stored index, or is killed while it writes a batch."""
        if stored:
            self.sink.store_index()
        else:
            self.sink.discard([self.written(changes, 100)[1]])
        if same:
            self.claim()
        else:
            self.open()

    @rule(
        keys=st.lists(KEYS, max_size=3, unique=True),
        start=st.integers(0, 9),
        length=st.sampled_from([None, 3, 0, -2]),
    )
    def append(self, keys: list[int | None], start: int, length: int | None) -> None:
        """Of another writer, whose versions may overlap, leave gaps and end before they begin."""
        begun = {(version[0], version[2]) for version in self.truth}
        end = None if length is None else start + length
        new: list[Version] = [(key, "other", start, end) for key in keys]
        new = [version for version in new if (version[0], version[2]) not in begun]
        if new:
            files = write(self.lake, NAME[1], *arrow(new).to_batches())
            self.commit_change(append(*files, properties={}))
            self.truth += new

    @rule(keys=st.sets(KEYS, max_size=2))
    def compact(self, keys: set[int | None]) -> None:
        """Of another writer, who removes the ended versions of some keys, too."""
        base = self.load()
        removed = (*live_files(base.io, base.metadata), *live_deletes(base.io, base.metadata))
        if removed:
            self.truth = [v for v in self.truth if v[3] is None or v[0] not in keys]
            rows = arrow(self.truth).to_batches()
            files = write(self.lake, NAME[1], *rows) if self.truth else []
            added = (AddedFiles(tuple(files)),) if files else ()
            self.commit_change(TableChange(Operation.OVERWRITE, added, removed=removed))

    @rule()
    def merge_small_files(self) -> None:
        self.sink.maintenance.merge_small_files()
        self.sink.maintenance.rewrite_deleted_rows()

    def load(self) -> LoadedTable:
        base = self.lake.load(NAME)
        assert base is not None
        return base

    def commit_change(self, change: TableChange) -> None:
        Committer(self.lake, NAME, change, self.load()).commit()

    @invariant()
    def rows_are_the_truth(self) -> None:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        assert Counter(duckdb_rows(self.lake, NAME[1], names)) == Counter(self.truth)

    def teardown(self) -> None:
        if hasattr(self, "sink"):
            assert unreferenced_files(self.load(), LATER) == []
            assert_nothing_lost(self.lake)
            self.foreign.assert_unchanged()
            self.lake.close()
            self.folder.cleanup()


class VersionsOfPositionDeletes(Versions):
    version = 2


@pytest.mark.parametrize(
    "machine, collide",
    [
        (Versions, False),
        (VersionsOfPositionDeletes, True),
        pytest.param(Versions, True, marks=pytest.mark.slow),
        pytest.param(VersionsOfPositionDeletes, False, marks=pytest.mark.slow),
    ],
)
def test_histories(machine: Any, collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_runs, "MERGED_RUNS", 2)
    monkeypatch.setattr(index, "STORED_ROWS", 1)
    monkeypatch.setattr(small_files, "MERGED_FILES", 2)
    if collide:
        monkeypatch.setattr(codes, "_hash", lambda values: np.zeros(len(values), np.uint64))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=10,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
