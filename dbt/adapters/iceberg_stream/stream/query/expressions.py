"""Expressions of queries that PyArrow computes as Spark does."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.parsers.spark import SparkParser

from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.stream.query import nested, numbers, temporal, texts
from dbt.adapters.iceberg_stream.stream.query.casts import cast, wider
from dbt.adapters.iceberg_stream.stream.query.decimals import decimal_type, is_decimal
from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs
from dbt.adapters.iceberg_stream.stream.query.literals import (
    constant,
    count,
    is_constant,
    is_number,
    is_text,
    number,
    without_parentheses,
)
from dbt.adapters.iceberg_stream.stream.query.nested import field_of
from dbt.adapters.iceberg_stream.stream.query.translator import of_type
from dbt.adapters.iceberg_stream.stream.query.values import (
    DATE,
    NUMBERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Function,
    Unsupported,
    Value,
    call,
    choose,
    scalar,
)

COMPARISONS: dict[type[exp.Expr], Function] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
COMPARED = (*NUMBERS, pa.string(), pa.bool_(), DATE, TIMESTAMP, TIMESTAMP_NTZ)
CAST_TYPES = {
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.DATE: DATE,
    # What `timestamp` is in most sessions; `Inputs.offset` checks it where it matters.
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPLTZ: TIMESTAMP,
}
FUNCTIONS = {**numbers.FUNCTIONS, **texts.FUNCTIONS, **temporal.FUNCTIONS, **nested.FUNCTIONS}
# Spark may read these differently from sqlglot, depending on its settings.
AMBIGUOUS_TEXT = re.compile(r"[\\\"]")
MOST_ITEMS = 100


class AsWritten(Spark):
    """Spark's SQL, of which some functions keep the name and the arguments that the text has."""

    class Parser(SparkParser):
        FUNCTIONS = {
            name: build
            for name, build in SparkParser.FUNCTIONS.items()
            if name.lower() not in temporal.NAMED
        }


class Translation:
    """Translates expressions of SQL to functions of PyArrow with Spark's results and types.

    Where PyArrow might differ for some values only, those are doubts. Expressions that Spark
    refuses, such as integers that overflow, raise pa.ArrowInvalid when they are computed.

    Args:
        scope: the columns that the expressions refer to, by their names in lower case.
        qualifiers: what may stand before a column's name, in lower case; empty for nothing.
        inputs: what the expressions depend on is added to it.
    """

    def __init__(
        self, scope: Mapping[str, Value], qualifiers: Collection[str], inputs: Inputs
    ) -> None:
        self.inputs = inputs
        self._scope = scope
        self._qualifiers = qualifiers
        own: dict[type[exp.Expr], Callable[[Any], Value]] = {
            **dict.fromkeys(COMPARISONS, self._comparison),
            **dict.fromkeys((exp.Cast, exp.TryCast), self._cast),
            **dict.fromkeys((exp.And, exp.Or, exp.Not), self._logic),
            exp.Paren: lambda node: self.value(node.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: scalar(bool(node.this), pa.bool_()),
            exp.Is: self._is_null,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Coalesce: self._coalesce,
            exp.If: self._if,
            exp.Case: self._case,
            exp.Nullif: self._nullif,
            exp.Anonymous: self._named,
        }
        self._methods = {kind: partial(each, self) for kind, each in FUNCTIONS.items()} | own

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
        return of_type(self, node, pa.bool_())

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
        if not fields:
            return value
        self._read(value)
        try:
            return reduce(field_of, fields, value)
        except Unsupported:
            raise Unsupported(f"`{node.sql(dialect='spark')}`") from None

    def operands(self, *nodes: exp.Expr) -> list[Value]:
        """Translate expressions that meet, such as both sides of `=`, and cast them to one type.

        Args:
            nodes: the expressions.

        Raises:
            Unsupported: Spark has to compute one of them, or their types do not meet.
        """
        nodes = tuple(without_parentheses(node) for node in nodes)
        return self.unify(nodes, [self.value(node) for node in nodes])

    def unify(self, nodes: Sequence[exp.Expr], values: Sequence[Value]) -> list[Value]:
        """Cast the values of expressions that meet to one type.

        Args:
            nodes: the expressions, without parentheses.
            values: their values.

        Raises:
            Unsupported: their types do not meet.
        """
        kinds = [value.type for value in values]
        # Texts that are written out are times where they meet times.
        typed = [kind for kind, node in zip(kinds, nodes, strict=True) if not is_text(node)]
        if typed and typed[0] in (DATE, TIMESTAMP) and len(typed) < len(kinds):
            self.inputs.require_times()
            kinds = typed
        common = reduce(wider, kinds)
        return [
            constant(node, common)
            if is_number(node) and common in NUMBERS
            else cast(value, common, self.inputs)
            for node, value in zip(nodes, values, strict=True)
        ]

    def _resolved(self, node: exp.Column) -> tuple[Value, list[str]]:
        """Return the column of a name, and the fields in it that the name goes on with."""
        names = [part.name for part in node.parts]
        lower = [name.lower() for name in names]
        if len(names) > 1 and lower[0] in self._qualifiers and lower[1] in self._scope:
            return self._scope[lower[1]], names[2:]
        if "" not in self._qualifiers or lower[0] not in self._scope:
            raise Unsupported(f"`{node.sql(dialect='spark')}`")
        return self._scope[lower[0]], names[1:]

    def _column(self, node: exp.Column) -> Value:
        value = self.column(node)
        self._read(value)
        return value

    def _read(self, value: Value) -> None:
        if value.column is not None:
            self.inputs.columns.add(value.column)

    def _literal(self, node: exp.Literal) -> Value:
        return scalar(str(node.this), pa.string()) if node.is_string else number(node)

    def _compared(self, compare: Function, *nodes: exp.Expr) -> Value:
        if all(map(is_constant, nodes)):
            raise Unsupported
        return self._compared_values(compare, *self.operands(*nodes))

    def _compared_values(self, compare: Function, one: Value, other: Value) -> Value:
        if one.type not in COMPARED and not is_decimal(one.type):
            raise Unsupported
        if one.type == pa.float64():
            # In Spark, NaN equals itself and is larger than all numbers.
            self.inputs.doubt(pc.is_nan, one)
            self.inputs.doubt(pc.is_nan, other)
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
        if not isinstance(node.expression, exp.Null) or is_constant(node.this):
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
        if all(map(is_constant, (node.this, *items))):
            raise Unsupported
        one, *others = self.operands(node.this, *items)
        # Unlike `is_in` of PyArrow, this is null for a null.
        equal = [self._compared_values(pc.equal, one, other) for other in others]
        return reduce(lambda a, b: call(pc.or_kleene, pa.bool_(), a, b), equal)

    def _cast(self, node: exp.Cast) -> Value:
        to = _cast_type(node.to)
        if node.args.get("format"):
            raise Unsupported
        if isinstance(node.this, exp.Null):
            return scalar(None, to)
        if is_number(node.this) and to in NUMBERS:
            return constant(node.this, to)
        return cast(self.value(node.this), to, self.inputs)

    def _coalesce(self, node: exp.Coalesce) -> Value:
        values = self.operands(node.this, *node.expressions)
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
        values = self.operands(*nodes)
        kind = values[0].type
        result = values[-1] if len(nodes) > len(choices) else scalar(None, kind)
        for (condition, _), value in reversed(list(zip(choices, values, strict=False))):
            result = choose(condition, value, result)
        return result

    def _nullif(self, node: exp.Nullif) -> Value:
        value = self.value(node.this)
        equal = self._compared(pc.equal, node.this, node.expression)
        return choose(equal, scalar(None, value.type), value)

    def _named(self, node: exp.Anonymous) -> Value:
        if (function := temporal.NAMED.get(str(node.this).lower())) is None:
            raise Unsupported
        return function(self, node.expressions)


def _cast_type(node: exp.DataType) -> pa.DataType:
    if node.this == exp.DataType.Type.DECIMAL:
        digits = [count(parameter.this) for parameter in node.expressions]
        return decimal_type(*(*digits, *(10, 0)[len(digits) :]))
    to = CAST_TYPES.get(node.this)
    if to is None or node.expressions or node.args.get("collate"):
        raise Unsupported
    return to
