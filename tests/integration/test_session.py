"""Queries of which only few rows are wanted."""

from __future__ import annotations

import time

import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError


def test_few_rows(spark: Session) -> None:
    rows, schema = spark.few_rows("select id, 'x' as text from range(3)", 3, 10_000) or (None, None)
    assert rows is not None and rows.to_pylist() == [{"id": i, "text": "x"} for i in range(3)]
    assert schema is not None and schema.simpleString() == "struct<id:bigint,text:string>"


def test_no_rows_have_columns(spark: Session) -> None:
    rows, _ = spark.few_rows("select id, concat('a', id) as text from range(0)", 3, 1) or (
        None,
        None,
    )
    assert rows is not None and rows.column_names == ["id", "text"] and not rows.num_rows


@pytest.mark.parametrize(("most_rows", "most_bytes"), [(1_000, 1 << 40), (10_000, 100_000)])
def test_more_rows_are_not_fetched(spark: Session, most_rows: int, most_bytes: int) -> None:
    # The engine does not have the memory for all of them.
    endless = "select id, concat('a', id) as text from range(1000000000000)"
    assert spark.few_rows(endless, most_rows, most_bytes) is None
    assert spark.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_a_stream_that_is_not_read_to_its_end_is_ended(spark: Session) -> None:
    rows = spark.stream("select id, concat('a', id) as text from range(0, 2000000000, 1, 20000)")
    next(rows)
    assert next(rows).num_rows
    rows.close()  # type: ignore[attr-defined]
    time.sleep(3)
    assert not spark.interrupt()  # whether statements were running
    assert spark.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_errors_are_explained(spark: Session) -> None:
    with pytest.raises(StatementError, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.few_rows("select * from lake.s.nothing", 10, 10)
