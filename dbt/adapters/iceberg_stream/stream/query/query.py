"""A stream model's query: what it may be, and how what a change is gets through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.change_sql import (
    Through,
    carried_text,
    change_of_row,
)
from dbt.adapters.iceberg_stream.stream.query.changed_rows import (
    END,
    START,
    Lookup,
    get_filled_sql,
    get_not_late_sql,
    get_soft_deletes_sql,
    get_versions_sql,
)
from dbt.adapters.iceberg_stream.stream.query.picked import picked_columns
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    REASON,
    UNKNOWN_ORDER,
    WHERE,
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


def carry_change(sql: str, view: str, of_rows: bool = False) -> str:
    """The query with the source's `__stream` column among its columns.

    Where the changes are of rows that another table has, a row that a filter leaves out is one
    that this table must not have any more: its change becomes a delete.

    Raises:
        StreamError: the query does more than go through the stream's rows.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except ParseError as error:
        raise StreamError(f"The query of the stream cannot be understood: {error}") from error
    found = [table for table in tree.find_all(exp.Table) if table.name == view and not table.db]
    if len(found) != 1:
        raise StreamError(f"The query names {len(found)} streams. {HINT}")
    steps: list[Through] = []
    source: exp.Expression | None = found[0]
    while source is not None:
        source = _through(source, of_rows, steps)
    carried = carried_text(sql, view, steps)
    # The text is what the user has written; the tree says whether it was found where it stands.
    with suppress(ParseError):
        if carried is not None and sqlglot.parse_one(carried, dialect="spark") == tree:
            return carried
    return str(tree.sql(dialect="spark"))


def _through(source: exp.Expression, of_rows: bool, steps: list[Through]) -> exp.Expression | None:
    """Carry the column through the select that reads a source; what reads that select next."""
    select = source.find_ancestor(exp.Select, exp.SetOperation)
    if not isinstance(select, exp.Select):
        raise StreamError(f"The query of the stream has a union. {HINT}")
    _check(select, source)
    alias = source.alias_or_name
    covers = [_covers(projection, alias) for projection in select.expressions]
    parent = select.parent
    name = parent.alias if isinstance(parent, exp.CTE) else ""
    steps.append(Through(alias, of_rows, tuple(covers), name))
    if of_rows:
        _keep_filtered(select, alias)
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
            raise StreamError(f"`{parent.alias}` is read {len(readers)} times. {HINT}")
        return readers[0]
    if isinstance(parent, exp.Subquery) and isinstance(parent.parent, exp.From | exp.Join):
        return parent
    if isinstance(parent, exp.SetOperation):
        raise StreamError(f"The query of the stream has a union. {HINT}")
    raise StreamError(f"The stream is in a subquery that is no source of rows. {HINT}")


def _check(select: exp.Select, source: exp.Expression) -> None:
    for name, what in REFUSED.items():
        if select.args.get(name):
            raise StreamError(f"The query of the stream {what}. {HINT}")
    for projection in select.expressions:
        if any(_within(projection, exp.AggFunc, exp.Window, exp.Explode)):
            raise StreamError(
                f"`{projection.sql(dialect='spark')}` aggregates or generates rows. {HINT}"
            )
    for join in select.args.get("joins") or []:
        side, ours = join.side.upper(), join.this is source
        if side == "FULL" or (side == "LEFT" and ours) or (side == "RIGHT" and not ours):
            raise StreamError(
                f"The join `{join.sql(dialect='spark')}` keeps rows that are no changes. {HINT}"
            )


def _keep_filtered(select: exp.Select, alias: str) -> None:
    """Have a select's filter say which changes are deletes, instead of leaving rows out."""
    for join in select.args.get("joins") or []:
        if not join.side or join.kind in ("SEMI", "ANTI"):
            raise StreamError(
                f"The join `{join.sql(dialect='spark')}` leaves out rows, and with them the "
                "deletes of rows that were there before: use a left join."
            )
    where = select.args.get("where")
    for projection in select.expressions:
        if _covers(projection, alias):
            star = projection if isinstance(projection, exp.Star) else projection.this
            star.append("except_", exp.column(CHANGE))
    select.set("where", None)
    told = change_of_row(alias, None if where is None else CONDITION)
    made = sqlglot.parse_one(told, dialect="spark").as_(CHANGE)
    if where is not None:
        next(c for c in made.find_all(exp.Column) if c.name == CONDITION).replace(where.this)
    select.select(made, append=True, copy=False)


def _within(projection: exp.Expression, *kinds: type[exp.Expression]) -> Iterator[exp.Expression]:
    """What stands in a projection itself, not in a subquery there."""
    for found in projection.find_all(*kinds):
        inside = found.find_ancestor(exp.Select)
        if inside is projection.parent:
            yield found


def _covers(projection: exp.Expression, alias: str) -> bool:
    """Whether `*` or `alias.*` brings the column along."""
    if isinstance(projection, exp.Star):
        return True
    return (
        isinstance(projection, exp.Column)
        and isinstance(projection.this, exp.Star)
        and projection.table == alias
    )


def given_columns(names: Sequence[str]) -> list[str]:
    """Columns that the query gives, without those that the source has added."""
    return [name for name in names if name not in (CHANGE, BAD, WHERE, REASON)]


def output_columns(names: Sequence[str], options: StreamOptions) -> list[str]:
    """Columns of the table, of those that the query gives.

    Raises:
        StreamError: an option names a column that is not there.
    """
    given = given_columns(names)
    known = {name.lower(): name for name in given}
    if len(known) < len(given):
        twice = sorted({name for name in given if [*map(str.lower, given)].count(name.lower()) > 1})
        raise StreamError(f"The query returns {', '.join(twice)} more than once: rename them.")
    if there := [name for name in added_names(options) if name.lower() in known]:
        raise StreamError(
            f"The stream adds the column {', '.join(there)} to the table, and the query returns it "
            "already: give one of them another name."
        )
    if missing := [
        f"`{option}` names `{name}`"
        for option, names in _named(options).items()
        for name in names
        if name.lower() not in known
    ]:
        raise StreamError(
            f"{', '.join(missing)}, which the query does not return. It returns: {', '.join(given)}"
        )
    if options.columns is not None:
        chosen = [known[name.lower()] for name in options.columns]
    else:
        excluded = {name.lower() for name in options.excluded}
        chosen = [name for name in given if name.lower() not in excluded]
    have = {name.lower() for name in chosen}
    lacking = [name for name in options.sequence_by if name.lower() not in have]
    if lacking and options.scd_type == 1:
        raise StreamError(
            f"`sequence_by` names {', '.join(lacking)}, which the table does not have. A late "
            "change is known by it: leave it out of `except`, or put it into `columns`."
        )
    if lost := [key for key in options.keys if key.lower() not in have]:
        raise StreamError(
            f"The key {', '.join(f'`{key}`' for key in lost)} is not among the table's columns: "
            "leave it out of `except`, or put it into `columns`."
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
    """Columns that the options add to the query's."""
    if options.scd_type == 2:
        return START, END
    return (options.soft_deletes,) if options.soft_deletes else ()


def added_columns(types: Mapping[str, T], options: StreamOptions, time: T) -> list[tuple[str, T]]:
    """The same with their types; versions have the type of what orders changes in the query."""
    by = [name.lower() for name in options.sequence_by]
    versions = options.scd_type == 2
    kind = next(t for n, t in types.items() if n.lower() == by[0]) if versions else time
    return [(name, kind) for name in added_names(options)]


@dataclass(frozen=True)
class StreamQuery:
    """A model's query as text that the writer can take the rows of.

    Attributes:
        carried: the query, with the column `__stream`.
        view: the name that the source has in it.
        relation: the model's table.
        columns: of the table, in the query.
        given: the columns that the query returns.
        where: a condition on them: the rows that are this table's; empty for all.
        partition: expression of a struct with the partition fields' values; empty for none.
    """

    carried: str
    view: str
    relation: str
    columns: Sequence[str]
    options: StreamOptions
    partition: str = ""
    given: Sequence[str] = ()
    where: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that tell a row of the table."""
        return (*self.options.keys, START) if self.options.scd_type == 2 else self.options.keys

    @property
    def keeps_order(self) -> bool:
        """Whether rows come out in the order in which the source has given them: no join."""
        tree = sqlglot.parse_one(self.carried, dialect="spark")
        inner = [one for one in tree.find_all(exp.Subquery) if not isinstance(one.parent, exp.From)]
        joins = tree.find(exp.Join, exp.Exists) is not None
        return not (joins or inner or any(one.args.get("query") for one in tree.find_all(exp.In)))

    @property
    def looks_up(self) -> bool:
        """Whether rows of the table decide what a change becomes."""
        options = self.options
        return bool(options.scd_type == 2 or options.soft_deletes or options.ignore_null_updates)

    def picked(self, names: Sequence[str]) -> dict[str, str] | None:
        """The source's column that each of the table's is; None where the query does more.

        The names are those of the source's columns.
        """
        options = self.options
        by_options = (options.sequence_by, options.deletes, options.truncates)
        if any(by_options) or self.looks_up or self.partition or self.where:
            return None
        given = picked_columns(self.carried, self.view, names)
        if given is None or not {name.lower() for name in self.columns} <= given.keys():
            return None
        return {name: given[name.lower()] for name in self.columns}

    def changes(self) -> str:
        """Changes: the table's columns, what orders them, whether they delete."""
        return self._finished(self._plain)

    def changes_not_late(self, tombstones: str | None) -> str:
        """The same without those that are older than their row; the view has deleted keys."""
        by = self.options.sequence_by
        return self._finished(get_not_late_sql(self._plain, self._table, by, tombstones))

    def unknown_order(self) -> str:
        """A key that has several changes, of which it is not known which one is the last."""
        keys = ", ".join(quote(key) for key in self.options.keys)
        table = self._table
        minor, orders = table.order_names[-1], ", ".join(table.order_names)
        # An earlier change matters where a later one may leave a column as it is.
        partial = self.options.ignore_null_updates
        last = f"max({minor})" if partial else f"max_by({minor}, struct({orders}))"
        return (
            f"select {keys} from (\n{self._plain}\n) group by {keys} "
            f"having count(*) > 1 and {last} >= {UNKNOWN_ORDER} limit 1"
        )

    def count_truncates(self) -> str:
        """How many changes delete all rows."""
        return f"select count_if({self._truncated}) as n from {self._rows}"

    def after_truncate(self) -> str:
        """Changes that come after the last one that deletes all rows."""
        orders = ", ".join(self._table.order_names)
        return self._finished(
            f"with changes as (select {self._listed()}, {self._truncated} as truncated "
            f"from {self._rows})\n"
            f"select * except (truncated) from changes where not truncated and struct({orders}) > "
            f"(select max(struct({orders})) from changes where truncated)"
        )

    def _finished(self, sql: str) -> str:
        """What the table's rows make of the changes, and where they go."""
        options, table = self.options, self._table
        if nulls := options.ignore_null_updates:
            others = [name for name in self.columns if name not in options.keys]
            sql = get_filled_sql(sql, table, others if isinstance(nulls, bool) else nulls)
        if options.soft_deletes:
            sql = get_soft_deletes_sql(sql, table, options.soft_deletes, options.sequence_by)
        if options.scd_type == 2:
            sql = get_versions_sql(sql, table)
        if self.partition:
            sql = f"select *, {self.partition} as {PARTITION} from (\n{sql}\n)"
        return sql

    @property
    def _table(self) -> Lookup:
        return Lookup(self.relation, self.options.keys, self.columns, len(self._orders()))

    @property
    def _plain(self) -> str:
        return f"select {self._listed()} from {self._rows} where not ({self._truncated})"

    @property
    def _rows(self) -> str:
        if not self.where:
            return f"(\n{self.carried}\n)"
        return f"(select * from (\n{self.carried}\n) where {self.where})"

    @property
    def _truncated(self) -> str:
        return _any_of(f"{CHANGE}.truncated", self.options.truncates)

    def _orders(self) -> list[str]:
        by = [quote(name) for name in self.options.sequence_by]
        return [*by, f"{CHANGE}.major", f"{CHANGE}.minor"]

    def _listed(self) -> str:
        parts = [quote(name) for name in self.columns]
        parts += [f"{order} as {ORDER}{number}" for number, order in enumerate(self._orders())]
        parts.append(f"{_any_of(f'{CHANGE}.deleted', self.options.deletes)} as {DELETED}")
        return ", ".join(parts)


def _any_of(*conditions: str | None) -> str:
    # A condition may end with a comment.
    return " or ".join(f"coalesce(({c}\n), false)" for c in conditions if c)
