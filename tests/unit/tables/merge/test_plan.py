from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.tables.merge.layout import sorted_by
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, why_spark
from tests.unit.local_tables import data_file, make_catalog, make_table

INNER = iceberg.StructType(iceberg.NestedField(3, "n", iceberg.LongType(), required=False))
SCHEMA = Schema(
    iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
    iceberg.NestedField(2, "s", INNER, required=False),
    iceberg.NestedField(4, "x", iceberg.StringType(), required=False),
)


def order(number: int, *sources: int) -> dict[str, Any]:
    fields = [
        {"source-id": s, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
        for s in sources
    ]
    return {"order-id": number, "fields": fields}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (None, set()),
        (0, set()),
        (1, {"x"}),
        (2, {"id", "x"}),
        (3, {"s", "s.n"}),
        (4, set()),  # of a column that is gone
        (5, set()),
    ],
)
def test_columns_that_an_order_goes_by(number: int | None, expected: set[str]) -> None:
    metadata = {
        "schemas": [SCHEMA.model_dump(by_alias=True, mode="json")],
        "current-schema-id": 0,
        "sort-orders": [order(0), order(1, 4), order(2, 1, 4), order(3, 3), order(4, 9)],
    }
    assert sorted_by(metadata, data_file("a", sort_order_id=number)) == expected


def field(number: int, name: str, kind: Any = "int", **others: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind, **others}


MAP = {
    "type": "map",
    **{"key-id": 3, "key": "int", "value-id": 4, "value": "int", "value-required": False},
}
VARIANTS = {"type": "list", "element-id": 3, "element": "variant", "element-required": False}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (field(2, "variant", doc="variant"), None),
        (field(2, "initial-default", doc="initial-default"), None),
        (field(2, "s", {"type": "struct", "fields": [field(3, "variant")]}), None),
        (field(2, "v", "variant"), "a column has the type variant"),
        (field(2, "v", VARIANTS), "a column has the type variant"),
        (field(2, "m", MAP), None),
    ],
)
def test_columns_that_only_spark_merges(
    tmp_path: Path, column: dict[str, Any], reason: str | None
) -> None:
    """It is types that count, not names and comments."""
    schema = {"type": "struct", "schema-id": 0, "fields": [field(1, "id"), column]}
    metadata = {**make_table(make_catalog(tmp_path)).metadata, "schemas": [schema]}
    plan = MergePlan(("id",), (column["name"],), inserts=True)
    assert why_spark(plan, {}, False, metadata) == reason


@pytest.mark.parametrize(
    ("transform", "now", "reason"),
    [
        ("identity", "timestamp", "partitions of d are of the time when it was a date"),
        ("bucket[4]", "timestamp", "partitions of d are of the time when it was a date"),
        ("identity", "date", None),
        ("month", "timestamp", None),
    ],
)
def test_partitions_of_a_former_date(
    tmp_path: Path, transform: str, now: str, reason: str | None
) -> None:
    """Other writers may promote such a column although the specification forbids it."""
    schemas = [
        {"type": "struct", "schema-id": n, "fields": [field(1, "id"), field(2, "d", kind)]}
        for n, kind in enumerate(("date", now))
    ]
    part = {"source-id": 2, "field-id": 1000, "name": "p", "transform": transform}
    metadata = {
        **make_table(make_catalog(tmp_path)).metadata,
        **{"schemas": schemas, "current-schema-id": 1},
        "partition-specs": [{"spec-id": 0, "fields": [part]}],
    }
    assert why_spark(MergePlan(("id",), ("d",), True), {}, False, metadata) == reason
