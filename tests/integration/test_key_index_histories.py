"""Random histories of a table whose stream has a key index, against a list of rows.

Other writers append rows of the same keys, delete them, compact the table and replace it; small
files are merged and equality deletes are converted; batches are committed late, several at once
(known before, or not), or are lost in a restart. DuckDB reads what is there.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from dataclasses import replace
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
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict
from dbt.adapters.iceberg_stream.stream.key_index import index_runs
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import NotIndexable
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, read_property
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.deletes import only_data_file
from tests.integration.streams import NAME, Change, make_table
from tests.integration.streams import write as write_batch
from tests.integration.tables import LATER, duckdb_rows, write
from tests.lost_files import ForeignFiles, assert_nothing_lost
from tests.unit.local_tables import evolve, live_deletes

KEYS = st.one_of(st.none(), st.integers(0, 6))
CHANGES = st.lists(
    st.builds(Change, KEYS, st.one_of(st.none(), st.sampled_from("xyz"))), min_size=1, max_size=6
)

Row = tuple[int | None, str, str]


class Histories(RuleBasedStateMachine):
    """One table, the stream under test, and everyone else."""

    version = 2
    # DuckDB 1.5 takes a row whose key is null for deleted where any equality delete applies.
    has_equality_deletes = False
    # Rows that are indexed, at most.
    max_rows = 1000

    @initialize(rows=st.lists(KEYS, max_size=5), evolves=st.booleans())
    def create(self, rows: list[int | None], evolves: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.foreign = ForeignFiles.create(Path(self.folder.name))
        backend = SqliteBackend("lake", Path(self.folder.name))
        backend.create_namespace("s")
        self.lake = IcebergCatalog("lake", backend)
        make_table(self.lake, self.version)
        self.rows: Counter[Row] = Counter()
        self.uppers = itertools.count(1)
        # The batches of each commit to come; the first ones may still share it.
        self.pending: list[list[tuple[str, WrittenBatch, list[Change]]]] = []
        if not evolves:
            self.partition()
        if rows:
            self.append(rows)
        if evolves:
            self.partition()
        self.start()

    def partition(self) -> None:
        """Give the table its partitions."""

    def start(self) -> None:
        self.sink = self.open("model.shop.t")

    def allowed(self, changes: list[Change]) -> list[Change]:
        """The changes with keys that the reader can tell apart."""
        if not self.has_equality_deletes:
            return changes
        return [replace(c, key=0 if c.key is None else c.key) for c in changes]

    def claim(self, sink_id: str) -> Sink:
        base = self.lake.load(NAME)
        assert base is not None
        if read_property(base.metadata, sink_id) is None:
            add_stream(self.lake, NAME, sink_id)
        sink = Sink(self.lake, NAME, Progress(sink_id), ("id",))
        sink.claim()
        return sink

    def open(self, sink_id: str) -> Sink:
        sink = self.claim(sink_id)
        sink.load_index(self.max_rows, refresh=False)
        return sink

    def written(
        self, sink: Sink, changes: list[Change], chunk: int = 100, joins: bool = False
    ) -> tuple[str, WrittenBatch] | None:
        """The id of a batch, and the batch; None if its rows cannot be looked up any more."""
        write_id, batch = self.write_batch(sink, changes, chunk)
        return write_id, sink.add_to_index(batch, joins=joins)

    def write_batch(
        self, sink: Sink, changes: list[Change], chunk: int
    ) -> tuple[str, WrittenBatch]:
        return write_batch(sink, changes, next(self.uppers), chunk, keeps_keys=True)

    @rule(changes=CHANGES, chunk=st.integers(1, 4), joins=st.booleans())
    def write(self, changes: list[Change], chunk: int, joins: bool) -> None:
        changes = self.allowed(changes)
        joins = joins and bool(self.pending)
        if (written := self.written(self.sink, changes, chunk, joins)) is None:
            self.restart(same=False)
        elif joins:
            self.pending[-1].append((*written, changes))
        else:
            self.pending.append([(*written, changes)])

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        first = [batch for batches in self.pending[:count] for batch in batches]
        self.pending = self.pending[count:]
        if self.committed(first[-1][0], [batch for _, batch, _ in first]):
            for _, _, changes in first:
                self.apply(changes)

    def committed(self, write_id: str, batches: list[WrittenBatch]) -> bool:
        """Commit batches; return whether they are in the table now."""
        self.sink.commit(write_id, batches)
        return True

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            for row in [row for row in self.rows if row[0] == change.key]:
                del self.rows[row]
            if change.value is not None:
                self.rows[change.key, change.part, change.value] += 1

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def append(self, keys: list[int | None]) -> None:
        """Of another writer, who knows nothing of unique keys."""
        rows: list[Row] = [
            (c.key, "a", "other") for c in self.allowed([Change(k, "") for k in keys])
        ]
        names = ("id", "part", "value")
        table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})
        files = write(self.lake, NAME[1], *table.to_batches())
        self.commit_change(append(*files, properties={}))
        self.rows.update(rows)

    @rule(changes=CHANGES)
    def second_stream(self, changes: list[Change]) -> None:
        other, changes = self.open("model.shop.other"), self.allowed(changes)
        if (written := self.written(other, changes)) is not None:
            other.commit(written[0], [written[1]])
            self.apply(changes)

    @precondition(lambda self: self.has_equality_deletes)
    @rule(changes=CHANGES)
    def second_stream_of_equality_deletes(self, changes: list[Change]) -> None:
        changes = self.allowed(changes)
        other = self.claim("model.shop.equality")
        write_id, batch = write_batch(other, changes, next(self.uppers))
        other.commit(write_id, [batch])
        self.apply(changes)

    @rule(kept=st.booleans())
    def compact(self, kept: bool) -> None:
        """All files into one, or into none."""
        base = self.lake.load(NAME)
        assert base is not None
        removed = (*live_files(base.io, base.metadata), *live_deletes(base.io, base.metadata))
        rows = sorted(self.rows.elements(), key=str) if kept else []
        if not removed:
            return
        names = ("id", "part", "value")
        kinds = (pa.int64(), pa.string(), pa.string())
        columns = {
            name: pa.array([row[n] for row in rows], kind)
            for n, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        files = write(self.lake, NAME[1], *pa.table(columns).to_batches()) if rows else []
        added = (AddedFiles(tuple(files)),) if files else ()
        self.commit_change(TableChange(Operation.OVERWRITE, added, removed=removed))
        self.rows = Counter(rows)

    @rule()
    def merge_small_files(self) -> None:
        self.sink.maintenance.merge_small_files()
        self.sink.maintenance.rewrite_deleted_rows()

    @rule()
    def convert_equality_deletes(self) -> None:
        convert_equality_deletes(self.lake, NAME, {})

    def commit_change(self, change: TableChange) -> None:
        base = self.lake.load(NAME)
        assert base is not None
        Committer(self.lake, NAME, change, base).commit()

    @rule(same=st.booleans())
    def restart(self, same: bool) -> None:
        """After an error the same run begins again; after a kill there is another one."""
        self.discard_pending()
        if same:
            self.sink.claim()
            self.sink.load_index(self.max_rows, refresh=False)
        else:
            self.start()

    def discard_pending(self) -> None:
        self.sink.discard([batch for batches in self.pending for _, batch, _ in batches])
        self.pending = []

    @rule(changes=CHANGES)
    def truncate(self, changes: list[Change]) -> None:
        if self.pending:
            self.commit(len(self.pending))
        self.sink.replace_rows()
        self.write(changes, 100, joins=False)
        self.rows.clear()
        self.commit(1)

    @invariant()
    def rows_are_the_truth(self) -> None:
        assert Counter(duckdb_rows(self.lake, NAME[1])) == self.rows

    @invariant()
    def at_most_one_delete_file_for_a_data_file(self) -> None:
        base = self.lake.load(NAME)
        assert base is not None
        deletes = Counter(
            referenced_file(file) or only_data_file(file)
            for file in live_deletes(base.io, base.metadata)
            if file.content == DataFileContent.POSITION_DELETES
        )
        assert deletes.keys() <= {file.file_path for file in live_files(base.io, base.metadata)}
        assert set(deletes.values()) <= {1}

    def teardown(self) -> None:
        if hasattr(self, "sink"):
            self.discard_pending()
            base = self.lake.load(NAME)
            assert base is not None
            assert unreferenced_files(base, LATER) == []
            assert_nothing_lost(self.lake)
            self.foreign.assert_unchanged()
            self.lake.close()
            self.folder.cleanup()


class HistoriesOfVectors(Histories):
    version = 3


class HistoriesBesideEqualityDeletes(Histories):
    has_equality_deletes = True


class HistoriesOfPartitions(Histories):
    """The index has the partitions that changes reach, and forgets some for others."""

    version = 3
    max_rows = 4

    def committed(self, write_id: str, batches: list[WrittenBatch]) -> bool:
        try:
            return super().committed(write_id, batches)
        except StreamConflict as error:
            # Of an index of all partitions, which the next one is not.
            assert "the table has over 4 rows" in str(error)
            self.discard_pending()
            self.start()
            return False

    def partition(self) -> None:
        field = PartitionField(1, 1000, BUCKET, "id_bucket")
        evolve(self.lake, spec=PartitionSpec(field, spec_id=1))

    def write_batch(
        self, sink: Sink, changes: list[Change], chunk: int
    ) -> tuple[str, WrittenBatch]:
        upper = next(self.uppers)
        return write_batch(sink, changes, upper, chunk, True, bucket_of, keeps_keys=True)

    def written(
        self, sink: Sink, changes: list[Change], chunk: int = 100, joins: bool = False
    ) -> tuple[str, WrittenBatch] | None:
        write_id, batch = self.write_batch(sink, changes, chunk)
        try:
            return write_id, sink.add_to_index(batch, joins=joins)
        except StreamConflict:
            # Nor does another attempt take the index for a whole one.
            with pytest.raises(StreamConflict):
                sink.add_to_index(batch, joins=joins)
            sink.discard([batch])
            # The run goes on without an index, with equality deletes.
            with pytest.raises(NotIndexable, match="of its changes have over 4 rows"):
                sink.load_index(self.max_rows, refresh=False)
            return None

    def open(self, sink_id: str) -> Sink:
        sink = self.claim(sink_id)
        try:
            sink.load_index(self.max_rows, refresh=False)
        except NotIndexable:
            # Rows from before the table had partitions, or of another writer.
            sink.load_index(1000, refresh=False)
        return sink


BUCKET = BucketTransform(4)


def bucket_of(change: Change) -> int | None:
    return BUCKET.transform(LongType())(change.key)


MACHINES = (Histories, HistoriesOfVectors, HistoriesBesideEqualityDeletes, HistoriesOfPartitions)


@pytest.mark.parametrize("machine", MACHINES)
def test_histories(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_runs, "MERGED_RUNS", 2)
    monkeypatch.setattr(small_files, "MERGED_FILES", 2)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
