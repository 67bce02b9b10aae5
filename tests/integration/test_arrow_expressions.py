"""PyArrow selects the rows that Spark selects, and computes what Spark computes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.picked import Picked, pick
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported

CONSTANTS = {
    "id": ["0", "1", "-1", "999999999999999999", "2147483648"],
    "more": ["0", "1", "-5"],
    "small": ["0", "1", "-1", "2147483648"],
    "name": ["''", "'a'", "'A'", "'é'", "'ab'", "'1'", "' '"],
    "amount": ["0", "1.5", "-0.0", "1e300", "0.1", "-2", "9007199254740992"],
    "weight": ["0.0", "0.30000000000000004"],
    "done": ["true", "false"],
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
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("more", pa.int64()), ("small", pa.int32()), ("name", pa.string())),
        *(("amount", pa.float64()), ("weight", pa.float64()), ("done", pa.bool_())),
        ("number", pa.int64()),
    ]
)
ALIKE = {"id": "more", "more": "small", "small": "id", "amount": "weight", "weight": "amount"}
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">="]
ROWS, CONDITIONS, EXPRESSIONS = 400, 300, 400


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
        kinds = [self.integer, self.double, self.text, self.boolean, self.timestamp]
        return self._chance.choice(kinds)(depth)

    def integer(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["id", "more", "small", "number", "3", "-1", "5000000000"])
        one, other = self.integer(depth - 1), self.integer(depth - 1)
        forms = [f"{one} {self._chance.choice('+-*')} ({other})", f"-({one})", f"abs({one})"]
        forms += [f"cast({one} as {self._chance.choice(['int', 'bigint', 'long'])})"]
        forms += [f"length({self.text(depth - 1)})", f"cast({self.text(depth - 1)} as bigint)"]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def double(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["amount", "weight", "cast(small as double)", "2.5d"])
        one, other = self.double(depth - 1), self.double(depth - 1)
        number = self._chance.choice([other, self.integer(0), "0.5", "2", "1e3"])
        forms = [f"{one} {self._chance.choice('+-*/')} ({number})", f"{number} * ({one})"]
        forms += [f"({self.integer(depth - 1)}) / ({self.integer(0)})", f"abs({one})", f"-({one})"]
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
        forms += [f"cast({self.boolean(0)} as string)"]
        return self._chance.choice([*forms, *self._chosen(one, other, depth)])

    def boolean(self, depth: int) -> str:
        if not depth or self._chance.random() < 0.3:
            return self._chance.choice(["done", "not done", "true", condition(self._chance, 1)])
        kind = self._chance.choice([self.integer, self.double, self.text])
        one, other, third = (kind(depth - 1) for _ in range(3))
        return self._chance.choice(
            [
                f"({one}) {self._chance.choice(COMPARISONS)} ({other})",
                f"({one}) between ({other}) and ({third})",
                f"({one}) in (({other}), ({third}))",
                f"({one}) is null",
                f"({self.boolean(depth - 1)}) and not ({self.boolean(depth - 1)})",
            ]
        )

    def timestamp(self, depth: int) -> str:
        unit = self._chance.choice(["millis", "micros", "seconds"])
        number = self.integer(depth - 1 if depth else 0)
        return self._chance.choice(
            [f"timestamp_{unit}({number})", "cast(small as timestamp)", "cast(more as timestamp)"]
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
    is_time = pa.types.is_timestamp(values.type)
    return list(map(repr, (values.cast(pa.int64()) if is_time else values).to_pylist()))


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
        picked = pick(f"select number from v where {each}", "v", SCHEMA)
        numbers = select(picked, rows)["number"].to_pylist()
        assert numbers == by_spark[f"c{number}"], each
        selected += len(numbers)
    assert ROWS * CONDITIONS * 0.2 < selected < ROWS * CONDITIONS * 0.8


@pytest.mark.parametrize(("values", "least"), [(TAME, 0.55), (VALUES, 0.25)], ids=["tame", "wild"])
def test_spark_computes_the_same_values(
    spark: Session, values: dict[str, list[Any]], least: float
) -> None:
    chance = random.Random(7)
    rows = random_rows(chance, values)
    frame = spark.spark.createDataFrame(rows)
    expressions = Expressions(chance)
    texts = [expressions.any(3) for _ in range(EXPRESSIONS)]
    computed = 0
    for text in texts:
        try:
            ours = select(pick(f"select {text} as x, number from v", "v", SCHEMA), rows)["x"]
        except (Unsupported, ArrowFallback):
            continue
        try:
            theirs = spark.rows(f"select {text} as x, number from v", v=frame)["x"]
        except StatementError as error:
            raise AssertionError(f"Spark refuses {text}") from error
        assert ours.type == theirs.type, text
        assert shown(ours) == shown(theirs), text
        computed += 1
    assert computed > EXPRESSIONS * least
