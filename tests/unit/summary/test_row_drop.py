from __future__ import annotations

from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config
from dbt.adapters.iceberg_stream.summary.changes import Changes
from dbt.adapters.iceberg_stream.summary.row_drop import check_row_drop
from tests.unit.tables.commit.test_table_change import outcome

NAME = ("shop", "orders")


def model(**config: Any) -> dict[str, Any]:
    return {"unique_id": "model.shop.orders", "config": {"materialized": "table", **config}}


def warning(limit: Any, before: int | None, after: int | None) -> tuple[str, bool]:
    changes = Changes()
    changes.record(NAME, outcome(before, after, 0, 1))
    text = check_row_drop(changes, NAME, model(warn_row_drop=limit)) or ""
    return text, changes.get(NAME).is_warned


@pytest.mark.parametrize(
    ("limit", "before", "after"),
    [
        (None, 9, 0),
        (0.1, 100, 90),
        (0, 9, 9),
        (0, 9, 10),
        (0.1, 0, 5),
        (0.1, 0, 0),
        (0.3, 100, 70),
        (0.7, 10, 3),
    ],
)
def test_no_warning(limit: float | None, before: int, after: int) -> None:
    assert warning(limit, before, after) == ("", False)


@pytest.mark.parametrize(("limit", "after"), [(0.1, 8_999), (0, 9_999), (0.99, 0)])
def test_a_warning(limit: float, after: int) -> None:
    text, is_warned = warning(limit, 10_000, after)
    assert f"it had 10,000 before this run and has {after:,} now (`warn_row_drop: {limit}`" in text
    assert is_warned


def test_rows_that_metadata_cannot_count() -> None:
    text, _ = warning(0.1, 10, None)
    assert "shop.orders has equality deletes" in text


def test_a_run_without_a_commit() -> None:
    assert check_row_drop(Changes(), NAME, model(warn_row_drop=0)) is None


@pytest.mark.parametrize("share", [0, 0.1, 0.999])
def test_shares(share: float) -> None:
    check_model_config(model(warn_row_drop=share))


@pytest.mark.parametrize("share", [1, 10, -0.1, "0.1", "10%", True, float("nan")])
def test_no_shares(share: Any) -> None:
    with pytest.raises(CompilationError, match="`warn_row_drop` must be a share of the rows"):
        check_model_config(model(warn_row_drop=share))


def test_microbatch() -> None:
    config = {"materialized": "incremental", "incremental_strategy": "microbatch"}
    with pytest.raises(CompilationError, match="use the data test `row_drop`"):
        check_model_config(model(**config, warn_row_drop=0.1))


def test_a_misspelled_option() -> None:
    with pytest.raises(CompilationError, match="did you mean `warn_row_drop`"):
        check_model_config(model(warn_row_drops=0.1))
