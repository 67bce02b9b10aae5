"""Decimals, whose precision and scale follow Spark's rules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs
from dbt.adapters.iceberg_stream.stream.query.values import (
    INTEGERS,
    Unsupported,
    Value,
    call,
    convert,
    scalar,
)

MAX_PRECISION = 38
LEAST_QUOTIENT_SCALE = 6
# Digits of all integers of a type, as Spark counts them, and those that PyArrow requires.
SPARK_DIGITS = {pa.int32(): 10, pa.int64(): 20}
ARROW_DIGITS = {pa.int32(): 10, pa.int64(): 19}
# Texts that Spark and PyArrow read as the same decimal.
PLAIN_DECIMAL = r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"
# Doubles have all decimals of this many digits, and all powers of ten up to the other one.
EXACT_DIGITS, EXACT_POWER = 15, 22
# What doubles are read as.
OF_DOUBLES = pa.decimal128(MAX_PRECISION, 22)
TO_INTEGER = {
    kind: pc.CastOptions(kind, allow_decimal_truncate=True, allow_int_overflow=False)
    for kind in INTEGERS
}


def is_decimal(kind: pa.DataType) -> bool:
    """Return whether a type is one of decimals."""
    return bool(pa.types.is_decimal128(kind))


def decimal_type(precision: int, scale: int) -> pa.Decimal128Type:
    """Return a type of decimals.

    Args:
        precision: its number of digits.
        scale: how many of them follow the point.

    Raises:
        Unsupported: there are more digits than Spark has: it rounds.
    """
    if not (0 < precision <= MAX_PRECISION and 0 <= scale <= precision):
        raise Unsupported
    return pa.decimal128(precision, scale)


def wider_decimal(one: pa.DataType, other: pa.DataType) -> pa.Decimal128Type:
    """Return the type of decimals to which Spark casts two types that meet.

    Args:
        one: decimals or integers.
        other: the other ones.

    Raises:
        Unsupported: there is none that has all of their numbers.
    """
    (p1, s1), (p2, s2) = _digits(one), _digits(other)
    scale = max(s1, s2)
    return decimal_type(max(p1 - s1, p2 - s2) + scale, scale)


def add(function: Any, one: Value, other: Value) -> Value:
    """Return a sum or a difference, of which one side is a decimal.

    Args:
        function: of PyArrow.
        one: a decimal or an integer.
        other: the other one.
    """
    (p1, s1), (p2, s2) = _digits(one.type), _digits(other.type)
    scale = max(s1, s2)
    kind = decimal_type(max(p1 - s1, p2 - s2) + scale + 1, scale)
    return call(function, kind, _decimal(one), _decimal(other))


def multiply(one: Value, other: Value) -> Value:
    """Return a product, of which one side is a decimal.

    Args:
        one: a decimal or an integer.
        other: the other one.
    """
    (p1, s1), (p2, s2) = _digits(one.type), _digits(other.type)
    return call(pc.multiply, decimal_type(p1 + p2 + 1, s1 + s2), _decimal(one), _decimal(other))


def divide(one: Value, other: Value) -> Value:
    """Return a quotient, of which one side is a decimal.

    Spark rounds it half up twice, first to 38 digits after the point. PyArrow cuts it off, so that
    it needs one digit more to be rounded.

    Args:
        one: a decimal or an integer.
        other: the other one.

    Raises:
        Unsupported: the type has too many digits, or the first rounding may make a half.
    """
    (p1, s1), (p2, s2) = _digits(one.type), _digits(other.type)
    scale = max(LEAST_QUOTIENT_SCALE, s1 + p2 + 1)
    kind = decimal_type(p1 - s1 + s2 + scale, scale)
    if scale + p2 >= MAX_PRECISION:
        raise Unsupported
    # PyArrow gives the quotient `dividend.scale + p2 - s2 + 1` digits after the point.
    before = scale + s2 - p2
    dividend = convert(_decimal(one), decimal_type(p1 - s1 + before, before))
    cut = decimal_type(kind.precision + 1, scale + 1)
    quotient = call(pc.divide, cut, dividend, _decimal(other))
    return convert(_rounded(quotient, scale), kind)


def to_decimal(value: Value, to: pa.Decimal128Type, inputs: Inputs) -> Value:
    """Cast a value to decimals, and round half up.

    Args:
        value: a number or a text.
        to: the type.
        inputs: doubts are added to it.

    Raises:
        Unsupported: the value is of another type.
    """
    if value.type == pa.string():
        inputs.doubt(is_no_plain_decimal, value)
        value = convert(value, pa.decimal128(MAX_PRECISION, MAX_PRECISION // 2 - 1))
    elif value.type == pa.float64():
        value = _of_double(value, to.scale, inputs)
    elif value.type in INTEGERS:
        value = convert(value, pa.decimal128(ARROW_DIGITS[value.type], 0))
    if not is_decimal(value.type):
        raise Unsupported
    return convert(_rounded(value, to.scale), to)


def round_to(value: Value, scale: int) -> Value:
    """Return a decimal, rounded as Spark's `round` does.

    Args:
        value: the decimal.
        scale: how many digits follow the point afterwards, at most.
    """
    precision, before = _digits(value.type)
    scale = min(scale, before)
    kind = decimal_type(min(precision - before + 1 + scale, MAX_PRECISION), scale)
    return convert(_rounded(value, scale), kind)


def round_double(value: Value, scale: int, inputs: Inputs) -> Value:
    """Return a double, rounded as Spark's `round` does.

    Args:
        value: the double.
        scale: how many digits follow the point afterwards, at most.
        inputs: doubts are added to it.

    Raises:
        Unsupported: there are too many digits.
    """
    rounded = _rounded(_of_double(value, scale, inputs), scale)
    return to_double(convert(rounded, decimal_type(EXACT_DIGITS, scale)))


def to_whole(function: Any, value: Value) -> Value:
    """Return a decimal's next integer below or above, which is a decimal.

    Args:
        function: of PyArrow.
        value: the decimal.
    """
    precision, scale = _digits(value.type)
    if not scale:
        return value
    kind = decimal_type(precision - scale + 1, 0)
    wide = _with_a_digit_more(value)
    return convert(call(function, wide.type, wide), kind)


def to_integer(value: Value, to: pa.DataType) -> Value:
    """Cast a decimal to an integer, without the digits after the point.

    Args:
        value: the decimal.
        to: the integer's type.
    """
    return call(pc.cast, to, value, options=TO_INTEGER[to])


def to_double(value: Value) -> Value:
    """Cast a decimal to the nearest double.

    Args:
        value: the decimal.
    """
    precision, scale = _digits(value.type)
    if precision > EXACT_DIGITS or scale > EXACT_POWER:
        return convert(convert(value, pa.string()), pa.float64())
    # PyArrow's own cast may return a neighbour. A division rounds once.
    unscaled = call(_unscaled, pa.decimal128(precision, 0), value)
    dividend = convert(convert(unscaled, pa.int64()), pa.float64())
    return call(pc.divide, pa.float64(), dividend, scalar(10.0**scale, pa.float64()))


def is_no_plain_decimal(texts: Any) -> Any:
    """Return which texts Spark and PyArrow may read as different decimals, or refuse."""
    return pc.invert(pc.match_substring_regex(texts, PLAIN_DECIMAL))


def _of_double(value: Value, scale: int, inputs: Inputs) -> Value:
    """Return doubles as the decimals that they are as texts, to be rounded, as Spark does.

    Java's texts may be longer than PyArrow's, but no number of EXACT_DIGITS digits is between them.
    """
    whole = EXACT_DIGITS - 1 - scale
    if whole < 1:
        raise Unsupported
    digits = convert(value, pa.string())
    pattern = rf"^-?[0-9]{{1,{whole}}}(\.[0-9]{{1,{OF_DOUBLES.scale}}})?$"
    inputs.doubt(lambda texts: pc.invert(pc.match_substring_regex(texts, pattern)), digits)
    return convert(digits, OF_DOUBLES)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Return the precision and scale that Spark gives numbers of a type."""
    if is_decimal(kind):
        return kind.precision, kind.scale
    if kind not in SPARK_DIGITS:
        raise Unsupported
    return SPARK_DIGITS[kind], 0


def _decimal(value: Value) -> Value:
    precision, scale = _digits(value.type)
    return convert(value, pa.decimal128(precision, scale))


def _rounded(value: Value, scale: int) -> Value:
    if value.type.scale <= scale:
        return value
    wide = _with_a_digit_more(value)
    return call(pc.round, wide.type, wide, ndigits=scale, round_mode="half_towards_infinity")


def _with_a_digit_more(value: Value) -> Value:
    """Return a decimal with room for what it is rounded to."""
    precision, scale = _digits(value.type)
    return convert(value, pa.decimal128(min(precision + 1, MAX_PRECISION), scale))


def _unscaled(decimals: Any) -> Any:
    """Return decimals without their point."""
    if isinstance(decimals, pa.Scalar):
        return _unscaled(pa.repeat(decimals, 1))[0]
    return decimals.view(pa.decimal128(decimals.type.precision, 0))
