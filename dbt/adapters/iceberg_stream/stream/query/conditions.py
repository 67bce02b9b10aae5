"""Conditions of queries that PyArrow computes as Spark does."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

COMPARISONS: dict[type[exp.Expression], Callable[[Any, Any], pc.Expression]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
# Spark may read these differently from sqlglot, depending on its settings.
AMBIGUOUS_TEXT = re.compile(r"[\\\"]")
INTEGER = re.compile(r"\d{1,18}")
NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
# Doubles have all integers up to this one.
EXACT_DOUBLE = 2**53
MOST_ITEMS = 100


class NotAlike(Exception):
    """PyArrow may compute a condition differently from Spark."""


def arrow_condition(
    condition: exp.Expression, fields: Mapping[str, pa.Field], view: str
) -> pc.Expression:
    """Return a condition of SQL as an expression of PyArrow on columns with the fields' names.

    These are translated: comparisons of columns with constants or with columns of their type,
    `between`, `in`, `is null`, columns of booleans, and `and`, `or` and `not` of all these. Where
    the expression is null, so is the condition.

    Args:
        condition: the condition.
        fields: the columns, by their names in lower case.
        view: the name that the source has in the query.

    Raises:
        NotAlike: Spark has to compute it.
    """
    return _Translation(fields, view).boolean(condition)


class _Translation:
    def __init__(self, fields: Mapping[str, pa.Field], view: str) -> None:
        self._fields = fields
        self._view = view

    def boolean(self, node: exp.Expression) -> pc.Expression:
        if isinstance(node, exp.Paren):
            return self.boolean(node.this)
        if isinstance(node, exp.And):
            return self.boolean(node.this) & self.boolean(node.expression)
        if isinstance(node, exp.Or):
            return self.boolean(node.this) | self.boolean(node.expression)
        if isinstance(node, exp.Not):
            return ~self.boolean(node.this)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return self._reference(self._field(node.this)).is_null()
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low = self._comparison(operator.ge, node.this, node.args["low"])
            return low & self._comparison(operator.le, node.this, node.args["high"])
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Column) and pa.types.is_boolean(self._field(node).type):
            return self._reference(self._field(node))
        if (compare := COMPARISONS.get(type(node))) is not None:
            return self._comparison(compare, node.this, node.expression)
        raise NotAlike

    def _in(self, node: exp.In) -> pc.Expression:
        items = node.expressions
        if not items or len(items) > MOST_ITEMS or node.args.get("query") or node.args.get("field"):
            raise NotAlike
        # Unlike `is_in` of PyArrow, this is null for a null.
        return reduce(
            operator.or_, (self._comparison(operator.eq, node.this, item) for item in items)
        )

    def _comparison(
        self,
        compare: Callable[[Any, Any], pc.Expression],
        left: exp.Expression,
        right: exp.Expression,
    ) -> pc.Expression:
        sides = [node.this if isinstance(node, exp.Paren) else node for node in (left, right)]
        fields = [self._field(node) for node in sides if isinstance(node, exp.Column)]
        if not fields or fields[0].type != fields[-1].type:
            raise NotAlike
        kind = fields[0].type
        one, other = (
            self._reference(self._field(node))
            if isinstance(node, exp.Column)
            else pa.scalar(_constant(node, kind))
            for node in sides
        )
        return compare(one, other)

    def _field(self, node: exp.Expression) -> pa.Field:
        if not isinstance(node, exp.Column) or node.table not in ("", self._view):
            raise NotAlike
        field = self._fields.get(node.name.lower())
        if field is None:
            raise NotAlike
        return field

    def _reference(self, field: pa.Field) -> pc.Expression:
        return pc.field(field.name)


def _constant(node: exp.Expression, kind: pa.DataType) -> int | float | str | bool:
    """Return a constant that Spark compares with a column's type without a cast of the column."""
    sign, literal = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    if isinstance(node, exp.Boolean) and pa.types.is_boolean(kind):
        return bool(node.this)
    if not isinstance(literal, exp.Literal):
        raise NotAlike
    text = str(literal.this)
    if literal.is_string:
        if pa.types.is_string(kind) and sign == 1 and not AMBIGUOUS_TEXT.search(text):
            return text
    elif pa.types.is_integer(kind) and INTEGER.fullmatch(text):
        return sign * int(text)
    elif pa.types.is_float64(kind) and NUMBER.fullmatch(text):
        if INTEGER.fullmatch(text) and int(text) > EXACT_DOUBLE:
            raise NotAlike
        return sign * float(text)
    raise NotAlike
