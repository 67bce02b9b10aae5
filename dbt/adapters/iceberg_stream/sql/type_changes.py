"""Whether a column stores values of another type as they are."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import ParseError

Type = exp.DType
# Digits of numbers before and after the point.
DIGITS = {
    Type.TINYINT: (3, 0),
    Type.SMALLINT: (5, 0),
    Type.INT: (10, 0),
    Type.BIGINT: (19, 0),
    Type.FLOAT: (7, 20),
    Type.DOUBLE: (15, 40),
}
TEXTS = {Type.TEXT, Type.CHAR, Type.VARCHAR}
TIMES = {Type.TIMESTAMPTZ, Type.TIMESTAMPLTZ, Type.TIMESTAMPNTZ}
# Spark writes them in another zone, with fewer digits, or not at all.
NOT_AS_TEXT = {Type.TIMESTAMPTZ, Type.TIMESTAMPLTZ, Type.FLOAT, Type.BINARY}
NESTED = {Type.STRUCT, Type.ARRAY, Type.MAP}


def may_lose(queried: str, stored: str) -> bool:
    """Return whether values of a type may change, or be refused, as values of another type.

    Args:
        queried: the type of the values, as Spark writes it.
        stored: the type of the column.
    """
    if queried == stored:
        return False
    try:
        return _may_lose(*(exp.DataType.build(one, dialect="spark") for one in (queried, stored)))
    except ParseError:
        return False  # a type of its own, such as `void`


def _may_lose(queried: exp.DataType, stored: exp.DataType) -> bool:
    ours, theirs = queried.this, stored.this
    if ours in NESTED or theirs in NESTED:
        parts = queried.expressions, stored.expressions
        if ours != theirs or len(parts[0]) != len(parts[1]):
            return True
        return any(_part_may_lose(*pair) for pair in zip(*parts, strict=True))
    if ours in TEXTS:
        return theirs not in TEXTS
    if theirs in TEXTS:
        return ours in NOT_AS_TEXT
    if ours in TIMES and theirs in TIMES:
        # Two times may be the same on a clock that is set back.
        return (ours == Type.TIMESTAMPNTZ) != (theirs == Type.TIMESTAMPNTZ)
    if theirs == Type.DATE:
        return ours != Type.DATE
    before, after = _digits(queried), _digits(stored)
    return bool(before and after and (before[0] > after[0] or before[1] > after[1]))


def _part_may_lose(queried: exp.Expression, stored: exp.Expression) -> bool:
    """Compare elements, or fields of structs, which Spark matches by their positions."""
    if isinstance(queried, exp.ColumnDef) and queried.name.lower() != stored.name.lower():
        return True
    return _may_lose(_type_of(queried), _type_of(stored))


def _type_of(part: exp.Expression) -> exp.DataType:
    kind = part.args["kind"] if isinstance(part, exp.ColumnDef) else part
    assert isinstance(kind, exp.DataType), "a field or an element has a type"
    return kind


def _digits(kind: exp.DataType) -> tuple[int, int] | None:
    if kind.this == Type.DECIMAL:
        precision, scale = (int(parameter.name) for parameter in kind.expressions)
        return precision - scale, scale
    return DIGITS.get(kind.this)
