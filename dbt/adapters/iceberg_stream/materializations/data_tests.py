"""Data tests that read or compare versions of a table: `at`, `row_drop`, `unchanged_history`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import Any

from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import CompilationError
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.diff.errors import DiffError, Expired
from dbt.adapters.iceberg_stream.diff.version import (
    TableVersion,
    find_before_last_run,
    find_version,
)
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sql.merge import as_operand
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.summary.row_drop import is_share
from dbt.adapters.iceberg_stream.tables.commit.outcome import count_rows

INTERVAL = re.compile(r"\d+ (hour|day|week|month|year)s?")
# YAML reads an unquoted date as a date, and dbt writes it into the test's SQL as a subtraction.
YEARS = range(1, 10_000)


def relation_at(catalog: IcebergCatalog, relation: BaseRelation, at: Any) -> str:
    """Return the SQL that reads a relation in a version.

    Args:
        catalog: the profile's catalog.
        relation: what the test reads.
        at: a snapshot id, tag, branch or time.

    Raises:
        CompilationError: there is no such version.
    """
    version = _version(catalog, relation, "at", at)
    if version.snapshot is None:
        raise CompilationError(f"`at`: {version.label}, it has no rows to test.")
    return _sql(catalog, version)


def row_counts(
    catalog: IcebergCatalog,
    relation: BaseRelation,
    share: Any,
    since: Any,
    at: Any,
    where: str | None,
) -> Mapping[str, Any]:
    """Return the SQL that counts the rows of two versions, from metadata where they can tell.

    Args:
        catalog: the profile's catalog.
        relation: what the test reads.
        share: by how much the number of rows may drop.
        since: the earlier version; None for the one before the last run.
        at: the later version; None for the current one.
        where: counts only the rows for which this condition is true.

    Returns:
        `before` and `after`; `warning` if there is nothing to compare with.

    Raises:
        CompilationError: an argument is wrong.
    """
    if not is_share(share):
        raise CompilationError(must_be("share", share, "a number of at least 0 and less than 1"))
    try:
        before, after = _versions(catalog, relation, since, at)
    except Expired as error:
        return {"before": "0", "after": "0", "warning": f"`row_drop` compares nothing: {error}"}
    return {name: _count(catalog, v, where) for name, v in (("before", before), ("after", after))}


def closed_rows(
    catalog: IcebergCatalog,
    relation: BaseRelation,
    since: Any,
    at: Any,
    period: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Return the SQL that reads the rows of closed periods in two versions.

    Args:
        catalog: the profile's catalog.
        relation: what the test reads.
        since: the earlier version; None for the one before the last run.
        at: the later version; None for the current one.
        period: the arguments `column` and `older_than`, the config `where`, and
            `exclude_columns`.

    Returns:
        `before` and `after`, which are absent if both versions have the same rows, and `warning` if
        there is nothing to compare with.

    Raises:
        CompilationError: an argument is wrong.
    """
    closed = _closed(period)
    try:
        before, after = _versions(catalog, relation, since, at)
    except Expired as error:
        return {"warning": f"`unchanged_history` compares nothing: {error}"}
    excluded = _excluded(period.get("exclude_columns"), after)
    if before.snapshot is None or before.snapshot_id == after.snapshot_id:
        return {}
    conditions = [period["where"]] if period.get("where") else []
    if closed is not None:
        assert before.time is not None
        # Later rows could still change after the earlier version.
        end = f"timestamp_seconds({before.time.timestamp():.3f}) - interval {closed[1]}"
        conditions.append(f"{closed[0]} < {end}")
    where = " where " + " and ".join(map(as_operand, conditions)) if conditions else ""
    pairs = list(_columns(before, after, excluded))
    return {
        name: f"select {', '.join(columns)} from {_sql(catalog, version)}{where}"
        for name, version, columns in (
            ("before", before, [_comparable(old, new.name) for old, new in pairs]),
            ("after", after, [_comparable(new, new.name) for _, new in pairs]),
        )
    }


def _versions(
    catalog: IcebergCatalog, relation: BaseRelation, since: Any, at: Any
) -> tuple[TableVersion, TableVersion]:
    after = _version(catalog, relation, "at", at)
    if since is None:
        return find_before_last_run(after), after
    return _version(catalog, relation, "since", since), after


def _version(
    catalog: IcebergCatalog, relation: BaseRelation, option: str, version: Any
) -> TableVersion:
    if not isinstance(relation, BaseRelation) or relation.schema is None:
        raise CompilationError(
            f"{relation} is not a table of the catalog, so it has no versions. Test a table."
        )
    if isinstance(version, date) or (isinstance(version, int) and version in YEARS):
        raise CompilationError(
            f"`{option}` must be text, but YAML has read {version}: put a time in quotes, such as "
            f"`{option}: '2026-01-31'`."
        )
    with _naming(option if version is not None else ""):
        return find_version(
            catalog, table_name(relation), None if version is None else str(version)
        )


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Convert errors to those of dbt, which names the test; name the option."""
    try:
        yield
    except DiffError as error:
        raise CompilationError(f"`{option}`: {error.msg}" if option else error.msg) from error


def _sql(catalog: IcebergCatalog, version: TableVersion) -> str:
    name = ".".join(quote(part) for part in (catalog.name, *version.table.name))
    return f"{name} version as of {version.snapshot_id}"


def _count(catalog: IcebergCatalog, version: TableVersion, where: str | None) -> str:
    if version.snapshot is None:
        return "0"
    summary = version.snapshot.get("summary") or {}
    # Delete files can have the same row twice, or rows of files that are gone.
    if where is None and int(summary.get("total-delete-files") or 0) == 0:
        rows = count_rows(summary)
        if rows is not None:
            return str(rows)
    condition = f" where {as_operand(where)}" if where else ""
    return f"(select count(*) from {_sql(catalog, version)}{condition})"


def _closed(period: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the column and the interval of closed rows; None if all rows are compared."""
    column, interval = period.get("column"), period.get("older_than")
    if column is None and interval is None:
        return None
    if column is None or interval is None:
        given, missing = ("older_than", "column") if column is None else ("column", "older_than")
        raise CompilationError(
            f"`{missing}` is missing: `{given}` needs it. For another condition, set the config "
            "`where` instead of both."
        )
    if not INTERVAL.fullmatch(str(interval)):
        raise CompilationError(must_be("older_than", interval, "an interval such as 90 days"))
    return quote(str(column)), str(interval)


def _columns(
    before: TableVersion, after: TableVersion, excluded: set[str]
) -> Iterator[tuple[NestedField, NestedField]]:
    """Return the columns that both versions have: of one table by id, of two by name."""
    by_id = before.is_same_table(after)
    old = {f.field_id if by_id else f.name.lower(): f for f in before.schema.fields}
    for field in after.schema.fields:
        key = field.field_id if by_id else field.name.lower()
        if field.name.lower() not in excluded and key in old:
            yield old[key], field


def _excluded(names: Any, version: TableVersion) -> set[str]:
    """Return the columns that are not compared, in lower case."""
    excluded = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    columns = [field.name for field in version.schema.fields]
    lower = {column.lower() for column in columns}
    if missing := [name for name in excluded if name.lower() not in lower]:
        raise CompilationError(
            f"`exclude_columns` names {', '.join(f'`{name}`' for name in missing)}, which "
            f"{version.name} does not have. It has {', '.join(columns)}."
        )
    return {name.lower() for name in excluded}


def _comparable(field: NestedField, name: str) -> str:
    """Return a column as Spark can compare it: it refuses to compare maps."""
    value = quote(field.name)
    if isinstance(field.field_type, MapType) and not _has_map(field.field_type.value_type):
        value = f"array_sort(map_entries({value}))"
    elif _has_map(field.field_type):
        raise CompilationError(
            f"The column `{name}` has maps within it, which Spark cannot compare. Add it to "
            "`exclude_columns`."
        )
    return f"{value} as {quote(name)}"


def _has_map(kind: IcebergType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ListType):
        return _has_map(kind.element_type)
    return isinstance(kind, StructType) and any(_has_map(f.field_type) for f in kind.fields)
