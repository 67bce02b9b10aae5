"""A stream model's query: what it may contain, and the SQL that returns its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.change_sql import (
    SelectStep,
    change_of_row,
    insert_change_column,
)
from dbt.adapters.iceberg_stream.stream.query.changed_rows import (
    END,
    START,
    TargetTable,
    get_deletes_sql,
    get_filled_sql,
    get_not_late_sql,
    get_not_overtaken_sql,
    get_soft_deletes_sql,
    get_versions_sql,
)
from dbt.adapters.iceberg_stream.stream.query.picked import Picked, pick
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.sources.source import (
    CHANGE,
    RECORD_COLUMNS,
    UNKNOWN_ORDER,
)

T = TypeVar("T")
CONDITION = "__condition"
REFUSED = {
    "laterals": "has a `lateral view`",
    "group": "groups",
    "distinct": "has a `distinct`",
    "having": "has a `having`",
    "limit": "has a `limit`",
    "order": "is ordered",
    "qualify": "has a `qualify`",
}
HINT = (
    "A stream model selects from one stream, row by row: filters, expressions and joins with "
    "tables are possible. Do the rest in a model that reads this one's table."
)


def get_change_sql(sql: str, view: str, of_rows: bool = False) -> str:
    """Return the query with the source's `__stream` column among its columns.

    Args:
        sql: the user's query.
        view: the name that the source has in it.
        of_rows: whether changes are of a table's rows. A row that the query's filter leaves out
            must then leave the target as well: its change becomes a delete.

    Raises:
        StreamError: the query cannot be parsed, or does more than select row by row.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=Spark)
    except ParseError as error:
        raise StreamError(f"The query of the stream cannot be parsed: {error}") from error
    streams = [table for table in tree.find_all(exp.Table) if table.name == view and not table.db]
    if len(streams) != 1:
        raise StreamError(
            f"The query must read a stream exactly once, but reads it {len(streams)} times. {HINT}"
        )
    steps: list[SelectStep] = []
    source: exp.Expr | None = streams[0]
    while source is not None:
        source = _add_step(source, of_rows, steps)
    change_sql = insert_change_column(sql, view, steps)
    # The edited text keeps what the user wrote. It has to be what the edited tree says.
    with suppress(ParseError):
        if change_sql is not None and sqlglot.parse_one(change_sql, dialect=Spark) == tree:
            return change_sql
    raise StreamError(
        "The query of the stream is written in a way that dbt cannot follow. Write each of its "
        f"selects as `select … from …`. {HINT}"
    )


def _add_step(source: exp.Expr, of_rows: bool, steps: list[SelectStep]) -> exp.Expr | None:
    """Add the column to the select that reads a source; return what reads that select."""
    while isinstance(source.parent, exp.Subquery | exp.Paren) and not isinstance(source, exp.Query):
        source = source.parent  # a name in parentheses, which may have an alias behind them
    select = source.find_ancestor(exp.Select, exp.SetOperation)
    if not isinstance(select, exp.Select):
        raise StreamError(f"The query of the stream has a union. {HINT}")
    _check(select, source)
    alias = source.alias_or_name
    covers = [_covers(projection, alias) for projection in select.expressions]
    parent = select.parent
    name = parent.alias if isinstance(parent, exp.CTE) else ""
    steps.append(SelectStep(alias, of_rows, tuple(covers), name))
    if of_rows:
        _filter_to_deletes(select, alias)
    elif not any(covers):
        select.select(exp.column(CHANGE, table=alias or None), append=True, copy=False)
    if parent is None:
        return None
    if isinstance(parent, exp.CTE):
        readers = [
            table
            for table in parent.root().find_all(exp.Table)
            if table.name.lower() == parent.alias.lower() and not table.db
        ]
        if len(readers) != 1:
            raise StreamError(
                f"The query must read `{parent.alias}`, which selects from the stream, exactly "
                f"once; it reads it {len(readers)} times. {HINT}"
            )
        return readers[0]
    if isinstance(parent, exp.Subquery) and isinstance(parent.parent, exp.From | exp.Join):
        return parent
    if isinstance(parent, exp.SetOperation):
        raise StreamError(f"The query of the stream has a union. {HINT}")
    raise StreamError(f"The stream is in a subquery outside of `from` and `join`. {HINT}")


def _check(select: exp.Select, source: exp.Expr) -> None:
    for name, what in REFUSED.items():
        if select.args.get(name):
            raise StreamError(f"The query of the stream {what}. {HINT}")
    for projection in select.expressions:
        if any(_within(projection, exp.AggFunc, exp.Window, exp.Explode)):
            raise StreamError(
                f"`{projection.sql(dialect='spark')}` uses an aggregate, a window function or "
                f"`explode`. {HINT}"
            )
    for join in select.args.get("joins") or []:
        side, ours = join.side.upper(), join.this is source
        if side == "FULL" or (side == "LEFT" and ours) or (side == "RIGHT" and not ours):
            raise StreamError(
                f"The join `{join.sql(dialect='spark')}` adds rows that are not changes. {HINT}"
            )


def _filter_to_deletes(select: exp.Select, alias: str) -> None:
    """Turn a select's filter into a condition of deletes, so that it leaves no rows out."""
    for join in select.args.get("joins") or []:
        if not join.side or join.kind in ("SEMI", "ANTI"):
            raise StreamError(
                f"The join `{join.sql(dialect='spark')}` leaves out rows, and with them the "
                "deletes of rows that the table has. Use a left join."
            )
    where = select.args.get("where")
    for projection in select.expressions:
        if _covers(projection, alias):
            star = projection if isinstance(projection, exp.Star) else projection.this
            star.append("except_", exp.column(CHANGE))
    select.set("where", None)
    change = change_of_row(alias, None if where is None else CONDITION)
    column = sqlglot.parse_one(change, dialect="spark").as_(CHANGE)
    if where is not None:
        next(c for c in column.find_all(exp.Column) if c.name == CONDITION).replace(where.this)
    select.select(column, append=True, copy=False)


def _within(projection: exp.Expr, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the expressions of some kinds in a projection, but not in its subqueries."""
    for expression in projection.find_all(*kinds):
        if expression.find_ancestor(exp.Select) is projection.parent:
            yield expression


def _covers(projection: exp.Expr, alias: str) -> bool:
    """Return whether a projection is `*` or `alias.*`, which includes the column."""
    if isinstance(projection, exp.Star):
        return True
    return (
        isinstance(projection, exp.Column)
        and isinstance(projection.this, exp.Star)
        and projection.table == alias
    )


def returned_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of the user's query.

    Args:
        names: columns of the query by `get_change_sql`, with those that the source has added.
    """
    return [name for name in names if name not in (CHANGE, *RECORD_COLUMNS)]


def output_columns(names: Sequence[str], options: StreamOptions) -> list[str]:
    """Return the query's columns that the table has.

    Args:
        names: columns that the query returns, with those that the source has added.
        options: the model's options.

    Raises:
        StreamError: an option names a column that the query does not return, or the table lacks a
            column that the options need.
    """
    returned = returned_columns(names)
    by_lower = {name.lower(): name for name in returned}
    if len(by_lower) < len(returned):
        lower = [name.lower() for name in returned]
        twice = sorted({name for name in returned if lower.count(name.lower()) > 1})
        raise StreamError(f"The query returns {', '.join(twice)} more than once. Rename them.")
    if duplicates := [name for name in added_names(options) if name.lower() in by_lower]:
        raise StreamError(
            f"The stream adds the column {', '.join(duplicates)} to the table, and the query "
            "returns it already. Rename one of them."
        )
    if missing := [
        f"`{option}` names `{name}`"
        for option, names in _named(options).items()
        for name in names
        if name.lower() not in by_lower
    ]:
        raise StreamError(
            f"{', '.join(missing)}, which the query does not return. It returns: "
            f"{', '.join(returned)}"
        )
    if options.columns is not None:
        chosen = [by_lower[name.lower()] for name in options.columns]
    else:
        excluded = {name.lower() for name in options.excluded}
        chosen = [name for name in returned if name.lower() not in excluded]
    in_table = {name.lower() for name in chosen}
    missing_order = [name for name in options.sequence_by if name.lower() not in in_table]
    if missing_order and options.scd_type == 1:
        raise StreamError(
            f"`sequence_by` names {', '.join(missing_order)}, which the table does not have, and "
            "which identifies late changes. Remove it from `except`, or add it to `columns`."
        )
    if missing_keys := [key for key in options.keys if key.lower() not in in_table]:
        raise StreamError(
            f"The key {', '.join(f'`{key}`' for key in missing_keys)} is not among the table's "
            "columns. Remove it from `except`, or add it to `columns`."
        )
    return chosen


def _named(options: StreamOptions) -> dict[str, Sequence[str]]:
    nulls = options.ignore_null_updates
    return {
        "unique_key": options.keys,
        "sequence_by": options.sequence_by,
        "columns": options.columns or (),
        "except": options.excluded,
        "ignore_null_updates": () if isinstance(nulls, bool) else nulls,
    }


def added_names(options: StreamOptions) -> tuple[str, ...]:
    """Return the columns that the options add to the query's.

    Args:
        options: the model's options.
    """
    if options.scd_type == 2:
        return START, END
    return (options.soft_deletes,) if options.soft_deletes else ()


def added_columns(types: Mapping[str, T], options: StreamOptions, time: T) -> list[tuple[str, T]]:
    """Return the columns that the options add, with their types.

    Args:
        types: types of the columns that the query returns.
        options: the model's options.
        time: the type of a timestamp, for `soft_deletes`; versions have the type of the
            `sequence_by` column.
    """
    by = [name.lower() for name in options.sequence_by]
    versions = options.scd_type == 2
    added_type = next(t for n, t in types.items() if n.lower() == by[0]) if versions else time
    return [(name, added_type) for name in added_names(options)]


@dataclass(frozen=True)
class StreamQuery:
    """A model's query, from which the SQL of its changes is built.

    Attributes:
        change_sql: the query with the column `__stream`, by `get_change_sql`.
        view: the name that the source has in it.
        relation: the model's table.
        columns: columns of the query that the table has.
        options: the model's options.
        partition: SQL of a struct of the partition fields' values; empty for none.
        returned: columns that the query returns.
        where: SQL condition of the rows that go to this table; empty for all.
        deletes_others: whether changes that go to other tables delete the rows of their keys here.
    """

    change_sql: str
    view: str
    relation: str
    columns: Sequence[str]
    options: StreamOptions
    partition: str = ""
    returned: Sequence[str] = ()
    where: str = ""
    deletes_others: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a row of the table."""
        return (*self.options.keys, START) if self.options.scd_type == 2 else self.options.keys

    @property
    def period(self) -> tuple[str, ...]:
        """Columns of the table with the times when a version begins and ends; empty without."""
        return (START, END) if self.options.scd_type == 2 else ()

    @property
    def added_columns(self) -> tuple[str, ...]:
        """Columns that the stream itself adds to the table."""
        return (self.options.soft_deletes,) if self.options.soft_deletes else self.period

    @property
    def keeps_order(self) -> bool:
        """Return whether the query returns rows in the source's order, as it does without joins."""
        tree = sqlglot.parse_one(self.change_sql, dialect="spark")
        inner = [one for one in tree.find_all(exp.Subquery) if not isinstance(one.parent, exp.From)]
        joins = tree.find(exp.Join, exp.Exists) is not None
        return not (joins or inner or any(one.args.get("query") for one in tree.find_all(exp.In)))

    @property
    def reads_target(self) -> bool:
        """Return whether changes depend on the table's rows."""
        options = self.options
        return bool(options.scd_type == 2 or options.soft_deletes or options.ignore_null_updates)

    def pick(self, schema: pa.Schema, target: pa.Schema) -> Picked:
        """Return the table's columns as they are read or computed, and which rows are written.

        Args:
            schema: the source's columns.
            target: the table's columns, with the types that the query returns.

        Returns:
            What the query selects, by the table's columns.

        Raises:
            Unsupported: Spark has to compute whole rows.
        """
        if self.options.truncates:
            raise Unsupported("`apply_as_truncates`")
        if self.reads_target:
            raise Unsupported("changes that depend on rows of the table")
        deletes = _any_of(*self._delete_conditions)
        picked = pick(self.change_sql, self.view, schema, self._filter, deletes)
        return picked.only(self.columns, target)

    def changes(self, tombstones: str | None = None) -> str:
        """Return SQL of the changes: the table's columns, order columns, whether they delete.

        Args:
            tombstones: where versions are kept, a view of deletes of earlier batches; None if there
                are none.
        """
        return self._finished(self._row_changes, tombstones)

    def deletes(self) -> str:
        """Return SQL of the keys that are deleted, where versions are kept, with the times."""
        return get_deletes_sql(self._row_changes, self._target)

    def changes_not_late(self, tombstones: str | None) -> str:
        """Return SQL of the changes that are not older than the row they change.

        Args:
            tombstones: a view of the table's equality deletes; None if there are none.
        """
        by = self.options.sequence_by
        return self._finished(get_not_late_sql(self._row_changes, self._target, by, tombstones))

    def changed_keys(self, limit: int) -> str:
        """Return SQL of the keys that the changes have, each once.

        Where versions are kept, `__START_AT` is the time of the key's first change.

        Args:
            limit: keys that are returned, at most.
        """
        keys = ", ".join(quote(key) for key in self.options.keys)
        columns = f"{keys}, min({ORDER}0) as {START}" if self.period else keys
        return f"select {columns} from (\n{self._row_changes}\n) group by {keys} limit {limit}"

    def unknown_order(self) -> str:
        """Return SQL of one key with several changes whose order is not known."""
        keys = ", ".join(quote(key) for key in self.options.keys)
        table = self._target
        minor, orders = table.order_names[-1], ", ".join(table.order_names)
        # An earlier change matters where a later one may leave a column as it is.
        partial = self.options.ignore_null_updates
        last = f"max({minor})" if partial else f"max_by({minor}, struct({orders}))"
        return (
            f"select {keys} from (\n{self._row_changes}\n) group by {keys} "
            f"having count(*) > 1 and {last} >= {UNKNOWN_ORDER} limit 1"
        )

    def count_truncates(self) -> str:
        """Return SQL that counts, as `n`, the changes that delete all rows."""
        return f"select count_if({self._truncated}) as n from {self._rows}"

    def after_truncate(self) -> str:
        """Return SQL of the changes after the last one that deletes all rows."""
        # Whatever `sequence_by` says: a truncate has no row.
        orders = ", ".join(self._target.arrival_names(len(self.options.sequence_by)))
        return self._finished(
            f"with changes as (select {self._listed()}, {self._truncated} as truncated "
            f"from {self._rows})\n"
            f"select * except (truncated) from changes where not truncated and struct({orders}) > "
            f"(select max(struct({orders})) from changes where truncated)"
        )

    def _finished(self, sql: str, tombstones: str | None = None) -> str:
        """Apply the options that read the table's rows, and add the partition values."""
        options, table = self.options, self._target
        if options.sequence_by and (options.ignore_null_updates or options.soft_deletes):
            sql = get_not_overtaken_sql(sql, table, options.sequence_by)
        if nulls := options.ignore_null_updates:
            own = {*options.keys, *options.sequence_by}
            names = self.columns if isinstance(nulls, bool) else nulls
            filled = [name for name in names if name not in own]
            sql = get_filled_sql(sql, table, filled, options.soft_deletes)
        if options.soft_deletes:
            sql = get_soft_deletes_sql(sql, table, options.soft_deletes, options.sequence_by)
        if options.scd_type == 2:
            sql = get_versions_sql(sql, table, tombstones)
        if self.partition:
            sql = f"select *, {self.partition} as {PARTITION} from (\n{sql}\n)"
        return sql

    @property
    def _target(self) -> TargetTable:
        return TargetTable(self.relation, self.options.keys, self.columns, len(self._orders()))

    @property
    def _row_changes(self) -> str:
        return f"select {self._listed()} from {self._rows} where not ({self._truncated})"

    @property
    def _rows(self) -> str:
        if not self._filter:
            return f"(\n{self.change_sql}\n)"
        return f"(select * from (\n{self.change_sql}\n) where {self._filter}\n)"

    @property
    def _filter(self) -> str:
        return "" if self.deletes_others else self.where

    @property
    def _delete_conditions(self) -> list[str]:
        conditions = [self.options.deletes] if self.options.deletes else []
        if self.deletes_others and self.where:
            conditions.append(f"not coalesce({self.where}, false)")
        return conditions

    @property
    def _truncated(self) -> str:
        return _any_of(f"{CHANGE}.truncated", self.options.truncates)

    def _orders(self) -> list[str]:
        by = [quote(name) for name in self.options.sequence_by]
        return [*by, f"{CHANGE}.major", f"{CHANGE}.minor"]

    def _listed(self) -> str:
        parts = [quote(name) for name in self.columns]
        parts += [f"{order} as {ORDER}{number}" for number, order in enumerate(self._orders())]
        deletes = _any_of(f"{CHANGE}.deleted", *self._delete_conditions)
        parts.append(f"{deletes} as {DELETED}")
        return ", ".join(parts)


def _any_of(*conditions: str | None) -> str:
    # A condition may end with a comment.
    return " or ".join(f"coalesce(({c}\n), false)" for c in conditions if c)
