"""The highest value of a column in a data file, whoever has written the file."""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_keys
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# Characters of a bound that may have been cut: `truncate(16)` is Iceberg's default.
CUT_LENGTH = 16


def highest_value(target: WriteTarget, column: pa.Field, file: DataFile) -> pa.Scalar:
    """Return a value that no row of a data file exceeds.

    Args:
        target: the table's storage.
        column: the column, as files have it, with its id.
        file: the data file. Without usable metrics its column is read.

    Returns:
        The value; null if the column has none. NaN is none.

    Raises:
        UnsupportedFile: the file cannot be read with this column.
        OSError: the storage refuses the file.
    """
    number = int((column.metadata or {})[b"PARQUET:field_id"])
    bound = bound_value(column.type, (file.upper_bounds or {}).get(number))
    if bound is not None:
        return bound
    highest = pa.scalar(None, column.type)
    if (file.null_value_counts or {}).get(number) == file.record_count:
        return highest
    for _, rows in read_keys(target, pa.schema([column]), file.file_path):
        values = rows[column.name]
        if pa.types.is_floating(column.type):
            values = values.filter(pc.invert(pc.fill_null(pc.is_nan(values), True)))
        highest = higher(highest, pc.max(values))
    return highest


def higher(one: pa.Scalar, other: pa.Scalar) -> pa.Scalar:
    """Return the higher one of two values; null counts as lower than any value.

    Args:
        one: a value.
        other: a value of the same type.
    """
    if not one.is_valid:
        return other
    return other if other.is_valid and pc.greater(other, one).as_py() else one


def bound_value(kind: pa.DataType, raw: bytes | None) -> pa.Scalar | None:
    """Return an upper bound of a file's metrics; None if there is none, or none to rely on.

    Args:
        kind: type of the column. The bound may be from before it was widened.
        raw: the bound, as Iceberg serializes it.
    """
    if raw is None:
        return None
    try:
        return _bound(kind, raw)
    except (UnicodeDecodeError, struct.error, pa.ArrowException):
        return None


def _bound(kind: pa.DataType, raw: bytes) -> pa.Scalar | None:
    value: Any
    if pa.types.is_floating(kind):
        (value,) = struct.unpack("<f" if len(raw) == 4 else "<d", raw)
        return None if math.isnan(value) else pa.scalar(value, kind)
    if pa.types.is_string(kind):
        # A bound that was cut is too high, so that changes seem to be late.
        text = raw.decode()
        return None if len(text) >= CUT_LENGTH else pa.scalar(text, kind)
    if pa.types.is_decimal(kind):
        digits = Decimal(int.from_bytes(raw, "big", signed=True))
        return pa.scalar(digits.scaleb(-kind.scale, Context(prec=76)), kind)
    is_time = pa.types.is_timestamp(kind) and kind.unit == "us" and len(raw) == 8
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or is_time:
        value = int.from_bytes(raw, "little", signed=True)
        return pa.scalar(value, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return None
