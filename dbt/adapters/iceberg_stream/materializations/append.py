"""Appends small increments of incremental models without staging them."""

from __future__ import annotations

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.statements import split


def append_few_rows(
    context: MaterializationContext, relation: BaseRelation, query: str
) -> IcebergStreamResponse | None:
    """Append the rows of a model's query in this process, if they are few.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        query: returns the new rows; it runs once.

    Returns:
        The commit; None if Spark must append the rows, because they are many or it would write
        something else.

    Raises:
        DbtDatabaseError: the catalog, the storage or Spark refuses; nothing was written.
    """
    if context.is_remote or len(split(query)) != 1:
        return None
    name = table_name(relation)
    qualified = context.catalogs.qualified(context.catalog.name, name)
    with context.database_errors(query):
        outcome = context.append_few_rows(qualified, query, getattr(relation, "branch", None))
    if outcome is None:
        return None
    context.after_commit(name, outcome)
    return IcebergStreamResponse.of(outcome, "INSERT", ".".join(qualified))
