"""What this process and Spark compute together is what Spark computes of whole rows."""

from __future__ import annotations

import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.batches import spark_rows
from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import Selection
from dbt.adapters.iceberg_stream.stream.batches.spark_rows import SparkRows
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sources.source import (
    CHANGE,
    MAJOR,
    MINOR,
    ROW_DELETED,
)

VIEW = "v"
UTC = timezone.utc
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 999999999999999999]),
    "more": (pa.int64(), [0, 1, -5]),
    "small": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "Name": (
        pa.string(),
        ["", "a", "A", "é", "ab", "e\u0301", " 1", "\U0001f600", "\uffff", "x\ny"],
    ),
    "amount": (pa.float64(), [0.0, -0.0, 1.5, 1e300, 0.1, INF, -INF, NAN, -2.0, 2.0**53]),
    "weight": (pa.float64(), [0.1 + 0.2, 0.3, NAN, 5e-324]),
    "done": (pa.bool_(), [True, False]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(1582, 10, 10, 3, tzinfo=UTC)],
    ),
    "seen": (pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, tzinfo=UTC)]),
    "wall": (pa.timestamp("us"), [datetime(2024, 2, 29, 23, 59, 59, 999999)]),
    "day": (pa.date32(), [date(1970, 1, 1), date(1582, 10, 10), date(9999, 12, 30)]),
    "price": (pa.decimal128(10, 2), [*map(Decimal, ("0", "0.01", "-0.05", "12.50"))]),
    "rate": (pa.decimal128(10, 2), [*map(Decimal, ("0", "0.01", "99999999.99"))]),
    "payload": (
        pa.struct([("Customer", pa.struct([("id", pa.int64()), ("price", pa.decimal128(10, 2))]))]),
        [{"Customer": None}, {"Customer": {"id": 7, "price": Decimal("1.50")}}],
    ),
    "tags": (pa.list_(pa.string()), [[], ["a", None]]),
    "raw": (pa.binary(), [b"", b"\xff"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
LITERALS = {
    "id": ["0", "1", "-1", "999999999999999999", "2147483648", "-2147483648", "0.5", "5L"],
    "more": ["0", "1", "-5", "small"],
    "small": ["0", "1", "-1", "2147483648", "id"],
    "name": ["''", "'a'", "'A'", "'é'", "' 1'", "'a''b'", "'a' 'b'", r"'\n'"],
    "amount": ["0", "1.5", "1e2", "-0.0", "0.1", "9007199254740992", "9007199254740993", "id"],
    "weight": ["0.0", "0.30000000000000004", "amount", "2.5d"],
    "done": ["true", "false", "done"],
    "at": ["seen", "timestamp '1969-12-31 23:59:59.999999'", "'2026-01-01'", "day"],
    "day": ["date '1969-12-31'", "'2026-01-01'", "cast(null as date)"],
    "price": ["0", "0.01", "-0.05", "0.001", "rate", "id", "100.", "1000000000000"],
    "payload.customer.id": ["7", "id"],
}
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">=", "<=>"]
# What Spark computes: of each, whether it may refuse a row has been looked at.
OF_SPARK = [
    *("upper(name)", "trim(name) || '-'", "length(name)", "abs(amount) * 2", "sqrt(abs(weight))"),
    *("more + 1", "price * 3", "round(rate, 1)", "date_add(day, -1)", "year(at)", "hash(id, name)"),
    *("to_json(struct(id, Name, more as x))", "transform(tags, t -> t || name)", "hex(raw)"),
    *(
        "date_format(wall, 'yyyy-MM')",
        "cast(more as string)",
        "'a\\\\b' || name",
        'concat("x", name)',
    ),
    *("named_struct('a', id, 'b', at)", "payload.customer", "size(tags)", "array(id, small)"),
    *(
        "trunc(day, name)",
        "map('k', name)",
        "cast(at as date)",
        "nullif(name, 'a') || ''",
        "interval 1 day + day",
    ),
]
CASTS = ["bigint", "double", "int", "string", "decimal(20, 2)"]
ROWS, QUERIES = 120, 160


class Queries:
    """Random queries that select row by row."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def condition(self, depth: int = 2) -> str:
        chance = self._chance
        if depth and chance.random() < 0.6:
            one, other = self.condition(depth - 1), self.condition(depth - 1)
            return chance.choice([f"({one}) and {other}", f"{one} or ({other})", f"not ({one})"])
        name = chance.choice(list(LITERALS))
        one, other = chance.choices(LITERALS[name], k=2)
        forms = [f"{name} {chance.choice(COMPARISONS)} {one}"] * 4
        forms += [f"{one} {chance.choice(COMPARISONS)} {name}", f"{name} is not null"]
        forms += [f"{name} is null", f"{name} in ({one}, {other})", f"{name} not in ({one})"]
        forms += [f"{name} between {one} and {other}", "done", "name like 'a%'", "more % 2 = 1"]
        # Without parentheses, in which order they are compared matters.
        sign, second = chance.choices(COMPARISONS, k=2)
        forms += [f"done {sign} {name} {second} {one}", f"{name} {second} {one} {sign} done"]
        forms += [f"done {sign} {name} between {one} and {other}", f"done {sign} {name} is null"]
        forms += [f"not done {sign} {name} in ({one})", f"done {sign} true {second} true is null"]
        return chance.choice(forms)

    def expression(self) -> str:
        chance = self._chance
        name = chance.choice(list(LITERALS))
        one, other = chance.choices(LITERALS[name], k=2)
        test = self.condition(1)
        forms = [*chance.choices(OF_SPARK, k=8), f"cast({name} as {chance.choice(CASTS)})"]
        forms += [f"coalesce({name}, {one})", f"if({test}, {name}, {other})", f"({test})"]
        forms += [f"case when {test} then {name} when {self.condition(0)} then {one} end"]
        forms += [f"case {name} when {one} then 1 else 0 end", f"nullif({name}, {one})"]
        return chance.choice(forms)

    def items(self) -> str:
        names = self._chance.sample(list(VALUES)[1:], k=3)
        items = [*names, *(f"{self.expression()} as x{n}" for n in range(3))]
        self._chance.shuffle(items)
        return ", ".join(["id", *items])

    def query(self) -> str:
        chance = self._chance
        where = chance.choice(
            ["", "", f"where {self.condition()}", f"where {self.condition()} -- c\n"]
        )
        plain = f"select {self.items()} from {VIEW} {where}"
        return chance.choice(
            [
                *[plain] * 3,
                f"select * from {VIEW} {where}",
                f"with s as (select * from {VIEW}), r as (select {self.items()} from s {where}) "
                "select * from r",
                f"select id, x0 as y, x1, x2 from ({plain}) as q",
                f"select a as id, a + 0 as b, b + 1 as x0, 'year' || '' as x1, trunc(day, x1) as x2 "
                f"from (select id as a, more as b, day, name as x1 from {VIEW} {where}) as q",
                f"with s as (select * from {VIEW} {where}) select {self.items()} from s "
                f"where {self.condition(1)}",
                f"select q.id, upper(q.nom) as x0, q.id is null as x1 from "
                f"(select id, name as nom from {VIEW} {where}) q",
            ]
        )


def random_rows(chance: random.Random) -> pa.RecordBatch:
    columns = {
        name: pa.array(chance.choices([None, *values], k=ROWS), kind)
        for name, (kind, values) in VALUES.items()
    }
    columns[MAJOR] = pa.array([0] * ROWS, pa.int64())
    columns[MINOR] = pa.array(range(ROWS), pa.int64())
    columns[ROW_DELETED] = pa.array(chance.choices([False, False, True], k=ROWS))
    return pa.record_batch(columns)


def shown(rows: pa.Table) -> list[str]:
    """Rows as strings, which tell NaN and negative zeros apart; maps and times as Arrow says."""
    return [repr(row) for row in rows.to_pylist()]


@pytest.mark.parametrize("sent_bytes", [0, spark_rows.SENT_BYTES], ids=["file", "sent"])
@pytest.mark.parametrize("of_rows", [False, True], ids=["events", "rows"])
def test_the_changes_are_the_same(
    spark: Session, of_rows: bool, sent_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rows, "SENT_BYTES", sent_bytes)
    chance = random.Random(f"{of_rows} {sent_bytes}")
    queries, rows = Queries(chance), random_rows(chance)
    columns = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    frame = spark.spark.createDataFrame(pa.Table.from_batches([rows]), columns).selectExpr(
        *(f"`{name}`" for name in VALUES),
        f"named_struct('major', {MAJOR}, 'minor', {MINOR}, 'deleted', {ROW_DELETED}, "
        f"'truncated', false) as {CHANGE}",
    )
    valid = apart = in_parts = 0
    for _ in range(QUERIES):
        sql, deletes = queries.query(), chance.choice([None, None, "id > 0", "sqrt(abs(id)) > 1"])
        options = StreamOptions(sink_id="m", keys=("id",), deletes=deletes)
        changed = get_change_sql(sql, VIEW, of_rows)
        try:
            target = spark.arrow_schema(f"select * from ({sql}\n)", **{VIEW: frame})
            query = StreamQuery(changed, VIEW, "t", target.names, options)
            theirs = spark.rows(query.changes(), **{VIEW: frame})
        except StatementError:
            continue
        valid += 1
        selection = Selection(query, target, None, SparkRows(spark, False).compute)
        names = selection.pick(SCHEMA)
        if names is None:
            continue
        needed = rows.select([*names, MAJOR, MINOR, ROW_DELETED])
        try:
            ours = pa.Table.from_batches(selection.changes([needed]))
        except ArrowFallback:  # Spark skips what it would refuse, for rows that are deleted anyway
            continue
        assert ours.schema.names == theirs.schema.names
        assert shown(ours) == shown(theirs), (sql, deletes)
        apart += 1
        in_parts += bool(query.pick(SCHEMA, target).parts)
    assert valid > QUERIES * 0.4
    assert apart > valid * 0.5
    assert in_parts > apart * 0.4
