"""Predicates of a merge on rows of its table, as conditions that PyArrow decides.

A condition is a comparison of a column with a constant, or a combination of such. Spark evaluates
the constants, so that functions, casts and time zones mean what they mean in its MERGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.tables.merge.conditions import Combination, Comparison, Condition

OPERATORS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
# What a constant may consist of: each has one value for a statement.
OF_CONSTANTS = (
    *(exp.Literal, exp.Boolean, exp.Neg, exp.Paren, exp.Add, exp.Sub, exp.Mul),
    *(exp.Cast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.Var),
    *(exp.CurrentDate, exp.CurrentTimestamp, exp.TsOrDsAdd, exp.DateAdd, exp.DateSub),
    *(exp.DateTrunc, exp.TimestampTrunc, exp.AddMonths, exp.LastDay),
)
# Types of columns, and which constants Spark compares with them without changing the column.
TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
FROM_TEXT = {"date", "timestamp", "timestamp_ntz"}
# Evaluates expressions: the values of a query's only row.
Evaluate = Callable[[str], pa.Table]


class NotSimple(Exception):
    """Only Spark decides a predicate."""


def row_condition(
    predicates: Iterable[str],
    target: str,
    column_of: Callable[[str], tuple[str, str]],
    evaluate: Evaluate,
) -> Condition | None:
    """Return the condition that all predicates hold; None if only Spark decides it.

    Args:
        predicates: SQL on the columns of the table and its source.
        target: alias of the table.
        column_of: returns a column's name in the table's letter case, and its type in Spark.
        evaluate: runs a query of constants.
    """
    try:
        trees = [parse_one(predicate, dialect=Spark) for predicate in predicates]
        constants: dict[str, int] = {}

        def note(constant: str, kind: str) -> pa.Scalar:
            constants.setdefault(constant, len(constants))
            return pa.scalar(None)

        def value(constant: str, kind: str) -> pa.Scalar:
            return _converted(values.column(constants[constant])[0], TYPES[kind])

        for tree in trees:
            _Translation(target, column_of, note).condition(tree)
        if constants:
            values = evaluate(f"select {', '.join(f'{c} as c{n}' for c, n in constants.items())}")
        parts = [_Translation(target, column_of, value).condition(tree) for tree in trees]
    except (SqlglotError, NotSimple, StatementError):
        return None  # Spark's MERGE says what is wrong, if something is
    return parts[0] if len(parts) == 1 else Combination("and", tuple(parts))


class _Translation:
    """Translates a tree of SQL.

    Args:
        target, column_of: as for `row_condition`.
        value: returns the value of a constant for a column's type.
    """

    def __init__(
        self,
        target: str,
        column_of: Callable[[str], tuple[str, str]],
        value: Callable[[str, str], pa.Scalar],
    ) -> None:
        self._target, self._column_of, self._value = target.lower(), column_of, value

    def condition(self, node: exp.Expr) -> Condition:
        """Translate a predicate; raises NotSimple if only Spark decides it."""
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.Not):
            return Combination("not", (self.condition(node.this),))
        if isinstance(node, exp.And | exp.Or):
            sides = (self.condition(node.left), self.condition(node.right))
            return Combination("and" if isinstance(node, exp.And) else "or", sides)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return Comparison(self._column(node.this)[0], "is null")
        if isinstance(node, exp.Between):
            bounds = ((">=", node.args["low"]), ("<=", node.args["high"]))
            both = tuple(self._comparison(node.this, sign, bound) for sign, bound in bounds)
            return Combination("and", both)
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            return self._comparison(node.this, "in", *node.expressions)
        if not isinstance(node, exp.Binary) or type(node) not in OPERATORS:
            raise NotSimple
        sign, flipped = OPERATORS[type(node)]
        if isinstance(node.left, exp.Column):
            return self._comparison(node.left, sign, node.right)
        return self._comparison(node.right, flipped, node.left)

    def _comparison(self, left: exp.Expr, sign: str, *right: exp.Expr) -> Comparison:
        name, kind = self._column(left)
        values = tuple(self._value(_constant_sql(node, kind, sign), kind) for node in right)
        return Comparison(name, sign, values)

    def _column(self, node: exp.Expr) -> tuple[str, str]:
        """Return name and type of a column of the table."""
        if not isinstance(node, exp.Column) or node.table.lower() != self._target or node.db:
            raise NotSimple
        name, kind = self._column_of(node.name)
        if kind not in TYPES:
            raise NotSimple
        return name, kind


def _constant_sql(node: exp.Expr, kind: str, sign: str) -> str:
    """Return a constant as Spark compares it with a column of a type."""
    for part in node.walk():
        if not isinstance(part, OF_CONSTANTS):
            raise NotSimple
        # Layers interpret quotes and backslashes in different ways.
        if isinstance(part, exp.Literal) and part.is_string and set(part.this) & set("\\'\""):
            raise NotSimple
    sql = node.sql(dialect=Spark)
    is_text = isinstance(node, exp.Literal) and node.is_string
    if not is_text or kind not in FROM_TEXT:
        return sql
    if sign == "in":
        # Without ANSI mode, `in` compares texts: then this is a text.
        return f"if(true, {sql}, cast(null as {kind}))"
    return f"cast({sql} as {kind})"


def _converted(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    """Return a constant in the type of the column; raises NotSimple if Spark casts the column."""
    are_numbers = pa.types.is_integer(value.type) and pa.types.is_integer(kind)
    if not value.is_valid or not (are_numbers or value.type.id == kind.id):
        raise NotSimple
    if pa.types.is_timestamp(kind) and (value.type.tz is None) != (kind.tz is None):
        raise NotSimple
    try:
        return value.cast(kind)
    except pa.ArrowInvalid as error:
        raise NotSimple from error
