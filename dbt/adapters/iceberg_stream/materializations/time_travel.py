"""Queries that read earlier versions: `ref(…).at(…)`, `source(…).at(…)`, the config `read_at`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Any

from dbt.adapters.contracts.relation import RelationType
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import (
    TableVersion,
    load_table,
    parse_time,
    unknown_version,
    version_at,
    version_of,
)
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.relation import (
    POINTER,
    IcebergStreamRelation,
    published_name,
    table_name,
)
from dbt.adapters.iceberg_stream.sql.queries import reads
from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.sql.versions import at_snapshots, tables_without_version

VERSION, TAG, BRANCH, SNAPSHOT_ID, TIMESTAMP = KEYWORDS = (
    "version", "tag", "branch", "snapshot_id", "timestamp",
)  # fmt: skip

READ_AT = "read_at"


def at_version(
    catalogs: Catalogs,
    relation: IcebergStreamRelation,
    versions: Mapping[str, Any],
    node: Mapping[str, Any],
    option: str = "at",
) -> IcebergStreamRelation:
    """Return a relation that renders with `version as of`.

    Args:
        catalogs: the profile's catalogs.
        relation: the relation.
        versions: the arguments of `at`; those that are None are ignored.
        node: the node whose SQL dbt renders.
        option: what has the arguments, for messages.

    Returns:
        The relation in the version; itself without a version, and in unit tests, whose rows stand
        for any version.

    Raises:
        CompilationError: an argument is wrong, or there is no such version.
    """
    name = without_build(published_name(relation))
    place = f"`{option}` of `{'.'.join(name)}` in {node.get('unique_id', 'a macro')}"
    keyword, value = _argument(versions, place)
    if keyword is None or node.get("resource_type") == "unit_test":
        return relation
    if relation.type == RelationType.CTE or relation.schema is None:
        raise CompilationError(
            f"{place}: it is ephemeral or temporary, so it has no versions. Materialize it as a "
            "table, or use `at` where its query reads a table."
        )
    catalog = catalogs.get(relation.database)
    try:
        table = replace(load_table(catalog, table_name(relation)), name=name)
        version = _find(table, keyword, value)
    except DiffError as error:
        raise CompilationError(f"{place}: {error.msg}") from error
    return relation.replace(as_of=_literal(version))


def read_at(
    catalogs: Catalogs, sql: str, own: IcebergStreamRelation, model: Mapping[str, Any]
) -> str:
    """Return a model's query, reading each table in the version of the model's config `read_at`.

    Args:
        catalogs: the profile's catalogs.
        sql: the query; it may itself read tables in versions, which stay.
        own: the model's relation, which the query reads in its current version.
        model: the model's node in dbt's graph.

    Raises:
        CompilationError: a table has no such version, or the query is not understood.
    """
    if str(model["unique_id"]).endswith(POINTER):
        return sql
    versions = _versions(model["config"].get(READ_AT))
    if all(value is None for value in versions.values()):
        return sql
    if reads(sql) is None:
        raise CompilationError(
            f"`{READ_AT}` of {model['unique_id']}: the adapter cannot tell which tables the query "
            "reads. Remove the config and use `{{ ref(…).at(…) }}` for each table."
        )
    offsets: dict[int, int | str] = {}
    for parts, ends in tables_without_version(sql).items():
        database, schema, identifier = (None, None, *parts)[-3:]
        if catalogs.find_qualified(parts) == catalogs.qualified(own.database, table_name(own)):
            continue
        relation = type(own).create(database=database, schema=schema, identifier=identifier)
        as_of = at_version(catalogs, relation, versions, model, READ_AT).as_of
        if as_of is not None:
            offsets |= dict.fromkeys(ends, as_of)
    return at_snapshots(sql, offsets)


def read_at_errors(model: Mapping[str, Any]) -> list[str]:
    """Return the errors of `read_at` that a model's config shows.

    Args:
        model: the model's node in dbt's graph.
    """
    config = model["config"]
    if (value := config.get(READ_AT)) is None:
        return []
    if config.get("materialized") == "stream":
        return [f"`{READ_AT}` cannot be used with `stream` models, which read changes: remove it"]
    if model.get("language") == "python":
        return [f"`{READ_AT}` cannot be used with Python models: read the version with Spark"]
    if unknown := [key for key in _versions(value) if key not in KEYWORDS]:
        return [
            f"`{READ_AT}` has the unknown key `{unknown[0]}`: give one of {', '.join(KEYWORDS)}"
        ]
    return []


def _versions(value: Any) -> Mapping[str, Any]:
    """Return the arguments of `at` that a config has: a version, or a mapping of one of them."""
    return value if isinstance(value, Mapping) else {VERSION: value}


def _argument(versions: Mapping[str, Any], place: str) -> tuple[str | None, Any]:
    """Return the one argument that has a value."""
    if unknown := sorted(set(versions) - set(KEYWORDS)):
        raise CompilationError(
            f"{place} has the unknown argument `{unknown[0]}`. Give one of {', '.join(KEYWORDS)}."
        )
    values = {keyword: value for keyword, value in versions.items() if value is not None}
    if len(values) > 1:
        raise CompilationError(
            f"{place} has {' and '.join(f'`{k}`' for k in values)}. Give one of them."
        )
    return next(iter(values.items()), (None, None))


def _find(table: LoadedTable, keyword: str, value: Any) -> TableVersion:
    """Return the version that an argument names."""
    text = value.isoformat() if isinstance(value, date) else str(value)
    kind = _kind(table, text)
    time = parse_time(text)
    if keyword == TIMESTAMP or (keyword == VERSION and kind == TIMESTAMP and time is not None):
        return _find_at(table, text, time)
    version = version_of(table, text) if keyword in (VERSION, kind) else None
    if version is None:
        raise DiffError(_mismatch(table, keyword, text, kind))
    if version.snapshot is None:
        raise DiffError(f"{version.name} has no snapshot yet. Build it first.")
    return version


def _find_at(table: LoadedTable, text: str, time: datetime | None) -> TableVersion:
    """Return the version at a time that has passed; commits still change what a later one reads."""
    if time is None:
        raise DiffError(f"{must_be(TIMESTAMP, text, 'a time such as 2026-01-31T12:00+00:00')}.")
    if time > (now := datetime.now(timezone.utc)):
        raise DiffError(
            f"{time.isoformat()} is in the future: it is {now.isoformat(timespec='seconds')} now. "
            "Give a time that has passed; a time without a time zone is in UTC."
        )
    return version_at(table, time)


def _kind(table: LoadedTable, text: str) -> str:
    """Return which argument of `at` takes a text, by what the table has."""
    reference = (table.metadata.get("refs") or {}).get(text)
    if reference is not None or text == MAIN:
        return TAG if (reference or {}).get("type") == TAG else BRANCH
    return SNAPSHOT_ID if text.isdecimal() else TIMESTAMP


def _mismatch(table: LoadedTable, keyword: str, text: str, kind: str) -> str:
    """Return why an argument names no version."""
    if kind in (TAG, BRANCH):
        return f"`{text}` is a {kind}, not a {keyword}. Write `{kind}='{text}'`."
    if keyword in (TAG, BRANCH):
        refs = table.metadata.get("refs") or {}
        names = sorted(name for name, ref in refs.items() if ref["type"] == keyword)
        has = f"It has {', '.join(names)}." if names else "It has none."
        return f"{'.'.join(table.name)} has no {keyword} `{text}`. {has}"
    return unknown_version(table, text)


def _literal(version: TableVersion) -> str:
    """Return a version in SQL: tags and branches by name, so that views follow them.

    Iceberg reads a name of digits as the id of a snapshot.
    """
    if version.ref and not version.ref.isdecimal():
        return literal(version.ref)
    return str(version.snapshot_id)
