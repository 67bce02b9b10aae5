"""Random conditions on rows: PyArrow decides what Spark decides."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.materializations.row_condition import TYPES, row_condition
from dbt.adapters.iceberg_stream.tables.merge.candidates import may_satisfy
from dbt.adapters.iceberg_stream.tables.merge.conditions import Condition
from tests.unit.local_tables import data_file

ROWS, CONDITIONS = 40, 60
ICEBERG = (
    *(BooleanType(), IntegerType(), LongType(), DateType(), StringType()),
    *(TimestamptzType(), TimestampType()),
)
SCHEMA = Schema(
    *(
        NestedField(number, f"{kind}_column", of_iceberg, required=False)
        for number, (kind, of_iceberg) in enumerate(zip(TYPES, ICEBERG, strict=True), 1)
    )
)
# Types whose values PyIceberg has as numbers.
STORED = {"date": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.int64()}
VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "int": ["-2147483648", "-1", "0", "3", "2147483647"],
    "bigint": ["-9223372036854775808L", "0L", "3L", "5000000000L"],
    "date": ["date'0001-01-01'", "date'2026-01-30'", "date'2026-02-01'", "date'9999-12-31'"],
    "string": ["''", "'a'", "'b'", "'B'", "'aa'", "'ä'", "'z '"],
    "timestamp": ["timestamp'2026-03-29 00:30:00'", "timestamp'2026-03-29 03:30:00'"],
    "timestamp_ntz": ["timestamp_ntz'2026-03-29 02:30:00'", "timestamp_ntz'1969-12-31 23:59:59'"],
}
# Other constants of comparisons, which Spark computes or converts.
CONSTANTS: dict[str, list[str]] = {
    "boolean": ["(true)"],
    "int": ["1 + 2", "3L", "-(1)", "cast('3' as int)"],
    "bigint": ["3", "2 * 2"],
    "date": [
        "'2026-01-30'",
        "'2026-1-30'",
        "date_sub(date'2026-02-01', 2)",
        "current_date",
        "current_date()",
    ]
    + ["date'10000-01-01'", "date'0001-01-01' - interval 2 years"],
    "string": ["'b'"],
    "timestamp": [
        "timestamp'+10000-01-01 00:00:00'",
        "'2026-03-29 03:30:00'",
        "'2026-03-29 3:30'",
        "timestamp'2026-03-29 03:30:00+02:00'",
        "timestamp'2026-03-29 01:30:00+00:00'",
        "cast('2026-03-29 01:30:00+00:00' as timestamp)",
    ],
    "timestamp_ntz": [
        "'2026-03-29 02:30:00'",
        "'2026-03-29 2:30'",
        "date_trunc('DAY', timestamp_ntz'2026-03-29 01:00')",
    ],
}
OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">="]


def random_condition(rng: Random, depth: int = 2) -> str:
    if depth and rng.random() < 0.5:
        one, other = (random_condition(rng, depth - 1) for _ in range(2))
        return rng.choice([f"{one} and {other}", f"({one} or {other})", f"not ({one})"])
    kind = rng.choice(list(TYPES))
    column, constants = f"T.{kind}_column", VALUES[kind] + CONSTANTS[kind]
    one, other = rng.choice(constants), rng.choice(constants)
    return rng.choice(
        [
            f"{column} {rng.choice(OPERATORS)} {one}",
            f"{one} {rng.choice(OPERATORS)} {column}",
            f"{column} between {one} and {other}",
            f"{column} in ({one}, {other})",
            f"{column} not in ({one})",
            f"{column} is {rng.choice(['', 'not'])} null -- it's null",
        ]
    )


def column_of(name: str) -> tuple[str, str]:
    return name, name.removesuffix("_column")


def holds(condition: Condition, rows: pa.Table) -> list[bool | None]:
    values: list[bool | None] = condition.holds(rows).to_pylist()
    return values


@pytest.mark.parametrize(
    ("zone", "ansi"), [("UTC", "true"), ("Europe/Berlin", "true"), ("Europe/Berlin", "false")]
)
def test_conditions(spark: Session, zone: str, ansi: str) -> None:
    rng = Random(zone + ansi)
    rows = [
        f"({', '.join(rng.choice([*VALUES[kind], f'cast(null as {kind})']) for kind in TYPES)})"
        for _ in range(ROWS)
    ]
    before = spark.query("select current_timezone() as zone")["zone"][0].as_py()
    spark.configure({"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi})
    try:
        table = ", ".join(f"{kind}_column" for kind in TYPES)
        source = f"(values {', '.join(rows)}) as T ({table})"
        stored = spark.query(f"select * from {source}")
        stored = stored.cast(pa.schema(list(zip(stored.column_names, TYPES.values(), strict=True))))
        translated = {
            sql: condition
            for sql in (random_condition(rng) for _ in range(CONDITIONS))
            if (condition := row_condition([sql], "t", column_of, spark.query)) is not None
        }
        assert len(translated) > CONDITIONS / 2
        each = ", ".join(f"({sql}\n) as c{n}" for n, sql in enumerate(translated))
        expected = spark.query(f"select {each} from {source}")
        for (sql, condition), answers in zip(translated.items(), expected.columns, strict=True):
            assert (sql, holds(condition, stored)) == (sql, answers.to_pylist())
            for n in range(0, ROWS, 4):
                part = stored.slice(n, 4)
                if any(holds(condition, part)):
                    assert may_satisfy(condition, SCHEMA)(described(part)), sql
    finally:
        spark.configure({"spark.sql.session.timeZone": before, "spark.sql.ansi.enabled": "true"})


@pytest.mark.parametrize(
    "constant",
    [
        "timestamp'2026-01-31 00:00:00+00:00'",
        "timestamp('2026-01-31 00:00:00+00:00')",
        "cast('2026-01-31 00:00:00+00:00' as timestamp)",
        "'2026-01-31 00:00:00+00:00'",
    ],
)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_timestamps_without_zone_by_default(spark: Session, kind: str, constant: str) -> None:
    settings = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "America/New_York",
    }
    before = {name: spark.query(f"set {name}")["value"][0].as_py() for name in settings}
    sql, column = f"t.{kind}_column < {constant}", f"{kind}_column"
    value = {"timestamp": "timestamp_ltz", "timestamp_ntz": "timestamp_ntz"}[kind]
    rows = ", ".join(f"({value}'2026-01-30 {hour}:00:00')" for hour in range(17, 24))
    spark.configure(settings)
    try:
        rows = f"(values {rows}) as t ({column})"
        stored = spark.query(f"select * from {rows}").cast(pa.schema([(column, TYPES[kind])]))
        expected = spark.query(f"select {sql} as holds from {rows}")["holds"].to_pylist()
        condition = row_condition([sql], "t", column_of, spark.query)
        assert condition is None or holds(condition, stored) == expected
    finally:
        spark.configure(before)


def described(rows: pa.Table) -> DataFile:
    """Return the descriptor that a file with these rows has."""
    bounds: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    nulls = {}
    for field in SCHEMA.fields:
        values = rows[field.name].combine_chunks()
        nulls[field.field_id] = values.null_count
        stored = values.cast(STORED.get(str(field.field_type), values.type)).drop_null().to_pylist()
        for found, of_bounds in zip((min, max), bounds, strict=True):
            if stored:
                of_bounds[field.field_id] = to_bytes(field.field_type, found(stored))
    counts = dict.fromkeys(nulls, rows.num_rows)
    return data_file(
        "a",
        rows.num_rows,
        value_counts=counts,
        null_value_counts=nulls,
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
    )
