"""What the Iceberg catalog knows: namespaces, tables, views, columns, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
)
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.view.metadata import ViewMetadata
from sqlalchemy.exc import IntegrityError

from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteCatalog
from dbt.adapters.iceberg_stream.catalog.types import spark_type

Name = tuple[str, str]


@dataclass(frozen=True)
class Column:
    """A column of a table or view; `type` in Spark SQL's words."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True)
class Description:
    """A table or view as the docs show it."""

    name: Name
    kind: str
    comment: str | None
    columns: list[Column]
    statistics: dict[str, tuple[str, str | int]]


class Lake:
    """One Iceberg catalog, opened once for a dbt invocation and shared by its threads."""

    def __init__(self, name: str, warehouse: Path) -> None:
        self.name = name
        self._catalog = SqliteCatalog.open(name, warehouse)

    def close(self) -> None:
        self._catalog.close()

    def namespaces(self) -> list[str]:
        return [".".join(namespace) for namespace in self._catalog.list_namespaces()]

    def namespace_exists(self, namespace: str) -> bool:
        return self._catalog.namespace_exists(namespace)

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace; one that is there, or that another run makes now, is kept."""
        try:
            self._catalog.create_namespace(namespace)
        except (NamespaceAlreadyExistsError, IntegrityError):
            return

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace; a missing one is fine."""
        try:
            self._catalog.drop_namespace(namespace)
        except NoSuchNamespaceError:
            return

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """Names and kinds (`table` or `view`) in a namespace; none where it is missing."""
        try:
            tables = self._catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            return []
        views = self._catalog.list_views(namespace)
        return [*((t[-1], "table") for t in tables), *((v[-1], "view") for v in views)]

    def table(self, name: Name) -> Table:
        """The table as it is now.

        Raises:
            NoSuchTableError: there is none.
        """
        return self._catalog.load_table(name)

    def find_table(self, name: Name) -> Table | None:
        try:
            return self._catalog.load_table(name)
        except NoSuchTableError:
            return None

    def view(self, name: Name) -> ViewMetadata:
        """The view's current metadata.

        Raises:
            NoSuchViewError: there is none.
        """
        location = self._catalog.view_metadata_location(name)
        io = self._catalog._load_file_io(location=location)
        with io.new_input(location).open() as stream:
            plain = Compressor.get_compressor(location).stream_decompressor(stream)
            return ViewMetadata.model_validate_json(plain.read())

    def columns(self, name: Name, kind: str | None) -> list[Column]:
        """Columns of a table, or of a view where there is no such table; none if neither is."""
        if kind != "view" and (table := self.find_table(name)) is not None:
            return _columns(table.schema())
        try:
            return _columns(_view_schema(self.view(name)))
        except NoSuchViewError:
            return []

    def drop(self, name: Name) -> None:
        """Drop a table or view with its files; a missing one is fine."""
        try:
            self._catalog.purge_table(name)
        except NoSuchTableError:
            self._catalog.drop_view(name)

    def require_columns(self, name: Name, columns: list[str]) -> None:
        """Make optional columns required. The caller has checked that they hold no null."""
        table = self.table(name)
        optional = [c for c in columns if not table.schema().find_field(c).required]
        if optional:
            with table.update_schema(allow_incompatible_changes=True) as update:
                for column in optional:
                    update.update_column(column, required=True)

    def last_modified(self, name: Name) -> datetime | None:
        """When the current snapshot was committed (UTC); None for a table never written."""
        snapshot = self.table(name).current_snapshot()
        return None if snapshot is None else _utc(snapshot.timestamp_ms)

    def describe(self, namespace: str) -> Iterator[Description]:
        """All tables and views of a namespace with columns and statistics."""
        for identifier, kind in self.relations(namespace):
            found = self.describe_one((namespace, identifier), kind)
            if found is not None:
                yield found

    def describe_one(self, name: Name, kind: str) -> Description | None:
        """One table or view; None if another run has dropped it meanwhile."""
        if kind == "view":
            metadata = self.view(name)
            comment = metadata.properties.get("comment")
            return Description(name, kind, comment, _columns(_view_schema(metadata)), {})
        table = self.find_table(name)
        if table is None:
            return None
        comment = table.properties.get("comment")
        return Description(name, kind, comment, _columns(table.schema()), _statistics(table))


def _view_schema(metadata: ViewMetadata) -> Schema:
    version = next(v for v in metadata.versions if v.version_id == metadata.current_version_id)
    return next(s for s in metadata.schemas if s.schema_id == version.schema_id)


def _columns(schema: Schema) -> list[Column]:
    return [Column(f.name, spark_type(f.field_type), f.doc) for f in schema.fields]


def _statistics(table: Table) -> dict[str, tuple[str, str | int]]:
    """Docs statistics by id: label and value, from the current snapshot's summary."""
    statistics: dict[str, tuple[str, str | int]] = {
        "location": ("Location", table.location()),
        "format_version": ("Format version", table.metadata.format_version),
    }
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return statistics
    summary = snapshot.summary.additional_properties
    for key, identifier, label in (
        ("total-records", "num_rows", "Rows"),
        ("total-files-size", "bytes", "Bytes"),
        ("total-data-files", "num_files", "Data files"),
        ("total-delete-files", "num_delete_files", "Delete files"),
    ):
        if key in summary:
            statistics[identifier] = (label, int(summary[key]))
    statistics["num_snapshots"] = ("Snapshots", len(table.metadata.snapshots))
    statistics["snapshot_id"] = ("Current snapshot", str(snapshot.snapshot_id))
    statistics["last_modified"] = ("Last modified", _utc(snapshot.timestamp_ms).isoformat())
    return statistics


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
