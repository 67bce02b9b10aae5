"""Merge incremental models and change rows by key, by rewriting files or with Spark's MERGE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import DbtDatabaseError, DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.located_rows import locator, source_query
from dbt.adapters.iceberg_stream.materializations.merge_plan import TableColumns, plan_of
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.merge import (
    MergeClauses,
    is_changed_sql,
    keys_match_sql,
    merge_sql,
)
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.statements import split
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    new_write_id,
    snapshot_properties,
)
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.engine import DuplicateKeys, MergeResult, merge
from dbt.adapters.iceberg_stream.tables.merge.located import Locate
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, sql_options
from dbt.adapters.iceberg_stream.tables.merge.spark_tasks import MOST_BYTES, on_cluster
from dbt.adapters.iceberg_stream.tables.merge.threads import in_threads

if TYPE_CHECKING:
    import pyarrow as pa

MOST_PREVIEWED_BYTES = 64 * 1024 * 1024
OUT_OF_REACH = "the adapter does not reach the table's files"
logger = Logger()


def merge_by_rewrite(
    context: MaterializationContext,
    relation: BaseRelation,
    staging: BaseRelation,
    plan: Mapping[str, Any],
    model: Mapping[str, Any],
) -> IcebergStreamResponse:
    """Merge a staging table by rewriting files, unless Spark must run the merge.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        staging: the new rows.
        plan: the plan of the macro `get_plan`; `is_retried` if the rows may be staged once more.
        model: the model's node in dbt's graph.

    Returns:
        The commit; or the reason why Spark must run the merge.

    Raises:
        DbtRuntimeError: the config says `merge_engine: rewrite`, which cannot run this merge.
    """
    options = model["config"]
    engine = options.get("merge_engine") or "auto"
    if engine == "spark":
        return _run_by_spark("merge_engine is spark")
    metadata = context.catalog.metadata(table_name(relation), history=False)
    if engine == "auto" and not context.reach.includes(context.catalog.name, metadata):
        return _run_by_spark(OUT_OF_REACH)
    merge_plan = plan_of(context, metadata, plan, options)
    locate, by_sql = None, sql_options(options) or plan.get("matched_when")
    is_decided = merge_plan.condition is not None or merge_plan.updates_if is not None
    if by_sql and not is_decided and "range" not in plan:
        locate = locator(context, relation, staging, plan, merge_plan.deletes)
    query = source_query(staging, plan)
    result = _merge_query(context, relation, merge_plan, options, query, locate)
    if result.spark_because:
        if engine == "rewrite" and not plan.get("is_retried"):
            raise DbtRuntimeError(
                f"{model['unique_id']}: merge_engine is rewrite, but {result.spark_because}. Set "
                "`merge_engine: auto`, which lets Spark run the merge."
            )
        logger.debug(f"Spark runs the merge into {relation}: {result.spark_because}")
        return _run_by_spark(result.spark_because)
    return _response(relation, result)


def merge_rows(
    context: MaterializationContext,
    relation: BaseRelation,
    rows: pa.Table,
    check: ReadCheck,
    plan: MergePlan,
    options: Mapping[str, Any],
) -> IcebergStreamResponse | None:
    """Merge the rows that a model's query has returned.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        rows: the rows.
        check: what the query has read.
        plan: what the merge does.
        options: the model's config.

    Returns:
        The commit; None if Spark must merge the rows.

    Raises:
        DbtDatabaseError: the catalog, the storage or Spark refuses; nothing was written.
    """
    stream = lambda: iter([rows.schema, *rows.to_batches()])  # noqa: E731
    result = _merge(context, relation, plan, options, stream, check)
    return None if result.spark_because else _response(relation, result)


def change_rows(
    context: MaterializationContext,
    relation: BaseRelation,
    query: str,
    unique_key: str | Sequence[str] | None,
    action: str,
) -> IcebergStreamResponse:
    """Update or delete rows by key, by rewriting files or else with Spark's MERGE.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        query: returns the keys, and for updates the new values.
        unique_key: columns that identify a row.
        action: `update` (all columns of the query except the keys) or `delete`.

    Raises:
        DbtRuntimeError: the query has no column to update.
        DbtDatabaseError: the catalog, the storage or Spark refuses; nothing was written.
    """
    metadata = context.catalog.metadata(table_name(relation), history=False)
    columns = TableColumns(metadata)
    keys = columns.keys(unique_key)
    queries = split(query)
    if not keys or len(queries) != 1:
        raise DbtRuntimeError(f"{action}_rows of {relation} needs one query and a unique_key.")
    query = queries[0]
    with context.database_errors(query):
        selected = [columns.spelling(name) for name, _ in context.session().schema(query)]
    if action == "delete":
        plan = MergePlan(keys, (), False, Deletes.MATCHED)
    else:
        plan = MergePlan(keys, tuple(name for name in selected if name not in keys), False)
        if not plan.updates:
            raise DbtRuntimeError(
                f"update_rows of {relation}: the query returns only the keys "
                f"({', '.join(keys)}). Select the columns to update as well."
            )
    reason: str | None = OUT_OF_REACH
    if context.reach.includes(context.catalog.name, metadata):
        result = _merge_query(context, relation, plan, {}, query)
        if (reason := result.spark_because) is None:
            return _response(relation, result)
    response = context.execute(_merge_sql(relation, query, plan, columns))
    response.merge_engine, response.merge_engine_reason = "spark", reason
    return response


def spark_merge_sql(
    relation: BaseRelation,
    staging: BaseRelation,
    columns: Sequence[str],
    staged: Sequence[str],
    plan: Mapping[str, Any],
) -> str:
    """Return Spark's MERGE of a staging table into a table.

    Args:
        relation: the table.
        staging: the new rows.
        columns: names of the table's columns.
        staged: names of the new rows' columns.
        plan: the plan of the macro `get_plan`.
    """
    clauses = MergeClauses(
        on=plan["on"],
        target=plan["target"],
        source=plan["source"],
        updates=[column.name for column in plan["updated"]],
        update_when=plan["update_when"],
        inserts=columns if plan["inserts"] else (),
        insert_when=plan["insert_when"] or "",
        source_action=plan["source_action"] or "",
        source_when=plan["source_when"] or "",
    )
    return merge_sql(relation.render(), _spelled_as(columns, staging.render(), staged), clauses)


def _spelled_as(columns: Sequence[str], staging: str, staged: Sequence[str]) -> str:
    """Return what is merged, with its columns in the letter case of the table's.

    In a MERGE, Spark does not find columns of cached rows that a condition spells in another way.
    """
    spelling = {name.lower(): name for name in columns}
    pairs = [(name, spelling.get(name.lower(), name)) for name in staged]
    if all(name == spelled for name, spelled in pairs):
        return staging
    selected = ", ".join(f"{quote(name)} as {quote(spelled)}" for name, spelled in pairs)
    return f"(select {selected} from {staging})"


def is_previewed(metadata: Metadata | None, branch: str) -> bool:
    """Return whether a table is so small that a look at what a merge would change is cheap.

    Args:
        metadata: of the table.
        branch: that is merged into.
    """
    snapshot = parent_snapshot(metadata, branch) if metadata else None
    size = (snapshot or {}).get("summary", {}).get("total-files-size")
    return size is not None and int(size) <= MOST_PREVIEWED_BYTES


def check_increment(
    context: MaterializationContext, relation: BaseRelation, staging: BaseRelation
) -> None:
    """Check that an increment was not computed from a table that has changed since.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        staging: the new rows.

    Raises:
        DbtDatabaseError: it was, or the catalog refuses.
    """
    with context.database_errors(f"merge into {relation}"):
        check = context.read_check_of(f"select * from {staging}", relation)
        check.check_attempt(context.catalog.metadata(table_name(relation)))


def _merge_sql(relation: BaseRelation, query: str, plan: MergePlan, columns: TableColumns) -> str:
    target, source = MergeClauses.target, MergeClauses.source
    updates = [(name, columns.type_of(name)) for name in plan.updates]
    clauses = MergeClauses(
        on=keys_match_sql(plan.keys, target, source),
        updates=plan.updates,
        update_when=is_changed_sql(updates, target, source),
        deletes=plan.deletes is Deletes.MATCHED,
    )
    # The query may end with a comment, so the parenthesis is on a new line.
    return merge_sql(relation.render(), f"(\n{query}\n)", clauses)


def _merge_query(
    context: MaterializationContext,
    relation: BaseRelation,
    plan: MergePlan,
    options: Mapping[str, Any],
    query: str,
    locate: Locate | None = None,
) -> MergeResult:
    """Merge the rows of a query."""
    with context.database_errors(f"merge into {relation}"):
        check = context.read_check_of(query, relation)
    stream = lambda: context.session().stream(query)  # noqa: E731
    return _merge(context, relation, plan, options, stream, check, locate)


def _merge(
    context: MaterializationContext,
    relation: BaseRelation,
    plan: MergePlan,
    options: Mapping[str, Any],
    stream: Callable[[], Iterator[Any]],
    check: ReadCheck,
    locate: Locate | None = None,
) -> MergeResult:
    """Merge the rows of a stream."""
    name, write_id = table_name(relation), new_write_id()
    turn = context.merge_turn(relation) if plan.deletes is Deletes.SATISFYING else nullcontext()
    with context.database_errors(f"merge into {relation}"), turn:
        # On a cluster, Spark is closer to the files than this process.
        runner = on_cluster(partial(_map_in_arrow, context)) if context.is_remote else in_threads
        try:
            result = merge(
                context.catalog,
                name,
                plan,
                options,
                stream,
                write_id,
                snapshot_properties(write_id, context.principal),
                runner,
                getattr(relation, "branch", None),
                check,
                locate,
                MOST_BYTES if context.is_remote else None,
            )
        except DuplicateKeys:
            return MergeResult(
                spark_because="the new rows have duplicate keys, which Spark's error names"
            )
        except OSError as error:
            problem = f"files of {relation} cannot be read or written: {reason(error)}"
            if context.is_remote:
                # The cluster may reach what this process does not.
                context.reach.exclude(context.catalog.name)
                return MergeResult(spark_because=f"the {problem}")
            raise DbtDatabaseError(f"The {problem}") from error
    if result.outcome is not None:
        context.after_commit(name, result.outcome)
    return result


def _map_in_arrow(context: MaterializationContext, *arguments: Any) -> pa.Table:
    """Run Python in Spark's tasks; raises NotByRewriting if they refuse it."""
    try:
        return context.session().map_in_arrow(*arguments)
    except StatementError as error:
        context.check_canceled()
        if error.engine_gone:
            raise
        # Their Python may be another version, or have no PyArrow.
        context.reach.exclude(context.catalog.name)
        raise NotByRewriting(f"Spark's tasks failed: {str(error).splitlines()[0]}") from error


def _run_by_spark(reason: str) -> IcebergStreamResponse:
    return IcebergStreamResponse("", merge_engine="spark", merge_engine_reason=reason)


def _response(relation: BaseRelation, result: MergeResult) -> IcebergStreamResponse:
    name = ".".join(table_name(relation))
    if result.outcome is None:
        return IcebergStreamResponse(
            "MERGE 0 rows", code="MERGE", rows_affected=0, relation=name, merge_engine="rewrite"
        )
    return IcebergStreamResponse.of(result.outcome, "MERGE", name, merge_engine="rewrite")
