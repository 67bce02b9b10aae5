"""Columns of JSON: the types that PyArrow reads, and the values that Spark makes of them.

PyArrow reads the texts of dates and times as texts, and decimals with more digits than the column
has. They become values here as Spark's `from_json` makes them, or Spark has to read the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback

SCALARS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
UTC = frozenset({"UTC", "Etc/UTC"})
# What PyArrow reads for decimals. It counts the digits of a number, and then moves its point to the
# scale of the type without a check. Twice the digits of these types fit, and no column has them.
SHORT, LONG = pa.decimal128(19, 19), pa.decimal256(38, 38)
ROOM = {SHORT: pa.decimal128(38, SHORT.scale), LONG: pa.decimal256(76, LONG.scale)}
# With such an exponent, PyArrow reads beyond its table of powers of ten, and may crash. All texts
# are searched for the first pattern; those that match, such as `size-30`, for the second one.
SMALL_EXPONENT = r"[eE]-0*(?:[3-9]\d|[1-9]\d\d)"
SMALL_NUMBER = rf'[:,\[]\s*"?[-+]?[\d.]+{SMALL_EXPONENT}\d*"?\s*[,}}\]]'
# Characters of numbers that are escaped, behind which such an exponent may be.
ESCAPE = r"\\u00(?:2[bBdDeE]|3\d|[46]5)"
ESCAPED_NUMBER = rf'"[-+.\deE]*{ESCAPE}(?:[-+.\deE]|{ESCAPE})*"'
# The integer minus zero, which Spark reads as 0.
MINUS_ZERO = r"-0\s*[,}\]]"

# A text that may be base64 as well as digits.
MAYBE_BYTES = r'"[0-9+][0-9+eE]{3,}"'
# Numbers that only PyArrow reads. All texts are searched for the first pattern, as above.
NAMED_NUMBER = "-NaN|Inf"
NO_NUMBER = r"[:,\[]\s*(?:-NaN|-?Inf)\s*[,}\]]"
# Spark's parser refuses names of members with more characters.
MAX_NAME = 50_000
STRING = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")\s*(:?)')

DAY = r"\d{4}-\d\d-\d\d"
MINUTE = rf"{DAY}[ T]\d\d:\d\d"
SECOND = r":\d\d(?:\.\d{1,9})?"
# Java refuses offsets of more than 18 hours, PyArrow those of more than 24.
OFFSET = r"(?:Z|[+-](?:0\d|1[0-7]):?[0-5]\d)"
IS_INSTANT = f"^{MINUTE}{SECOND}{OFFSET}$"
# Some writers leave out seconds that are zero.
IS_LOCAL = f"^(?:{MINUTE}(?:{SECOND})?|{DAY})$"
# Of a longer text, Spark reads the date.
IS_DAY = f"^{DAY}(?:[ T].*)?$"
DAY_LENGTH, MILLISECONDS_LENGTH = len("2026-11-26"), len("2026-11-26T10:11:12.131Z")
# Spark leaves out digits beyond microseconds, which PyArrow refuses.
FINER = r"(\.\d{6})\d+"


def json_arrow_schema(columns: Iterable[t.StructField]) -> pa.Schema | None:
    """Return the Arrow schema of records.

    Args:
        columns: of the records.

    Returns:
        The schema; None if PyArrow cannot decode one of the types as Spark does.
    """
    fields = [(column.name, _arrow_type(column.dataType)) for column in columns]
    if any(kind is None for _, kind in fields):
        return None
    return pa.schema(fields)


def _arrow_type(kind: t.DataType) -> pa.DataType | None:
    """Return the Arrow type of a column; None if Spark has to read it.

    That is the case for maps, too: PyArrow takes lists of entries for them, and no objects.
    """
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, t.ArrayType):
        element = _arrow_type(kind.elementType)
        return None if element is None else pa.list_(pa.field("element", element))
    if isinstance(kind, t.StructType):
        schema = json_arrow_schema(kind.fields)
        distinct = len({name.lower() for name in kind.names}) == len(kind.names)
        return pa.struct(list(schema)) if schema is not None and distinct else None
    return SCALARS.get(kind.simpleString())


def has_times(schema: pa.Schema) -> bool:
    """Return whether values of a schema are dates or times, or contain some."""
    return any(pa.types.is_temporal(kind) for kind in _leaf_types(schema))


def _leaf_types(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    for field in fields:
        if field.type.num_fields:
            yield from _leaf_types(map(field.type.field, range(field.type.num_fields)))
        else:
            yield field.type


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which PyArrow reads a column.

    Args:
        kind: the column's type.
    """
    if pa.types.is_decimal(kind):
        return SHORT if kind.precision < SHORT.precision else LONG
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(read_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(read_type(field.type)) for field in kind])
    return kind


def require_readable(texts: pa.StringArray, schema: pa.Schema) -> None:
    """Check that PyArrow reads JSON as Spark does, also members that no column has.

    Args:
        texts: the JSON.
        schema: of the records.

    Raises:
        ArrowFallback: it may crash, read a wrong number, or read what Spark refuses.
    """
    suspects = [(NAMED_NUMBER, NO_NUMBER)]
    if any(pa.types.is_decimal(kind) for kind in _leaf_types(schema)):
        suspects += [(SMALL_EXPONENT, SMALL_NUMBER), (ESCAPE, ESCAPED_NUMBER)]
    for part, number in suspects:
        some = texts.filter(pc.match_substring_regex(texts, part))
        if _is_any(pc.match_substring_regex(some, number)):
            raise ArrowFallback
    # Most messages are shorter than the longest name.
    some = texts.filter(pc.greater(pc.binary_length(texts), MAX_NAME))
    if any(map(_has_long_name, some.cast(pa.binary()).to_pylist())):
        raise ArrowFallback


def require_no_bytes(texts: pa.StringArray, schema: pa.Schema) -> None:
    """Check that no text for a decimal may be base64 as well as digits.

    Args:
        texts: the JSON.
        schema: of the records.

    Raises:
        ArrowFallback: one may be.
    """
    places = {rf'"{re.escape(name)}"\s*:' if name else r"[\[,]" for name in _decimal_names(schema)}
    if not places:
        return
    # A name may be written with escapes.
    if b"\\" in texts.buffers()[2].to_pybytes():
        places.add(r'"[^"]*\\[^"]*"\s*:')
    for place in places:
        if _is_any(pc.match_substring_regex(texts, rf"{place}\s*{MAYBE_BYTES}")):
            raise ArrowFallback


def _decimal_names(fields: Iterable[pa.Field]) -> Iterator[str]:
    """Yield the names of decimals; an empty one for items of a list."""
    for field in fields:
        name, kind = field.name, field.type
        while pa.types.is_list(kind):
            name, kind = "", kind.value_type
        if pa.types.is_decimal(kind):
            yield name
        elif pa.types.is_struct(kind):
            yield from _decimal_names(kind)


def _has_long_name(text: bytes) -> bool:
    strings = STRING.finditer(text)
    return any(len(string[1]) > MAX_NAME + len('""') and string[2] for string in strings)


def require_floats_of_spark(texts: pa.StringArray, records: pa.Table) -> None:
    """Check that Spark reads the same floats as PyArrow.

    Args:
        texts: the JSON.
        records: what PyArrow has read.

    Raises:
        ArrowFallback: it may not.
    """
    arrays = (chunk for column in records.itercolumns() for chunk in column.chunks)
    has_minus_zero = any(map(_has_minus_zero, arrays))
    if has_minus_zero and _is_any(pc.match_substring_regex(texts, MINUS_ZERO)):
        raise ArrowFallback


def _has_minus_zero(values: pa.Array) -> bool:
    """Return whether a float is minus zero."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(map(_has_minus_zero, values.flatten()))
    if pa.types.is_list(kind):
        return _has_minus_zero(values.flatten())
    if not pa.types.is_floating(kind):
        return False
    bits = pa.int64() if kind == pa.float64() else pa.int32()
    # The bits of minus zero are those of the lowest integer.
    return bool(pc.min(values.view(bits)).as_py() == -(2 ** (kind.bit_width - 1)))


def of_column(values: pa.Array, kind: pa.DataType, zone: str, exact: bool) -> pa.Array:
    """Return the values of a column.

    Args:
        values: as PyArrow reads them.
        kind: the column's type.
        zone: the time zone of texts without one.
        exact: whether decimals must not be rounded.

    Raises:
        ArrowFallback, pa.ArrowException: Spark may have other values.
    """
    if values.type == kind:
        return values
    absent = values.is_null() if values.null_count else None
    if pa.types.is_struct(kind):
        children = [
            of_column(child, field.type, zone, exact)
            for child, field in zip(values.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    if pa.types.is_list(kind):
        items = of_column(values.values, kind.value_type, zone, exact)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=absent)
    if pa.types.is_decimal(kind):
        return _decimals(values, kind, exact)
    if pa.types.is_date(kind):
        return _dates(values)
    return _instants(values, zone) if kind.tz else _local_times(values)


def _decimals(values: pa.Array, kind: pa.Decimal128Type, exact: bool) -> pa.Array:
    """Round numbers as Spark does: a half, away from zero."""
    numbers = values.view(ROOM[values.type])
    try:
        return numbers.cast(kind)
    except pa.ArrowInvalid:
        if exact:
            raise
        rounded = pc.round(numbers, kind.scale, round_mode="half_towards_infinity")
        return rounded.cast(kind)


def _dates(texts: pa.StringArray) -> pa.Array:
    _require_all(pc.match_substring_regex(texts, IS_DAY))
    return pc.utf8_slice_codeunits(texts, 0, DAY_LENGTH).cast(pa.date32())


def _local_times(texts: pa.StringArray) -> pa.Array:
    _require_all(pc.match_substring_regex(texts, IS_LOCAL))
    return _times(texts, SCALARS["timestamp_ntz"])


def _instants(texts: pa.StringArray, zone: str) -> pa.Array:
    is_instant, kind = pc.match_substring_regex(texts, IS_INSTANT), SCALARS["timestamp"]
    if _are_all(is_instant):
        return _times(texts, kind)
    if zone not in UTC:
        raise ArrowFallback
    local = _local_times(pc.if_else(is_instant, None, texts)).cast(kind)
    instants = _times(pc.if_else(is_instant, texts, None), kind)
    return pc.coalesce(instants, local)


def _times(texts: pa.StringArray, kind: pa.TimestampType) -> pa.Array:
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > MILLISECONDS_LENGTH and _is_any(pc.match_substring_regex(texts, FINER)):
        texts = pc.replace_substring_regex(texts, FINER, r"\1")
    return texts.cast(kind)


def _require_all(conditions: pa.BooleanArray) -> None:
    if not _are_all(conditions):
        raise ArrowFallback


def _are_all(conditions: pa.BooleanArray) -> bool:
    """Return whether no condition is false; none are, of no values but nulls."""
    return bool(pc.all(conditions, min_count=0).as_py())


def _is_any(conditions: pa.BooleanArray) -> bool:
    return bool(pc.any(conditions).as_py())
