"""dbt's hooks for stream models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dbt.adapters.base import BaseRelation
from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.stream_model import StreamModel
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.stream import service
from dbt.adapters.iceberg_stream.stream.errors import Fenced, StreamError
from dbt.adapters.iceberg_stream.stream.groups import Group
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

# Batches that are written at once: one is planned and read while another is encoded.
WINDOW = 2
Grow = Callable[[Session, BatchRange], Sequence[TableStream]]
logger = AdapterLogger("Iceberg_Stream")


def stream_columns(
    context: MaterializationContext, sql: str, model: Mapping[str, Any], source: SourceDefinition
) -> list[tuple[str, str]]:
    """Names and types of the columns of a stream's table, in Spark's words.

    Raises:
        StreamError: the query or the source is not what a stream can have.
    """
    opened = StreamModel(context, sql, model, source)
    return [(name, kind.simpleString()) for name, kind in opened.columns(opened.options)]


def run_stream(
    context: MaterializationContext,
    relation: BaseRelation,
    sql: str,
    model: Mapping[str, Any],
    source: SourceDefinition,
    refresh: bool,
    group: Group | None = None,
) -> IcebergStreamResponse:
    """Drain the model's stream, or follow it where a service runs.

    The models of a commit group are one stream, which ends for all of them at once.

    Raises:
        StreamError: the stream cannot go on; what was committed before is in the table.
    """
    name, running = str(model["unique_id"]), service.current()

    def start(all: Sequence[TableStream]) -> None:
        _start(context, list(all), refresh)

    def register(routed: Sequence[TableStream]) -> Sequence[TableStream]:
        if running is not None:
            running.streams |= {f"{name}/{one.status.name}": one.status for one in routed}
        return routed

    def poll() -> None:
        context.check_canceled()
        if running is not None and running.stop.is_set() and own.status.state == "starting":
            raise StreamError(
                f"{name} was stopped before all models of its commit group had started."
            )

    with context.database_errors(sql), explain():
        opened = StreamModel(context, sql, model, source)
        if not refresh:
            opened = replace(opened, lower=opened.frontier(relation))
        own = opened.table_stream(relation)
        tables = [own]
        if running is not None:
            running.streams[name] = own.status
        with _reported_to(running, name):
            if group is not None:
                group.run(name, source.identity, refresh, own, start, poll)
            elif opened.options.route_by:
                router = opened.router(relation, own)
                tables = router.open(opened.routes(relation))
                register(tables[1:])
                _start(context, tables, refresh, lambda *batch: register(router.grow(*batch)))
            else:
                _start(context, tables, refresh)
    if own.frontier is None and running is None:
        place = source.spec.get("path") or ".".join(source.name)
        logger.warning(f"{name}: {place} has no data yet.")
    return _response(relation, tables)


@contextmanager
def _reported_to(running: service.Service | None, name: str) -> Iterator[None]:
    """Tell a service why a stream ends: it exits, or starts its engine again."""
    try:
        yield
    except Fenced:
        if running is not None:
            running.fenced.add(name)
        raise
    except StatementError as error:
        if running is not None and error.engine_gone:
            running.lose_engine()
        raise


def _start(
    context: MaterializationContext,
    tables: list[TableStream],
    refresh: bool,
    grow: Grow | None = None,
) -> None:
    several = len(tables) > 1 or grow is not None
    if several and not context.catalog.commits_together:
        _report_no_transactions(context.catalog.name, tables)
    # A session with another token ends the one before, whatever runs there.
    window = 1 if context.principal or grow is not None else WINDOW
    stream = Stream(context.session, tables, window, grow)
    running = service.current()
    if running is None:
        stream.drain(refresh)
    else:
        stream.follow(running.stop, refresh)


def _report_no_transactions(catalog: str, tables: Sequence[TableStream]) -> None:
    options, names = tables[0].writer.options, ", ".join(table.status.name for table in tables)
    message = (
        f"The catalog `{catalog}` cannot commit several tables at once: {names} are committed one "
        "after the other, and readers may see some of them changed and others not yet."
    )
    if options.on_no_transactions == "stop":
        raise StreamError(f"{message} To accept that, set `on_no_transactions: warn`.")
    logger.warning(message)


def _response(relation: BaseRelation, tables: Sequence[TableStream]) -> IcebergStreamResponse:
    changes = sum(table.status.changes for table in tables)
    commits = max(table.status.commits for table in tables)
    into = f" into {len(tables)} tables" if len(tables) > 1 else ""
    return IcebergStreamResponse(
        f"STREAM {changes:,} changes, {commits:,} commits{into}",
        code="STREAM",
        rows_affected=changes,
        snapshot_id=tables[0].status.snapshot_id,
        relation=".".join(table_name(relation)),
    )


def require_stream(model: Mapping[str, Any]) -> None:
    """Raise StreamError for a model that selects from a stream and is none."""
    kind = model["config"].get("materialized")
    if model.get("resource_type") == "model" and kind != "stream":
        raise StreamError(
            f"{model['unique_id']} selects from `stream(…)` and is materialized as {kind}: set "
            "materialized='stream', or select from the source or model itself."
        )


def source_definition(
    relation: BaseRelation, configured: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> SourceDefinition:
    """What `stream(…)` says of a source: its configuration, and what the model adds.

    Raises:
        StreamError: the configuration is none.
    """
    name = table_name(relation)
    if not isinstance(configured or {}, Mapping):
        raise StreamError(
            f"`config.meta.stream` of the source {'.'.join(name)} is `{configured}`: it takes keys "
            "with their values, such as `type: files`."
        )
    return SourceDefinition(name, relation.render(), {**(configured or {}), **options})
