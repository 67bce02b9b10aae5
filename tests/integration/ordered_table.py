"""A small table whose rows have an order, and streams and other writers that change it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCreate, SetSnapshotRefUpdate
from pyiceberg.types import IcebergType, LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import ChangeOrder
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.streams import NAME
from tests.integration.tables import duckdb_rows, write

CHANGE = tuple[int | None, str | None, int]


def schema(kind: IcebergType, *more: NestedField) -> Schema:
    return Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "value", StringType(), required=False),
        NestedField(3, "at", kind, required=False),
        *more,
    )


class OrderedTable:
    """A table of `s.t`, which other writers and streams change."""

    def __init__(self, folder: Path, kind: IcebergType) -> None:
        backend = SqliteBackend("lake", folder)
        backend.create_namespace("s")
        self.lake = IcebergCatalog("lake", backend)
        properties = {"format-version": "3"}
        staged = self.lake.stage(NAME, schema(kind), UNPARTITIONED_PARTITION_SPEC, properties)
        self.lake.commit(staged, (AssertCreate(),), ())
        self.uppers = 0
        for stream in ("model.a.b", "model.a.other", "model.a.unordered"):
            add_stream(self.lake, NAME, stream)

    def files(self, *files: list[Any]) -> list[Any]:
        column = WriteTarget.of(self.base.metadata, self.base.io).file_schema.field("at")
        tables = [self.rows(values, column.type) for values in files]
        return [file for rows in tables for file in write(self.lake, NAME[1], *rows.to_batches())]

    def rows(self, values: list[Any], kind: pa.DataType) -> pa.Table:
        ids, texts = list(range(len(values))), ["other"] * len(values)
        return pa.table({"id": ids, "value": texts, "at": pa.array(values, kind)})

    def append(self, *files: list[Any]) -> None:
        change = append(*self.files(*files), properties={})
        Committer(self.lake, NAME, change, self.base).commit()

    def insert(self, *rows: tuple[int | None, str, int | None]) -> None:
        """Let another writer insert rows."""
        ids, texts, orders = zip(*rows, strict=True)
        columns = {"id": pa.array(ids, pa.int64()), "value": texts}
        columns["at"] = pa.array(orders, pa.int64())
        files = write(self.lake, NAME[1], *pa.table(columns).to_batches())
        Committer(self.lake, NAME, append(*files, properties={}), self.base).commit()

    def delete_equal(self, *keys: int | None) -> None:
        """Let another writer delete keys by equality deletes that have no order."""
        sink = Sink(self.lake, NAME, Progress("model.a.unordered"), ("id",))
        sink.claim()
        plan = sink.plan(uuid.uuid4().hex, chunk_bytes=1, ordered=True, keeps_keys=False)
        columns = {name: pa.nulls(len(keys), pa.int64()) for name in plan.schema.names}
        columns |= {"id": pa.array(keys, pa.int64()), "value": pa.nulls(len(keys), pa.string())}
        columns |= {f"{ORDER}0": pa.array(range(len(keys))), DELETED: pa.array([True] * len(keys))}
        delta = write_changes(plan, pa.table(columns).to_batches())
        self.uppers += 1
        batch = WrittenBatch(BatchRange(None, {"offset": self.uppers}), [delta])
        sink.commit(plan.write_id, [batch])

    def roll_back(self, snapshot_id: int) -> None:
        """Let a user roll the table back."""
        reference = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        self.lake.commit(self.base, (), (SetSnapshotRefUpdate.model_validate(reference),))

    @property
    def base(self) -> Any:
        return self.lake.load(NAME)

    def sink(
        self, stream: str = "model.a.b", keys: tuple[str, ...] = ("id",), by: str = "at"
    ) -> Sink:
        sink = Sink(self.lake, NAME, Progress(stream), keys)
        sink.claim()
        sink.order_by((by,))
        sink.load_index(1000, False, ChangeOrder((by,), 7.0))
        return sink

    def equality_sink(self, stream: str = "model.a.other", keys: tuple[str, ...] = ("id",)) -> Sink:
        """A sink without an index, whose deletes are equality deletes."""
        sink = Sink(self.lake, NAME, Progress(stream), keys)
        sink.claim()
        sink.order_by(("at",))
        sink.compare_rows(("at",))
        return sink

    def change(self, sink: Sink, *changes: CHANGE, by: str = "at") -> None:
        """Commit changes of keys, in this order; one without a value deletes its row."""
        write_id, batch = self.written(sink, *changes, by=by)
        sink.commit(write_id, [batch])

    def written(
        self, sink: Sink, *changes: CHANGE, by: str = "at", pending: int = 0
    ) -> tuple[str, WrittenBatch]:
        """Changes that are written and not committed, and their write id.

        `pending` is the highest order of the sink's batches that are not committed either.
        """
        self.uppers += 1
        write_id = uuid.uuid4().hex
        keeps_keys = sink.index is not None
        settings = {"chunk_bytes": 1, "ordered": False, "max_keys": 1000, "keeps_keys": keeps_keys}
        plan = sink.plan(write_id, sequence_by=(by,), **settings)
        ids, texts, orders = zip(*changes, strict=True)
        columns = {name: pa.nulls(len(ids), pa.int64()) for name in plan.schema.names}
        columns |= {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array(texts, pa.string()),
            by: pa.array(orders),
        }
        columns |= {f"{ORDER}0": pa.array(orders), f"{ORDER}1": pa.array(range(len(ids)))}
        columns[DELETED] = pa.array([text is None for text in texts])
        delta = write_changes(plan, pa.table(columns).to_batches())
        batch_range = BatchRange(None, {"offset": self.uppers})
        first, last = min(orders), max(orders)
        before = sink.progress.watermark
        before = max(pending, before) if pending and before is not None else pending or before
        watermark = last if before is None else max(before, last)
        batch = WrittenBatch(batch_range, [delta], first=first, last=last, watermark=watermark)
        if keeps_keys:
            return write_id, sink.add_to_index(batch, before)
        return write_id, batch.with_early_deletes(7.0)

    def actual(self) -> list[tuple[Any, ...]]:
        rows = duckdb_rows(self.lake, NAME[1], 'id, "value", "at"')
        return sorted(rows, key=lambda row: (row[0] is None, row[0], -row[2]))

    def may_precede(self, first: Any, by: str = "at") -> bool:
        """Whether a change of another stream, without an index, may be older than rows."""
        sink = Sink(self.lake, NAME, Progress("model.a.b"), ("id",))
        sink.claim()
        sink.compare_rows((by,))
        assert sink.newest_rows is not None
        batch = WrittenBatch(BatchRange(None, {"offset": 1}), [], first=first)
        return sink.newest_rows.may_precede([batch])
