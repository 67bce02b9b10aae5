"""Checks the options of incremental models, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of

STRATEGIES = ("append", "merge", "delete+insert", "insert_overwrite", "microbatch")
# Those whose rows the adapter can change by rewriting files.
REWRITING_STRATEGIES = ("merge", "delete+insert", "microbatch")
# Of a snapshot: all versions of a table that Iceberg still has.
HISTORY = "iceberg_history"
SCHEMA_CHANGES = ("ignore", "fail", "append_new_columns", "sync_all_columns")
MERGE_ENGINES = ("auto", "rewrite", "spark")
# Named as in dbt-databricks.
MERGE_OPTIONS = (
    "merge_update_columns",
    "merge_exclude_columns",
    "matched_condition",
    "not_matched_condition",
    "not_matched_by_source_action",
    "not_matched_by_source_condition",
    "skip_matched_step",
    "skip_not_matched_step",
    "target_alias",
    "source_alias",
)
TABLE_OPTIONS = (
    "partition_by",
    "sort_order",
    "distribution",
    "table_properties",
    "format_version",
    "location",
    "target_file_size",
    "merge_mode",
    "maintenance",
)
INCREMENTAL_OPTIONS = (
    "merge_engine",
    "unique_key",
    "incremental_strategy",
    "incremental_predicates",
    "on_schema_change",
)
FURTHER_OPTIONS = (
    "deterministic",
    "read_at",
    "read_deletes",
    "skip_unchanged",
    "tag_on_success",
    "warn_row_drop",
    "write_branch",
)
OPTIONS = (*MERGE_OPTIONS, *TABLE_OPTIONS, *INCREMENTAL_OPTIONS, *FURTHER_OPTIONS)
# Steps of a merge that need a key to match rows.
NEED_A_KEY = (
    "not_matched_condition",
    "not_matched_by_source_action",
    "not_matched_by_source_condition",
    "skip_not_matched_step",
)


def incremental_errors(config: Mapping[str, Any]) -> list[str]:
    """Return a message for each error in an incremental model's config.

    Args:
        config: the model's config.
    """
    errors = []
    strategy = config.get("incremental_strategy") or strategy_of(config)
    engine = config.get("merge_engine")
    if engine is not None and engine not in MERGE_ENGINES:
        errors.append(must_be_one_of("merge_engine", engine, MERGE_ENGINES))
    elif engine and strategy in STRATEGIES and strategy not in REWRITING_STRATEGIES:
        errors.append(
            "`merge_engine` can only be used with `incremental_strategy: merge`, "
            f"`delete+insert` or `microbatch`, not with {strategy}"
        )
    if strategy == "delete+insert" and not config.get("unique_key"):
        errors.append(
            f"`incremental_strategy: {strategy}` needs a `unique_key`: the columns that identify "
            "the rows to replace"
        )
    if strategy == "merge" and not config.get("unique_key"):
        errors += [f"`{key}` needs a `unique_key`" for key in NEED_A_KEY if config.get(key)]
    change = config.get("on_schema_change")
    if change is not None and change not in SCHEMA_CHANGES:
        errors.append(must_be_one_of("on_schema_change", change, SCHEMA_CHANGES))
    used = [key for key in MERGE_OPTIONS if config.get(key)]
    if used and strategy in STRATEGIES and strategy != "merge":
        errors.append(
            f"{', '.join(f'`{k}`' for k in used)} can only be used with "
            f"`incremental_strategy: merge`, not with {strategy}"
        )
    return errors + _merge_errors(config)


def strategy_of(config: Mapping[str, Any]) -> str:
    """Return a model's strategy; `merge` without a `unique_key` is `append`.

    Args:
        config: the model's config.
    """
    strategy = config.get("incremental_strategy") or "merge"
    return "append" if strategy == "merge" and not config.get("unique_key") else str(strategy)


def _merge_errors(config: Mapping[str, Any]) -> list[str]:
    errors = []

    def contradiction(first: str, second: str) -> None:
        if config.get(first) and config.get(second):
            errors.append(f"`{first}` and `{second}` contradict each other: use one of them")

    contradiction("merge_update_columns", "merge_exclude_columns")
    contradiction("skip_matched_step", "matched_condition")
    contradiction("skip_matched_step", "merge_update_columns")
    contradiction("skip_not_matched_step", "not_matched_condition")
    action = config.get("not_matched_by_source_action")
    if action and not _is_source_action(str(action)):
        errors.append(
            must_be_one_of("not_matched_by_source_action", action, ("delete", "update set …"))
        )
    if config.get("not_matched_by_source_condition") and not action:
        errors.append(
            "`not_matched_by_source_condition` needs `not_matched_by_source_action`: what to do "
            "with the rows that meet the condition"
        )
    if config.get("skip_matched_step") and config.get("skip_not_matched_step") and not action:
        errors.append(
            "`skip_matched_step` and `skip_not_matched_step` together leave nothing to do: use "
            "one of them"
        )
    return errors


def _is_source_action(action: str) -> bool:
    words = action.lower().split()
    return words == ["delete"] or words[:2] == ["update", "set"]
