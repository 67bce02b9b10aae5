"""Predicates of a merge on rows of its table, as conditions that PyArrow decides.

A condition is a comparison of a column with a constant, or a combination of such. Spark evaluates
constants other than plain literals, so that functions, casts and time zones mean what they mean in
its MERGE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime

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
# How literals of these types are written if no session reads them in another way.
PLAIN_TIMES = {
    "date": "%Y-%m-%d",
    "timestamp": "%Y-%m-%d %H:%M:%S+00:00",
    "timestamp_ntz": "%Y-%m-%d %H:%M:%S",
}
SETTINGS_DECIDE = re.compile(r'[\\"]|\$\{|\btimestamp(_ntz|_ltz)?\s*\(', re.IGNORECASE)
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
    texts = list(predicates)
    if any(_depends_on_settings(text) for text in texts):
        return None
    try:
        trees = [parse_one(text, dialect=Spark) for text in texts]
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


def _depends_on_settings(sql: str) -> bool:
    """Return whether settings of a session decide how literals are read.

    They say whether backslashes escape, whether double quotes are of strings or of names, whether
    variables are replaced, and which type `timestamp(…)` returns.
    """
    return bool(SETTINGS_DECIDE.search(sql))


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
        return Comparison(name, sign, tuple(self._constant(node, kind, sign) for node in right))

    def _constant(self, node: exp.Expr, kind: str, sign: str) -> pa.Scalar:
        sql = _constant_sql(node, kind, sign)
        literal = _plain_literal(node, kind)
        return self._value(sql, kind) if literal is None else _converted(literal, TYPES[kind])

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
        if isinstance(part, exp.Literal) and part.is_string and "'" in part.this:
            raise NotSimple
    sql = node.transform(_typed_literal).sql(dialect=Spark)
    is_text = isinstance(node, exp.Literal) and node.is_string
    if not is_text or kind not in FROM_TEXT:
        return sql
    if sign == "in":
        # Without ANSI mode, `in` compares texts: then this is a text.
        return f"if(true, {sql}, cast(null as {kind}))"
    return f"cast({sql} as {kind})"


def _typed_literal(node: exp.Expr) -> exp.Expr:
    """Return `timestamp '…'` as it is written: a cast would leave out its time zone, or obey it."""
    # A call of `cast` is a TryCast.
    if type(node) is not exp.Cast or not isinstance(node.this, exp.Literal):
        return node
    kind = node.to.sql(dialect=Spark)
    return exp.Var(this=f"{kind} '{node.this.name}'") if "TIMESTAMP" in kind else node


def _plain_literal(node: exp.Expr, kind: str) -> pa.Scalar | None:
    """Return the value of a literal; None if a session may read it in another way."""
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if isinstance(literal, exp.Literal) and not literal.is_string:
        if not literal.is_int or len(literal.this) > 18:
            return None
        return pa.scalar(-int(literal.this) if negative else int(literal.this))
    if isinstance(node, exp.Literal):
        return pa.scalar(node.this) if kind == "string" else None
    return _plain_time(node, kind) if kind in PLAIN_TIMES else None


def _plain_time(node: exp.Expr, kind: str) -> pa.Scalar | None:
    # As in `_typed_literal`: casts obey settings.
    if type(node) is not exp.Cast or node.to.sql(dialect=Spark).lower() != kind:
        return None
    text = node.this.name
    try:
        time = datetime.strptime(text, PLAIN_TIMES[kind])
    except ValueError:
        return None
    if time.strftime(PLAIN_TIMES[kind]) != text:
        return None  # such as 2026-1-5
    return pa.scalar(time, pa.timestamp("us")).cast(TYPES[kind])


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
