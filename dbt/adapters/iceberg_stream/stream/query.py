"""A stream model's query: what it may be, and how what a change is gets through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.relation import quote
from dbt.adapters.iceberg_stream.stream.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions

# The one column that a source adds: a struct of major and minor (bigint, the change's place in its
# source), deleted and truncated (boolean).
CHANGE = "__stream"
REFUSED = {
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


def carry_change(sql: str, view: str) -> str:
    """The query with the source's `__stream` column among its columns.

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
    source: exp.Expression | None = found[0]
    while source is not None:
        source = _through(source)
    return str(tree.sql(dialect="spark"))


def _through(source: exp.Expression) -> exp.Expression | None:
    """Carry the column through the select that reads a source; what reads that select next."""
    select = source.find_ancestor(exp.Select, exp.SetOperation)
    if not isinstance(select, exp.Select):
        raise StreamError(f"The query of the stream has a union. {HINT}")
    _check(select, source)
    alias = source.alias_or_name
    if not any(_covers(projection, alias) for projection in select.expressions):
        select.select(exp.column(CHANGE, table=alias), append=True, copy=False)
    parent = select.parent
    if parent is None:
        return None
    if isinstance(parent, exp.CTE):
        readers = [
            table
            for table in parent.root().find_all(exp.Table)
            if table.name == parent.alias and not table.db
        ]
        if len(readers) != 1:
            raise StreamError(f"`{parent.alias}` is read {len(readers)} times. {HINT}")
        return readers[0]
    if isinstance(parent, exp.Subquery) and isinstance(parent.parent, exp.From | exp.Join):
        return parent
    raise StreamError(f"The stream is in a subquery that is no source of rows. {HINT}")


def _check(select: exp.Select, source: exp.Expression) -> None:
    for name, what in REFUSED.items():
        if select.args.get(name):
            raise StreamError(f"The query of the stream {what}. {HINT}")
    for projection in select.expressions:
        if any(_within(projection, exp.AggFunc, exp.Window, exp.Explode)):
            raise StreamError(
                f"`{projection.sql(dialect='spark')}` is of several rows, or makes several. {HINT}"
            )
    for join in select.args.get("joins") or []:
        side, ours = join.side.upper(), join.this is source
        if side == "FULL" or (side == "LEFT" and ours) or (side == "RIGHT" and not ours):
            raise StreamError(
                f"The join `{join.sql(dialect='spark')}` keeps rows that are no changes. {HINT}"
            )


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


def output_columns(names: Sequence[str], options: StreamOptions) -> list[str]:
    """Columns of the table, of those that the query gives.

    Raises:
        StreamError: an option names a column that is not there.
    """
    given = [name for name in names if name != CHANGE]
    known = {name.lower(): name for name in given}
    named = (*options.keys, *options.sequence_by, *(options.columns or ()), *options.excluded)
    if missing := [name for name in dict.fromkeys(named) if name.lower() not in known]:
        raise StreamError(
            f"The config names {', '.join(f'`{name}`' for name in missing)}, which the query does "
            f"not return. It returns: {', '.join(given)}"
        )
    if options.columns is not None:
        chosen = [known[name.lower()] for name in options.columns]
    else:
        excluded = {name.lower() for name in options.excluded}
        chosen = [name for name in given if name.lower() not in excluded]
    have = {name.lower() for name in chosen}
    if lost := [key for key in options.keys if key.lower() not in have]:
        raise StreamError(
            f"The key {', '.join(f'`{key}`' for key in lost)} is not among the table's columns: "
            "leave it out of `except`, or put it into `columns`."
        )
    return chosen


@dataclass(frozen=True)
class StreamQuery:
    """A model's query as text that the writer can take the rows of.

    Attributes:
        carried: the query, with the column `__stream`.
        view: the name that the source has in it.
        relation: the model's table.
        columns: of the table, in the query.
        partition: expression of a struct with the partition fields' values; empty for none.
    """

    carried: str
    view: str
    relation: str
    columns: Sequence[str]
    options: StreamOptions
    partition: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return self.options.keys

    @property
    def looks_up(self) -> bool:
        """Whether rows of the table decide what a change becomes."""
        return False

    def count_truncates(self) -> str:
        """How many changes meet the option's condition to delete all rows."""
        return f"select count_if({self.options.truncates}) as n from (\n{self.carried}\n)"

    def changes(self, late: bool = False) -> str:
        """Changes: the table's columns, what orders them, whether they delete."""
        sql = f"select {self._listed()} from (\n{self.carried}\n) where not ({self._truncated})"
        return get_not_late_sql(sql, self) if late else sql

    def after_truncate(self) -> str:
        """Changes that come after the last one that deletes all rows."""
        orders = ", ".join(f"{ORDER}{number}" for number, _ in enumerate(self._orders()))
        return (
            f"with changes as (select {self._listed()}, {self._truncated} as truncated "
            f"from (\n{self.carried}\n))\n"
            f"select * except (truncated) from changes where not truncated and struct({orders}) > "
            f"(select max(struct({orders})) from changes where truncated)"
        )

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
        if self.partition:
            parts.append(f"{self.partition} as {PARTITION}")
        return ", ".join(parts)


def get_not_late_sql(changes: str, query: StreamQuery) -> str:
    """Changes without those that are older than the row they change."""
    match = " and ".join(f"c.{quote(key)} <=> t.{quote(key)}" for key in query.keys)
    names = query.options.sequence_by
    ours = ", ".join(f"c.{ORDER}{number}" for number, _ in enumerate(names))
    rows = ", ".join(f"t.{quote(name)}" for name in names)
    return (
        f"select c.* from (\n{changes}\n) as c left join {query.relation} as t on {match} "
        f"where t.{quote(names[0])} is null or struct({ours}) >= struct({rows})"
    )


def _any_of(*conditions: str | None) -> str:
    return " or ".join(f"coalesce(({c}), false)" for c in conditions if c)
