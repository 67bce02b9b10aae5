"""The truth about a table: columns by a number of their own, and rows that hold them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa

UTC = timezone.utc
LONG_TEXT = "0123456789abcdefé" * 2


@dataclass(frozen=True)
class Kind:
    """A type of columns, with values that have made trouble somewhere.

    Attributes:
        sql: the type's name in Spark.
        widened: the kind that it may become.
        transforms: partition transforms of Spark's DDL, with `{}` for the column.
    """

    sql: str
    arrow: pa.DataType
    values: Sequence[Any]
    widened: str = ""
    transforms: Sequence[str] = ("{}",)


STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
TIMES = ("{}", "years({})", "months({})", "days({})", "hours({})", "bucket(3, {})")
MOMENTS = (
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(1899, 2, 28, 1, 2, 3, 4),
    datetime(2024, 2, 29, 12),
    datetime(2026, 11, 22, 23, 59, 59, 999_999),
)
KINDS: dict[str, Kind] = {
    "bigint": Kind(
        "bigint", pa.int64(), (0, -1, 1, 2, 2**53 + 1, 8 - 2**63), "", ("{}", "bucket(4, {})", "truncate(10, {})")
    ),
    "int": Kind("int", pa.int32(), (0, -1, 7, 2**31 - 1, 8 - 2**31), "bigint", ("{}", "bucket(4, {})", "truncate(10, {})")),
    "string": Kind(
        "string",
        pa.string(),
        ("", "a", "A", "é", "e\u0301", LONG_TEXT, LONG_TEXT + "x", "\U0001f600", "\uffff", "O'Brien"),
        "",
        ("{}", "bucket(4, {})", "truncate(1, {})"),
    ),
    "decimal": Kind(
        "decimal(9,2)",
        pa.decimal128(9, 2),
        tuple(map(Decimal, ("0.00", "-0.01", "1.10", "9999999.99", "-9999999.50"))),
        "decimal2",
        ("{}", "bucket(4, {})", "truncate(50, {})"),
    ),
    "decimal2": Kind(
        "decimal(14,2)",
        pa.decimal128(14, 2),
        tuple(map(Decimal, ("0.00", "-0.01", "1.10", "999999999999.99"))),
        "",
        ("{}", "bucket(4, {})", "truncate(50, {})"),
    ),
    "float": Kind("float", pa.float32(), (0.0, -0.0, 1.5, math.nan, math.inf), "double", ()),
    "double": Kind("double", pa.float64(), (0.0, -0.0, 0.1, math.nan, -math.inf), "", ()),
    "date": Kind(
        "date",
        pa.date32(),
        (date(1969, 12, 31), date(1970, 1, 1), date(1900, 1, 1), date(2026, 11, 22)),
        "",
        ("{}", "years({})", "months({})", "days({})", "bucket(3, {})"),
    ),
    "timestamp": Kind(
        "timestamp", pa.timestamp("us", "UTC"), tuple(m.replace(tzinfo=UTC) for m in MOMENTS), "", TIMES
    ),
    "timestamp_ntz": Kind("timestamp_ntz", pa.timestamp("us"), MOMENTS, "", TIMES),
    "binary": Kind(
        "binary", pa.binary(), (b"", b"\x00", b"\xff" * 20, b"a"), "", ("{}", "bucket(4, {})", "truncate(1, {})")
    ),
    "boolean": Kind("boolean", pa.bool_(), (True, False)),
    "struct": Kind(
        "struct<x: int, y: string>", STRUCT, ({"x": 1, "y": None}, {"x": None, "y": "é"}), "", ()
    ),
    "array": Kind("array<bigint>", pa.list_(pa.int64()), ([], [1, None]), "", ()),
}  # fmt: skip
# What Spark does not have; DuckDB 1.5 has no `timestamptz_ns` either.
NANOSECONDS = ("timestamp_ns",)
NUMBERS = (-1, 0, 1, 999, 1_600_000_000_123_456_789, -1_600_000_000_123_456_789)
KINDS_OF_OURS = {
    "timestamp_ns": Kind("", pa.timestamp("ns"), tuple(map(pd.Timestamp, NUMBERS)), "", ()),
}
KEY_KINDS = ("bigint", "string", "decimal", "date", "timestamp", "timestamp_ntz", "binary", "int")


@dataclass(frozen=True)
class Column:
    """A column; `number` stays when it is renamed or widened."""

    number: int
    name: str
    kind: str

    @property
    def arrow(self) -> pa.DataType:
        return kind_of(self.kind).arrow


Row = dict[int, Any]


def kind_of(name: str) -> Kind:
    return KINDS.get(name) or KINDS_OF_OURS[name]


@dataclass
class Table:
    """What a table must hold. The first column is the key."""

    columns: list[Column]
    rows: list[Row] = field(default_factory=list)

    @property
    def key(self) -> Column:
        return next(column for column in self.columns if column.number == 0)

    def visible(self) -> Counter[tuple[Any, ...]]:
        """Rows as a reader sees them, in the order of the columns."""
        return Counter(
            tuple(plain(row.get(column.number)) for column in self.columns) for row in self.rows
        )

    def upsert(self, rows: Iterable[Row]) -> None:
        """Replace all rows of a key by the last one given."""
        last = {plain(row[0]): row for row in rows}
        self.delete(lambda row: plain(row[0]) in last)
        self.rows += last.values()

    def delete(self, condition: Callable[[Row], bool]) -> None:
        self.rows = [row for row in self.rows if not condition(row)]

    def copied(self) -> list[Row]:
        return [dict(row) for row in self.rows]

    def arrow(self, rows: Sequence[Row], columns: Sequence[Column] | None = None) -> pa.Table:
        """Rows as an Arrow table of the columns."""
        columns = self.columns if columns is None else columns
        arrays = [pa.array([row.get(c.number) for row in rows], c.arrow) for c in columns]
        return pa.Table.from_arrays(arrays, names=[c.name for c in columns])


def plain(value: Any) -> Any:
    """A value that is equal to itself, and the same from all readers."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, pd.Timestamp):
        return "nanoseconds", value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, dict):
        return tuple((name, plain(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, Decimal):
        return value.normalize() + 0
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value


def counted(table: pa.Table, columns: Sequence[Column]) -> Counter[tuple[Any, ...]]:
    """Rows that a reader has given."""
    lists = [table.column(column.name).to_pylist() for column in columns]
    return Counter(tuple(map(plain, row)) for row in zip(*lists, strict=True))


def literal(value: Any, kind: str) -> str:
    """A value in Spark's SQL."""
    sql = KINDS[kind].sql
    if value is None:
        return f"cast(null as {sql})"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dict):
        parts = literal(value["x"], "int"), literal(value["y"], "string")
        return f"named_struct('x', {parts[0]}, 'y', {parts[1]})"
    if isinstance(value, list):
        return f"cast(array({', '.join(literal(one, 'bigint') for one in value)}) as {sql})"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"cast('{text}' as {sql})"
