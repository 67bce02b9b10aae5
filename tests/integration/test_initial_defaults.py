"""Columns with an initial default (spec, "Default values"), added to a table that streams read."""

from __future__ import annotations

import uuid
from datetime import date, datetime, timezone
from decimal import Decimal

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from tests.integration.replica import Replica, new_name

DEFAULTS = [
    (BooleanType(), True),
    (LongType(), 5),
    (DoubleType(), 0.5),
    (DecimalType(9, 2), Decimal("1.20")),
    (DateType(), date(2020, 2, 29)),
    (TimestampType(), datetime(2020, 2, 29, 1, 2, 3, 456)),
    (TimestamptzType(), datetime(2020, 2, 29, 1, 2, 3, 456, timezone.utc)),
    (StringType(), "it's a \\ text"),
    (UUIDType(), uuid.UUID(int=7)),
    (BinaryType(), b"\x00\xff"),
    (FixedType(2), b"\x00\xff"),
]


def add_columns_with_defaults(lake: IcebergCatalog, name: str) -> None:
    """A column of each type, one of them in the struct `s`; Spark has no statement for it."""
    base = lake.load(("s", name))
    assert base is not None
    old = base.metadata["schemas"][-1]
    schema = Schema.model_validate(old)
    added = [
        NestedField(100 + n, f"c{n}", kind, required=n == 1, initial_default=value)
        for n, (kind, value) in enumerate(DEFAULTS)
    ]
    fields = [
        field.model_copy(
            update={
                "field_type": StructType(
                    *field.field_type.fields,
                    NestedField(99, "z", IntegerType(), required=False, initial_default=9),
                )
            }
        )
        if isinstance(field.field_type, StructType)
        else field
        for field in schema.fields
    ]
    new = Schema(*fields, *added, schema_id=old["schema-id"] + 1)
    updates = (
        AddSchemaUpdate.model_validate({"schema": new}),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
    )
    lake.commit(base, (), updates)


def test_columns_with_an_initial_default(lake: IcebergCatalog, spark: Session) -> None:
    """Rows that are older than the column have it, in whatever way they are read."""
    name = new_name()
    spark.run(
        f"create table lake.s.{name} (id int, s struct<a: int>) "
        "tblproperties ('format-version' = '3')"
    )
    spark.run(f"insert into lake.s.{name} values (1, struct(1)), (2, null)")
    add_columns_with_defaults(lake, name)
    spark.run(f"refresh table lake.s.{name}")
    replica = Replica(lake, spark, name)
    assert len(replica.read()) == 2
    assert replica.rows[1][1] == {"a": 1, "z": 9}
    assert replica.rows[1][2:10] == tuple(value for _, value in DEFAULTS[:8])
    replica.expect_the_table()


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_changes_of_rows_with_an_initial_default(
    lake: IcebergCatalog, spark: Session, mode: str
) -> None:
    """Rows that a change leaves as they are have not changed: the default is theirs."""
    name = new_name()
    spark.run(
        f"create table lake.s.{name} (id int) tblproperties ('format-version' = '3', "
        f"'write.delete.mode' = '{mode}')"
    )
    spark.run(f"insert into lake.s.{name} select /*+ coalesce(1) */ * from values 0")
    replica = Replica(lake, spark, name)
    replica.read()
    spark.run(f"insert into lake.s.{name} select /*+ coalesce(1) */ * from values 1, 2, 3")
    add_columns_with_defaults(lake, name)
    spark.run(f"refresh table lake.s.{name}")
    spark.run(f"delete from lake.s.{name} where id = 3")
    taken = replica.read()
    assert sorted((row["id"], row["__stream"]["deleted"]) for row in taken) == [
        (1, False),
        (2, False),
        (3, False),
        (3, True),
    ]
    del replica.rows[0]
    spark.run(f"delete from lake.s.{name} where id = 0")
    replica.read()
    replica.expect_the_table()
    spark.run(f"delete from lake.s.{name} where id = 2")
    assert [(row["id"], row["c1"]) for row in replica.read()] == [(2, 5)]
