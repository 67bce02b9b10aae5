"""Random records in JSON with odd values, in members that columns have and in others."""

from __future__ import annotations

import random

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from tests.unit.stream.sources.formats.json_texts import (
    NUMBERS,
    OTHERS,
    digits,
    odd_number,
    odd_time,
)

PRICE = pa.decimal128(10, 2)
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("p", PRICE),
        ("q", pa.decimal128(38, 9)),
        ("f", pa.float32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("b", pa.binary()),
        ("part", pa.struct([("n", pa.int32()), ("p", PRICE)])),
        ("list", list_of(pa.float64())),
        ("map", pa.map_(pa.string(), pa.int16())),
        ("yes", pa.bool_()),
    ]
)
DEPTHS = (2, 999, 1001)
BASE64 = ('"1234"', '"12345678"', '"BNI="', '"1e10"', '"+123"', '"AAAA"', '"12=="', '"-123"')
SPACES = ("", "", "", " ", "\t")


def odd_value(chance: random.Random) -> str:
    """Any value: a number that is no JSON, is huge or in quotes, or a deep or broken value."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.choice([*NUMBERS, *OTHERS])
    if kind == 1:
        return odd_number(chance)
    if kind == 2:
        return chance.choice(BASE64)
    if kind == 3:
        return odd_time(chance)
    if kind == 4:
        return chance.choice(["", "-", "0."]) + "7" * chance.choice([20, 1000, 1001])
    if kind == 5:
        depth = chance.choice(DEPTHS)
        begin, end = chance.choice([("[", "]"), ('{"n": ', "}")])
        return begin * depth + chance.choice(["1", "NaN", "Inf", '"x"']) + end * depth
    if kind == 6:
        return f'{{"n": {chance.choice(NUMBERS)}, "p": {chance.choice(BASE64)}}}'
    return f"[{chance.choice(NUMBERS)}, {digits(chance, 4)}.5]"


def plain_value(chance: random.Random, name: str) -> str:
    """A value that fits the column."""
    return {
        "id": str(chance.randint(0, 9)),
        "x": chance.choice(["1.5", "-0.0", "-0", "1e300", "NaN", "7"]),
        "s": chance.choice(['"Inf"', '"a"', '": NaN,"', '"1234"']),
        "p": chance.choice(["1.5", '"2.50"', "3"]),
        "q": chance.choice(["1.5", '"2.50"', "1e-9"]),
        "f": chance.choice(["1.5", "-0.0", "-0", "1e300", "NaN"]),
        "at": '"2026-11-26T10:11:12Z"',
        "local": '"2026-11-26T10:11:12.5"',
        "day": '"2026-11-26"',
        "b": '"AAAA"',
        "map": '{"a": 1, "b": null}',
        "yes": "true",
        "part": '{"n": 1, "p": 2.5}',
        "list": "[1, 2.5, NaN]",
    }.get(name, '"u"')


def odd_record(chance: random.Random) -> str:
    """A record with at most one odd value in a column and one in a member without a column."""
    names = [name for name in COLUMNS.names if chance.random() < 0.7]
    if chance.random() < 0.9 and "id" not in names:
        names.append("id")
    odd = chance.choice([None, None, *names]) if names else None
    values = [
        (name, odd_value(chance) if name == odd else plain_value(chance, name)) for name in names
    ]
    if chance.random() < 0.5:
        values.append(("u", odd_value(chance)))
    if values and chance.random() < 0.1:
        # A key that comes twice.
        name, _ = chance.choice(values)
        values.append((name, chance.choice([plain_value(chance, name), "null"])))
    chance.shuffle(values)
    space = chance.choice(SPACES)
    texts = [f'"{name}":{space}{value}' for name, value in values]
    return "{" + f",{space}".join(texts) + "}"
