"""The options of incremental models, checked before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of

STRATEGIES = ("append", "merge", "delete+insert", "insert_overwrite", "microbatch")
SCHEMA_CHANGES = ("ignore", "fail", "append_new_columns", "sync_all_columns")
# The names that users of dbt-databricks know.
MERGE_ENGINES = ("auto", "rewrite", "spark")
MERGE_OPTIONS = (
    "merge_engine",
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
)
INCREMENTAL_OPTIONS = (
    "unique_key",
    "incremental_strategy",
    "incremental_predicates",
    "on_schema_change",
)
KNOWN = (*MERGE_OPTIONS, *TABLE_OPTIONS, *INCREMENTAL_OPTIONS)
# Steps of a merge that would have to know which rows are the same.
NEED_A_KEY = (
    "not_matched_condition",
    "not_matched_by_source_action",
    "not_matched_by_source_condition",
    "skip_not_matched_step",
)
# Similar enough to be a slip of the pen, and not a key that means something else.
SLIP = 0.85


def misspelled(config: Mapping[str, Any], known: Sequence[str] = KNOWN) -> list[str]:
    """Faults for keys that look like one of ours with a typing error."""
    faults = []
    for key in config:
        close = difflib.get_close_matches(key, known, n=1, cutoff=SLIP)
        if close and key not in known:
            faults.append(f"unknown config `{key}`: did you mean `{close[0]}`?")
    return faults


def incremental_faults(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with an incremental model's config, a line each."""
    faults = []
    strategy = config.get("incremental_strategy") or strategy_of(config)
    engine = config.get("merge_engine")
    if engine is not None and engine not in MERGE_ENGINES:
        faults.append(must_be_one_of("merge_engine", engine, MERGE_ENGINES))
    if strategy == "delete+insert" and not config.get("unique_key"):
        faults.append(
            f"`incremental_strategy: {strategy}` needs a `unique_key`: the columns that tell which "
            "row of the table a row of the model replaces"
        )
    if strategy == "merge" and not config.get("unique_key"):
        faults += [f"`{key}` needs a `unique_key`" for key in NEED_A_KEY if config.get(key)]
    change = config.get("on_schema_change")
    if change is not None and change not in SCHEMA_CHANGES:
        faults.append(must_be_one_of("on_schema_change", change, SCHEMA_CHANGES))
    used = [key for key in MERGE_OPTIONS if config.get(key)]
    if used and strategy in STRATEGIES and strategy != "merge":
        faults.append(
            f"{', '.join(f'`{k}`' for k in used)} can only be used with "
            f"`incremental_strategy: merge`, not with {strategy}"
        )
    return faults + _merge_faults(config)


def strategy_of(config: Mapping[str, Any]) -> str:
    """The strategy that a model is built with: without a key there is nothing to merge by."""
    named = config.get("incremental_strategy") or "merge"
    return "append" if named == "merge" and not config.get("unique_key") else str(named)


def _merge_faults(config: Mapping[str, Any]) -> list[str]:
    faults = []

    def contradiction(one: str, other: str) -> None:
        if config.get(one) and config.get(other):
            faults.append(f"`{one}` and `{other}` contradict each other: use one of them")

    contradiction("merge_update_columns", "merge_exclude_columns")
    contradiction("skip_matched_step", "matched_condition")
    contradiction("skip_matched_step", "merge_update_columns")
    contradiction("skip_not_matched_step", "not_matched_condition")
    action = config.get("not_matched_by_source_action")
    if action and not _is_source_action(str(action)):
        faults.append(
            must_be_one_of("not_matched_by_source_action", action, ("delete", "update set …"))
        )
    if config.get("not_matched_by_source_condition") and not action:
        faults.append(
            "`not_matched_by_source_condition` needs `not_matched_by_source_action`: what to do "
            "with the rows that fulfil it"
        )
    if config.get("skip_matched_step") and config.get("skip_not_matched_step") and not action:
        faults.append("`skip_matched_step` and `skip_not_matched_step` together leave no step")
    return faults


def _is_source_action(action: str) -> bool:
    words = action.lower().split()
    return words == ["delete"] or words[:2] == ["update", "set"]
