"""Ten updates of a row, one after the other: ten commits, or one with ten sequence numbers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.update import AssertCreate

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.manifests import read_manifest_list

from .data import changes
from .rig import SCHEMA
from .slow import SlowFileIO

UPDATES = 10
AIM = 6.0
RUNS = 11
FEWER_RUNS = 3
PEER = f"{UPDATES} commits"


class SlowLake(IcebergCatalog):
    """A catalog whose tables' files take a while to answer, and are counted."""

    def __init__(self, folder: Path, delay: float) -> None:
        names = SqliteBackend("lake", folder)
        names.create_namespace("s")
        super().__init__("lake", names)
        self.io = SlowFileIO(delay)

    def load(self, name: Name, history: bool = True) -> LoadedTable | None:
        table = super().load(name, history)
        return table and replace(table, io=self.io)


class Updates:
    """Both ways, each into a new table that has the row."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.lake = SlowLake(folder, delay)
        self.summaries: dict[int, str] = {}

    def run(self, together: int) -> float:
        """Seconds of all updates, so many of them in a commit."""
        name = ("s", f"t{uuid.uuid4().hex[:8]}")
        staged = self.lake.stage(
            name, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {"format-version": "2"}
        )
        self.lake.commit(staged, (AssertCreate(),), staged.creation)
        sink = Sink(self.lake, name, Progress("bench"), ("id",))
        sink.claim()
        _commit(sink, range(1))
        files = self.lake.io.files
        written, asked = files.written, files.asked
        begin = time.perf_counter()
        for first in range(1, UPDATES + 1, together):
            _commit(sink, range(first, first + together))
        seconds = time.perf_counter() - begin
        self.summaries[together] = (
            f"{files.written - written} files written by {files.asked - asked} requests, "
            f"{self._manifests(name)} manifests"
        )
        return seconds

    def _manifests(self, name: Name) -> int:
        """Of the current snapshot; checks that each update has its own sequence number."""
        metadata = self.lake.metadata(name)
        assert metadata is not None
        if metadata["last-sequence-number"] != UPDATES + 1:
            raise BenchmarkError(f"Sequence numbers end at {metadata['last-sequence-number']}")
        current = next(
            snapshot
            for snapshot in metadata["snapshots"]
            if snapshot["snapshot-id"] == metadata["current-snapshot-id"]
        )
        return len(list(read_manifest_list(self.lake.io, current["manifest-list"])))


def _commit(sink: Sink, places: Iterable[int]) -> None:
    """Updates of the same row in one commit, each with a sequence number of its own."""
    batches = [_change(place) for place in places]
    write_id = uuid.uuid4().hex
    delta = write_changes(sink.plan(write_id, chunk_bytes=1), batches)
    sink.commit(write_id, [WrittenBatch(BatchRange(None, {"offset": len(batches)}), [delta])])


def _change(place: int) -> pa.RecordBatch:
    row = changes(np.array([1]), 6, place)
    order, minor = np.array([place]), np.array([0])
    return pa.RecordBatch.from_pydict(
        {
            **dict(zip(row.schema.names, row.columns, strict=True)),
            f"{ORDER}0": order,
            f"{ORDER}1": minor,
            DELETED: pa.array([False]),
        }
    )


def sequence(bench: Bench) -> list[Result]:
    """On a local disk."""
    return _sequence(bench, 0.0, "sequence", bench.runs(RUNS))


def sequence_50ms(bench: Bench) -> list[Result]:
    """Where each file takes 50 ms to answer."""
    return _sequence(bench, 0.05, "sequence_50ms", bench.runs(FEWER_RUNS))


def _sequence(bench: Bench, delay: float, name: str, runs: int) -> list[Result]:
    updates = Updates(bench.folder / name, delay)
    measures = {
        "one commit": lambda: updates.run(UPDATES),
        PEER: lambda: updates.run(1),
    }
    for measure in measures.values():
        measure()
    seconds = alternate(measures, runs)
    note = (
        f"{UPDATES} updates of one row, each before the next, by the same sink; "
        f"{delay * 1000:.0f} ms for each request to the storage. One commit: "
        f"{updates.summaries[UPDATES]}. Ten: {updates.summaries[1]}."
    )
    return [Result.of(name, PEER, seconds["one commit"], seconds[PEER], AIM, note)]
