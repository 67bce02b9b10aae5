"""Changes that depend on what the table holds: late ones, partial ones, versions, soft deletes.

Each function takes the text of a query that gives changes, and gives the text of another one. The
names are those of AUTO CDC in Spark and Databricks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER

START, END = "__START_AT", "__END_AT"


@dataclass(frozen=True)
class Lookup:
    """The table that changes go to.

    Attributes:
        relation: as Spark names it.
        keys: columns that tell a row.
        columns: of the changes, keys included.
        orders: how many columns order the changes.
    """

    relation: str
    keys: Sequence[str]
    columns: Sequence[str]
    orders: int

    def match(self, one: str, other: str) -> str:
        return " and ".join(f"{one}.{quote(k)} <=> {other}.{quote(k)}" for k in self.keys)

    @property
    def by_key(self) -> str:
        return "partition by " + ", ".join(quote(key) for key in self.keys)

    @property
    def order_names(self) -> list[str]:
        return [f"{ORDER}{number}" for number in range(self.orders)]

    @property
    def before(self) -> str:
        """The window's frame of a change and those before it."""
        order = ", ".join(self.order_names)
        return f"order by {order} rows between unbounded preceding and current row"

    @property
    def hidden(self) -> list[str]:
        return [*self.order_names, DELETED]

    def beside(self, changes: str, window: str, listed: Sequence[str]) -> str:
        """What a list makes of changes `d`, which have a window more, and of their rows `t`."""
        return (
            f"with d as (select *, {window} from (\n{changes}\n))\n"
            f"select {', '.join(listed)} "
            f"from d left join {self.relation} as t on {self.match('d', 't')}"
        )


def get_not_late_sql(
    changes: str, table: Lookup, sequence_by: Sequence[str], tombstones: str | None = None
) -> str:
    """Changes without those that are older than the row they change, or than its delete.

    Tombstones are a view of keys that were changed, each with what ordered the change.
    """
    ours = ", ".join(f"c.{ORDER}{number}" for number, _ in enumerate(sequence_by))
    columns = [quote(name) for name in sequence_by]
    rows = ", ".join(f"t.{column}" for column in columns)
    sql = (
        f"select c.* from (\n{changes}\n) as c left join {table.relation} as t "
        f"on {table.match('c', 't')} "
    )
    known = f"(t.{columns[0]} is null or struct({ours}) >= struct({rows}))"
    if tombstones is None:
        return f"{sql} where {known}"
    keys = ", ".join(quote(key) for key in table.keys)
    return (
        f"{sql} left join (select {keys}, max(struct({', '.join(columns)})) as last "
        f"from {tombstones} group by {keys}) as x on {table.match('c', 'x')} "
        f"where {known} and (x.last is null or struct({ours}) >= x.last)"
    )


def get_filled_sql(changes: str, table: Lookup, columns: Sequence[str]) -> str:
    """Changes whose nulls in some columns are what the row had, since it was last deleted."""
    listed = []
    for name in table.columns:
        column = quote(name)
        if name not in columns:
            listed.append(f"d.{column}")
            continue
        last = (
            f"last_value(if(d.{DELETED}, null, d.{column})) ignore nulls "
            f"over ({_of_life(table)} {table.before})"
        )
        listed.append(f"coalesce({last}, if(d.__life = 0, t.{column}, null)) as {column}")
    listed += [f"d.{name}" for name in table.hidden]
    lives = f"count_if({DELETED}) over ({table.by_key} {table.before}) as __life"
    return table.beside(changes, lives, listed)


def get_soft_deletes_sql(
    changes: str, table: Lookup, deleted_at: str, sequence_by: Sequence[str] = ()
) -> str:
    """Changes whose deletes are rows as they were last, with the time in a column."""
    row = ", ".join(quote(name) for name in table.columns)
    last = (
        f"last_value(if({DELETED}, null, struct({row}))) ignore nulls "
        f"over ({table.by_key} {table.before}) as __last"
    )
    listed = []
    for name in table.columns:
        column = quote(name)
        known = f"coalesce(d.__last.{column}, t.{column}, d.{column})"
        if name in sequence_by:
            known = f"d.{column}"  # of the delete: what is older than it comes too late
        listed.append(f"if(d.{DELETED}, {known}, d.{column}) as {column}")
    listed.append(f"if(d.{DELETED}, current_timestamp(), null) as {quote(deleted_at)}")
    listed += [*(f"d.{name}" for name in table.order_names), f"false as {DELETED}"]
    known = f"d.__last is not null or t.{quote(table.keys[0])} is not null"
    return f"{table.beside(changes, last, listed)} where not d.{DELETED} or {known}"


def get_versions_sql(changes: str, table: Lookup) -> str:
    """Changes of versions, each from `__START_AT` to `__END_AT` (SCD type 2), early or late.

    A version ends where the next one begins, or the row was deleted. All versions of the keys are
    put in order anew, and those come out that have changed.
    """
    columns = ", ".join(quote(name) for name in table.columns)
    of_key = f"{table.by_key} order by __at"
    nothing = ", ".join(quote(n) if n in table.keys else "null" for n in table.columns)
    last = ", ".join(f"{name} desc" for name in table.order_names)
    return f"""
with c as (
  select {columns}, {ORDER}0 as __at, {DELETED}, 2 as __rank from (
    select *, row_number() over ({table.by_key}, {ORDER}0 order by {last}) as __n from (
{changes}
    )
  ) where __n = 1
),
h as (
  select {columns}, {START}, {END} from {table.relation} as t
  where exists (select 1 from c where {table.match("c", "t")})
),
events as (
  select * from c
  union all select {columns}, {START}, false, 1 from h
  union all select {nothing}, {END}, true, 0 from h where {END} is not null
),
told as (
  select *, row_number() over ({table.by_key}, __at order by __rank desc) as __n from events
),
versions as (
  select {columns}, __at, {DELETED}, __rank, lead(__at) over ({of_key}) as __next
  from told where __n = 1
)
select v.* except (__at, __rank, __next, {DELETED}),
  v.__at as {START}, if(v.{DELETED}, null, v.__next) as {END},
  v.__at as {ORDER}0, 0L as {ORDER}1, v.{DELETED}
from versions as v left join h on {table.match("v", "h")} and v.__at = h.{START}
where if(v.{DELETED}, h.{START} is not null, v.__rank = 2 or not (h.{END} <=> v.__next))
"""


def _of_life(table: Lookup) -> str:
    return "partition by " + ", ".join([*(f"d.{quote(k)}" for k in table.keys), "d.__life"])
