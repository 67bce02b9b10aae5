"""A stream with options on a real engine, and random changes for it."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import Rewriter, rewrite_here
from dbt.adapters.iceberg_stream.stream.batches.runners import Runner
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.partition_values import partition_values
from dbt.adapters.iceberg_stream.stream.query.query import (
    StreamQuery,
    added_columns,
    get_change_sql,
)
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

VIEW = "stream_source"


DDL = "id bigint, a string, b bigint, at bigint, op string"


COLUMNS = ("id", "a", "b", "at")


SCHEMA = pa.schema({"id": pa.int64(), "a": pa.string(), "b": pa.int64(), "at": pa.int64()})


Row = dict[str, Any]


@dataclass
class Bed:
    """A table, a folder of changes and the stream between them."""

    lake: IcebergCatalog
    spark: Session
    folder: Path
    runner: Runner
    options: dict[str, Any]
    extra: str = ""
    layout: str = ""
    partition: str = ""
    rewriter: Rewriter = rewrite_here
    # The files are Parquet whose changes PyArrow computes, or JSON for which only Spark computes one.
    parquet: bool = False
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    files: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.spark.run(
            f"create table s.{self.name} (id bigint, a string, b bigint, at bigint{self.extra}) "
            f"using iceberg {self.layout}"
        )

    def land(self, changes: list[Row]) -> None:
        self.files += 1
        if self.parquet:
            table = pa.Table.from_pylist(changes, pa.schema([*SCHEMA, ("op", pa.string())]))
            pq.write_table(table, self.folder / f"{self.files:05}.parquet")
            return
        text = "".join(json.dumps(change) + "\n" for change in changes)
        (self.folder / f"{self.files:05}.json").write_text(text)

    def drain(self, refresh: bool = False) -> StreamStatus:
        options = StreamOptions(f"sink.{self.name}", ("id",), **self.options)
        spec = {"type": "files", "path": str(self.folder), "columns": DDL}
        spec |= {"format": "parquet"} if self.parquet else {}
        table = self.lake.table(("s", self.name))
        columns = "*" if self.parquet else "id, reverse(reverse(a)) as a, b, at, op"
        change_sql = get_change_sql(f"select {columns} from {VIEW}", VIEW)
        query = StreamQuery(
            change_sql, VIEW, f"s.{self.name}", COLUMNS, options, partition=self.partition
        )
        added = added_columns({"at": pa.int64()}, options, pa.timestamp("us", "UTC"))
        writer = BatchWriter(
            source=open_source(
                SourceDefinition(("s", "x"), "s.x", spec), self.lake, self.folder, {}
            ),
            query=query,
            sink=Sink(self.lake, ("s", self.name), Progress(options.sink_id), query.keys),
            options=options,
            runner=self.runner,
            bad_records=BadRecords(None, "", 0),
            schema=pa.schema([*SCHEMA, *(pa.field(*column) for column in added)]),
            partitions=partial(partition_values, spec=table.spec(), schema=table.schema()),
            rewriter=self.rewriter,
        )
        stream = TableStream(writer, StreamStatus(self.name))
        Stream(lambda: self.spark, [stream], window=2).drain(refresh)
        return stream.status

    def rows(self, columns: str = "id, a, b, at", order: str = "id nulls first") -> list[Any]:
        sql = f"select {columns} from s.{self.name} order by {order}"
        return as_rows(self.spark.query(sql))


def random_changes(seed: int, count: int, keys: int = 8) -> list[Row]:
    """Changes in the order they were made; the value of `at` tells it."""
    chosen = random.Random(seed)
    return [
        {
            "id": chosen.choice([None, *range(keys)]),
            "a": chosen.choice([None, "x", "y"]),
            "b": chosen.choice([None, number]),
            "at": number,
            "op": chosen.choice("uuud"),
        }
        for number in range(count)
    ]


def last_of_each(changes: list[Row]) -> list[tuple[Any, ...]]:
    last: dict[Any, Row] = {}
    for change in sorted(changes, key=lambda change: change["at"]):
        last[change["id"]] = change
    rows = [tuple(c[name] for name in COLUMNS) for c in last.values() if c["op"] != "d"]
    return sorted(rows, key=lambda row: (row[0] is not None, row[0]))
