"""Streams without Spark: changes as a source gives them, a sink, and the truth that they tell."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed

NAME = ("s", "t")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", StringType(), required=False),
    NestedField(3, "value", StringType(), required=False),
)
SINK = "model.shop.t"


@dataclass(frozen=True)
class Change:
    """A change of a row: its new value, or None for its end."""

    key: int | None
    value: str | None
    part: str = "a"
    sequence: int | None = None


@dataclass
class Truth:
    """A plain dict that replays the same changes; late ones do nothing."""

    rows: dict[int | None, tuple[str, str]] = field(default_factory=dict)
    last: dict[int | None, int] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.sequence is not None:
                if change.sequence < self.last.get(change.key, change.sequence):
                    continue
                self.last[change.key] = change.sequence
            if change.value is None:
                self.rows.pop(change.key, None)
            else:
                self.rows[change.key] = (change.part, change.value)

    def sorted(self) -> list[tuple[int | None, str, str]]:
        rows = [(key, part, value) for key, (part, value) in self.rows.items()]
        return sorted(rows, key=lambda row: (row[0] is not None, row[0]))


def make_table(
    lake: IcebergCatalog,
    version: int = 2,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    name: Name = NAME,
) -> None:
    staged = lake.stage(name, SCHEMA, spec, {"format-version": str(version)})
    lake.commit(staged, (AssertCreate(),), ())


def open_sink(lake: IcebergCatalog, name: Name = NAME) -> Sink:
    sink = Sink(lake, name, Progress(SINK), ("id",))
    sink.claim()
    return sink


def batch(
    changes: Sequence[Change],
    rows: int,
    partitioned: bool = False,
    by: str | Callable[[Change], int | None] = "part",
) -> list[pa.RecordBatch]:
    """Changes as Spark gives them, so many rows at once."""
    columns: dict[str, Any] = {
        "id": pa.array([c.key for c in changes], pa.int64()),
        "part": pa.array([c.part for c in changes], pa.string()),
        "value": pa.array([c.value for c in changes], pa.string()),
        f"{ORDER}0": pa.array(
            [n if c.sequence is None else c.sequence for n, c in enumerate(changes)], pa.int64()
        ),
        f"{ORDER}1": pa.array(range(len(changes)), pa.int64()),
        DELETED: pa.array([c.value is None for c in changes], pa.bool_()),
    }
    if partitioned:
        values = [getattr(c, by) if isinstance(by, str) else by(c) for c in changes]
        kind = pa.string() if isinstance(by, str) else pa.int32()
        columns[PARTITION] = pa.array([{"f0": value} for value in values], pa.struct({"f0": kind}))
    return pa.table(columns).to_batches(max_chunksize=rows)


def write(
    sink: Sink,
    changes: Sequence[Change],
    upper: int,
    rows: int = 1_000_000,
    partitioned: bool = False,
    by: str | Callable[[Change], int | None] = "part",
    **settings: Any,
) -> tuple[str, WrittenBatch]:
    """The files of a batch, each so many rows being a chunk."""
    write_id = uuid.uuid4().hex
    plan = sink.plan(write_id, chunk_bytes=1, **settings)
    delta = write_changes(plan, batch(changes, rows, partitioned, by))
    return write_id, WrittenBatch(BatchRange(None, {"offset": upper}), [delta])


def commit(sink: Sink, changes: Sequence[Change], upper: int, **settings: Any) -> Committed | None:
    write_id, written = write(sink, changes, upper, **settings)
    return sink.commit(write_id, [written])
