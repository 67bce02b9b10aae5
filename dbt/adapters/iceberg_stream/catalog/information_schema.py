"""The rows of `information_schema`, from the catalog's metadata.

The views and columns that the SQL standard names (ISO/IEC 9075-11) have its names; columns beyond
it have those of Iceberg's metadata tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.metadata import (
    Metadata,
    current_snapshot,
    fields,
    snapshots,
)
from dbt.adapters.iceberg_stream.catalog.types import spark_type
from dbt.adapters.iceberg_stream.catalog.views import view_query

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name

Row = dict[str, Any]
# Requests to a catalog at the same time.
PARALLEL = 8
RELATION = {"table_catalog": "string", "table_schema": "string", "table_name": "string"}
# Columns by view, with their Arrow types.
VIEWS: dict[str, dict[str, str]] = {
    "schemata": {"catalog_name": "string", "schema_name": "string"},
    "tables": {
        **RELATION,
        "table_type": "string",
        "is_insertable_into": "string",
        "comment": "string",
        "last_altered": "timestamp",
        "location": "string",
        "format_version": "int32",
        "snapshot_id": "int64",
        "record_count": "int64",
        "file_count": "int64",
        "delete_file_count": "int64",
        "total_size_in_bytes": "int64",
    },
    "columns": {
        **RELATION,
        "column_name": "string",
        "ordinal_position": "int32",
        "column_default": "string",
        "is_nullable": "string",
        "data_type": "string",
        "comment": "string",
    },
    "views": {
        **RELATION,
        "view_definition": "string",
        "check_option": "string",
        "is_updatable": "string",
        "comment": "string",
    },
    "snapshots": {
        **RELATION,
        "snapshot_id": "int64",
        "parent_id": "int64",
        "committed_at": "timestamp",
        "operation": "string",
        "is_current": "bool",
        "summary": "map",
    },
    "files": {
        **RELATION,
        "content": "int32",
        "file_path": "string",
        "file_format": "string",
        "spec_id": "int32",
        "record_count": "int64",
        "file_size_in_bytes": "int64",
    },
}
# What the catalog lists, without the metadata of each table.
LISTED = {*RELATION, "table_type", "is_insertable_into"}
SUMMARY = {
    "record_count": "total-records",
    "file_count": "total-data-files",
    "delete_file_count": "total-delete-files",
    "total_size_in_bytes": "total-files-size",
}


def information_schema(
    catalog: IcebergCatalog,
    view: str,
    columns: Iterable[str] | None,
    in_namespace: Callable[[str], bool],
    is_wanted: Callable[[str], bool],
) -> pa.Table:
    """Return the rows of a view of `information_schema`.

    Args:
        catalog: the catalog.
        view: one of VIEWS.
        columns: the columns that matter, at least; None for all.
        in_namespace: whether relations of a namespace matter.
        is_wanted: whether a table or view matters, by its identifier.

    Returns:
        The columns of the view; the ones that do not matter may be null.
    """
    namespaces = [name for name in catalog.namespaces() if in_namespace(name)]
    if view == "schemata":
        return _table(view, [{"catalog_name": catalog.name, "schema_name": n} for n in namespaces])
    with ThreadPoolExecutor(PARALLEL) as pool:
        listed = pool.map(catalog.relations, namespaces)
        relations = [
            ((namespace, name), kind)
            for namespace, of_namespace in zip(namespaces, listed, strict=True)
            for name, kind in of_namespace
            if is_wanted(name) and kind in _kinds(view)
        ]
        if view == "tables" and columns is not None and set(columns) & set(VIEWS[view]) <= LISTED:
            return _table(view, [_listed(catalog, name, kind) for name, kind in relations])
        rows = pool.map(lambda relation: _rows(catalog, view, *relation), relations)
        return _table(view, [row for of_relation in rows for row in of_relation])


def _kinds(view: str) -> tuple[str, ...]:
    """Return the kinds of relations that a view is about."""
    kinds = {"views": ("view",), "snapshots": ("table",), "files": ("table",)}
    return kinds.get(view, ("table", "view"))


def _table(view: str, rows: list[Row]) -> pa.Table:
    import pyarrow as pa

    types: Mapping[str, pa.DataType] = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map": pa.map_(pa.string(), pa.string()),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in VIEWS[view].items()])
    return pa.Table.from_pylist(rows, schema)


def _rows(catalog: IcebergCatalog, view: str, name: Name, kind: str) -> list[Row]:
    """Return a relation's rows; none if it has been dropped meanwhile."""
    metadata = catalog.metadata(name)
    if metadata is None:
        return []
    listed = _listed(catalog, name, kind)
    if view == "files":
        return [{**listed, **row} for row in _files(catalog, name, metadata)]
    of_relation: Mapping[str, Callable[[Metadata], Iterable[Row]]] = {
        "tables": _tables,
        "columns": _columns,
        "views": _views,
        "snapshots": _snapshots,
    }
    return [{**listed, **row} for row in of_relation[view](metadata)]


def _listed(catalog: IcebergCatalog, name: Name, kind: str) -> Row:
    is_table = kind == "table"
    return {
        "table_catalog": catalog.name,
        "table_schema": name[0],
        "table_name": name[1],
        "table_type": "BASE TABLE" if is_table else "VIEW",
        "is_insertable_into": "YES" if is_table else "NO",
    }


def _tables(metadata: Metadata) -> list[Row]:
    row: Row = {
        "comment": _comment(metadata),
        "location": metadata["location"],
        "format_version": metadata["format-version"],
    }
    if "versions" in metadata:
        current = metadata["current-version-id"]
        version = next(v for v in metadata["versions"] if v["version-id"] == current)
        return [{**row, "last_altered": _utc(version["timestamp-ms"])}]
    row["last_altered"] = _utc(metadata["last-updated-ms"])
    if (snapshot := current_snapshot(metadata)) is not None:
        row["snapshot_id"] = snapshot.snapshot_id
        counts = {column: snapshot.properties.get(key) for column, key in SUMMARY.items()}
        row |= {column: int(count) for column, count in counts.items() if count is not None}
    return [row]


def _columns(metadata: Metadata) -> Iterator[Row]:
    for position, field in enumerate(fields(metadata), 1):
        default = field.get("write-default")
        yield {
            "column_name": field["name"],
            "ordinal_position": position,
            "column_default": None if default is None else str(default),
            "is_nullable": "NO" if field.get("required") else "YES",
            "data_type": spark_type(field["type"]),
            "comment": field.get("doc"),
        }


def _views(metadata: Metadata) -> list[Row]:
    return [
        {
            "view_definition": view_query(metadata),
            "check_option": "NONE",
            "is_updatable": "NO",
            "comment": _comment(metadata),
        }
    ]


def _snapshots(metadata: Metadata) -> Iterator[Row]:
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
    for snapshot in snapshots(metadata):
        yield {
            "snapshot_id": snapshot.snapshot_id,
            "parent_id": parents[snapshot.snapshot_id],
            "committed_at": _utc(snapshot.timestamp_ms),
            "operation": snapshot.operation,
            "is_current": snapshot.snapshot_id == metadata.get("current-snapshot-id"),
            "summary": list(snapshot.properties.items()),
        }


def _files(catalog: IcebergCatalog, name: Name, metadata: Metadata) -> list[Row]:
    """Return the files of a table's current snapshot, which its manifests list."""
    if current_snapshot(metadata) is None:
        return []
    files = catalog.table(name).inspect.files()
    columns = [column for column in VIEWS["files"] if column not in RELATION]
    return [dict(row) for row in files.select(columns).to_pylist()]


def _comment(metadata: Metadata) -> str | None:
    return (metadata.get("properties") or {}).get("comment")


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
