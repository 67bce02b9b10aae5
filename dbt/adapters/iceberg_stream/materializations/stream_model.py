"""Open the source, the query and the tables of a stream model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.settings import AMBIENT
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.imports import load_pyspark
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.read_deletes import staged_snapshot
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import rewrite_here, rewrite_in_tasks
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import (
    StreamOptions,
    parse_stream_options,
    with_table_spelling,
)
from dbt.adapters.iceberg_stream.stream.query.key_lineage import source_key_columns
from dbt.adapters.iceberg_stream.stream.query.partition_values import (
    partition_sql,
    partition_values,
)
from dbt.adapters.iceberg_stream.stream.query.query import (
    StreamQuery,
    added_columns,
    added_names,
    get_change_sql,
    output_columns,
    returned_columns,
)
from dbt.adapters.iceberg_stream.stream.routes import (
    Router,
    create_route_table,
    has_shared_keys,
    list_routes,
    route_options,
    route_table_name,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, read_property
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import evolution_updates
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import snapshot_properties
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.types import DataType

# The source's name in the model's query.
VIEW = "__stream_source"
# Seconds between two lines about a stream in the log.
LOG_SECONDS = 10.0
logger = Logger()


@dataclass
class StreamModel:
    """A model that is materialized as a stream, with the source's columns after a frontier.

    Attributes:
        context: what the materialization needs of the adapter.
        sql: the model's query.
        model: the model's node in dbt's graph.
        source: the source that the query streams from.
        lower: the frontier to read from; None for the source's beginning.
        upper: the end of the batch that the columns are for; None for the next batch.
        key: the `registered_key` of the run so far; None to ask the registry.
    """

    context: MaterializationContext
    sql: str
    model: Mapping[str, Any]
    source: SourceDefinition
    lower: Frontier | None = None
    upper: Frontier | None = None
    key: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # PySpark has import cycles, which fail when several threads import it at the same time.
        load_pyspark()

    @cached_property
    def options(self) -> StreamOptions:
        """Return the model's options; raises StreamError for wrong ones."""
        config = dict(self.model["config"])
        if self.registered_key:
            config["unique_key"] = list(self.registered_key)
        return parse_stream_options({**self.model, "config": config})

    @cached_property
    def registered_key(self) -> tuple[str, ...]:
        """Return the columns of the key in a schema registry, if the model has no `unique_key`.

        Raises:
            StreamError: the registry does not have them, and the source deletes rows.
        """
        if self.key is not None:
            return self.key
        config = self.model["config"]
        # A route has the rows of one table of several, each with a key of its own.
        if config.get("unique_key") is not None or config.get("route_by"):
            return ()
        source = self._open((), ())
        return source.registered_key()

    @cached_property
    def opened_source(self) -> Source:
        """Return a reader of the source."""
        routed = [route_options(self.options, route).keys for route in self.options.routes]
        keys = tuple(dict.fromkeys(chain(self.options.keys, *routed)))
        # Records need only the key columns that all routes share.
        lowered = [{key.lower() for key in route_keys} for route_keys in routed]
        shared = [key for key in self.options.keys if all(key.lower() in own for own in lowered)]
        required = source_key_columns(self.sql, VIEW, shared).passed_on
        return self._open(source_key_columns(self.sql, VIEW, keys).read or keys, required)

    def _open(self, keys: Sequence[str], required: Sequence[str]) -> Source:
        credentials = self.context.credentials
        settings = credentials.catalog_settings()
        storage = {} if settings is None else dict(settings.properties)
        if credentials.ambient_credentials:
            storage[AMBIENT] = "true"
        return open_source(
            self.source,
            self.context.catalogs.get(self.source.catalog),
            self.context.project_root,
            storage,
            credentials.kafka,
            keys,
            required,
            self._stage,
            credentials.postgres,
            self._consumer,
        )

    @property
    def _consumer(self) -> str:
        """What identifies the stream in the database that it reads."""
        relation = (self.model["database"], self.model["schema"], self.model["alias"])
        return ".".join(map(str, (self.model["unique_id"], *relation)))

    def _stage(self, name: Name) -> int | None:
        """Return a snapshot in which the equality deletes of a table are read once."""
        choice = self.model["config"].get("read_deletes") or "spark"
        catalog = self.context.catalogs.get(self.source.catalog)
        return staged_snapshot(self.context, catalog, name, choice)

    @cached_property
    def change_sql(self) -> str:
        """Return the model's query as one that returns changes."""
        of_rows = self.opened_source.of_rows and bool(self.options.keys)
        return get_change_sql(self.sql, VIEW, of_rows)

    @property
    def types(self) -> dict[str, DataType]:
        """Return the types of the query's columns by their names."""
        return self._columns[1]

    @cached_property
    def _columns(self) -> tuple[str, dict[str, DataType]]:
        """Return the id of the source's schema, and the types of the query's columns."""
        # Read the id first: the next batch then notices a change that happens meanwhile.
        schema_id = self.opened_source.schema_id(self.lower, self.upper)
        with self.context.database_errors(self.sql), explain():
            session = self.context.session()
            frame = self._empty(session)
            fields = session.frame(self.change_sql, **{VIEW: frame}).schema.fields
            names = [field.name for field in fields]
            self._check_registered_key(names)
            output_columns(names, self.options)
            self._check_conditions(session, frame)
        return schema_id, {field.name: field.dataType for field in fields}

    def _check_registered_key(self, names: Sequence[str]) -> None:
        """Check that the query returns the columns of a key that the model does not name."""
        returned = returned_columns(names)
        lower = {name.lower() for name in returned}
        if missing := [name for name in self.registered_key if name.lower() not in lower]:
            raise StreamError(
                "The model has no `unique_key`, so the fields of the messages' keys identify its "
                f"rows: {', '.join(self.registered_key)}. The query does not return "
                f"{', '.join(missing)}; it returns: {', '.join(returned)}. Add the missing fields "
                "to the query, or set `unique_key` to the columns that identify a row."
            )

    def _empty(self, session: Session) -> DataFrame:
        try:
            with explain():
                return self.opened_source.empty(session.spark, self.lower, self.upper)
        except StatementError as error:
            if error.engine_gone or not self.source.spec.get("columns"):
                raise
            raise StreamError(
                f"Spark cannot parse the `columns` of the stream's source. {error}"
            ) from error

    def _check_conditions(self, session: Session, frame: DataFrame) -> None:
        """Check each condition separately, so that the error names its option."""
        options = self.options
        conditions = {"apply_as_deletes": options.deletes, "apply_as_truncates": options.truncates}
        for name, condition in conditions.items():
            if condition is None:
                continue
            sql = f"select ({condition}\n) as condition from (\n{self.change_sql}\n)"
            try:
                with explain():
                    kind = session.frame(sql, **{VIEW: frame}).schema.fields[0].dataType
            except StatementError as error:
                if error.engine_gone:
                    raise
                raise StreamError(f"`{name}: {condition}` cannot be used. {error}") from error
            if kind.typeName() not in ("boolean", "void"):
                raise StreamError(
                    f"`{name}: {condition}` must be a boolean expression, got "
                    f"{kind.simpleString()}."
                )

    def frontier(self, relation: BaseRelation) -> Frontier | None:
        """Return the frontier that the table's property has; commits may be ahead of it.

        Args:
            relation: the model's table.
        """
        metadata = self._load(table_name(relation)).metadata
        progress = read_property(metadata, self.options.sink_id)
        return None if progress is None else progress.frontier

    def columns(self, options: StreamOptions) -> list[tuple[str, DataType]]:
        """Return names and types of a table's columns.

        Args:
            options: of the model, or of a route.
        """
        from pyspark.sql.types import TimestampType

        chosen = [(name, self.types[name]) for name in output_columns(list(self.types), options)]
        return chosen + added_columns(self.types, options, TimestampType())

    def table_stream(self, relation: BaseRelation) -> TableStream:
        """Return the stream of the model's own table.

        Args:
            relation: the model's table.
        """
        return self._table_stream(relation, self.options, str(self.model["name"]), None)

    def router(self, relation: BaseRelation, own: TableStream) -> Router:
        """Return the router of a model with `route_by`.

        Args:
            relation: the model's own table.
            own: the stream of that table.
        """
        name = table_name(relation)

        def open_route(route: str, batch: BatchRange | None) -> TableStream:
            # A route that appears during the run gets the columns of its first batch.
            model = self if batch is None else replace(self, lower=batch.lower, upper=batch.upper)
            frontier = None if batch is None else batch.lower
            options = route_options(self.options, route)
            identifier = route_table_name(name[1], route)
            columns = [column for column, _ in model._table_columns(name, options)]
            metadata = self._load(name).metadata
            begin = Progress(options.sink_id, frontier=frontier, may_be_staged=True)
            create_route_table(
                self.context.catalog, metadata, (name[0], identifier), columns, begin
            )
            routed = relation.incorporate(path={"identifier": identifier})
            return model._table_stream(routed, options, identifier, frontier)

        options = self.options
        assert options.route_by is not None
        has_table_column = self.source.spec.get("table_column") is not None
        shares_keys = has_shared_keys(options, self.opened_source.of_rows, has_table_column)
        return Router(options.route_by, own, open_route, options.create_tables, shares_keys)

    def routes(self, relation: BaseRelation) -> list[str]:
        """Return the routes that have tables or are in the model's config.

        Args:
            relation: the model's own table.
        """
        name = table_name(relation)
        return list_routes(self.context.catalog, name, self.options)

    def _table_stream(
        self, relation: BaseRelation, options: StreamOptions, label: str, begin: Frontier | None
    ) -> TableStream:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructField, StructType

        context = self.context
        name = table_name(relation)
        columns = self._table_columns(name, options)
        names = [column for column, _ in columns]
        options = with_table_spelling(options, names)
        table = self._load(name)
        target = WriteTarget.of(table.metadata, table.io)
        query = StreamQuery(
            self.change_sql,
            VIEW,
            relation.render(),
            names[: len(names) - len(added_names(options))],
            options,
            partition_sql(context.credentials.database, target.spec, target.schema),
            returned_columns(list(self.types)),
        )
        properties = snapshot_properties("", context.principal)
        progress = Progress(options.sink_id, frontier=begin)
        writer = BatchWriter(
            source=self.opened_source,
            query=query,
            sink=Sink(
                context.catalog, name, progress, query.keys, properties, spec_id=target.spec.spec_id
            ),
            options=options,
            runner=in_tasks if context.is_remote else in_process,
            partitions=partial(partition_values, spec=target.spec, schema=target.schema),
            rewriter=rewrite_in_tasks if context.is_remote else rewrite_here,
            bad_records=_bad_records(context.catalog, name, options, properties),
            schema=to_arrow_schema(StructType([StructField(*column) for column in columns])),
        )
        log = _StatusLog()

        def reopen(lower: Frontier | None, upper: Frontier) -> tuple[BatchWriter, str]:
            model = replace(self, lower=lower, upper=upper, key=self.registered_key)
            table = model._table_stream(relation, options, label, begin)
            return table.writer, table.schema_id

        def on_commit(status: StreamStatus, outcome: Outcome) -> None:
            context.after_commit(name, outcome)
            log.add(status)

        status = StreamStatus(label)
        return TableStream(writer, status, on_commit, schema_id=self._columns[0], reopen=reopen)

    def _table_columns(self, name: Name, options: StreamOptions) -> list[tuple[str, DataType]]:
        """Return the columns, with names in the table's letter case."""
        existing = {c.name.lower(): c.name for c in self.context.catalog.columns(name)}
        return [(existing.get(name.lower(), name), kind) for name, kind in self.columns(options)]

    def _load(self, name: Name) -> LoadedTable:
        table = self.context.catalog.load(name)
        if table is None:
            raise StreamError(f"The table {'.'.join(name)} was dropped while its stream ran.")
        return table


class _StatusLog:
    """Logs the status of a stream, at most once in `LOG_SECONDS`."""

    def __init__(self) -> None:
        self._logged = time.monotonic()

    def add(self, status: StreamStatus) -> None:
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            logger.info(status.line())


def _bad_records(
    catalog: IcebergCatalog, name: Name, options: StreamOptions, properties: Mapping[str, str]
) -> BadRecords:
    schema, table = name[0], f"{name[1]}__dead_letters"

    def write(rows: pa.Table) -> None:
        mode = Mode.CREATE_APPEND
        # Tables that older versions of the adapter created have no column for the reason.
        existing = catalog.load((schema, table))
        if existing is not None:
            updates = evolution_updates(existing.metadata, rows.schema, f"{schema}.{table}")
            if updates:
                catalog.commit(existing, (), updates)
        ingest(catalog, (schema, table), rows.to_reader(), mode, snapshot_properties=properties)

    stored = options.bad_records == "dead_letters"
    return BadRecords(write if stored else None, f"{schema}.{table}", options.bad_record_limit)
