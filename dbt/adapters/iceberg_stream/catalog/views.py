"""View metadata (Iceberg view specification)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

# Iceberg's default of `version.history.num-entries`.
VERSIONS_KEPT = 10


def current_version(metadata: Metadata) -> Mapping[str, Any]:
    """Return the current version of a view."""
    number = metadata["current-version-id"]
    return next(v for v in metadata["versions"] if v["version-id"] == number)


def last_change_ms(metadata: Metadata) -> int:
    """Return when a table or view was last changed, in milliseconds since 1970 (UTC).

    Args:
        metadata: of the table or view.
    """
    version = current_version(metadata) if "versions" in metadata else None
    return int(metadata["last-updated-ms"] if version is None else version["timestamp-ms"])


def current_schema(metadata: Metadata) -> Mapping[str, Any]:
    """Return the schema of a view's current version."""
    number = current_version(metadata)["schema-id"]
    return next(s for s in metadata["schemas"] if s["schema-id"] == number)


def view_query(metadata: Metadata) -> str:
    """Return the SQL of a view's current version."""
    representations = current_version(metadata)["representations"]
    return next(str(r["sql"]) for r in representations if r["type"] == "sql")


def with_query(metadata: Metadata, sql: str) -> Metadata:
    """Return view metadata whose current version has another query.

    Args:
        metadata: metadata of the view.
        sql: the query.
    """
    version = current_version(metadata)
    representations = [
        {**r, "sql": sql} if r["type"] == "sql" else r for r in version["representations"]
    ]
    changed = {**version, "representations": representations}
    versions = [changed if v is version else v for v in metadata["versions"]]
    return {**metadata, "versions": versions}


def same_view(one: Metadata, other: Metadata) -> bool:
    """Return whether readers of two views see the same columns, comments and rows.

    Args:
        one: metadata of a view.
        other: metadata of another one, or of a table.
    """
    if "versions" not in other:
        return False
    keys = ("representations", "default-namespace", "default-catalog")
    one_version, other_version = current_version(one), current_version(other)
    return (
        all(one_version.get(key) == other_version.get(key) for key in keys)
        and current_schema(one)["fields"] == current_schema(other)["fields"]
        and _comments(one) == _comments(other)
    )


def _comments(metadata: Metadata) -> dict[str, str]:
    # Spark adds the version of the engine, and catalogs add settings of their own.
    properties = metadata.get("properties") or {}
    return {k: v for k, v in properties.items() if not k.startswith("engine_")}


def new_view(version: Metadata, current: Metadata | None, location: str) -> dict[str, Any]:
    """Return metadata of a view after it is created or replaced.

    Args:
        version: metadata whose current version, schema and properties the view gets.
        current: metadata of the view that is replaced; None for a new view.
        location: folder of a new view.
    """
    now = int(time.time() * 1000)
    older: Metadata = current or {"schemas": [], "versions": [], "version-log": []}
    schema_id = max((s["schema-id"] for s in older["schemas"]), default=-1) + 1
    number = max((v["version-id"] for v in older["versions"]), default=0) + 1
    new = {**current_version(version), "version-id": number, "schema-id": schema_id}
    versions = [*older["versions"], {**new, "timestamp-ms": now}][-VERSIONS_KEPT:]
    used = {v["schema-id"] for v in versions}
    schemas = [*older["schemas"], {**current_schema(version), "schema-id": schema_id}]
    kept = {v["version-id"] for v in versions}
    log = [*older["version-log"], {"timestamp-ms": now, "version-id": number}]
    return {
        "view-uuid": older.get("view-uuid") or str(uuid.uuid4()),
        "format-version": 1,
        "location": older.get("location") or location,
        "schemas": [s for s in schemas if s["schema-id"] in used],
        "current-version-id": number,
        "versions": versions,
        "version-log": [entry for entry in log if entry["version-id"] in kept],
        "properties": dict(version.get("properties") or {}),
    }


def view_location(metadata: Metadata) -> str:
    """Return a unique location for a view's next metadata file."""
    version = f"{metadata['current-version-id']:05}-{uuid.uuid4()}"
    return f"{metadata['location']}/metadata/{version}.metadata.json"
