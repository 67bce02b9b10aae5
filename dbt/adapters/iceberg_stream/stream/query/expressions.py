"""Expressions of queries that PyArrow computes as Spark does."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.values import (
    INTEGERS,
    MICROSECONDS,
    NUMBERS,
    TIMESTAMP,
    Function,
    Unsupported,
    Value,
    call,
    cast,
    choose,
    is_no_plain_integer,
    is_not_ascii,
    scalar,
    timestamp,
    wider,
)

COMPARISONS: dict[type[exp.Expr], Function] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
# For integers, which must not overflow, and for doubles.
ARITHMETIC: dict[type[exp.Expr], tuple[Function, Function]] = {
    exp.Add: (pc.add_checked, pc.add),
    exp.Sub: (pc.subtract_checked, pc.subtract),
    exp.Mul: (pc.multiply_checked, pc.multiply),
    exp.Neg: (pc.negate_checked, pc.negate),
    exp.Abs: (pc.abs_checked, pc.abs),
}
TRIMS = {None: pc.ascii_trim, "LEADING": pc.ascii_ltrim, "TRAILING": pc.ascii_rtrim}
CAST_TYPES = {
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
}
# Functions of Spark that sqlglot has no class for, and how many microseconds their units have.
TIMESTAMP_UNITS = {
    "timestamp_seconds": MICROSECONDS,
    "timestamp_millis": 1000,
    "timestamp_micros": 1,
}
# Spark may read these differently from sqlglot, depending on its settings.
AMBIGUOUS_TEXT = re.compile(r"[\\\"]")
INTEGER = re.compile(r"\d{1,18}")
NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
# Doubles have all integers up to this one.
EXACT_DOUBLE = 2**53
MOST_ITEMS = 100


@dataclass
class Inputs:
    """What the translated expressions of a query need, and where they may differ from Spark's.

    Attributes:
        columns: columns of the source.
        doubts: conditions of rows for which Spark may have another result.
    """

    columns: set[str] = field(default_factory=set)
    doubts: list[Value] = field(default_factory=list)


class Translation:
    """Translates expressions of SQL to functions of PyArrow with Spark's results and types.

    Integers, doubles, texts, booleans, and timestamps made of integers are computed. Where PyArrow
    might differ for some values only, those are doubts. Expressions that Spark refuses, such as
    integers that overflow, raise pa.ArrowInvalid when they are computed.

    Args:
        scope: the columns that the expressions refer to, by their names in lower case.
        qualifiers: what may stand before a column's name, in lower case; empty for nothing.
        inputs: what the expressions depend on is added to it.
    """

    def __init__(
        self, scope: Mapping[str, Value], qualifiers: Collection[str], inputs: Inputs
    ) -> None:
        self._scope = scope
        self._qualifiers = qualifiers
        self._inputs = inputs
        self._methods: dict[type[exp.Expr], Callable[[Any], Value]] = {
            **dict.fromkeys(COMPARISONS, self._comparison),
            **dict.fromkeys(ARITHMETIC, self._arithmetic),
            **dict.fromkeys((exp.Cast, exp.TryCast), self._cast),
            **dict.fromkeys((exp.And, exp.Or, exp.Not), self._logic),
            **dict.fromkeys((exp.Upper, exp.Lower), self._case_of_letters),
            **dict.fromkeys((exp.Concat, exp.DPipe), self._concat),
            exp.Paren: lambda node: self.value(node.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: scalar(bool(node.this), pa.bool_()),
            exp.Is: self._is_null,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Div: self._division,
            exp.Coalesce: self._coalesce,
            exp.If: self._if,
            exp.Case: self._case,
            exp.Nullif: self._nullif,
            exp.Trim: self._trim,
            exp.Length: self._length,
            exp.Substring: self._substring,
            exp.Left: self._left,
            exp.Replace: self._replace,
            exp.Anonymous: self._function,
            exp.CurrentTimestamp: self._now,
        }

    def value(self, node: exp.Expr) -> Value:
        """Translate an expression.

        Args:
            node: the expression.

        Raises:
            Unsupported: Spark has to compute it.
        """
        try:
            if (method := self._methods.get(type(node))) is None:
                raise Unsupported
            return method(node)
        except Unsupported as error:
            # The innermost expression says most.
            if error.args:
                raise
            raise Unsupported(f"`{node.sql(dialect='spark')}`") from None

    def boolean(self, node: exp.Expr) -> Value:
        """Translate a condition. Its value is null where SQL's is.

        Args:
            node: the condition.

        Raises:
            Unsupported: Spark has to compute it.
        """
        return self._of_type(node, pa.bool_())

    def columns(self, qualifier: str) -> dict[str, Value]:
        """Return all columns, by their names in lower case.

        Args:
            qualifier: what stands before the star that selects them.

        Raises:
            Unsupported: it is not what the query reads.
        """
        if qualifier.lower() not in self._qualifiers:
            raise Unsupported(f"`{qualifier}.*`")
        return dict(self._scope)

    def column(self, node: exp.Column) -> Value:
        """Return the value of a column that is selected as it is.

        Args:
            node: the column.

        Raises:
            Unsupported: there is none of this name.
        """
        value = self._scope.get(node.name.lower())
        if value is None or node.table.lower() not in self._qualifiers:
            raise Unsupported(f"`{node.sql(dialect='spark')}`")
        return value

    def _column(self, node: exp.Column) -> Value:
        value = self.column(node)
        if value.column is not None:
            self._inputs.columns.add(value.column)
        return value

    def _doubt(self, function: Function, *values: Value) -> None:
        self._inputs.doubts.append(call(function, pa.bool_(), *values))

    def _of_type(self, node: exp.Expr, kind: pa.DataType) -> Value:
        value = self.value(node)
        if value.type != kind:
            raise Unsupported
        return value

    def _text(self, node: exp.Expr) -> Value:
        return self._of_type(node, pa.string())

    def _literal(self, node: exp.Literal) -> Value:
        text = str(node.this)
        if node.is_string:
            return scalar(text, pa.string())
        if not INTEGER.fullmatch(text):
            raise Unsupported  # Spark's is a decimal
        return _constant(node, pa.int32() if int(text) < 2**31 else pa.int64())

    def _operands(self, *nodes: exp.Expr) -> list[Value]:
        """Translate expressions that meet, such as both sides of `+`, and cast them to one type."""
        nodes = tuple(_without_parentheses(node) for node in nodes)
        values = {n: self.value(node) for n, node in enumerate(nodes) if not _is_decimal(node)}
        if not values:
            raise Unsupported
        common = reduce(wider, (value.type for value in values.values()))
        return [
            _constant(node, common) if _is_number(node) else cast(values[n], common)
            for n, node in enumerate(nodes)
        ]

    def _compared(self, compare: Function, *nodes: exp.Expr) -> Value:
        if all(map(_is_constant, nodes)):
            raise Unsupported
        return self._compared_values(compare, *self._operands(*nodes))

    def _compared_values(self, compare: Function, one: Value, other: Value) -> Value:
        if one.type not in (*NUMBERS, pa.string(), pa.bool_()):
            raise Unsupported
        if one.type == pa.float64():
            # In Spark, NaN equals itself and is larger than all numbers.
            self._doubt(pc.is_nan, one)
            self._doubt(pc.is_nan, other)
        return call(compare, pa.bool_(), one, other)

    def _comparison(self, node: exp.Binary) -> Value:
        return self._compared(COMPARISONS[type(node)], node.this, node.expression)

    def _logic(self, node: exp.Expr) -> Value:
        one = self.boolean(node.this)
        if isinstance(node, exp.Not):
            return call(pc.invert, pa.bool_(), one)
        function = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return call(function, pa.bool_(), one, self.boolean(node.args["expression"]))

    def _is_null(self, node: exp.Is) -> Value:
        if not isinstance(node.expression, exp.Null) or _is_constant(node.this):
            raise Unsupported
        return call(pc.is_null, pa.bool_(), self.value(node.this))

    def _between(self, node: exp.Between) -> Value:
        if node.args.get("symmetric"):
            raise Unsupported
        low = self._compared(pc.greater_equal, node.this, node.args["low"])
        high = self._compared(pc.less_equal, node.this, node.args["high"])
        return call(pc.and_kleene, pa.bool_(), low, high)

    def _in(self, node: exp.In) -> Value:
        items = node.expressions
        if not items or len(items) > MOST_ITEMS or node.args.get("query") or node.args.get("field"):
            raise Unsupported
        if all(map(_is_constant, (node.this, *items))):
            raise Unsupported
        one, *others = self._operands(node.this, *items)
        # Unlike `is_in` of PyArrow, this is null for a null.
        equal = [self._compared_values(pc.equal, one, other) for other in others]
        return reduce(lambda a, b: call(pc.or_kleene, pa.bool_(), a, b), equal)

    def _arithmetic(self, node: exp.Expr) -> Value:
        if _is_number(node):
            return _constant(node, self._literal(node.this).type)
        operands = (node.this, node.args.get("expression"))
        nodes = [operand for operand in operands if operand is not None]
        if all(map(_is_constant, nodes)):
            raise Unsupported
        values = self._operands(*nodes)
        kind = values[0].type
        if kind not in NUMBERS:
            raise Unsupported
        of_integers, of_doubles = ARITHMETIC[type(node)]
        return call(of_integers if kind in INTEGERS else of_doubles, kind, *values)

    def _division(self, node: exp.Div) -> Value:
        if all(map(_is_constant, (node.this, node.expression))):
            raise Unsupported
        values = self._operands(node.this, node.expression)
        dividend, divisor = (cast(value, pa.float64()) for value in values)
        self._doubt(pc.equal, divisor, scalar(0.0, pa.float64()))
        return call(pc.divide, pa.float64(), dividend, divisor)

    def _cast(self, node: exp.Cast) -> Value:
        to = CAST_TYPES.get(node.to.this)
        if to is None or node.args.get("format") or node.to.expressions:
            raise Unsupported
        if isinstance(node.this, exp.Null):
            return scalar(None, to)
        if _is_number(node.this) and to in NUMBERS:
            return _constant(node.this, to)
        value = self.value(node.this)
        if value.type == pa.string() and to in INTEGERS:
            self._doubt(is_no_plain_integer, value)
            return call(pc.cast, to, value, target_type=to)
        return cast(value, to)

    def _coalesce(self, node: exp.Coalesce) -> Value:
        values = self._operands(node.this, *node.expressions)
        return call(pc.coalesce, values[0].type, *values)

    def _if(self, node: exp.If) -> Value:
        return self._choice([(self.boolean(node.this), node.args["true"])], node.args.get("false"))

    def _case(self, node: exp.Case) -> Value:
        choices = [
            (
                self.boolean(branch.this)
                if node.this is None
                else self._compared(pc.equal, node.this, branch.this),
                branch.args["true"],
            )
            for branch in node.args["ifs"]
        ]
        return self._choice(choices, node.args.get("default"))

    def _choice(self, choices: Sequence[tuple[Value, exp.Expr]], default: exp.Expr | None) -> Value:
        nodes = [node for _, node in choices]
        nodes += [] if default is None or isinstance(default, exp.Null) else [default]
        values = self._operands(*nodes)
        kind = values[0].type
        result = values[-1] if len(nodes) > len(choices) else scalar(None, kind)
        for (condition, _), value in reversed(list(zip(choices, values, strict=False))):
            result = choose(condition, value, result)
        return result

    def _nullif(self, node: exp.Nullif) -> Value:
        value = self.value(node.this)
        equal = self._compared(pc.equal, node.this, node.expression)
        return choose(equal, scalar(None, value.type), value)

    def _case_of_letters(self, node: exp.Upper | exp.Lower) -> Value:
        text = self._text(node.this)
        # Java and PyArrow have different tables of letters.
        self._doubt(is_not_ascii, text)
        change = pc.ascii_upper if isinstance(node, exp.Upper) else pc.ascii_lower
        return call(change, pa.string(), text)

    def _concat(self, node: exp.Concat | exp.DPipe) -> Value:
        nodes = [node.this, node.expression] if isinstance(node, exp.DPipe) else node.expressions
        texts = [self._text(each) for each in nodes]
        return call(pc.binary_join_element_wise, pa.string(), *texts, scalar("", pa.string()))

    def _trim(self, node: exp.Trim) -> Value:
        trim = TRIMS.get(node.args.get("position"))
        if trim is None or node.expression:
            raise Unsupported
        return call(trim, pa.string(), self._text(node.this), characters=" ")

    def _length(self, node: exp.Length) -> Value:
        return call(pc.utf8_length, pa.int32(), self._text(node.this))

    def _substring(self, node: exp.Substring) -> Value:
        start, length = _count(node.args.get("start")), node.args.get("length")
        if start < 1:
            raise Unsupported
        stop = None if length is None else start - 1 + _count(length)
        return self._slice(node.this, start - 1, stop)

    def _left(self, node: exp.Left) -> Value:
        return self._slice(node.this, 0, _count(node.expression))

    def _slice(self, node: exp.Expr, start: int, stop: int | None) -> Value:
        text = self._text(node)
        return call(pc.utf8_slice_codeunits, pa.string(), text, start=start, stop=stop)

    def _replace(self, node: exp.Replace) -> Value:
        old, new = (_written(each) for each in (node.expression, node.args.get("replacement")))
        if not old:
            raise Unsupported
        text = self._text(node.this)
        return call(pc.replace_substring, pa.string(), text, pattern=old, replacement=new)

    def _function(self, node: exp.Anonymous) -> Value:
        unit = TIMESTAMP_UNITS.get(str(node.this).lower())
        if unit is None or len(node.expressions) != 1:
            raise Unsupported
        return timestamp(self.value(node.expressions[0]), unit)

    def _now(self, node: exp.CurrentTimestamp) -> Value:
        if node.this:
            raise Unsupported
        return scalar(datetime.now(timezone.utc), TIMESTAMP)


def _without_parentheses(node: exp.Expr) -> exp.Expr:
    return _without_parentheses(node.this) if isinstance(node, exp.Paren) else node


def _is_number(node: exp.Expr) -> bool:
    """Return whether an expression is a number, written out."""
    literal = node.this if isinstance(node, exp.Neg) else node
    return isinstance(literal, exp.Literal) and not literal.is_string


def _is_decimal(node: exp.Expr) -> bool:
    literal = node.this if isinstance(node, exp.Neg) else node
    return _is_number(node) and INTEGER.fullmatch(str(literal.this)) is None


def _is_constant(node: exp.Expr) -> bool:
    return not any(node.find_all(exp.Column))


def _written(node: exp.Expr | None) -> str:
    """Return a text that is written out."""
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise Unsupported
    return str(node.this)


def _count(node: exp.Expr | None) -> int:
    """Return a length or a position that is written out."""
    if not isinstance(node, exp.Literal) or node.is_string or not INTEGER.fullmatch(str(node.this)):
        raise Unsupported
    return int(str(node.this))


def _constant(node: exp.Expr, kind: pa.DataType) -> Value:
    """Return a number as a constant of a type to which Spark casts it exactly."""
    sign, literal = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    text = str(literal.this)
    is_integer = INTEGER.fullmatch(text) is not None
    if kind in INTEGERS and is_integer and int(text) < 2 ** (kind.bit_width - 1):
        return scalar(sign * int(text), kind)
    if kind == pa.float64() and NUMBER.fullmatch(text):
        if is_integer and int(text) > EXACT_DOUBLE:
            raise Unsupported
        return scalar(sign * float(text), kind)
    raise Unsupported
