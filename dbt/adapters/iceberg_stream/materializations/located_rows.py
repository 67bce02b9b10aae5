"""Let Spark locate the rows of a merge whose SQL conditions only it can evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.located import (
    FILE,
    INSERTS,
    MAY_UPDATE,
    POS,
    UPDATES,
    Locate,
    Located,
)
from dbt.adapters.iceberg_stream.tables.merge.rows import Source


def source_query(staging: BaseRelation, plan: Mapping[str, Any]) -> str:
    """Return the query of a merge's source, with flags if conditions decide about its rows.

    Args:
        staging: the new rows.
        plan: the plan of the macro `get_plan`.
    """
    flags = {INSERTS: plan.get("insert_when"), MAY_UPDATE: plan.get("matched_source_when")}
    columns = [f"coalesce({sql}, false) as {name}" for name, sql in flags.items() if sql]
    if not columns:
        return f"select * from {staging}"
    return f"select *, {', '.join(columns)} from {staging} as {plan['source']}"


def locator(
    context: MaterializationContext,
    relation: BaseRelation,
    staging: BaseRelation,
    plan: Mapping[str, Any],
    deletes: Deletes,
) -> Locate:
    """Return a function that lets Spark locate the rows that a merge changes.

    Spark reads the columns of the conditions only, of files that its planning does not skip.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        staging: the new rows, which stay the same.
        plan: the plan of the macro `get_plan`.
        deletes: which rows are deleted.
    """
    name = context.catalogs.qualified(context.catalog.name, table_name(relation))
    target, source = plan["target"], plan["source"]
    rows = f"{target}._file as {FILE}, {target}._pos as {POS}"

    def locate(base: LoadedTable, of_source: Source) -> Located:
        version = _version(base.metadata, getattr(relation, "branch", None) or MAIN)
        if version is None:
            return Located(of_source)
        table = f"{'.'.join(map(quote, name))} version as of {version} as {target}"
        pairs = f"{plan.get('keys') or staging} as {source} on {plan['on']}"
        if deletes is Deletes.MATCHED:
            query = f"select {rows} from {table} left semi join {pairs}"
            return Located(of_source, deleted=context.session().query(query))
        keys = "".join(f", {source}.{quote(key)} as {quote(key)}" for key in of_source.keys)
        condition = plan.get("matched_when") or "true"
        query = f"select {rows}{keys}, coalesce({condition}, false) as {UPDATES} from {table}"
        matches = context.session().query(f"{query} join {pairs}")
        if deletes is not Deletes.UNMATCHED:
            return Located(of_source, matches)
        condition = plan.get("source_when") or "true"
        query = f"select {rows} from {table} left anti join {pairs} where {condition}"
        return Located(of_source, matches, context.session().query(query))

    return locate


def _version(metadata: Metadata, branch: str) -> int | None:
    """Return the id of the snapshot to read; None for an empty branch."""
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return None
    if snapshot.get("schema-id") != metadata["current-schema-id"]:
        raise NotByRewriting(
            "a condition may need columns that have changed since the last snapshot"
        )
    return int(snapshot["snapshot-id"])
