import json

import pytest
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.catalog.types import spark_type


@pytest.mark.parametrize(
    ("iceberg", "spark"),
    [
        (LongType(), "bigint"),
        (TimestamptzType(), "timestamp"),
        (TimestampType(), "timestamp_ntz"),
        (DecimalType(10, 2), "decimal(10,2)"),
        (FixedType(4), "binary"),
        (UUIDType(), "string"),
        (ListType(1, LongType()), "array<bigint>"),
        (MapType(1, StringType(), 2, LongType()), "map<string,bigint>"),
        (
            StructType(NestedField(1, "a", LongType()), NestedField(2, "b", StringType())),
            "struct<a:bigint,b:string>",
        ),
    ],
)
def test_spark_type(iceberg: IcebergType, spark: str) -> None:
    field = json.loads(NestedField(1, "c", iceberg).model_dump_json())
    assert spark_type(field["type"]) == spark
