"""Run stream models, as dbt's hooks call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.stream_model import StreamModel
from dbt.adapters.iceberg_stream.relation import (
    IcebergStreamRelation,
    published_relation,
    table_name,
)
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.stream import service
from dbt.adapters.iceberg_stream.stream.errors import Fenced, StreamError
from dbt.adapters.iceberg_stream.stream.groups import Group
from dbt.adapters.iceberg_stream.stream.options import parse_stream_options
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

# Number of batches that are written at the same time: Spark reads one while another is encoded.
WINDOW = 2
AddTables = Callable[[Session, BatchRange], Sequence[TableStream]]
logger = Logger()


def stream_columns(
    context: MaterializationContext, sql: str, model: Mapping[str, Any], source: SourceDefinition
) -> list[tuple[str, str]]:
    """Return the names and the Spark types of the columns of a stream's table.

    Args:
        context: what the materialization needs of the adapter.
        sql: the model's query.
        model: the model's node in dbt's graph.
        source: the source that the query streams from.

    Raises:
        StreamError: a stream cannot run this query or read this source.
    """
    stream_model = StreamModel(context, sql, model, source)
    columns = stream_model.columns(stream_model.options)
    return [(name, type_sql(kind)) for name, kind in columns]


def check_stream(
    context: MaterializationContext, model: Mapping[str, Any], source: SourceDefinition | None
) -> None:
    """Check the options of a stream model.

    Args:
        context: what the materialization needs of the adapter.
        model: the model's node in dbt's graph.
        source: the source that the query streams from, whose registry may have its key; None if
            the query calls no `stream()`.

    Raises:
        CompilationError: the options have errors.
        StreamError: the source has errors.
    """
    if source is None:
        parse_stream_options(model)
    else:
        _ = StreamModel(context, "", model, source).options


def run_stream(
    context: MaterializationContext,
    relation: BaseRelation,
    sql: str,
    model: Mapping[str, Any],
    source: SourceDefinition,
    refresh: bool,
    group: Group | None = None,
) -> IcebergStreamResponse:
    """Drain the model's stream; under a service, follow its source until the service stops.

    The models of a commit group are one stream, which ends for all of them at the same time.

    Args:
        context: what the materialization needs of the adapter.
        relation: the model's table, which exists.
        sql: the model's query.
        model: the model's node in dbt's graph.
        source: the source that the query streams from.
        refresh: whether the stream replaces all rows of the table.
        group: the model's commit group, if it has one.

    Returns:
        The counts of changes and commits, for dbt.

    Raises:
        StreamError: the stream failed; its earlier commits stay in the table.
    """
    name, running = str(model["unique_id"]), service.current()
    members = {name} if group is None else group.members
    refresh = refresh and not (running is not None and running.has_rebuilt(members))

    def start(members: Sequence[TableStream]) -> None:
        _start(context, list(members), refresh)

    def register(routed: Sequence[TableStream]) -> Sequence[TableStream]:
        if running is not None:
            running.streams |= {f"{name}/{table.status.name}": table.status for table in routed}
        return routed

    def poll() -> None:
        context.check_canceled()
        if running is not None and running.stop.is_set() and own.status.state == "starting":
            raise StreamError(
                f"{name} was stopped before all models of its commit group had started."
            )

    with context.database_errors(sql), explain():
        stream_model = StreamModel(context, sql, model, source)
        if not refresh:
            key, lower = stream_model.registered_key, stream_model.frontier(relation)
            stream_model = replace(stream_model, lower=lower, key=key)
        own = stream_model.table_stream(relation)
        tables = [own]
        if running is not None:
            running.streams[name] = own.status
        with _report_failure(running, name):
            if group is not None:
                group.run(name, source.identity, refresh, own, start, poll)
            elif stream_model.options.route_by:
                router = stream_model.router(relation, own)
                tables = router.open(stream_model.routes(relation))
                register(tables[1:])

                def add_tables(session: Session, batch: BatchRange) -> Sequence[TableStream]:
                    return register(router.add_tables(session, batch))

                _start(context, tables, refresh, add_tables)
            else:
                _start(context, tables, refresh)
    if own.frontier is None and running is None:
        place = source.spec.get("path") or ".".join(source.name)
        logger.warning(f"{name}: {place} has no data yet.")
    return _response(relation, tables)


@contextmanager
def _report_failure(running: service.Service | None, name: str) -> Iterator[None]:
    """Report to the service that another run took over the stream, or that Spark was lost."""
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
    add_tables: AddTables | None = None,
) -> None:
    several = len(tables) > 1 or add_tables is not None
    _check_one_catalog(tables)
    if several and not context.catalog.commits_together:
        _check_no_transactions(context.catalog.name, tables)
    # A session with a renewed token ends the one before, with the batches that it is writing.
    window = 1 if context.principal or add_tables is not None else WINDOW
    stream = Stream(context.session, tables, window, add_tables)
    running = service.current()
    if running is None:
        stream.drain(refresh)
    else:
        stream.follow(running.stop, refresh)


def _check_one_catalog(tables: Sequence[TableStream]) -> None:
    catalogs = {table.sink.catalog.name for table in tables}
    if len(catalogs) > 1:
        names = ", ".join(table.status.name for table in tables)
        raise StreamError(
            f"The models of a commit group are committed together, but {names} are in the catalogs "
            f"{', '.join(sorted(catalogs))}. Give the models of each catalog a group of their own."
        )


def _check_no_transactions(catalog: str, tables: Sequence[TableStream]) -> None:
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
    own = tables[0]
    # Each table of a model with routes reads all records.
    count = max(table.status.skipped_records for table in tables)
    skipped = f", {count:,} skipped" if count else ""
    return IcebergStreamResponse(
        f"STREAM {changes:,} changes, {commits:,} commits{into}{skipped}",
        code="STREAM",
        rows_affected=changes,
        snapshot_id=own.status.snapshot_id,
        total_delete_files=own.status.delete_files,
        relation=".".join(table_name(relation)),
        rows_before=own.change.rows_before,
        rows_after=own.change.rows_after,
        rows_inserted=own.change.rows_inserted,
        rows_deleted=own.change.rows_removed,
        bytes_written=own.change.bytes_written,
    )


def require_stream(model: Mapping[str, Any]) -> None:
    """Check that a model that calls `stream()` is materialized as a stream.

    Args:
        model: the model's node in dbt's graph.

    Raises:
        StreamError: it has another materialization.
    """
    kind = model["config"].get("materialized")
    if model.get("resource_type") == "model" and kind != "stream":
        raise StreamError(
            f"{model['unique_id']} calls `stream(…)` but is materialized as {kind}. Set "
            "materialized='stream', or select from the source or model itself."
        )


def source_definition(
    relation: IcebergStreamRelation,
    configured: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> SourceDefinition:
    """Return the source that a call of `stream(…)` describes.

    Args:
        relation: the source's relation.
        configured: the source's `config.meta.stream`.
        options: the arguments of `stream(…)`, which take precedence.

    Raises:
        StreamError: the relation has a fixed version, or `config.meta.stream` is not a mapping.
    """
    if relation.as_of is not None:
        raise StreamError(
            f"`stream()` cannot read {relation.render()}: a stream reads each change as it comes. "
            "Remove `.at(…)`. To read a fixed version, materialize the model as a table."
        )
    # Offsets in a staged table would mean nothing once it is published.
    relation = published_relation(relation)
    name = table_name(relation)
    if not isinstance(configured or {}, Mapping):
        raise StreamError(
            f"`config.meta.stream` of the source {'.'.join(name)} must be a mapping such as "
            f"`type: files`, got `{configured}`."
        )
    spec = {**(configured or {}), **options}
    return SourceDefinition(name, relation.render(), spec, relation.database)
