"""Postgres' values as columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import Bad
from dbt.adapters.iceberg_stream.stream.sources.formats.casts import cast
from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values
from dbt.adapters.iceberg_stream.stream.sources.postgres.pgoutput import Change, Column
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MAJOR,
    MINOR,
    ROW_DELETED,
    TRUNCATED,
    BadRecord,
    Records,
)

# All others are strings, as Postgres writes them.
TYPES = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "bytea": pa.binary(),
}
NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
TIMESTAMP = re.compile(r"timestamp(?:\(\d\))? (with|without) time zone")
MOST_DIGITS = 38


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a table.

    Args:
        columns: Postgres' types by the columns' names.
    """
    return pa.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])


def _arrow_type(kind: str) -> pa.DataType:
    if match := NUMERIC.fullmatch(kind):
        precision, scale = map(int, match.groups())
        if scale <= precision <= MOST_DIGITS:
            return pa.decimal128(precision, scale)
    if match := TIMESTAMP.fullmatch(kind):
        return pa.timestamp("us", "UTC" if match[1] == "with" else None)
    return TYPES.get(kind, pa.string())


def records(changes: Sequence[Change], columns: Mapping[str, str], values: Values) -> Records:
    """Return the rows of changes.

    Args:
        changes: the changes.
        columns: Postgres' types by the names of the columns that rows have.
        values: converts values.
    """
    rows, majors, minors, deleted, truncated = [], [], [], [], []
    for change in changes:
        # The row of an old key is deleted before that of the new one is written.
        for row, is_new in ((change.old, False), (change.new, True)):
            if row is None and change.kind != "T":
                continue
            if is_new and change.kind == "T":
                continue
            rows.append(row or {})
            majors.append(change.major)
            minors.append(2 * change.minor + is_new)
            deleted.append(not is_new)
            truncated.append(change.kind == "T")
    arrays, bad = {}, dict[int, str]()
    for field in arrow_schema(columns):
        array, mask = _column([row.get(field.name) for row in rows], field, columns, values)
        arrays[field.name] = array
        for place in [] if mask is None else np.flatnonzero(mask).tolist():
            bad.setdefault(place, field.name)
    arrays[MAJOR], arrays[MINOR] = pa.array(majors, pa.int64()), pa.array(minors, pa.int64())
    arrays[ROW_DELETED] = pa.array(deleted, pa.bool_())
    if any(truncated):
        arrays[TRUNCATED] = pa.array(truncated, pa.bool_())
    batch = pa.record_batch(arrays)
    if bad:
        kept = np.ones(len(rows), np.bool_)
        kept[list(bad)] = False
        batch = batch.filter(pa.array(kept))
    places = (f"the transaction at {_lsn(majors[row])}, change {minors[row] // 2}" for row in bad)
    said = (
        BadRecord(place, _shown(rows[row]), f"has a value in `{name}` that its column cannot take")
        for place, (row, name) in zip(places, bad.items(), strict=True)
    )
    return Records(batch, list(said))


def _column(
    texts: list[Column], field: pa.Field, columns: Mapping[str, str], values: Values
) -> tuple[pa.Array, Bad]:
    kind = columns[field.name]
    if kind == "bytea":
        return pa.array([None if v is None else bytes.fromhex(v[2:].decode()) for v in texts]), None
    strings = pa.array(texts, pa.binary()).cast(pa.string())
    if kind.startswith("character("):
        strings = pc.utf8_rtrim(strings, " ")  # as in comparisons and casts of Postgres
    if kind == "date" or TIMESTAMP.fullmatch(kind):
        strings = pc.if_else(pc.ends_with(strings, " BC"), "BC", strings)  # no year has a sign
    if TIMESTAMP.fullmatch(kind):
        strings = pc.replace_substring_regex(strings, r"([+-]\d\d)$", r"\1:00")
    return cast(strings, field.type, values)


def _lsn(place: int) -> str:
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def _shown(row: Mapping[str, Column]) -> str:
    texts = {name: None if v is None else v.decode("utf-8", "replace") for name, v in row.items()}
    return json.dumps(texts, ensure_ascii=False)
