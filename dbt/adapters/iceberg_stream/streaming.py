"""Stream models: dbt's hooks for them, and the way from a model to its stream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation
from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.commit.stamps import stamps
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.files.target import WriteTarget
from dbt.adapters.iceberg_stream.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.stream import copy_on_write, service
from dbt.adapters.iceberg_stream.stream.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.errors import Fenced, StreamError
from dbt.adapters.iceberg_stream.stream.options import (
    StreamOptions,
    named_as,
    parse_stream_options,
)
from dbt.adapters.iceberg_stream.stream.partition_sql import partition_sql
from dbt.adapters.iceberg_stream.stream.progress import Progress
from dbt.adapters.iceberg_stream.stream.query import (
    StreamQuery,
    added_columns,
    added_names,
    carry_change,
    output_columns,
)
from dbt.adapters.iceberg_stream.stream.runners import in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.sources.source import Source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter

# The name that the source has in the model's query.
VIEW = "__stream_source"
REPORT_SECONDS = 10.0
# Batches that are written at once: one is planned and read while another is encoded.
WINDOW = 2
logger = AdapterLogger("Iceberg_Stream")


def stream_columns(
    adapter: IcebergStreamAdapter, sql: str, model: Mapping[str, Any], source: SourceDefinition
) -> list[tuple[str, str]]:
    """Names and types of the columns of a stream's table, in Spark's words.

    Raises:
        StreamError: the query or the source is not what a stream can have.
    """
    options = parse_stream_options(model)
    columns = _columns(adapter, sql, options, source)
    return [(name, kind.simpleString()) for name, kind in columns]


def _columns(
    adapter: IcebergStreamAdapter, sql: str, options: StreamOptions, source: SourceDefinition
) -> list[tuple[str, DataType]]:
    from pyspark.sql.types import TimestampType

    session = _session(adapter)
    opened = _open(adapter, source, options)
    carried = carry_change(sql, VIEW, opened.of_rows and bool(options.keys))
    frame = opened.empty(session.spark)
    with adapter.connections.exception_handler(sql):
        types = {f.name: f.dataType for f in session.frame(carried, **{VIEW: frame}).schema.fields}
    columns = [(name, types[name]) for name in output_columns(list(types), options)]
    return columns + added_columns(types, options, TimestampType())


def run_stream(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    sql: str,
    model: Mapping[str, Any],
    source: SourceDefinition,
    refresh: bool,
) -> IcebergStreamResponse:
    """Drain the model's stream, or follow it where a service runs.

    Raises:
        StreamError: the stream cannot go on; what was committed before is in the table.
    """
    stream = _stream(adapter, relation, sql, model, source)
    running = service.current()
    name = str(model["unique_id"])
    with adapter.connections.exception_handler(sql):
        try:
            if running is None:
                stream.drain(refresh)
            else:
                running.streams[name] = stream.status
                stream.follow(running.stop, refresh)
        except Fenced:
            if running is not None:
                running.fenced.add(name)
            raise
    return _response(relation, stream.status)


def _stream(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    sql: str,
    model: Mapping[str, Any],
    source: SourceDefinition,
) -> Stream:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    options = parse_stream_options(model)
    name = str(relation.schema), str(relation.identifier)
    known = {column.name.lower(): column.name for column in adapter.lake.columns(name)}
    given = _columns(adapter, sql, options, source)
    columns = [(known.get(column.lower(), column), kind) for column, kind in given]
    options = named_as(options, [column for column, _ in columns])
    names = [column for column, _ in columns]
    opened = _open(adapter, source, options)
    handle = adapter.connections.get_thread_connection().handle
    said = stamps("", handle.principal)
    query = StreamQuery(
        carry_change(sql, VIEW, opened.of_rows and bool(options.keys)),
        VIEW,
        relation.render(),
        names[: len(names) - len(added_names(options))],
        options,
        _partition(adapter, name),
    )
    sink = Sink(adapter.lake, name, Progress(options.sink_id), query.keys, said)
    status = StreamStatus(str(model["name"]))
    remote = adapter.config.credentials.method == "connect"

    report = _Report()

    def told(status: StreamStatus) -> None:
        adapter.connections.refresh_cached(relation.render())
        report.tell(status)

    writer = BatchWriter(
        source=opened,
        query=query,
        sink=sink,
        options=options,
        runner=in_tasks if remote else in_process,
        rewriter=copy_on_write.in_tasks if remote else copy_on_write.in_threads,
        bad_records=_bad_records(adapter, name, options, said),
        schema=to_arrow_schema(StructType([StructField(*column) for column in columns])),
    )
    # A session with another token ends the one before, whatever runs there.
    window = 1 if handle.principal else WINDOW
    return Stream(lambda: _session(adapter), writer, status, window, told)


class _Report:
    """A line about a stream, now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def tell(self, status: StreamStatus) -> None:
        if time.monotonic() - self._last >= REPORT_SECONDS:
            self._last = time.monotonic()
            logger.info(status.line())


def _session(adapter: IcebergStreamAdapter) -> Session:
    """The thread's session, with a token that is good now."""
    handle = adapter.connections.get_thread_connection().handle
    handle.refresh_token()
    session: Session = handle.session
    return session


def _open(
    adapter: IcebergStreamAdapter, source: SourceDefinition, options: StreamOptions
) -> Source:
    root = Path(adapter.config.project_root)
    credentials = adapter.config.credentials
    settings = credentials.catalog_settings()
    storage = {} if settings is None else dict(settings.properties)
    return open_source(source, adapter.lake, root, storage, credentials.kafka, options.keys)


def _partition(adapter: IcebergStreamAdapter, name: tuple[str, str]) -> str:
    table = adapter.lake.load(name)
    if table is None:
        raise StreamError(f"The table {'.'.join(name)} was dropped under its stream.")
    target = WriteTarget.of(table.metadata, table.io)
    return partition_sql(adapter.config.credentials.database, target.spec, target.schema)


def _bad_records(
    adapter: IcebergStreamAdapter,
    name: tuple[str, str],
    options: StreamOptions,
    said: Mapping[str, str],
) -> BadRecords:
    schema, table = name[0], f"{name[1]}__dead_letters"

    def keep(rows: pa.Table) -> None:
        mode = Mode.CREATE_APPEND
        ingest(adapter.lake, (schema, table), rows.to_reader(), mode, stamps=said)

    wanted = options.bad_records == "dead_letters"
    return BadRecords(keep if wanted else None, f"{schema}.{table}", options.bad_record_limit)


def _response(relation: BaseRelation, status: StreamStatus) -> IcebergStreamResponse:
    return IcebergStreamResponse(
        f"STREAM {status.changes:,} changes, {status.commits:,} commits",
        code="STREAM",
        rows_affected=status.changes,
        snapshot_id=status.snapshot_id,
        relation=f"{relation.schema}.{relation.identifier}",
    )


def source_definition(
    relation: BaseRelation, configured: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> SourceDefinition:
    """What `stream(…)` says of a source: its configuration, and what the model adds."""
    name = str(relation.schema), str(relation.identifier)
    return SourceDefinition(name, relation.render(), {**(configured or {}), **given})
