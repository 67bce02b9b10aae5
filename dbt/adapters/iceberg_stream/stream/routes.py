"""Write each row to the table that its `route_by` column names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.partitioning import PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.update import AssertCreate

from dbt.adapters.iceberg_stream.builds.names import split_staged
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import (
    LETTERS,
    NO_ROUTE,
    StreamOptions,
    column_names,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sink.known_streams import require_known
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, property_name
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX


def route_table_name(model: str, route: str) -> str:
    """Return the name of the table for a model's rows of a route.

    Args:
        model: name of the model's own table.
        route: a value of the `route_by` column, in lower case.
    """
    return f"{model}__{route}"


def route_options(options: StreamOptions, route: str) -> StreamOptions:
    """Return the model's options with the overrides of a route.

    Args:
        options: the model's options.
        route: the route, in lower case; without an entry in `routes` it has no overrides.
    """
    overrides = options.routes.get(route) or {}
    changes: dict[str, Any] = {}
    if "unique_key" in overrides:
        changes["keys"] = column_names(overrides["unique_key"])
    if "columns" in overrides:
        changes |= {"columns": column_names(overrides["columns"]), "excluded": ()}
    if "except" in overrides:
        changes |= {"excluded": column_names(overrides["except"]), "columns": None}
    return replace(options, **changes)


def has_shared_keys(options: StreamOptions, of_rows: bool, table_column: bool) -> bool:
    """Return whether a key has one row in all tables of a stream, and not one in each of them.

    Args:
        options: the model's options.
        of_rows: whether the source has changes of a table's rows.
        table_column: whether it has those of several tables, each with keys of its own.
    """
    if options.route_keys is not None:
        return options.route_keys == "shared"
    own_keys = any("unique_key" in (overrides or {}) for overrides in options.routes.values())
    of_one_table = of_rows and not table_column and bool(options.keys)
    return of_one_table and not own_keys and not options.ignore_null_updates


def list_routes(catalog: IcebergCatalog, name: Name, options: StreamOptions) -> list[str]:
    """Return the sorted routes of a model: those in its config, and those of earlier runs.

    Args:
        catalog: the catalog of the model's table.
        name: name of the model's own table.
        options: the model's options.
    """
    schema, model = name
    prefix, routes = route_table_name(model, ""), {route.lower() for route in options.routes}
    for identifier, kind in catalog.relations(schema):
        if kind == "table" and identifier.startswith(prefix) and not split_staged(identifier):
            metadata = catalog.metadata((schema, identifier)) or {}
            if property_name(options.sink_id) in (metadata.get("properties") or {}):
                routes.add(identifier.removeprefix(prefix))
    return sorted(routes)


def create_route_table(
    catalog: IcebergCatalog, own: Metadata, name: Name, columns: Sequence[str], begin: Progress
) -> None:
    """Create the table of a route, unless it exists.

    It gets the properties of the model's own table, and those of its partition fields whose
    columns it has.

    Args:
        catalog: the catalog.
        own: metadata of the model's own table.
        name: name of the route's table.
        columns: names of the columns to copy from the own table.
        begin: the initial progress of the route's table.

    Raises:
        StreamError: the table exists and was not created by this stream.
        CatalogError: the catalog refuses the table.
    """
    if (existing := catalog.metadata(name)) is not None:
        _require_created_by(begin.sink_id, existing, name)
        return
    schema, selected = current_schema(own), set(columns)
    fields = [field for field in schema.fields if field.name in selected]
    route_schema = assign_fresh_schema_ids(Schema(*fields))
    own_spec = partition_spec(own, own["default-spec-id"])
    partition_fields = [
        item for item in own_spec.fields if schema.find_column_name(item.source_id) in selected
    ]
    spec = assign_fresh_partition_spec_ids(PartitionSpec(*partition_fields), schema, route_schema)
    properties = {
        key: value
        for key, value in (own.get("properties") or {}).items()
        if not key.startswith(PREFIX) and key != "comment"
    }
    properties |= {"format-version": str(own["format-version"]), **begin.as_property().updates}
    try:
        catalog.commit(catalog.stage(name, route_schema, spec, properties), (AssertCreate(),), ())
    except CommitConflict:
        existing = catalog.metadata(name)
        if existing is None:
            raise
        _require_created_by(begin.sink_id, existing, name)


def _require_created_by(sink_id: str, metadata: Metadata, name: Name) -> None:
    require_known(metadata, sink_id, ".".join(name))
    if property_name(sink_id) not in (metadata.get("properties") or {}):
        raise StreamError(
            f"`route_by` sends rows to {'.'.join(name)}, which already exists and was not created "
            "by this stream. Rename that table or the model: the tables of routes are named "
            "<model>__<route>."
        )


@dataclass
class Router:
    """Divides the query's rows among the tables of the routes.

    Attributes:
        column: column of the query that names the route (`route_by`).
        own: the model's own table, for rows without a route.
        open_route: returns the table of a route, created if it is missing. Its second argument is
            the first batch with rows of the route, or None for a route that is known at the start.
        creates: whether to create tables for new routes (`create_tables`).
        shares_keys: whether a change of a key deletes its rows in the tables of other routes.
    """

    column: str
    own: TableStream
    open_route: Callable[[str, BatchRange | None], TableStream]
    creates: bool
    shares_keys: bool = False
    _routes: dict[str, TableStream] = field(default_factory=dict)

    def open(self, routes: Sequence[str]) -> list[TableStream]:
        """Open and return all tables of the stream, the model's own first.

        Args:
            routes: the routes that are known at the start.

        Raises:
            StreamError: the query does not return the `route_by` column.
        """
        columns = self.own.writer.query.returned
        if self.column.lower() not in {name.lower() for name in columns}:
            raise StreamError(
                f"`route_by` names `{self.column}`, which the query does not return. It returns: "
                f"{', '.join(columns)}"
            )
        for route in routes:
            self._open(route, None)
        return [self.own, *self._routes.values()]

    def add_tables(self, session: Session, batch_range: BatchRange) -> list[TableStream]:
        """Create and return the tables of routes that first appear in a batch.

        Args:
            session: the engine's session.
            batch_range: the batch.
        """
        if not self.creates:
            return []
        writer = self.own.writer
        sql = (
            f"select distinct {self._route} as route from (\n{writer.query.change_sql}\n) "
            f"where {self._has_no_table} and {self._route} not in ('', '{NO_ROUTE}') "
            f"and {self._route} not rlike '[^{LETTERS}]'"
        )
        with writer.readable_records(session, batch_range) as frame:
            routes = session.rows(sql, **{writer.query.view: frame})["route"].to_pylist()
        return [self._open(route, batch_range) for route in sorted(routes)]

    def _open(self, route: str, batch: BatchRange | None) -> TableStream:
        table = self.open_route(route, batch)
        self._select(table, f"{self._route} = '{route}'")
        self._routes[route] = table
        self._select(self.own, self._has_no_table)
        return table

    def _select(self, table: TableStream, where: str) -> None:
        query = table.writer.query
        table.writer.query = replace(query, where=where, deletes_others=self.shares_keys)

    @property
    def _route(self) -> str:
        return f"lower(cast({quote(self.column)} as string))"

    @property
    def _has_no_table(self) -> str:
        if not self._routes:
            return "true"
        routes = ", ".join(f"'{route}'" for route in self._routes)
        return f"coalesce({self._route} not in ({routes}), true)"
