"""PyArrow selects the rows that Spark selects."""

from __future__ import annotations

import random

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.query.picked import pick

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
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("more", pa.int64()), ("small", pa.int32()), ("name", pa.string())),
        *(("amount", pa.float64()), ("weight", pa.float64()), ("done", pa.bool_())),
        ("number", pa.int64()),
    ]
)
SAME_TYPE = {"id": "more", "more": "id", "amount": "weight", "weight": "amount"}
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">="]
ROWS, CONDITIONS = 400, 300


def condition(chance: random.Random, depth: int = 3) -> str:
    if depth and chance.random() < 0.6:
        one, other = condition(chance, depth - 1), condition(chance, depth - 1)
        return chance.choice([f"({one}) and {other}", f"{one} or ({other})", f"not ({one})"])
    name = chance.choice(list(CONSTANTS))
    first, second = chance.choices(CONSTANTS[name], k=2)
    compared = chance.choice([first, first, SAME_TYPE.get(name, second)])
    forms = [f"{name} {chance.choice(COMPARISONS)} {compared}"] * 4
    forms += [f"{first} {chance.choice(COMPARISONS)} {name}", f"{name} is not null"]
    forms += [f"{name} is null", f"{name} in ({first}, {second})", f"{name} not in ({first})"]
    forms += [f"{name} between {first} and {second}", f"not {name} between {first} and {second}"]
    return chance.choice(["done", "not done", *forms])


def test_spark_selects_the_same_rows(spark: Session) -> None:
    chance = random.Random(12)
    columns = {name: chance.choices(values, k=ROWS) for name, values in VALUES.items()}
    rows = pa.table({**columns, "number": range(ROWS)}, SCHEMA)
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
        assert picked is not None, each
        columns_read = {name: rows[column] for name, column in picked.columns.items()}
        [batch] = pa.table(columns_read).combine_chunks().to_batches()
        numbers = picked.select(batch)["number"].to_pylist()
        assert numbers == by_spark[f"c{number}"], each
        selected += len(numbers)
    assert ROWS * CONDITIONS * 0.2 < selected < ROWS * CONDITIONS * 0.8
