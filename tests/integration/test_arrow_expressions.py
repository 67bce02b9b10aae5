"""PyArrow selects the rows that Spark selects, and computes what Spark computes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.inputs import TIME_ZONE
from dbt.adapters.iceberg_stream.stream.query.picked import Picked, pick
from dbt.adapters.iceberg_stream.stream.query.values import TIMESTAMP, Unsupported

CONSTANTS = {
    "id": ["0", "1", "-1", "999999999999999999", "2147483648", "0.5"],
    "more": ["0", "1", "-5"],
    "small": ["0", "1", "-1", "2147483648"],
    "name": ["''", "'a'", "'A'", "'é'", "'ab'", "'1'", "' '", "'a''b'", "'a' 'b'"],
    "amount": ["0", "1.5", "1e2", "-0.0", "1e300", "0.1", "-2", "9007199254740992"],
    "weight": ["0.0", "0.30000000000000004"],
    "done": ["true", "false"],
    "at": ["'2026-01-01'", "timestamp '1969-12-31 23:59:59.999999'", "date '2024-02-29'"],
    "day": ["'2026-01-01'", "date '1969-12-31'", "date '2024-02-29'"],
    "price": ["0", "0.01", "-0.05", "12.5", "1000000000000"],
}
VALUES = {
    "id": [None, 0, 1, -1, 2**63 - 1, -(2**63), 999999999999999999],
    "more": [None, 0, 1, -5],
    "small": [None, 0, 1, -1, 2**31 - 1],
    "name": [None, "", "a", "A", "é", "ab", "e\u0301", "1", " ", "\U0001f600", "\uffff"],
    "amount": [None, 0.0, -0.0, 1.5, 1e300, 0.1, float("inf"), -2.0, 9007199254740992.0],
    "weight": [None, 0.1 + 0.2, 0.3, 0.0],
    "done": [None, True, False],
}
# Values for which neither refuses much, and PyArrow leaves little to Spark.
TAME = {
    "id": [None, 0, 1, -1, 2**40, 1_700_000_000_000],
    "more": [None, 2, 1, -5],
    "small": [None, 0, 1, -1, 30_000],
    "name": [None, "", "a", "A b", " ab ", "-12", "007", "x\ny"],
    "amount": [None, 0.0, -0.0, 1.5, 1e300, 0.1, -2.0, 0.1 + 0.2],
    "weight": [None, 0.1 + 0.2, 0.3, 5e-324],
    "done": [None, True, False],
}


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type, misc]


TIMES = [
    *(None, utc(1970, 1, 1), utc(1969, 12, 31, 23, 59, 59, 999999), utc(2024, 2, 29, 23, 30)),
    *(utc(2026, 1, 1), utc(2025, 12, 31, 20, 0, 0, 1), utc(2026, 3, 29, 1, 30, 0, 120_000)),
    *(utc(1900, 2, 28, 12), utc(2000, 10, 29, 0, 30, 59, 500_000), utc(1582, 10, 10, 3, 4, 5)),
]
DAYS = [
    *(None, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(2026, 1, 1)),
    *(date(2025, 12, 29), date(1900, 3, 1), date(1582, 10, 10), date(2021, 1, 3)),
]
ISO = [
    *(None, "2024-02-29", "2026-01-01", "2026-01-01 10:20:30", "2026-01-01T10:20:30.5Z"),
    *("1969-12-31T23:59:59.999999+05:30", "2026-03-29 02:30:00.123", "0999-12-31"),
    "2024-12-31T23:59:59-11:00",
]
TAME |= {
    "at": TIMES,
    "seen": TIMES,
    "wall": [time and time.replace(tzinfo=None) for time in TIMES],
    "day": DAYS,
    "iso": ISO,
    "digits": [None, "0", "12.345", "-0.005", "7", "-12.5", "0.995"],
    "price": list(map(Decimal, ("0", "0.01", "-0.05", "12.50", "999.99", "-0.99", "2.25"))),
    "rate": [None, *map(Decimal, ("0.5", "-0.5", "1.2345", "-2.5000", "0.0050", "99.9950"))],
    "total": [None, *map(Decimal, ("1e12", "-0.000001", "12345678.5", "0.125", "-1.5"))],
    "payload": [
        None,
        {"Customer": None, "at": None},
        {"Customer": {"id": 7, "price": Decimal("1.50")}, "at": TIMES[3]},
        {"Customer": {"id": None, "price": Decimal("-0.01")}, "at": TIMES[2]},
    ],
    "tags": [["a", "b"], ["", None], ["a"], ["x", "y", "z"]],
    "labels": [None, {"k": "v"}, {}, {"k": None, "l": "a"}],
    "raw": [None, b"", b"a", "é".encode()],
}
# Besides, what PyArrow leaves to Spark.
VALUES = (
    TAME
    | VALUES
    | {
        "at": [*TIMES, utc(1, 1, 1), utc(9999, 12, 31, 23, 59, 59, 999999)],
        "day": [*DAYS, date(1, 1, 1), date(9999, 12, 31)],
        "iso": [*ISO, "2026-1-1", " 2026-01-01", "2025-02-29", "2026-01-01 25:00:00"],
        "digits": [*TAME["digits"], "1e2", " 1", "1234567890123456.789"],
        "price": [None, *TAME["price"], Decimal("99999999.99"), Decimal("-99999999.99")],
        "rate": [*TAME["rate"], Decimal("99999999.9999")],
        "total": [*TAME["total"], Decimal("99999999999999.999999")],
        "tags": [None, [], *TAME["tags"]],
        "raw": [*TAME["raw"], b"\xff"],
    }
)
CUSTOMER = pa.struct([("id", pa.int64()), ("price", pa.decimal128(10, 2))])
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("more", pa.int64()), ("small", pa.int32()), ("name", pa.string())),
        *(("amount", pa.float64()), ("weight", pa.float64()), ("done", pa.bool_())),
        *(("at", pa.timestamp("us", "UTC")), ("seen", pa.timestamp("us", "UTC"))),
        *(("wall", pa.timestamp("us")), ("day", pa.date32()), ("iso", pa.string())),
        *(("digits", pa.string()), ("price", pa.decimal128(10, 2))),
        *(("rate", pa.decimal128(12, 4)), ("total", pa.decimal128(20, 6))),
        ("payload", pa.struct([("Customer", CUSTOMER), ("at", pa.timestamp("us", "UTC"))])),
        *(("tags", pa.list_(pa.string())), ("labels", pa.map_(pa.string(), pa.string()))),
        *(("raw", pa.binary()), ("number", pa.int64())),
    ]
)
ALIKE = {
    "at": "seen",
    "day": "at",
    "price": "rate",
    "id": "more",
    "more": "small",
    "small": "id",
    "amount": "weight",
    "weight": "amount",
}
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">="]
TRUNCATED_TO = [
    *("year", "YYYY", "quarter", "MONTH", "mon", "mm", "week", "day", "DD", "hour", "minute"),
    *("second", "millisecond", "microsecond", "w"),
]
# Rows of which all have one expression, and digits of their decimals.
MANY, DIGITS = 5000, Context(prec=38)
ROWS, CONDITIONS, EXPRESSIONS, AT_ONCE = 400, 300, 400, 25


def condition(chance: random.Random, depth: int = 3) -> str:
    if depth and chance.random() < 0.6:
        one, other = condition(chance, depth - 1), condition(chance, depth - 1)
        return chance.choice([f"({one}) and {other}", f"{one} or ({other})", f"not ({one})"])
    name = chance.choice(list(CONSTANTS))
    first, second = chance.choices(CONSTANTS[name], k=2)
    compared = chance.choice([first, first, ALIKE.get(name, second)])
    forms = [f"{name} {chance.choice(COMPARISONS)} {compared}"] * 4
    forms += [f"{first} {chance.choice(COMPARISONS)} {name}", f"{name} is not null"]
    forms += [f"{name} is null", f"{name} in ({first}, {second})", f"{name} not in ({first})"]
    forms += [f"{name} between {first} and {second}", f"not {name} between {first} and {second}"]
    return chance.choice(["done", "not done", *forms])


class Expressions:
    """Random expressions of each type."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def any(self, depth: int) -> str:
        kinds = [self.integer, self.double, self.text, self.boolean, self.timestamp, self.date]
        return self._chance.choice([*kinds, self.decimal])(depth)

    def integer(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["id", "more", "small", "number", "3", "-1", "5000000000"])
        one, other = self.integer(depth - 1), self.integer(depth - 1)
        forms = [f"{one} {self._chance.choice('+-*')} ({other})", f"-({one})", f"abs({one})"]
        forms += [f"cast({one} as {self._chance.choice(['int', 'bigint', 'long'])})"]
        forms += [f"length({self.text(depth - 1)})", f"cast({self.text(depth - 1)} as bigint)"]
        forms += [f"({one}) % nullif({other}, 0)", f"mod({one}, 7)", f"({one}) div -3"]
        forms += [f"greatest({one}, {other})", f"least({one}, 1, {other})"]
        forms += [self.part_of_time(depth - 1) for _ in range(6)]
        forms += [f"cast({self.decimal(depth - 1)} as {self._chance.choice(['int', 'bigint'])})"]
        forms += [f"floor({self.double(depth - 1)})", f"ceil({one})"]
        forms += [f"cast({self.double(depth - 1)} as {self._chance.choice(['int', 'bigint'])})"]
        forms += [f"instr({self.text(depth - 1)}, 'b')", f"locate(' ', {self.text(depth - 1)})"]
        forms += ["payload.customer.id", "v.payload.Customer.ID", "size(tags)"]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def part_of_time(self, depth: int) -> str:
        parts = ["year", "quarter", "month", "day", "dayofmonth", "dayofweek", "dayofyear"]
        part = self._chance.choice([*parts, "weekday", "weekofyear"])
        clock = self._chance.choice(["hour", "minute", "second"])
        unix = self._chance.choice(["seconds", "millis", "micros"])
        field = self._chance.choice(["year", "month", "day", "hour", "minute", "dayofweek"])
        time, day = self.timestamp(depth), self.date(depth)
        forms = [f"{part}({self._chance.choice([time, day, 'wall'])})"] * 2
        forms += [
            f"{clock}({self._chance.choice([time, 'wall'])})",
            f"extract({field} from {time})",
        ]
        forms += [f"datediff({day}, {self._chance.choice([time, 'day', 'wall'])})"]
        return self._chance.choice([*forms, f"unix_{unix}({time})", f"cast({time} as bigint)"])

    def double(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["amount", "weight", "cast(small as double)", "2.5d"])
        one, other = self.double(depth - 1), self.double(depth - 1)
        number = self._chance.choice([other, self.integer(0), "0.5", "2", "1e3", "price"])
        forms = [f"{one} {self._chance.choice('+-*/')} ({number})", f"{number} * ({one})"]
        forms += [f"({self.integer(depth - 1)}) / ({self.integer(0)})", f"abs({one})", f"-({one})"]
        forms += [f"cast({self.decimal(depth - 1)} as double)"]
        forms += [f"round({one}, {self._chance.randint(0, 3)})", f"round({one})"]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def decimal(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            constants = ["0.5", "-1.50", "0.005", "100."]
            return self._chance.choice(["price", "price", "rate", "rate", "total", *constants])
        one, other = self.decimal(depth - 1), self.decimal(depth - 1)
        number = self._chance.choice([other, other, self.integer(0), "2", "-100"])
        kind = self._chance.choice(["(10, 2)", "(12,1)", "(18, 4)", "(5)", "", "(38, 6)", "(3, 3)"])
        number = self._chance.choice([number, self.integer(depth - 1)])
        cast = self._chance.choice(
            [one, one, self.integer(depth - 1), "digits", self.double(depth - 1)]
        )
        forms = [f"{one} {self._chance.choice('+-*')} ({number})", f"{number} * ({one})"]
        forms += [f"{one} / nullif({number}, 0)", f"{number} / 8"]
        forms += [f"-({one})", f"abs({one})", f"cast({cast} as decimal{kind})"] * 2
        forms += [f"round({one}, {self._chance.randint(0, 3)})", f"round({one})"]
        forms += [f"floor({one})", f"ceil({one})", f"greatest({one}, {other})"]
        forms += ["payload.customer.price", f"least({one}, {self.integer(0)})"]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def text(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["name", "name", "'b'", "'a-'", "''"])
        one, other = self.text(depth - 1), self.text(depth - 1)
        start, length = self._chance.randint(1, 3), self._chance.randint(0, 3)
        forms = [f"upper({one})", f"lower({one})", f"trim({one})", f"ltrim({one})", f"rtrim({one})"]
        forms += [f"concat({one}, {other}, 'x')", f"{one} || {other}", f"replace({one}, 'a', 'bc')"]
        forms += [f"substring({one}, {start}, {length})", f"substr({one}, {start})"]
        forms += [f"left({one}, {length})", f"cast({self.integer(depth - 1)} as string)"]
        forms += [f"cast({self.boolean(0)} as string)", f"concat_ws('-', {one}, {other})"]
        forms += [f"lpad({one}, {length}, '*')", f"rpad({one}, {length + 2})"]
        forms += [f"cast({self._chance.choice([self.timestamp, self.date])(depth - 1)} as string)"]
        pattern = self._chance.choice(["yyyy-MM-dd", "yyyyMM", "HH:mm:ss", "dd/MM/yyyy HH"])
        forms += [f"date_format({self.timestamp(depth - 1)}, '{pattern}')"]
        forms += [f"date_format({self.date(depth - 1)}, '{pattern}')"]
        forms += [
            "cast(wall as string)",
            "cast(raw as string)",
            "tags[0]",
            "tags[1]",
            "labels['k']",
            f"least({one}, 'b')",
        ]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def boolean(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["done", "not done", "true", condition(self._chance, 1)])
        times = [self.timestamp, self.date]
        kind = self._chance.choice([self.integer, self.double, self.text, self.decimal, *times])
        one, other, third = (kind(depth - 1) for _ in range(3))
        if kind in times:
            texts = ["'2026-01-01'", "'2024-02-29T23:30:00Z'", "timestamp '2026-01-01 10:20:30'"]
            other = self._chance.choice([other, self.date(depth - 1), *texts])
        if kind == self.decimal:
            other = self._chance.choice([other, self.integer(0), self.double(0)])
        text = self.text(depth - 1)
        matches = [
            f"{text} like '{like}'" for like in ("%b%", "a_", "_", "__%", "-%", "", "x%y", "x_y")
        ]
        matches += [f"{text} not like 'A%'", f"startswith({text}, 'a')", f"endswith({text}, ' ')"]
        matches += [f"contains({text}, 'b')"]
        return self._chance.choice(
            [
                self._chance.choice(matches),
                f"({one}) {self._chance.choice(COMPARISONS)} ({other})",
                f"({one}) between ({other}) and ({third})",
                f"({one}) in (({other}), ({third}))",
                f"({one}) is null",
                f"({self.boolean(depth - 1)}) and not ({self.boolean(depth - 1)})",
            ]
        )

    def timestamp(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["at", "at", "seen", "payload.at", "timestamp '2024-02-29'"])
        one, other = self.timestamp(depth - 1), self.timestamp(depth - 1)
        unit = self._chance.choice(["millis", "micros", "seconds"])
        number = self.integer(depth - 1)
        forms = [f"timestamp_{unit}({number})", "cast(small as timestamp)"]
        forms += ["cast(iso as timestamp)", "to_timestamp(iso)", "cast(more as timestamp)"]
        days = self._chance.choice([one, one, self.date(depth - 1)])
        forms += [f"date_trunc('{self._chance.choice(TRUNCATED_TO)}', {days})" for _ in range(6)]
        length = self._chance.choice(["1 day", "'36' hours", "90 minutes", "2 weeks", "1 second"])
        forms += [f"{one} {self._chance.choice('+-')} interval {length}"]
        forms += [f"cast({self.date(depth - 1)} as timestamp)", f"greatest({one}, {other})"]
        other = self._chance.choice([other, self.date(depth - 1), "'2026-01-01 10:20:30.5'"])
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def date(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["day", "day", "date '2024-02-29'", "to_date('2026-01-01')"])
        one, other = self.date(depth - 1), self.date(depth - 1)
        time = self._chance.choice([self.timestamp(depth - 1), "wall", "iso"])
        forms = [f"cast({time} as date)", f"to_date({time})", f"date({time})"] * 2
        unit = self._chance.choice(["year", "YY", "quarter", "month", "MM", "week", "day"])
        forms += [f"trunc({self._chance.choice([one, self.timestamp(depth - 1)])}, '{unit}')"] * 2
        days = self._chance.choice(["small", "1", "-400", f"month({one})"])
        forms += [f"date_add({one}, {days})", f"date_sub({self.timestamp(depth - 1)}, {days})"]
        return self._chance.choice(
            [*forms, f"least({one}, {other})", *self._chosen(one, other, depth)]
        )

    def _chosen(self, one: str, other: str, depth: int) -> list[str]:
        test = self.boolean(depth - 1)
        return [
            f"coalesce({one}, {other})",
            f"nvl({one}, {other})",
            f"if({test}, {one}, {other})",
            f"case when {test} then {one} when {self.boolean(0)} then {other} end",
            f"case {one} when {other} then {one} else {other} end",
            f"nullif({one}, {other})",
        ]


def random_rows(chance: random.Random, values: dict[str, list[Any]]) -> pa.Table:
    columns = {name: chance.choices(of_column, k=ROWS) for name, of_column in values.items()}
    return pa.table({**columns, "number": range(ROWS)}, SCHEMA)


def select(picked: Picked, rows: pa.Table) -> pa.RecordBatch:
    read = {name: rows[column] for name, column in picked.columns.items()}
    [batch] = pa.table(read or {"number": rows["number"]}).combine_chunks().to_batches()
    return picked.select(batch)


def shown(values: pa.Array) -> list[str]:
    """Return the values as texts, which tell NaN and negative zeros apart."""
    # Python has no times for all of them.
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_date(kind):
        values = values.cast(pa.int32())
    return list(map(repr, values.to_pylist()))


def test_spark_selects_the_same_rows(spark: Session) -> None:
    chance = random.Random(12)
    rows = random_rows(chance, VALUES)
    conditions = [condition(chance) for _ in range(CONDITIONS)]
    counted = ", ".join(
        f"array_sort(collect_list(case when {each} then number end)) as c{number}"
        for number, each in enumerate(conditions)
    )
    [by_spark] = spark.rows(
        f"select {counted} from v", v=spark.spark.createDataFrame(rows)
    ).to_pylist()
    selected = 0
    for number, each in enumerate(conditions):
        picked = pick(f"select number from v where {each}", "v", SCHEMA, setting=spark.setting)
        numbers = select(picked, rows)["number"].to_pylist()
        assert numbers == by_spark[f"c{number}"], each
        selected += len(numbers)
    assert ROWS * CONDITIONS * 0.2 < selected < ROWS * CONDITIONS * 0.8


def in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return Spark's timestamps, which come in the session's zone."""
    is_zoned = pa.types.is_timestamp(values.type) and values.type.tz
    return values.cast(TIMESTAMP) if is_zoned else values


def computed_by_spark(
    spark: Session, frame: Any, texts: list[str]
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the values of expressions."""
    for start in range(0, len(texts), AT_ONCE):
        some = texts[start : start + AT_ONCE]
        listed = ", ".join(f"{text} as x{number}" for number, text in enumerate(some))
        try:
            rows = spark.rows(f"select {listed} from v", v=frame)
        except StatementError:
            for text in some:
                try:
                    spark.rows(f"select {text} as x from v", v=frame)
                except StatementError as error:
                    raise AssertionError(f"Spark refuses {text}") from error
            raise
        yield from zip(some, map(in_utc, rows.columns), strict=True)


@pytest.mark.parametrize("zone", ["UTC", "-09:30"])
@pytest.mark.parametrize(("values", "least"), [(TAME, 0.5), (VALUES, 0.3)], ids=["tame", "wild"])
def test_spark_computes_the_same_values(
    spark: Session, values: dict[str, list[Any]], least: float, zone: str
) -> None:
    chance = random.Random(zone)
    rows = random_rows(chance, values)
    spark.configure({TIME_ZONE: zone})
    frame = spark.spark.createDataFrame(rows)
    expressions = Expressions(chance)
    texts = {expressions.any(3) for _ in range(EXPRESSIONS)}
    computed = {}
    for text in sorted(texts):
        with suppress(Unsupported, ArrowFallback):
            sql = f"select {text} as x, number from v"
            computed[text] = select(pick(sql, "v", SCHEMA, setting=spark.setting), rows)["x"]
    for text, theirs in computed_by_spark(spark, frame, list(computed)):
        assert computed[text].type == theirs.type, text
        assert shown(computed[text]) == shown(theirs), text
    assert len(computed) > len(texts) * least


def many_rows(chance: random.Random) -> pa.Table:
    """Rows with numbers that are close to halves, and times of all years."""
    first, last = (int(time.timestamp()) for time in (utc(1, 1, 2), utc(9999, 12, 30)))
    scales = chance.choices([1, 10, 100, 1000, 10_000], k=MANY)
    near_halves = [(chance.randint(-(10**7), 10**7) + 0.5) / scale for scale in scales]
    doubles = [x + chance.choice([0, 0, 1e-9, -1e-12]) * abs(x) for x in near_halves]
    sums = [chance.randint(0, 10**6) / 100 + chance.randint(0, 10**6) / 1000 for _ in range(MANY)]
    micros = [chance.randint(first * 10**6, last * 10**6) for _ in range(MANY)]
    recent = [chance.randint(-(10**9), 2 * 10**9) * 10**6 for _ in range(MANY)]
    digits = [chance.randint(-(10**15) + 1, 10**15 - 1) for _ in range(MANY)]
    more = [chance.randint(-(10**30) + 1, 10**30 - 1) for _ in range(MANY)]
    return pa.table(
        {
            "number": pa.array(range(MANY)),
            "x": pa.array(doubles),
            "y": pa.array(sums),
            "at": pa.array(micros).cast(TIMESTAMP),
            "recent": pa.array(recent).cast(TIMESTAMP),
            "cents": pa.array(chance.choices(range(1, 10**5), k=MANY), pa.int32()),
            "price": pa.array(
                [Decimal(chance.randint(1, 10**5)).scaleb(-2) for _ in range(MANY)],
                pa.decimal128(8, 2),
            ),
            "wide": pa.array(
                [Decimal(chance.randint(1, 10**12)).scaleb(-1) for _ in range(MANY)],
                pa.decimal128(12, 1),
            ),
            "short": pa.array([Decimal(n).scaleb(-4) for n in digits], pa.decimal128(15, 4)),
            "long": pa.array([Decimal(n).scaleb(-9, DIGITS) for n in more], pa.decimal128(30, 9)),
        }
    )


@pytest.mark.parametrize(
    "expression",
    [
        *("round(x)", "round(x, 2)", "round(y, 2)", "round(x * 7, 1)", "round(x / 7, 3)"),
        *("cast(x as decimal(12, 2))", "cast(x / 3 as decimal(16, 6))", "cast(y as decimal(9, 1))"),
        *("cast(short as double)", "cast(long as double)", "cast(short as bigint) % 1000"),
        *("round(short, 2)", "round(long, 3)", "cast(long as decimal(28, 4))", "floor(short)"),
        *("short / 100", "short / 7", "long / 3.0", "1 / nullif(short, 0)", "cents / 3.01"),
        *("cents / price", "price / cents", "price / wide", "cast(x as int)", "cast(y as bigint)"),
        *(
            "cents + -2147483647",
            "number + -2147483648",
            "cents - 2147483648",
            "concat('a''b', '')",
        ),
        *("floor(x)", "ceil(long)", "short * 100", "short + long", "short - 0.00001", "-long"),
        *(f"date_trunc('{unit}', at)" for unit in ("quarter", "month", "week", "day", "hour")),
        *(f"date_trunc('{unit}', recent)" for unit in ("minute", "second", "millisecond")),
        *(f"{part}(at)" for part in ("year", "month", "day", "dayofweek", "weekofyear", "second")),
        *("cast(at as date)", "cast(at as string)", "cast(cast(at as string) as timestamp)"),
        *("trunc(at, 'week')", "trunc(at, 'quarter')", "date_add(at, -3)", "datediff(at, recent)"),
        *("unix_millis(at)", "unix_seconds(at)", "cast(cast(at as date) as timestamp)"),
        "cast(concat(date_format(at, 'yyyy-MM-dd HH:mm:ss'), '.123-09:30') as timestamp)",
    ],
)
def test_spark_computes_the_same_values_of_many_rows(spark: Session, expression: str) -> None:
    rows = many_rows(random.Random(expression))
    spark.configure({TIME_ZONE: "+05:45"})
    sql = f"select {expression} as x, number from v"
    ours = select(pick(sql, "v", rows.schema, setting=spark.setting), rows)["x"]
    frame = spark.spark.createDataFrame(rows)
    [(_, theirs)] = computed_by_spark(spark, frame, [expression])
    assert ours.type == theirs.type
    assert shown(ours) == shown(theirs)


LETTERS = "ab.%_([+^$|*é\n\U0001f600 "


def test_spark_searches_texts_alike(spark: Session) -> None:
    chance = random.Random(3)

    def word(most: int, letters: str = LETTERS) -> str:
        return "".join(chance.choices(letters, k=chance.randint(0, most)))

    rows = pa.table({"s": [None, *(word(5) for _ in range(2000))], "number": range(2001)})
    forms = ["startswith(s, '{}')", "endswith(s, '{}')", "contains(s, '{}')", "instr(s, '{}')"]
    forms += ["concat_ws('{}', s, 'x', s)", "replace(s, '{}', 'z')", "concat(s, '{}', s)"]
    searches = [form.format(word(2)) for form in forms for _ in range(20)]
    searches += [f"s like '{word(4, LETTERS + '%%__')}'" for _ in range(150)]
    for pad, width in ((pad, width) for pad in ("lpad", "rpad") for width in range(8)):
        searches.append(f"{pad}(s, {width}, '{chance.choice(LETTERS)}')")
    computed = {}
    for text in searches:
        with suppress(Unsupported, ArrowFallback):
            computed[text] = select(pick(f"select {text} as x from v", "v", rows.schema), rows)["x"]
    frame = spark.spark.createDataFrame(rows)
    for text, theirs in computed_by_spark(spark, frame, list(computed)):
        assert shown(computed[text]) == shown(theirs), text
    assert len(computed) > 150


CAST_TEXTS = [
    *("2024-02-29", "2024-02-29 23:59:59", "2024-02-29T00:00:00.123456Z", "0001-01-01T00:00:00"),
    *(
        "1969-12-31 12:34:56.5+05:30",
        "9999-12-31T23:59:59.999999-17:59",
        "1900-02-28T01:02:03-00:01",
    ),
    *("12.345", "-0.005", "123456789012345678.123456789012345678", "0", "-7", "+1", ".5", "5."),
]


@pytest.mark.parametrize(
    ("kind", "least"), [("date", 90), ("timestamp", 60), ("decimal(20, 3)", 90), ("bigint", 40)]
)
def test_spark_casts_the_same_texts(spark: Session, kind: str, least: int) -> None:
    """Each text is a batch of its own, because one that is in doubt leaves the batch to Spark."""
    chance = random.Random(kind)
    texts = list(CAST_TEXTS)
    for _ in range(1500):
        text = list(chance.choice(CAST_TEXTS))
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(text) + 1)
            text[place : place + chance.randint(0, 1)] = chance.choice("0123456789-:. TZ+e\n")
        texts.append("".join(text))
    rows = pa.table({"s": texts, "number": range(len(texts))})
    spark.configure({TIME_ZONE: "+01:00"})
    frame = spark.spark.createDataFrame(rows)
    [theirs] = spark.rows(f"select try_cast(s as {kind}) as x from v", v=frame).columns
    sql = f"select cast(s as {kind}) as x, number from v"
    picked = pick(sql, "v", rows.schema, setting=spark.setting)
    values = 0
    for number, text in enumerate(texts):
        with suppress(ArrowFallback):
            ours = select(picked, rows.slice(number, 1))["x"]
            assert shown(ours) == shown(in_utc(theirs.slice(number, 1))), repr(text)
            values += 1
    assert values > least
