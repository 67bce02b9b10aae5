"""An incremental model's merge, done by rewriting files where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.events.contextvars import get_node_info
from dbt_common.exceptions import DbtRuntimeError
from dbt_common.invocation import get_invocation_id

from dbt.adapters.iceberg_stream.commit.stamps import new_write_id, stamps
from dbt.adapters.iceberg_stream.merge.engine import DuplicateKeys, MergeResult, merge
from dbt.adapters.iceberg_stream.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.merge.rewrite import in_threads
from dbt.adapters.iceberg_stream.merge.spark_tasks import in_tasks
from dbt.adapters.iceberg_stream.response import IcebergStreamResponse

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter

logger = AdapterLogger("Iceberg_Stream")


def merge_by_rewrite(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    staging: BaseRelation,
    plan: Mapping[str, Any],
    unique_key: str | Sequence[str],
    model: Mapping[str, Any],
) -> IcebergStreamResponse:
    """What was done, or why the merge is Spark's.

    Raises:
        DbtRuntimeError: `merge_engine: rewrite` was asked for and cannot do it.
    """
    options = model["config"]
    engine = options.get("merge_engine") or "auto"
    if engine == "spark":
        return _left_to_spark("merge_engine is spark")
    if engine == "auto" and adapter.config.credentials.method == "connect":
        return _left_to_spark("the files are nearer to the cluster")
    keys = [unique_key] if isinstance(unique_key, str) else list(unique_key)
    result = _merge(adapter, relation, staging, plan, keys, options)
    if result.spark_because:
        if engine == "rewrite":
            raise DbtRuntimeError(
                f"{model['unique_id']}: merge_engine is rewrite, but {result.spark_because}. Leave "
                "the merge to Spark: merge_engine: auto."
            )
        logger.debug(f"The merge into {relation} is Spark's: {result.spark_because}")
        return _left_to_spark(result.spark_because)
    if result.outcome is not None:
        adapter.connections.refresh_cached(relation.render())
    return _response(relation, result)


def _merge(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    staging: BaseRelation,
    plan: Mapping[str, Any],
    keys: list[str],
    options: Mapping[str, Any],
) -> MergeResult:
    name = str(relation.schema), str(relation.identifier)
    known = {column.name.lower(): column.name for column in adapter.lake.columns(name)}
    plain = [key.replace("`", "") for key in keys]
    merge_plan = MergePlan(
        # A key that is named twice is one key.
        tuple(dict.fromkeys(known.get(key.lower(), key) for key in plain)),
        tuple(known.get(column.name.lower(), column.name) for column in plan["updated"]),
        bool(plan["inserts"]),
        str(options.get("not_matched_by_source_action")).strip().lower() == "delete",
    )
    handle = adapter.connections.get_thread_connection().handle
    write_id, info = new_write_id(), get_node_info()
    node_id, model = str(info.get("unique_id") or ""), str(info.get("node_name") or "")
    said = stamps(write_id, get_invocation_id(), node_id, model, handle.principal)
    remote = adapter.config.credentials.method == "connect"
    # On a cluster the files are nearer to Spark than to this process.
    runner = in_tasks(handle.session.map_in_arrow) if remote else in_threads
    with adapter.connections.exception_handler(f"merge into {relation}"):
        handle.refresh_token()
        try:
            return merge(
                adapter.lake,
                name,
                merge_plan,
                options,
                lambda: handle.session.stream(f"select * from {staging}"),
                write_id,
                said,
                runner,
            )
        except DuplicateKeys:
            return MergeResult(spark_because="a key stands twice, which Spark's way names")


def _left_to_spark(reason: str) -> IcebergStreamResponse:
    return IcebergStreamResponse("", merge_engine="spark", merge_engine_reason=reason)


def _response(relation: BaseRelation, result: MergeResult) -> IcebergStreamResponse:
    place = f"{relation.schema}.{relation.identifier}"
    common: dict[str, Any] = {"code": "MERGE", "relation": place, "merge_engine": "rewrite"}
    if result.outcome is None:
        return IcebergStreamResponse("MERGE 0 rows", rows_affected=0, **common)
    done = asdict(result.outcome)
    done.pop("operation")
    message = f"MERGE {result.outcome.rows_affected:,} rows"
    return IcebergStreamResponse(message, **common, **done)
