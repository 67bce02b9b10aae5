"""Queries that select row by row: which columns are picked, which PyArrow and Spark compute.

Rows of which a query only picks columns need not go through Spark. If it computes something that
PyArrow does not, Spark gets the columns that this needs, and not the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.select_text import (
    QueryText,
    SelectText,
    without_alias,
    words,
)
from dbt.adapters.iceberg_stream.stream.query.change_sql import change_of_row
from dbt.adapters.iceberg_stream.stream.query.expressions import Translation
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported, Value, call
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE, HIDDEN, ROW_DELETED

PLACEHOLDER = "__placeholder"
MORE = "a query that does more than to select rows and columns of one other"
# The number of a row, and what Spark computes for it.
ROW, BY_SPARK = "__stream_row_number", "__stream_part_"
# Spark may read these differently from sqlglot, depending on its settings: among others two
# quotes that are no empty string.
AMBIGUOUS_TEXT = re.compile(r"[\\\"]|\$\{|[^\s(,=<>]''|''[^\s),=<>]")
# Functions that have one value in a query, or depend on all that it reads; some need no
# parentheses.
OF_WHOLE_QUERY = {
    *("current_timestamp", "now", "current_date", "curdate", "current_time", "localtimestamp"),
    *("unix_timestamp", "monotonically_increasing_id", "spark_partition_id", "input_file_name"),
    *("input_file_block_start", "input_file_block_length", "rand", "random", "randn", "randstr"),
    *("uniform", "uuid", "shuffle", "current_user", "session_user", "user"),
}
# Each is a query of its own; more of them take longer than whole rows.
MOST_PARTS = 2
WORD = re.compile(r"\w+")


@dataclass
class SparkPart:
    """What Spark computes of a query that selects row by row.

    Attributes:
        alias: what its expressions call the rows that they read; empty for nothing.
        number: the part's place among those of the query.
        columns: columns of the source or of parts before it, by the names that they have in it.
        items: SQL of what it computes.
        where: SQL of the condition of its rows; empty for all.
    """

    alias: str
    number: int
    columns: dict[str, str] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    where: str = ""

    def add(self, text: str) -> Value:
        """Add an expression, and return its value."""
        self.items.append(text)
        return Value(itemgetter(self.names[-1]), None, self.names[-1])

    @property
    def names(self) -> list[str]:
        """Names of what it computes, in the rows that have it."""
        return [f"{BY_SPARK}{self.number}_{place}" for place in range(len(self.items))]

    def sql(self, view: str) -> str:
        """Return the query: numbers of rows, and what it computes for each.

        Args:
            view: the rows, with their number.
        """
        alias = f" as {quote(self.alias)}" if self.alias else ""
        # A text may end with a comment.
        listed = "".join(f",\n{item}\n" for item in self.items)
        where = f" where {self.where}\n" if self.where else ""
        return f"select {ROW}{listed} from {view}{alias}{where}"


# Returns the rows that a part of Spark's selects, with what it computes.
ComputePart = Callable[[SparkPart, pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class Picked:
    """What a query selects of its source.

    Attributes:
        columns: the query's columns, in lower case.
        read: columns of the source that PyArrow computes with.
        steps: conditions of the rows that the query returns, and what Spark computes, in their
            order.
        kept: of changes of rows: conditions of those that stay; the others are deleted.
        deletes: which changes are deletes, besides those that the source says are.
    """

    columns: Mapping[str, Value]
    read: frozenset[str] = frozenset()
    steps: Sequence[Value | SparkPart] = ()
    kept: Sequence[Value] = ()
    deletes: Value | None = None

    @property
    def parts(self) -> list[SparkPart]:
        """What Spark computes."""
        return [step for step in self.steps if isinstance(step, SparkPart)]

    @property
    def source_columns(self) -> set[str]:
        """The columns of the source that the query needs."""
        of_parts = {column for part in self.parts for column in part.columns.values()}
        picked = {value.column for value in self.columns.values() if value.column is not None}
        return {name for name in picked | of_parts | self.read if not name.startswith(BY_SPARK)}

    def only(self, names: Sequence[str], types: pa.Schema) -> Picked:
        """Return some of the columns, by their names as they are written.

        Args:
            names: of the columns.
            types: what Spark says of the columns' types.

        Raises:
            Unsupported: one is missing, or has another type.
        """
        columns = {}
        for name in names:
            value = self.columns.get(name.lower())
            if value is None:
                raise Unsupported(f"`{name}`")
            kind = types.field(name).type
            if value.column is None and value.type not in (None, kind):
                raise Unsupported(f"`{name}` as {kind}")
            # Spark's times come in the zone of the session.
            columns[name] = value if value.type else call(pc.cast, kind, value, target_type=kind)
        return replace(self, columns=columns)

    def select(self, rows: pa.RecordBatch, compute: ComputePart) -> pa.RecordBatch:
        """Return the rows and columns that the query returns.

        Args:
            rows: with `source_columns`, and columns that are no source's, which are returned.
            compute: lets Spark compute a part.

        Raises:
            pa.ArrowInvalid: Spark's values are not of the table's types.
        """
        for step in self.steps:
            if isinstance(step, SparkPart):
                rows = compute(step, rows)
            else:
                rows = rows.filter(step.array(rows))
        for kept in self.kept:
            rows = _with_deletes(rows, pc.invert(_is_true(kept, rows)))
        if self.deletes is not None:
            rows = _with_deletes(rows, _is_true(self.deletes, rows))
        columns = {name: value.array(rows) for name, value in self.columns.items()}
        columns |= {name: rows[name] for name in HIDDEN if name in rows.schema.names}
        return pa.record_batch(columns)


def _is_true(condition: Value, rows: pa.RecordBatch) -> pa.Array:
    return pc.fill_null(condition.array(rows), False)


def _with_deletes(rows: pa.RecordBatch, deleted: pa.Array) -> pa.RecordBatch:
    """Return rows with ROW_DELETED, also for those that are deleted besides."""
    if ROW_DELETED in rows.schema.names:
        deleted = pc.or_(deleted, rows[ROW_DELETED])
        rows = rows.drop_columns([ROW_DELETED])
    return rows.append_column(ROW_DELETED, deleted)


def pick(sql: str, view: str, schema: pa.Schema, where: str = "", deletes: str = "") -> Picked:
    """Return what a query selects, if it selects row by row from one other.

    Args:
        sql: the query: a select, or several of which each reads the one before.
        view: the name that the source has in it.
        schema: the source's columns.
        where: a condition of the query's rows that are used; empty for all.
        deletes: a condition of the query's rows that are deletes; empty for none.

    Raises:
        Unsupported: the query does more.
    """
    tree = sqlglot.parse_one(sql, dialect=Spark)
    by_lower = {name.lower(): name for name in schema.names}
    if not isinstance(tree, exp.Select) or len(by_lower) < len(schema):
        raise Unsupported(MORE)
    texts = " ".join((sql, where, deletes, *schema.names)).lower()
    if words := OF_WHOLE_QUERY.intersection(WORD.findall(texts)):
        raise Unsupported(f"`{min(words)}`")
    if ROW in texts or BY_SPARK in texts:
        raise Unsupported(f"a name with {ROW} or {BY_SPARK}")
    selects = _Selects(sql, view, schema)
    columns = selects.columns(tree, tree.ctes)
    of_query = _Scope(selects, columns, "")
    if where:
        if selects.kept:
            # It leaves changes out, where the query's filter makes them deletes.
            raise Unsupported(f"`{where}`")
        of_query.filter(_parsed(where), where)
    deleted = of_query.value(_parsed(deletes), deletes) if deletes else None
    picked = Picked(columns, frozenset(selects.read), selects.steps, selects.kept, deleted)
    if len(picked.parts) > MOST_PARTS:
        raise Unsupported("a query that computes in several selects")
    return picked


def _parsed(condition: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(condition, dialect=Spark)
    except ParseError as error:
        raise Unsupported(f"`{condition}`") from error


class _Selects:
    """The selects of a query, as values of the columns of its source.

    Args:
        sql: the query.
        view: the name that the source has in it.
        schema: the source's columns.

    Attributes:
        read: columns of the source that PyArrow computes with.
        steps: conditions of the rows that the query returns, and what Spark computes.
        kept: of changes of rows: conditions of those that stay.
    """

    def __init__(self, sql: str, view: str, schema: pa.Schema) -> None:
        self.read: set[str] = set()
        self.steps: list[Value | SparkPart] = []
        self.kept: list[Value] = []
        self._view = view
        self._text = QueryText(sql)
        # Where the text of the select is that is read now: at first the one that reads the source.
        self._place = self._text.reader(view)
        self._source = {
            column.name.lower(): Value(itemgetter(column.name), column.type, column.name)
            for column in schema
        }

    def columns(self, select: exp.Select, before: Sequence[exp.CTE]) -> dict[str, Value]:
        """Return the columns of a select, by their names in lower case.

        Args:
            select: the query, or one of its common table expressions or subqueries.
            before: the common table expressions that it may read.

        Raises:
            Unsupported: it does more than to select and compute columns, and to filter rows.
        """
        source = _read_by(select)
        scope = _Scope(self, self._columns_of(source, before), source.alias_or_name)
        text = self._texts(select)
        if where := select.args.get("where"):
            assert text.where is not None, "a condition has a text"
            scope.filter(where.this, self._text.text(text.where[1:]))
        columns: dict[str, Value] = {}
        for projection, span in zip(select.expressions, text.columns, strict=True):
            selected = self._selected(scope, projection, self._text.text(span))
            if twice := columns.keys() & selected.keys():
                raise Unsupported(f"{min(twice)}, which is selected twice")
            columns |= selected
        return columns

    def _columns_of(self, source: exp.Expr, before: Sequence[exp.CTE]) -> Mapping[str, Value]:
        query = source.this
        if not isinstance(source, exp.Table):
            columns = self._inner_columns(query, before)
            opening = None if self._place is None else self._text.opening(self._place)
            self._place = None if opening is None else self._text.around(opening)
            return columns
        if source.name == self._view:
            return self._source
        names = [cte.alias.lower() for cte in before]
        if source.name.lower() not in names:
            raise Unsupported(MORE)
        place = names.index(source.name.lower())
        columns = self._inner_columns(before[place].this, before[:place])
        self._place = self._text.reader(source.name)
        return columns

    def _inner_columns(self, query: exp.Expr, before: Sequence[exp.CTE]) -> Mapping[str, Value]:
        if not isinstance(query, exp.Select) or query.ctes:
            raise Unsupported(MORE)
        return self.columns(query, before)

    def _texts(self, select: exp.Select) -> SelectText:
        """Return where the parts of a select are in the text."""
        text = None if self._place is None else self._text.select(self._place)
        if text is None or len(text.columns) != len(select.expressions):
            raise Unsupported(MORE)
        return text

    def _selected(self, scope: _Scope, projection: exp.Expr, text: str) -> Mapping[str, Value]:
        """Return the columns of one item of a select list."""
        node = projection.unalias()
        if isinstance(node, exp.Star) and _has_all(node):
            return scope.columns
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            return scope.translation.columns(node.table)
        if isinstance(node, exp.Column):
            if node.name == CHANGE and CHANGE not in scope.columns:
                return {}
            return {projection.alias_or_name.lower(): scope.translation.column(node)}
        if not isinstance(projection, exp.Alias):
            raise Unsupported(f"`{projection.sql(dialect='spark')}`, which has no name")
        if projection.alias == CHANGE:
            self.kept.append(scope.value(*_condition_of_rows(node, text, scope.alias)))
            return {}
        # Without the alias, to which other items could refer.
        return {projection.alias.lower(): scope.value(node, without_alias(text))}


class _Scope:
    """What expressions may refer to, and where they are added.

    Args:
        selects: the selects that have the expressions.
        columns: by their names in lower case.
        alias: what may stand before the columns; empty for nothing.
    """

    def __init__(self, selects: _Selects, columns: Mapping[str, Value], alias: str) -> None:
        self.columns, self.alias = columns, alias
        self.translation = Translation(columns, {"", alias.lower()}, selects.read)
        self._selects = selects
        self._part: SparkPart | None = None

    def value(self, node: exp.Expr, text: str) -> Value:
        """Return the value of an expression, which has a text.

        Raises:
            Unsupported: neither PyArrow nor Spark computes it apart from the rest.
        """
        if not AMBIGUOUS_TEXT.search(text):
            with suppress(Unsupported):
                return self.translation.value(node)
        return self._spark_part(node, text).add(text)

    def filter(self, node: exp.Expr, text: str) -> None:
        """Add the condition of the rows; see `value`."""
        if not AMBIGUOUS_TEXT.search(text):
            with suppress(Unsupported):
                self._selects.steps.append(self.translation.boolean(node))
                return
        self._spark_part(node, text).where = text

    def _spark_part(self, node: exp.Expr, text: str) -> SparkPart:
        """Return the part that computes an expression, with the columns for it."""
        columns = self.translation.needed_columns(node, words(text))
        if self._part is None:
            self._part = SparkPart(self.alias, len(self._selects.steps))
            self._selects.steps.append(self._part)
        self._part.columns.update(columns)
        return self._part


def _condition_of_rows(change: exp.Expr, text: str, alias: str) -> tuple[exp.Expr, str]:
    """Return the condition of the changes that stay, which `change_of_row` wrote, and its text."""
    wanted = change_of_row(alias, PLACEHOLDER)
    before, after = wanted.split(PLACEHOLDER)
    begin, end = text.find(before), text.rfind(after)
    negated, written = change.find(exp.Coalesce), _parsed(wanted)
    if negated is None or begin < 0 or end < 0:
        raise Unsupported(f"`{change.sql(dialect='spark')}`")
    place = next(c for c in written.find_all(exp.Column) if c.name == PLACEHOLDER)
    place.replace(negated.this.copy())
    if written != change:
        raise Unsupported(f"`{change.sql(dialect='spark')}`")
    return negated.this, text[begin + len(before) : end]


def _read_by(select: exp.Select) -> exp.Table | exp.Subquery:
    """Return what a select reads, if it only selects from it and filters its rows."""
    clause = select.args.get("from_")
    source = None if clause is None else clause.this
    if not isinstance(source, exp.Table | exp.Subquery):
        raise Unsupported(MORE)
    # It may have an alias, but no sample, pivot, time, or names of columns.
    bare = type(source)(this=source.this.copy())
    if alias := source.args.get("alias"):
        bare.set("alias", exp.TableAlias(this=alias.this.copy()))
    rest = select.copy().select("1", append=False)
    for name in ("where", "with_"):
        rest.set(name, None)
    if rest != exp.select("1").from_(bare):
        raise Unsupported(MORE)
    return source


def _has_all(star: exp.Star) -> bool:
    """Return whether a star has all columns, but for CHANGE, which is no column of a row."""
    others = [value for name, value in star.args.items() if name != "except_" and value]
    excepted = star.args.get("except_") or []
    return not others and all(column.name == CHANGE for column in excepted)
