"""One model, several tables: a row goes to the table that one of its columns names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.partitioning import PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.update import AssertCreate

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
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, property_name
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX


def route_table(model: str, route: str) -> str:
    """The name of the table that a model's rows of a route go to."""
    return f"{model}__{route}"


def options_of(options: StreamOptions, route: str) -> StreamOptions:
    """The model's options with what it says of a route."""
    said = options.routes.get(route) or {}
    changed: dict[str, Any] = {}
    if "unique_key" in said:
        changed["keys"] = column_names(said["unique_key"])
    if "columns" in said:
        changed |= {"columns": column_names(said["columns"]), "excluded": ()}
    if "except" in said:
        changed |= {"excluded": column_names(said["except"]), "columns": None}
    return replace(options, **changed)


def known_routes(catalog: IcebergCatalog, name: Name, options: StreamOptions) -> list[str]:
    """Routes that have tables, or are to have them: of the config, and of earlier runs."""
    schema, model = name
    prefix, known = route_table(model, ""), {route.lower() for route in options.routes}
    for identifier, kind in catalog.relations(schema):
        if kind == "table" and identifier.startswith(prefix):
            metadata = catalog.metadata((schema, identifier)) or {}
            if property_name(options.sink_id) in (metadata.get("properties") or {}):
                known.add(identifier.removeprefix(prefix))
    return sorted(known)


def make_table_like(
    catalog: IcebergCatalog, own: Metadata, name: Name, columns: Sequence[str], begin: Progress
) -> None:
    """Make a route's table with some of the columns of the model's own, its partitions and
    properties, from which the stream begins; if it is missing.

    Raises:
        StreamError: there is such a table, and it is not this stream's.
        CatalogError: the catalog refuses.
    """
    if (there := catalog.metadata(name)) is not None:
        _require_ours(there, name, begin.sink_id)
        return
    schema, wanted = current_schema(own), set(columns)
    fields = [field for field in schema.fields if field.name in wanted]
    fresh = assign_fresh_schema_ids(Schema(*fields))
    old = partition_spec(own, own["default-spec-id"])
    kept = [item for item in old.fields if schema.find_column_name(item.source_id) in wanted]
    spec = assign_fresh_partition_spec_ids(PartitionSpec(*kept), schema, fresh)
    properties = {
        key: value
        for key, value in (own.get("properties") or {}).items()
        if not key.startswith(PREFIX) and key != "comment"
    }
    properties |= {"format-version": str(own["format-version"]), **begin.as_property().updates}
    try:
        catalog.commit(catalog.stage(name, fresh, spec, properties), (AssertCreate(),), ())
    except CommitConflict:
        there = catalog.metadata(name)
        if there is None:
            raise
        _require_ours(there, name, begin.sink_id)


def _require_ours(metadata: Metadata, name: Name, sink_id: str) -> None:
    if property_name(sink_id) not in (metadata.get("properties") or {}):
        raise StreamError(
            f"`route_by` sends rows to {'.'.join(name)}, which already exists and was not created "
            "by this stream. Rename that table, or the model: routes have tables named "
            "<model>__<route>."
        )


@dataclass
class Router:
    """Leads each row to its table.

    Attributes:
        column: of the query, which names the table.
        own: the model's table, for rows of no route.
        open_route: gives the table of a route, made if it is missing, for rows from a batch on.
        creates: whether routes that come up get tables by themselves.
    """

    column: str
    own: TableStream
    open_route: Callable[[str, BatchRange | None], TableStream]
    creates: bool
    _routes: dict[str, TableStream] = field(default_factory=dict)

    def open(self, routes: Sequence[str]) -> list[TableStream]:
        """All tables of the stream, the model's own first.

        Raises:
            StreamError: the query does not give the column.
        """
        given = {name.lower() for name in self.own.writer.query.given}
        if self.column.lower() not in given:
            raise StreamError(
                f"`route_by` names `{self.column}`, which the query does not return. It returns: "
                f"{', '.join(self.own.writer.query.given)}"
            )
        for route in routes:
            self._open(route, None)
        return [self.own, *self._routes.values()]

    def grow(self, session: Session, described: BatchRange) -> list[TableStream]:
        """Tables of the routes that come up in a batch."""
        if not self.creates:
            return []
        writer = self.own.writer
        frame = writer.good(session, described)
        sql = (
            f"select distinct {self._route} as route from (\n{writer.query.carried}\n) "
            f"where {self._is_rest} and {self._route} not in ('', '{NO_ROUTE}') "
            f"and {self._route} not rlike '[^{LETTERS}]'"
        )
        found = session.rows(sql, **{writer.query.view: frame})["route"].to_pylist()
        return [self._open(route, described) for route in sorted(found)]

    def _open(self, route: str, batch: BatchRange | None) -> TableStream:
        table = self.open_route(route, batch)
        table.writer.query = replace(table.writer.query, where=f"{self._route} = '{route}'")
        self._routes[route] = table
        own = self.own.writer
        own.query = replace(own.query, where=self._is_rest)
        return table

    @property
    def _route(self) -> str:
        return f"lower(cast({quote(self.column)} as string))"

    @property
    def _is_rest(self) -> str:
        if not self._routes:
            return "true"
        routes = ", ".join(f"'{route}'" for route in self._routes)
        return f"coalesce({self._route} not in ({routes}), true)"
