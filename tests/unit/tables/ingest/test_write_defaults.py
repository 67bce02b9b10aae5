"""Columns that the rows of an ingest lack and that have a default (spec, "Default values")."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, UUIDType

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
