from __future__ import annotations

from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.errors.wrong_values import misspelled
from dbt.adapters.iceberg_stream.materializations.model_config import (
    check_model_config,
    check_named_columns,
    names_unknown_updates,
)
from dbt.adapters.iceberg_stream.materializations.strategies import (
    OPTIONS,
    incremental_errors,
)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"unique_key": "id"},
        {"unique_key": "id", "matched_condition": "t.a > s.a", "target_alias": "t"},
        {"unique_key": "id", "not_matched_by_source_action": "update set t.gone = true"},
        {"incremental_strategy": "merge", "merge_exclude_columns": ["a"], "merge_engine": "spark"},
        {"unique_key": "id", "incremental_strategy": "delete+insert", "merge_engine": "rewrite"},
        {"incremental_strategy": "my_own", "merge_update_columns": ["a"]},
    ],
)
def test_good_configs(config: dict[str, Any]) -> None:
    assert incremental_errors(config) == []


@pytest.mark.parametrize(
    "config",
    [
        {"incremental_strategy": "delete+insert"},
        {"incremental_strategy": "append", "merge_engine": "rewrite"},
        {"incremental_strategy": "merge", "not_matched_by_source_action": "delete"},
        {"unique_key": "id", "not_matched_by_source_action": "drop"},
        {"unique_key": "id", "not_matched_by_source_condition": "true"},
        {"unique_key": "id", "skip_matched_step": True, "skip_not_matched_step": True},
        {"unique_key": "id", "skip_matched_step": True, "matched_condition": "true"},
    ],
)
def test_bad_configs(config: dict[str, Any]) -> None:
    assert len(incremental_errors(config)) == 1


def test_only_slips_of_the_pen_are_misspellings() -> None:
    assert misspelled({"uniqe_key": 1}, OPTIONS) == [
        "unknown config `uniqe_key`: did you mean `unique_key`?"
    ]
    assert misspelled({"my_setting": 1, "tags": [], "schema": "x"}, OPTIONS) == []


def test_one_error_with_all_faults() -> None:
    model = {
        "unique_id": "model.p.m",
        "config": {"format_version": 9, "grants": {"select": ["x"]}, "file_format": "delta"},
    }
    with pytest.raises(CompilationError) as raised:
        check_model_config(model)
    text = str(raised.value)
    assert "model.p.m" in text
    assert text.count("\n  - ") + text.count("\n    - ") == 3


def test_key_columns_are_found_whatever_their_case_or_quotes() -> None:
    model = {"unique_id": "model.p.m", "config": {"unique_key": ["ID", "`the key`"]}}
    check_named_columns(model, ["id", "the key"], [])


@pytest.mark.parametrize("key", ["merge_update_columns", "merge_exclude_columns"])
@pytest.mark.parametrize("value", ["nmae", ["NAME", "`nmae`"]])
def test_misspelled_columns_of_a_merge(key: str, value: Any) -> None:
    config = {"unique_key": "id", key: value}
    model = {"unique_id": "model.p.m", "config": config}
    assert names_unknown_updates(model, ["id", "name"])
    with pytest.raises(CompilationError, match=f"`{key}` of model.p.m names .*nmae"):
        check_named_columns(model, ["id", "name"], [])
    # The table may still have a column that the query no longer returns.
    check_named_columns(model, ["id", "name"], ["id", "nmae"])
    # Other strategies refuse the options.
    config["incremental_strategy"] = "delete+insert"
    check_named_columns(model, ["id", "name"], [])
