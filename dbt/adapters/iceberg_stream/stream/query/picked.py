"""Queries that select and compute columns row by row, whose rows need not go through Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.change_sql import change_of_row
from dbt.adapters.iceberg_stream.stream.query.expressions import (
    AMBIGUOUS_TEXT,
    AsWritten,
    Translation,
)
from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs, Setting
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported, Value
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE, ROW_DELETED

# Before the names of columns that only expressions need.
COMPUTED_WITH = "__computed_with_"
PLACEHOLDER = "__placeholder"
MORE = "a query that does more than to select rows and columns of one other"


@dataclass(frozen=True)
class Picked:
    """What a query selects of its source.

    What is computed needs the columns with COMPUTED_WITH.

    Attributes:
        columns: columns of the source by the query's columns in lower case, and by COMPUTED_WITH
            with their own name, if an expression needs them.
        computed: what the query computes, by its columns in lower case.
        conditions: of the rows that the query returns.
        doubts: conditions of rows for which Spark may have another result.
        of_rows: whether the changes are of rows: those that the conditions leave out are deleted.
        deletes: which changes are deletes, besides those that the source says are.
    """

    columns: Mapping[str, str]
    computed: Mapping[str, Value] = field(default_factory=dict)
    conditions: Sequence[Value] = ()
    doubts: Sequence[Value] = ()
    of_rows: bool = False
    deletes: Value | None = None

    def only(self, names: Sequence[str], types: pa.Schema) -> Picked:
        """Return some of the columns, by their names as they are written.

        Args:
            names: of the columns.
            types: what Spark says of the columns' types.

        Raises:
            Unsupported: one is missing, or computed as another type.
        """
        plain = {name: self.columns.get(name.lower()) for name in names}
        computed = {n: self.computed[n.lower()] for n in names if n.lower() in self.computed}
        for name in names:
            if plain[name] is None and name not in computed:
                raise Unsupported(f"`{name}`")
            if name in computed and computed[name].type != types.field(name).type:
                raise Unsupported(f"`{name}` as {types.field(name).type}")
        columns = {name: column for name, column in plain.items() if column is not None}
        needed = {n: column for n, column in self.columns.items() if n.startswith(COMPUTED_WITH)}
        return replace(self, columns=columns | needed, computed=computed)

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows and columns that the query returns.

        Args:
            rows: with a column for each of `columns`, and others, which are returned.

        Raises:
            ArrowFallback: Spark may have another result for a row, or refuse it.
        """
        if not self.conditions and not self.computed and self.deletes is None:
            return rows
        try:
            if any(pc.any(doubt.array(rows)).as_py() for doubt in self.doubts):
                raise ArrowFallback
            return self._selected(rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ArrowFallback from error

    def _selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.conditions:
            conditions = (condition.array(rows) for condition in self.conditions)
            is_kept = reduce(pc.and_kleene, conditions)
            if self.of_rows:
                rows = _with_deletes(rows, pc.invert(pc.fill_null(is_kept, False)))
            else:
                rows = rows.filter(is_kept)
        if self.deletes is not None:
            rows = _with_deletes(rows, pc.fill_null(self.deletes.array(rows), False))
        columns = {
            name: rows[name] for name in rows.schema.names if not name.startswith(COMPUTED_WITH)
        }
        columns |= {name: value.array(rows) for name, value in self.computed.items()}
        return pa.record_batch(columns)


def _with_deletes(rows: pa.RecordBatch, deleted: pa.Array) -> pa.RecordBatch:
    """Return rows with ROW_DELETED, also for those that are deleted besides."""
    if ROW_DELETED in rows.schema.names:
        deleted = pc.or_(deleted, rows[ROW_DELETED])
        rows = rows.drop_columns([ROW_DELETED])
    return rows.append_column(ROW_DELETED, deleted)


def pick(
    sql: str,
    view: str,
    schema: pa.Schema,
    where: str = "",
    deletes: str | None = None,
    setting: Setting | None = None,
) -> Picked:
    """Return what a query selects, if PyArrow computes it as Spark does.

    Args:
        sql: the query: a select, or several of which each reads the one before.
        view: the name that the source has in it.
        schema: the source's columns.
        where: a condition of the query's rows that are used; empty for all.
        deletes: a condition of the query's rows that are deletes.
        setting: reads a setting of the session; without it, Spark computes what depends on one.

    Raises:
        Unsupported: the query does more, or PyArrow may compute something differently.
    """
    tree = sqlglot.parse_one(sql, dialect=AsWritten)
    by_lower = {name.lower(): name for name in schema.names}
    if not isinstance(tree, exp.Select) or len(by_lower) < len(schema):
        raise Unsupported(MORE)
    kept = None if tree.args.get("where") else _condition_of_rows(tree, view)
    selects = _Selects(view, schema, Inputs(setting))
    columns = selects.columns(tree, tree.ctes)
    if kept is not None:
        selects.conditions.append(selects.of_source().boolean(kept))
        if where:
            # It leaves changes out, where the query's filter makes them deletes.
            raise Unsupported(f"`{where}`")
    of_query = Translation(columns, {""}, selects.inputs)
    if where:
        selects.conditions.append(of_query.boolean(_parsed(where)))
    deleted = of_query.boolean(_parsed(deletes)) if deletes else None
    plain = {name: value.column for name, value in columns.items() if value.column is not None}
    computed = {name: value for name, value in columns.items() if value.column is None}
    if not computed and not selects.conditions and not deleted:
        return Picked(plain)
    if AMBIGUOUS_TEXT.search(f"{sql} {where} {deletes}"):
        raise Unsupported("a query with a backslash or a double quote")
    needed = {_computed_with(name): name for name in sorted(selects.inputs.columns)}
    return Picked(
        plain | needed,
        computed,
        selects.conditions,
        selects.inputs.doubts,
        of_rows=kept is not None,
        deletes=deleted,
    )


def _parsed(condition: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(condition, dialect=AsWritten)
    except ParseError as error:
        raise Unsupported(f"`{condition}`") from error


def _computed_with(column: str) -> str:
    return f"{COMPUTED_WITH}{column.lower()}"


def _condition_of_rows(tree: exp.Select, view: str) -> exp.Expr | None:
    """Remove and return the condition of the rows that stay, which `change_of_row` wrote."""
    change = tree.expressions[-1]
    negated = change.find(exp.Coalesce) if change.alias == CHANGE else None
    if negated is None:
        return None
    condition = negated.this
    written = sqlglot.parse_one(change_of_row(view, PLACEHOLDER), dialect=AsWritten)
    next(c for c in written.find_all(exp.Column) if c.name == PLACEHOLDER).replace(condition.copy())
    if change.unalias() != written:
        return None
    change.pop()
    return condition


class _Selects:
    """The selects of a query, as values of the columns of its source.

    Args:
        view: the name that the source has in the query.
        schema: the source's columns.
        inputs: what the expressions depend on is added to it.

    Attributes:
        inputs: what the expressions depend on.
        conditions: of the rows that the query returns.
    """

    def __init__(self, view: str, schema: pa.Schema, inputs: Inputs) -> None:
        self.inputs = inputs
        self.conditions: list[Value] = []
        self._view = view
        self._source = {
            column.name.lower(): Value(
                itemgetter(_computed_with(column.name)), column.type, column.name
            )
            for column in schema
        }

    def of_source(self) -> Translation:
        """Return a translation of expressions on the source's columns."""
        return Translation(self._source, {"", self._view.lower()}, self.inputs)

    def columns(self, select: exp.Select, before: Sequence[exp.CTE]) -> dict[str, Value]:
        """Return the columns of a select, by their names in lower case.

        Args:
            select: the query, or one of its common table expressions or subqueries.
            before: the common table expressions that it may read.

        Raises:
            Unsupported: it does more than to select and compute columns, and to filter rows.
        """
        source = _read_by(select)
        scope = self._columns_of(source, before)
        qualifiers = {"", source.alias_or_name.lower()}
        translation = Translation(scope, qualifiers, self.inputs)
        if where := select.args.get("where"):
            self.conditions.append(translation.boolean(where.this))
        columns: dict[str, Value] = {}
        for projection in select.expressions:
            selected = _selected(projection, scope, translation)
            if twice := columns.keys() & selected.keys():
                raise Unsupported(f"{min(twice)}, which is selected twice")
            columns |= selected
        return columns

    def _columns_of(self, source: exp.Expr, before: Sequence[exp.CTE]) -> Mapping[str, Value]:
        query = source.this
        if isinstance(source, exp.Table):
            if source.name == self._view:
                return self._source
            names = [cte.alias.lower() for cte in before]
            if source.name.lower() not in names:
                raise Unsupported(MORE)
            place = names.index(source.name.lower())
            query, before = before[place].this, before[:place]
        if not isinstance(query, exp.Select) or query.ctes:
            raise Unsupported(MORE)
        return self.columns(query, before)


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


def _selected(
    projection: exp.Expr, scope: Mapping[str, Value], translation: Translation
) -> dict[str, Value]:
    """Return the columns of one item of a select list."""
    node = projection.unalias()
    if isinstance(node, exp.Star) and _has_all(node):
        return dict(scope)
    if not isinstance(node, exp.Column):
        return {_name(projection): translation.value(node)}
    if isinstance(node.this, exp.Star):
        return translation.columns(node.table)
    if node.name == CHANGE and CHANGE not in scope:
        return {}
    return {projection.alias_or_name.lower(): translation.column(node)}


def _name(projection: exp.Expr) -> str:
    if not isinstance(projection, exp.Alias):
        raise Unsupported(f"`{projection.sql(dialect='spark')}`, which has no name")
    return projection.alias.lower()


def _has_all(star: exp.Star) -> bool:
    """Return whether a star has all columns, but for CHANGE, which is no column of a row."""
    others = [value for name, value in star.args.items() if name != "except_" and value]
    excepted = star.args.get("except_") or []
    return not others and all(column.name == CHANGE for column in excepted)
