"""Names of types are those of pyspark."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from pyspark.sql.connect.proto import DataType
from pyspark.sql.connect.types import pyspark_types_to_proto_types

from dbt.adapters.iceberg_stream.engines.column_types import nested_types, sql_type

NESTED = t.StructType(
    [
        t.StructField("a b", t.ArrayType(t.DecimalType(38, 0))),
        t.StructField("m", t.MapType(t.StringType(), t.StructType([]))),
    ]
)
TYPES = [
    *(t.NullType(), t.BooleanType(), t.BinaryType(), t.ByteType(), t.ShortType()),
    *(t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType(), t.DecimalType(7, 2)),
    *(t.StringType(), t.StringType("UTF8_LCASE"), t.CharType(3), t.VarcharType(4)),
    *(t.DateType(), t.TimestampType(), t.TimestampNTZType(), t.TimeType(3)),
    *(t.DayTimeIntervalType(), t.DayTimeIntervalType(1, 2), t.DayTimeIntervalType(3, 3)),
    *(t.YearMonthIntervalType(), t.YearMonthIntervalType(1, 1), t.CalendarIntervalType()),
    *(t.VariantType(), t.GeometryType(4326), t.GeographyType("ANY"), NESTED),
]


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_names(data_type: t.DataType) -> None:
    assert sql_type(pyspark_types_to_proto_types(data_type)) == data_type.simpleString()


def test_parameters_that_are_left_out() -> None:
    message = DataType(decimal=DataType.Decimal())
    assert sql_type(message) == t.DecimalType().simpleString()
    assert sql_type(DataType(time=DataType.Time())) == t.TimeType().simpleString()


def test_nested_types() -> None:
    types = map(sql_type, nested_types(pyspark_types_to_proto_types(NESTED)))
    whole = NESTED.simpleString()
    inner = ["array<decimal(38,0)>", "decimal(38,0)", "map<string,struct<>>", "string", "struct<>"]
    assert list(types) == [whole, *inner]
