"""Expressions of queries that PyArrow computes as Spark does: for any value, in any session."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.values import (
    Function,
    Unsupported,
    Value,
    call,
    choose,
    convert,
    equal,
    less,
    scalar,
)

# Each type is cast to those that follow it.
NUMBERS = (pa.int32(), pa.int64(), pa.float64())
TIMES = (pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
PLAIN = (*NUMBERS, *TIMES, pa.string(), pa.bool_())
COMPARISONS: dict[type[exp.Expr], Function] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
# The same of doubles, where NaN may be among them.
OF_DOUBLES: dict[Function, Function] = {
    pc.equal: equal,
    pc.not_equal: lambda one, other: pc.invert(equal(one, other)),
    pc.less: less,
    pc.less_equal: lambda one, other: pc.invert(less(other, one)),
    pc.greater: lambda one, other: less(other, one),
    pc.greater_equal: lambda one, other: pc.invert(less(one, other)),
}
CAST_TYPES = {
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.DATE: pa.date32(),
}
# What Spark and sqlglot may group otherwise if no parentheses are around it.
CONDITIONS = (*COMPARISONS, exp.Between, exp.In, exp.Is, exp.Not, exp.And, exp.Or)
INTEGER, DECIMAL = re.compile(r"\d{1,18}"), re.compile(r"\d{1,18}\.\d{0,18}")
# Doubles have all integers up to this one.
EXACT_DOUBLE = 2**53
MOST_ITEMS = 100


class Translation:
    """Translates expressions of SQL to functions of PyArrow with Spark's results and types.

    Args:
        scope: the columns that the expressions refer to, by their names in lower case.
        qualifiers: what may stand before a column's name, in lower case; empty for nothing.
        read: columns of the source that the expressions need are added to it.
    """

    def __init__(
        self, scope: Mapping[str, Value], qualifiers: Collection[str], read: set[str]
    ) -> None:
        self._scope = scope
        self._qualifiers = qualifiers
        self._read = read
        self._methods: dict[type[exp.Expr], Callable[[Any], Value]] = {
            **dict.fromkeys(COMPARISONS, self._comparison),
            **dict.fromkeys((exp.Cast, exp.TryCast), self._cast),
            **dict.fromkeys((exp.And, exp.Or, exp.Not), self._logic),
            **dict.fromkeys((exp.Literal, exp.Neg), self._literal),
            exp.Paren: lambda node: self.value(node.this),
            exp.Column: self._column,
            exp.Boolean: lambda node: scalar(bool(node.this), pa.bool_()),
            exp.Is: self._is_null,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Coalesce: self._coalesce,
            exp.If: self._if,
            exp.Case: self._case,
            exp.Nullif: self._nullif,
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
            raise (error if error.args else _unsupported(node)) from None

    def boolean(self, node: exp.Expr) -> Value:
        """Translate a condition. Its value is null where SQL's is.

        Args:
            node: the condition.

        Raises:
            Unsupported: Spark has to compute it.
        """
        value = self.value(node)
        if value.type != pa.bool_():
            raise _unsupported(node)
        return value

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
        """Return the value of a column that is selected as it is, or of a field in it.

        Args:
            node: the column.

        Raises:
            Unsupported: there is none of this name.
        """
        value, fields = self._resolved(node)
        if fields:
            self._read_column(value, node)
        return reduce(lambda value, name: _field_of(value, name, node), fields, value)

    def needed_columns(self, node: exp.Expr, words: Iterable[str]) -> dict[str, str]:
        """Return the columns that Spark needs for an expression, by the names that it has for them.

        Args:
            node: the expression.
            words: of its text, all of which may be names.

        Raises:
            Unsupported: it reads what PyArrow computes, or more than the columns of a row.
        """
        if node.find(exp.Star, exp.Query, exp.Placeholder, exp.Parameter):
            raise _unsupported(node)
        for found in node.find_all(exp.Column):
            self._resolved(found)
        columns = {}
        for name in {word.lower() for word in words} & self._scope.keys():
            column = self._scope[name].column
            if column is None:
                raise Unsupported(f"`{name}`")
            columns[name] = column
        return columns

    def _resolved(self, node: exp.Column) -> tuple[Value, list[str]]:
        """Return the column of a name, and the fields in it that the name goes on with."""
        names = [part.name for part in node.parts]
        lower = [name.lower() for name in names]
        if len(names) > 1 and lower[0] in self._qualifiers and lower[1] in self._scope:
            return self._scope[lower[1]], names[2:]
        if "" not in self._qualifiers or lower[0] not in self._scope:
            raise _unsupported(node)
        return self._scope[lower[0]], names[1:]

    def _column(self, node: exp.Column) -> Value:
        value = self.column(node)
        self._read_column(value, node)
        return value

    def _read_column(self, value: Value, node: exp.Expr) -> None:
        if value.type is None:
            raise _unsupported(node)
        if value.column is not None:
            self._read.add(value.column)

    def _literal(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Literal) and node.is_string:
            return scalar(str(node.this), pa.string())
        kind = _number_type(node)
        return _constant(node, kind)

    def _operands(
        self, *nodes: exp.Expr, compared: bool = False
    ) -> tuple[pa.DataType, list[Value]]:
        """Return the type of expressions that meet, and their values, cast to it."""
        nodes = tuple(node.unnest() for node in nodes)
        known = {n: self.value(node) for n, node in enumerate(nodes) if not _is_number(node)}
        kinds = [value.type for value in known.values()]
        if compared and kinds and all(map(pa.types.is_decimal, kinds)):
            common = reduce(_same, kinds)
        else:
            # A number with a point is a double beside doubles.
            has_double = pa.float64() in kinds
            numbers = (node for node in nodes if _is_number(node))
            kinds += [pa.float64() if has_double else _number_type(node) for node in numbers]
            common = reduce(_wider, kinds)
        if common not in PLAIN and not pa.types.is_decimal(common):
            raise Unsupported
        values = [
            convert(known[n], common) if n in known else _constant(node, common)
            for n, node in enumerate(nodes)
        ]
        return common, values

    def _compared(self, compare: Function, *nodes: exp.Expr) -> list[Value]:
        """Return the comparisons of the first expression with each of the others."""
        if any(isinstance(node, CONDITIONS) for node in nodes):
            raise Unsupported
        kind, (one, *others) = self._operands(*nodes, compared=True)
        function = OF_DOUBLES[compare] if kind == pa.float64() else compare
        return [call(function, pa.bool_(), one, other) for other in others]

    def _comparison(self, node: exp.Binary) -> Value:
        [result] = self._compared(COMPARISONS[type(node)], node.this, node.expression)
        return result

    def _logic(self, node: exp.Expr) -> Value:
        one = self.boolean(node.this)
        if isinstance(node, exp.Not):
            return call(pc.invert, pa.bool_(), one)
        function = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return call(function, pa.bool_(), one, self.boolean(node.args["expression"]))

    def _is_null(self, node: exp.Is) -> Value:
        if not isinstance(node.expression, exp.Null) or isinstance(node.this, CONDITIONS):
            raise Unsupported
        return call(pc.is_null, pa.bool_(), self.value(node.this))

    def _between(self, node: exp.Between) -> Value:
        if node.args.get("symmetric"):
            raise Unsupported
        [low] = self._compared(pc.greater_equal, node.this, node.args["low"])
        [high] = self._compared(pc.less_equal, node.this, node.args["high"])
        return call(pc.and_kleene, pa.bool_(), low, high)

    def _in(self, node: exp.In) -> Value:
        items = node.expressions
        if not items or len(items) > MOST_ITEMS or node.args.get("query") or node.args.get("field"):
            raise Unsupported
        # Unlike `is_in` of PyArrow, this is null for a null.
        equals = self._compared(pc.equal, node.this, *items)
        if pa.types.is_decimal(self._operands(node.this, *items, compared=True)[0]):
            raise Unsupported  # Spark loses digits of it, if a number in the list has none
        return reduce(lambda one, other: call(pc.or_kleene, pa.bool_(), one, other), equals)

    def _cast(self, node: exp.Cast) -> Value:
        to = CAST_TYPES.get(node.to.this)
        if to is None or node.to.expressions or node.to.args.get("collate"):
            raise Unsupported
        if node.args.get("format"):
            raise Unsupported
        if isinstance(node.this, exp.Null):
            return scalar(None, to)
        if _is_number(node.this) and to in NUMBERS:
            return _constant(node.this, to)
        value = self.value(node.this)
        if value.type is None or _wider(value.type, to) != to:
            raise Unsupported
        return convert(value, to)

    def _coalesce(self, node: exp.Coalesce) -> Value:
        kind, values = self._operands(node.this, *node.expressions)
        return call(pc.coalesce, kind, *values)

    def _if(self, node: exp.If) -> Value:
        return self._choice([(self.boolean(node.this), node.args["true"])], node.args.get("false"))

    def _case(self, node: exp.Case) -> Value:
        choices = [
            (
                self.boolean(branch.this)
                if node.this is None
                else self._compared(pc.equal, node.this, branch.this)[0],
                branch.args["true"],
            )
            for branch in node.args["ifs"]
        ]
        return self._choice(choices, node.args.get("default"))

    def _choice(self, choices: Sequence[tuple[Value, exp.Expr]], default: exp.Expr | None) -> Value:
        nodes = [node for _, node in choices]
        nodes += [] if default is None or isinstance(default, exp.Null) else [default]
        kind, values = self._operands(*nodes)
        result = values[-1] if len(nodes) > len(choices) else scalar(None, kind)
        for (condition, _), value in reversed(list(zip(choices, values, strict=False))):
            result = choose(condition, value, result)
        return result

    def _nullif(self, node: exp.Nullif) -> Value:
        value = self.value(node.this)
        [is_equal] = self._compared(pc.equal, node.this, node.expression)
        assert value.type is not None, "what is compared has a type"
        return choose(is_equal, scalar(None, value.type), value)


def _unsupported(node: exp.Expr) -> Unsupported:
    return Unsupported(f"`{node.sql(dialect='spark')}`")


def _field_of(value: Value, name: str, node: exp.Expr) -> Value:
    """Return a field of structs, which is null where the struct is."""
    kind = value.type
    if kind is None or not pa.types.is_struct(kind):
        raise _unsupported(node)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    places = [n for n, field in enumerate(fields) if field.name.lower() == name.lower()]
    if len(places) != 1:
        raise _unsupported(node)
    return call(pc.struct_field, fields[places[0]].type, value, indices=places)


def _same(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one != other:
        raise Unsupported
    return one


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type to which Spark casts values of two types that meet."""
    if one in NUMBERS and other in NUMBERS:
        return max(one, other, key=NUMBERS.index)
    return _same(one, other)


def _is_number(node: exp.Expr) -> bool:
    literal = node.this if isinstance(node, exp.Neg) else node
    return isinstance(literal, exp.Literal) and not literal.is_string


def _digits(node: exp.Expr) -> tuple[str, bool]:
    """Return a number that is written out, and whether it is negative."""
    is_negative = isinstance(node, exp.Neg)
    text = str((node.this if is_negative else node).this)
    # What an exponent means depends on the session.
    if not _is_number(node) or not (INTEGER.fullmatch(text) or DECIMAL.fullmatch(text)):
        raise Unsupported
    return text, is_negative


def _number_type(node: exp.Expr) -> pa.DataType:
    """Return the type that an integer has by itself."""
    text, is_negative = _digits(node)
    if "." in text:
        raise Unsupported
    return pa.int32() if int(text) < 2**31 + is_negative else pa.int64()


def _constant(node: exp.Expr, kind: pa.DataType) -> Value:
    """Return a number as a constant of a type to which Spark casts it exactly."""
    text, is_negative = _digits(node)
    value = -Decimal(text) if is_negative else Decimal(text)
    is_integer = "." not in text
    if kind == pa.float64() and (not is_integer or abs(value) <= EXACT_DOUBLE):
        return scalar(float(value), kind)
    try:
        if kind in NUMBERS[:2] and is_integer:
            return scalar(int(value), kind)
        if pa.types.is_decimal(kind):
            return scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError) as error:  # it has more digits
        raise Unsupported from error
    raise Unsupported
