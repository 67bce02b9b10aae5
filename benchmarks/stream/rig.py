"""A table, an engine and a stream into the table, without dbt around it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.materializations.stream import WINDOW
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
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
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema

VIEW = "__stream_source"
# Queries of models: one that only picks columns, one with a filter that PyArrow computes, and one
# whose rows Spark has to read.
PICKS = f"select * from {VIEW}"
FILTERS = f"{PICKS} where amount >= 0"
COMPUTES = (
    "select id, customer, trim(status) as status, coalesce(amount, 0) as amount, "
    f"case when at > 0 then at else 0 end as at from {VIEW} where abs(amount) >= 0"
)
BY_SPARK = f"{PICKS} where sqrt(abs(amount)) >= 0"
COLUMNS = ("id", "customer", "status", "amount", "at")
DDL = "id bigint, customer bigint, status string, amount double, at bigint"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "customer", LongType(), required=False),
    NestedField(3, "status", StringType(), required=False),
    NestedField(4, "amount", DoubleType(), required=False),
    NestedField(5, "at", LongType(), required=False),
)


class Rig:
    """A warehouse of its own, and a session on a warm engine."""

    def __init__(self, folder: Path, engine: Path) -> None:
        self.folder = folder
        names = SqliteBackend("lake", folder / "warehouse")
        names.create_namespace("s")
        self.lake = IcebergCatalog("lake", names)
        self.engine = EmbeddedEngine(EngineSettings(engine, keep_alive=300))
        settings = spark_settings("lake", (folder / "warehouse").resolve())
        self.session = Session(self.engine.endpoint(), settings)

    def make_table(self, name: str, version: int = 2) -> None:
        properties = {"format-version": str(version)}
        staged = self.lake.stage(("s", name), SCHEMA, UNPARTITIONED_PARTITION_SPEC, properties)
        self.lake.commit(staged, (AssertCreate(),), staged.creation)

    def stream(
        self, name: str, source: Mapping[str, Any], sql: str = PICKS, **options: Any
    ) -> Stream:
        """A stream into the table `s.name`, upserting by id."""
        chosen = StreamOptions(sink_id=f"model.bench.{name}", keys=("id",), **options)
        definition = SourceDefinition(("s", "source"), "s.source", source)
        query = StreamQuery(get_change_sql(sql, VIEW), VIEW, f"s.{name}", COLUMNS, chosen)
        added = added_columns({"at": pa.int64()}, chosen, pa.timestamp("us", "UTC"))
        writer = BatchWriter(
            source=open_source(definition, self.lake, self.folder, {}),
            query=query,
            sink=Sink(self.lake, ("s", name), Progress(chosen.sink_id), query.keys),
            options=chosen,
            runner=in_process,
            bad_records=BadRecords(None, "", 0),
            schema=pa.schema([*file_schema(SCHEMA), *(pa.field(*column) for column in added)]),
        )
        schema_id = writer.source.schema_id(None)
        table = TableStream(writer, StreamStatus(name), schema_id=schema_id)
        return Stream(lambda: self.session, [table], WINDOW)

    def drained(
        self, source: Mapping[str, Any], sql: str = PICKS, **options: Any
    ) -> tuple[float, Stream]:
        """Seconds to drain a source into a new table."""
        name = f"t{uuid.uuid4().hex[:8]}"
        self.make_table(name)
        stream = self.stream(name, source, sql, **options)
        begin = time.perf_counter()
        stream.drain()
        return time.perf_counter() - begin, stream

    def close(self) -> None:
        self.session.close()
        self.engine.release()


__all__ = ["COLUMNS", "DDL", "Event", "Rig"]
