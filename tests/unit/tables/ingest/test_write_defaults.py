"""Columns that the rows of an ingest lack and that have a default (spec, "Default values")."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import ingest
from tests.unit.local_tables import NAME, evolve, make_table, rows

ID = UUID(int=7)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "x", StringType(), required=True, write_default="new", initial_default="old"),
    NestedField(3, "d", DecimalType(9, 2), required=False, write_default=Decimal("1.50")),
    NestedField(4, "u", UUIDType(), required=False, write_default=ID),
    NestedField(5, "n", LongType(), required=False),
    schema_id=1,
)


def test_defaults_are_written(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    # PyIceberg creates tables without defaults.
    evolve(lake, SCHEMA)
    ingest(lake, NAME, pa.table({"id": [1]}).to_reader())
    # A null is a value.
    given = pa.table({"id": [2], "x": ["y"], "d": pa.array([None], pa.decimal128(9, 2))})
    ingest(lake, NAME, given.to_reader())
    assert rows(lake) == [(1, "new", Decimal("1.50"), ID, None), (2, "y", None, ID, None)]


def point_of(number: int) -> StructType:
    return StructType(
        NestedField(number, "x", LongType(), required=False),
        NestedField(number + 1, "y", LongType(), required=False, write_default=7),
    )


NESTED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(
        2, "s", StructType(NestedField(10, "p", point_of(11), required=False)), required=False
    ),
    NestedField(3, "l", ListType(20, point_of(21), False), required=False),
    NestedField(4, "m", MapType(30, StringType(), 31, point_of(32), False), required=False),
    schema_id=1,
)


def test_defaults_of_fields_are_written(lake: IcebergCatalog) -> None:
    """In structs within structs, lists and maps; where the struct is null, it stays null."""
    make_table(lake, 3)
    evolve(lake, NESTED)
    point = pa.struct({"x": pa.int64()})
    given = {
        "id": pa.array([1, 2, 3]),
        "s": pa.array([{"p": {"x": 1}}, {"p": None}, None], pa.struct({"p": point})),
        "l": pa.array([[{"x": 1}, None], [], None], pa.list_(point)),
        "m": pa.array([[("a", {"x": 1}), ("b", None)], [], None], pa.map_(pa.string(), point)),
    }
    # Neither may an offset into a larger array mix up rows.
    ingest(lake, NAME, pa.table(given).slice(1).to_reader())
    ingest(lake, NAME, pa.table(given).slice(0, 1).to_reader())
    folder = Path(lake.table(NAME).location().removeprefix("file://")) / "data"
    written = pa.concat_tables(pq.read_table(path) for path in folder.glob("*.parquet"))
    filled = {"x": 1, "y": 7}
    assert [tuple(row.values()) for row in written.sort_by("id").to_pylist()] == [
        (1, {"p": filled}, [filled, None], [("a", filled), ("b", None)]),
        (2, {"p": None}, [], []),
        (3, None, None, None),
    ]
