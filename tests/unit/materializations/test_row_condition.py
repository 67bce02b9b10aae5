"""Which predicates PyArrow decides. Random ones are compared with Spark's answers elsewhere."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.materializations.row_condition import TYPES, row_condition
from dbt.adapters.iceberg_stream.tables.merge.conditions import Comparison, Condition

COLUMNS = {"id": ("id", "bigint"), "n": ("N", "int"), "s": ("s", "string"), "x": ("x", "double")}
ROWS = pa.table({"N": pa.array([1, 5, None], pa.int32()), "id": [1, 2, 3], "s": ["a", None, "b"]})


def condition(*predicates: str, **values: pa.Scalar) -> Condition | None:
    def evaluate(sql: str) -> pa.Table:
        if not values:
            raise StatementError(sql)
        return pa.table({name: [value] for name, value in values.items()})

    return row_condition(predicates, "DEST", lambda name: COLUMNS[name.lower()], evaluate)


@pytest.mark.parametrize(
    "predicate",
    [
        "n > 1",  # of the table or of the source
        "src.n > 1",
        "dest.n > src.n",
        "dest.n > (select max(n) from t)",
        "dest.n in (select n from t)",
        "dest.n > rand()",
        "dest.n > other(1)",
        "dest.n + 1 > 1",
        "abs(dest.n) > 1",
        "dest.x > 1",
        "dest.s.t > 1",
        "a.dest.n > 1",
        "dest.s like 'a%'",
        "dest.s = 'it''s'",
        # Settings of the session say what these mean.
        r"dest.s = 'a\nb'",
        'dest.s = "a"',
        "dest.s = '${env:HOME}'",
        r"dest.s = '\\d'",
        "dest.n",
        "true",
        "dest.n > > 1",
        "dest.n > 1 and exists (select 1)",
    ],
)
def test_only_spark_decides(predicate: str) -> None:
    assert condition(predicate, c0=pa.scalar(1)) is None


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(None, pa.int32()),
        pa.scalar("1"),
        pa.scalar(1.0),
        pa.scalar(2**40),  # `N` is an int
    ],
)
def test_constants_of_which_spark_makes_something_else(value: pa.Scalar) -> None:
    assert condition("dest.n > 1 + 0", c0=value) is None


def test_what_spark_does_not_evaluate() -> None:
    assert condition("dest.n > 1 + 0") is None


@pytest.mark.parametrize(
    ("constant", "kind", "value"),
    [
        ("-7", "int", -7),
        ("3000000000", "bigint", 3_000_000_000),
        ("'a b'", "string", "a b"),
        ("date '2026-01-31'", "date", date(2026, 1, 31)),
        ("timestamp_ntz '2026-01-31 23:59:59'", "timestamp_ntz", datetime(2026, 1, 31, 23, 59, 59)),
        (
            "timestamp '2026-01-31 23:59:59+00:00'",
            "timestamp",
            datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC),
        ),
    ],
)
def test_plain_literals_without_spark(constant: str, kind: str, value: object) -> None:
    found = row_condition([f"d.x = {constant}"], "d", lambda name: (name, kind), pytest.fail)
    assert isinstance(found, Comparison)
    assert found.values == (pa.scalar(value, TYPES[kind]),)


@pytest.mark.parametrize(
    ("constant", "kind"),
    [
        ("-(7)", "int"),
        ("'7'", "int"),
        ("9223372036854775807", "bigint"),
        ("'2026-01-31'", "date"),  # without ANSI mode a text, in `in`
        ("date '2026-1-31'", "date"),
        ("date '2026-02-30'", "date"),
        ("timestamp '2026-01-31 00:00:00'", "timestamp"),
        ("timestamp '2026-01-31 00:00:00+01:00'", "timestamp"),
        ("timestamp_ntz '2026-01-31 00:00:00'", "timestamp"),
        # A session whose timestamps have no zone leaves the zone out of this one.
        ("cast('2026-01-31 00:00:00+00:00' as timestamp)", "timestamp"),
    ],
)
def test_literals_that_a_session_may_read_in_another_way(constant: str, kind: str) -> None:
    asked = []

    def evaluate(sql: str) -> pa.Table:
        asked.append(sql)
        raise StatementError(sql)

    row_condition([f"d.x = {constant}"], "d", lambda name: (name, kind), evaluate)
    assert asked


@pytest.mark.parametrize(
    ("predicates", "expected"),
    [
        (["Dest.`n` > 1"], [False, True, None]),
        (["1 < dest.n"], [False, True, None]),
        (["dest.n > 1 or dest.s = 1"], None),
        (["dest.n > 1", "dest.n is not null"], [False, True, False]),
        (["not (dest.n > 1) -- it's"], [True, False, None]),
        (["dest.n not in (1, 1)"], [False, True, None]),
    ],
)
def test_conditions(predicates: list[str], expected: list[bool | None] | None) -> None:
    found = condition(*predicates, c0=pa.scalar(1))
    assert (found and found.holds(ROWS).to_pylist()) == expected
