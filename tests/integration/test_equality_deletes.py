"""Equality deletes as Iceberg's own reader applies them, before and after their conversion."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from tests.unit.delete_histories import STEPS, History


def spark_numbers(spark: Session, history: History) -> list[int]:
    name = ".".join(history.name)
    spark.run(f"refresh table {name}")
    return [row["n"] for row in spark.rows(f"select n from {name} order by n").to_pylist()]


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS)
def test_spark_agrees(
    lake: IcebergCatalog, spark: Session, version: int, steps: list[tuple[str, Any]]
) -> None:
    history = History(lake, version, ("s", f"t{uuid.uuid4().hex[:8]}"))
    for step, argument in steps:
        getattr(history, step)(argument)
    assert spark_numbers(spark, history) == sorted(history.live)
    history.convert()
    history.check()
    assert spark_numbers(spark, history) == sorted(history.live)
