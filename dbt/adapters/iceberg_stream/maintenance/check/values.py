"""Values of arrays, bounds and partitions, in Iceberg's order (spec, "Appendix D")."""

from __future__ import annotations

import math
import struct
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
UUID_LENGTH = 16
# Python rounds to 28 digits otherwise.
DIGITS = Context(prec=38)
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES = (StringType, BinaryType, FixedType, UUIDType)
MICROS_A_DAY = 86_400_000_000
TIMES = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
DECIMAL_LENGTH = 16
# In bytes; a bound may be older than the promotion of its column from a shorter type.
LENGTHS: dict[type[IcebergType], tuple[int, ...]] = {
    BooleanType: (1,),
    IntegerType: (4,),
    LongType: (4, 8),
    FloatType: (4,),
    DoubleType: (4, 8),
    DateType: (4,),
    TimeType: (8,),
    **dict.fromkeys(TIMES, (4, 8)),
    UUIDType: (UUID_LENGTH,),
}


def comparable(values: pa.Array) -> pa.Array | None:
    """Convert an array so that its order is that of bounds; None for types without an order.

    Args:
        values: values of a column.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_temporal(kind):
        if pa.types.is_date32(kind) or pa.types.is_time32(kind):
            return values.cast(pa.int32())
        return values.cast(pa.int64())
    if any(test(kind) for test in TEXTS) or pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if pa.types.is_float16(kind) or pa.types.is_null(kind):
        return None
    return values


def is_bound(kind: IcebergType, raw: bytes) -> bool:
    """Return whether a bound has a length that its type can have.

    Args:
        kind: the column's type.
        raw: the bound (spec, "Binary single-value serialization").
    """
    if isinstance(kind, DecimalType):
        return 0 < len(raw) <= DECIMAL_LENGTH
    lengths = LENGTHS.get(type(kind))
    return lengths is None or len(raw) in lengths


def bound_value(kind: IcebergType, raw: bytes | None) -> Any:
    """Convert a bound so that it can be compared with the values of `comparable`.

    Args:
        kind: the column's current type; the bound may have the type of an older schema.
        raw: the bound (spec, "Binary single-value serialization").

    Returns:
        The value; None if there is none, or it cannot be compared.
    """
    if raw is None or not is_bound(kind, raw):
        return None
    if isinstance(kind, BYTES):
        return bytes(raw)
    if isinstance(kind, BooleanType):
        return raw != b"\x00"
    if isinstance(kind, (FloatType, DoubleType)):
        value = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
        return None if math.isnan(value) else value
    if isinstance(kind, DecimalType):
        return DIGITS.scaleb(Decimal(int.from_bytes(raw, "big", signed=True)), -kind.scale)
    if isinstance(kind, TIMES) and len(raw) == 4:
        return None  # a date that was widened
    if isinstance(kind, (IntegerType, LongType, DateType, TimeType, *TIMES)):
        return int.from_bytes(raw, "little", signed=True)
    return None


def partition_value(value: Any) -> Any:
    """Convert a partition value of Avro, Arrow or PyIceberg to one comparable form."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return (moment - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    if isinstance(value, time):
        return (
            (value.hour * 60 + value.minute) * 60 + value.second
        ) * 1_000_000 + value.microsecond
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value


def holds_nan(values: pa.Array) -> bool:
    """Return whether an array has NaN."""
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def fits(arrow_type: pa.DataType, kind: IcebergType) -> bool:
    """Return whether readers accept a file's column for a table's type.

    Args:
        arrow_type: the type in the file.
        kind: the table's type (spec, "Schema Evolution": type promotion).
    """
    if isinstance(arrow_type, pa.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    tests = pa.types
    if tests.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if isinstance(kind, BooleanType):
        return tests.is_boolean(arrow_type)
    if isinstance(kind, IntegerType):
        return _is_signed(arrow_type, 32)
    if isinstance(kind, LongType):
        return _is_signed(arrow_type, 64)
    if isinstance(kind, FloatType):
        return tests.is_float32(arrow_type)
    if isinstance(kind, DoubleType):
        return tests.is_float32(arrow_type) or tests.is_float64(arrow_type)
    if isinstance(kind, DecimalType):
        return (
            tests.is_decimal(arrow_type)
            and arrow_type.scale == kind.scale
            and arrow_type.precision <= kind.precision
        )
    if isinstance(kind, DateType):
        return tests.is_date(arrow_type)
    if isinstance(kind, TimeType):
        return tests.is_time(arrow_type)
    if isinstance(kind, TIMES):
        return tests.is_timestamp(arrow_type) or tests.is_date(arrow_type)
    if isinstance(kind, (StringType, BinaryType)):
        bytes_ = (tests.is_binary, tests.is_large_binary, tests.is_binary_view)
        return any(test(arrow_type) for test in (*TEXTS, *bytes_))
    if isinstance(kind, (UUIDType, FixedType)):
        length = len(kind) if isinstance(kind, FixedType) else UUID_LENGTH
        return tests.is_fixed_size_binary(arrow_type) and arrow_type.byte_width == length
    return True


def _is_signed(arrow_type: pa.DataType, bits: int) -> bool:
    """Return whether readers of signed numbers read a type right: small unsigned ones are, too."""
    if pa.types.is_unsigned_integer(arrow_type):
        return bool(arrow_type.bit_width < 32)
    return pa.types.is_integer(arrow_type) and bool(arrow_type.bit_width <= bits)
