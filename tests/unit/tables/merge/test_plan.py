from __future__ import annotations

from typing import Any

import pytest
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.tables.merge.plan import sorted_by
from tests.unit.local_tables import data_file

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
