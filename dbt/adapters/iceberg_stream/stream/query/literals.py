"""Numbers and texts that are written out in a query."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.decimals import decimal_type
from dbt.adapters.iceberg_stream.stream.query.values import (
    INTEGERS,
    NUMBERS,
    Unsupported,
    Value,
    scalar,
)

INTEGER = re.compile(r"\d{1,18}")
DECIMAL = re.compile(r"\d+\.\d*")
NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
# Doubles have all integers up to this one.
EXACT_DOUBLE = 2**53


def without_parentheses(node: exp.Expr) -> exp.Expr:
    """Return what stands within parentheses."""
    return without_parentheses(node.this) if isinstance(node, exp.Paren) else node


def is_number(node: exp.Expr) -> bool:
    """Return whether an expression is a number, written out."""
    literal = node.this if isinstance(node, exp.Neg) else node
    return isinstance(literal, exp.Literal) and not literal.is_string


def is_text(node: exp.Expr) -> bool:
    """Return whether an expression is a text, written out."""
    return isinstance(node, exp.Literal) and bool(node.is_string)


def is_constant(node: exp.Expr) -> bool:
    """Return whether an expression depends on no column."""
    return not any(node.find_all(exp.Column))


def written(node: exp.Expr | None) -> str:
    """Return a text that is written out.

    Raises:
        Unsupported: it is computed.
    """
    if node is None or not is_text(node):
        raise Unsupported
    return str(node.this)


def count(node: exp.Expr | None) -> int:
    """Return a length or a position that is written out.

    Raises:
        Unsupported: it is computed, or negative.
    """
    if not isinstance(node, exp.Literal) or node.is_string or not INTEGER.fullmatch(str(node.this)):
        raise Unsupported
    return int(str(node.this))


def number(node: exp.Expr) -> Value:
    """Return a number with the type that it has by itself.

    Args:
        node: the number.

    Raises:
        Unsupported: it has too many digits.
    """
    sign, text = _signed(node)
    if INTEGER.fullmatch(text):
        return constant(node, pa.int32() if _fits(sign * int(text), 32) else pa.int64())
    if DECIMAL.fullmatch(text):
        return _decimal(sign * Decimal(text))
    if "e" not in text.lower():
        raise Unsupported
    return constant(node, pa.float64())


def constant(node: exp.Expr, kind: pa.DataType) -> Value:
    """Return a number as a constant of a type to which Spark casts it exactly.

    Args:
        node: the number.
        kind: an integer type or `double`.

    Raises:
        Unsupported: the type has no such number.
    """
    sign, text = _signed(node)
    is_integer = INTEGER.fullmatch(text) is not None
    if kind in INTEGERS and is_integer and _fits(sign * int(text), kind.bit_width):
        return scalar(sign * int(text), kind)
    if kind == pa.float64() and NUMBER.fullmatch(text):
        if is_integer and int(text) > EXACT_DOUBLE:
            raise Unsupported
        return scalar(sign * float(text), kind)
    raise Unsupported


def _fits(value: int, bits: int) -> bool:
    return -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def as_operand(node: exp.Expr, value: Value) -> Value:
    """Return an operand that meets a decimal, with no more digits than a number needs.

    Args:
        node: the operand.
        value: its value.
    """
    if not is_number(node) or value.type not in NUMBERS:
        return value
    sign, text = _signed(node)
    return _decimal(sign * Decimal(text))


def _decimal(value: Decimal) -> Value:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return scalar(value, decimal_type(max(len(digits), scale), scale))


def _signed(node: exp.Expr) -> tuple[int, str]:
    sign, literal = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    return sign, str(literal.this)
