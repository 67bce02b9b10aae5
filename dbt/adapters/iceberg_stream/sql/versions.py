"""Reads tables of a query at snapshots, without changing anything else of its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.queries import DIALECT, NameParts, is_common_table


def tables_without_version(sql: str) -> dict[NameParts, list[int]]:
    """Return the tables that a query reads at their current version.

    Args:
        sql: the query.

    Returns:
        Offsets behind each mention of a table, by the parts of its name; none if the query is not
        understood.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return {}
    offsets: dict[NameParts, list[int]] = {}
    for name, offset in _mentions(tree):
        offsets.setdefault(name, []).append(offset)
    return offsets


def _mentions(tree: exp.Expr) -> Iterator[tuple[NameParts, int]]:
    for table in tree.find_all(exp.Table):
        parts = table.parts
        is_name = isinstance(table.this, exp.Identifier) and (
            len(parts) > 1 or not is_common_table(table)
        )
        end = parts[-1].meta.get("end") if is_name else None
        if end is not None and table.args.get("version") is None:
            yield tuple(part.name for part in parts), int(end) + 1


def at_snapshots(sql: str, snapshots: Mapping[int, int | str]) -> str:
    """Return a query that reads some tables in a version.

    Args:
        sql: the query.
        snapshots: ids of snapshots, or SQL literals of versions, by the offset behind the table's
            name.
    """
    for offset, snapshot_id in sorted(snapshots.items(), reverse=True):
        sql = f"{sql[:offset]} version as of {snapshot_id}{sql[offset:]}"
    return sql
