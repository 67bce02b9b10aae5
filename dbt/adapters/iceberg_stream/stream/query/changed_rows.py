"""SQL for changes that depend on the table's rows.

They are late and partial changes, versions and soft deletes. Each function takes the text of a
query that returns changes, and returns the text of another one. The names are those of AUTO CDC in
Spark and Databricks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER

START, END = "__START_AT", "__END_AT"
# Whether the table has a row of a change's key, all of whose columns may be null.
EXISTS = "__exists"
NO_START = (
    f"A row of the table has no value in {START}: it is older than `stored_as_scd_type: 2`, "
    "or another writer has written it. Give it one, or run the model with --full-refresh."
)


@dataclass(frozen=True)
class TargetTable:
    """The table that changes are applied to.

    Attributes:
        relation: its name for Spark.
        keys: columns that identify a row.
        columns: columns of the changes, keys included.
        orders: how many columns order the changes.
    """

    relation: str
    keys: Sequence[str]
    columns: Sequence[str]
    orders: int

    def match(self, one: str, other: str) -> str:
        """Return the condition that two aliases have the same key, nulls included."""
        return " and ".join(f"{one}.{quote(k)} <=> {other}.{quote(k)}" for k in self.keys)

    @property
    def by_key(self) -> str:
        return "partition by " + ", ".join(quote(key) for key in self.keys)

    @property
    def order_names(self) -> list[str]:
        return [f"{ORDER}{number}" for number in range(self.orders)]

    def arrival_names(self, sequences: int) -> list[str]:
        """Return the order in which changes arrive.

        Among changes whose place in the source is not known, `sequence_by` decides.

        Args:
            sequences: how many columns `sequence_by` has.
        """
        return [*self.order_names[sequences:], *self.order_names[:sequences]]

    @property
    def before(self) -> str:
        """The window frame of a change and all changes before it."""
        order = ", ".join(self.order_names)
        return f"order by {order} rows between unbounded preceding and current row"

    @property
    def hidden(self) -> list[str]:
        """Columns of the changes that the table does not have."""
        return [*self.order_names, DELETED]

    def joined(self, changes: str, window: str, expressions: Sequence[str]) -> str:
        """Return a query of changes `d`, each with its row of the table as `t`.

        Args:
            changes: a query that returns changes.
            window: an expression that is added to the columns of `d`.
            expressions: what the query selects.
        """
        return (
            f"with d as (select *, {window} from (\n{changes}\n))\n"
            f"select {', '.join(expressions)} "
            f"from d left join (select *, true as {EXISTS} from {self.relation}) as t "
            f"on {self.match('d', 't')}"
        )


def get_not_late_sql(
    changes: str, table: TargetTable, sequence_by: Sequence[str], tombstones: str | None = None
) -> str:
    """Return changes without those that are older than the row they change, or than its delete.

    Args:
        changes: a query that returns changes.
        table: the table.
        sequence_by: columns of the table that order the changes.
        tombstones: a view of changed keys, each with the `sequence_by` values of its change; None
            if there is none.
    """
    ours = [f"c.{ORDER}{number}" for number, _ in enumerate(sequence_by)]
    columns = [quote(name) for name in sequence_by]
    sql = (
        f"select c.* from (\n{changes}\n) as c left join {table.relation} as t "
        f"on {table.match('c', 't')} "
    )
    is_newer = _at_least_sql(ours, [f"t.{column}" for column in columns])
    if tombstones is None:
        return f"{sql} where {is_newer}"
    keys = ", ".join(quote(key) for key in table.keys)
    return (
        f"{sql} left join (select {keys}, max(struct({', '.join(columns)})) as last "
        f"from {tombstones} group by {keys}) as x on {table.match('c', 'x')} "
        f"where {is_newer} and {_at_least_sql(ours, [f'x.last.{column}' for column in columns])}"
    )


def _at_least_sql(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return SQL that is true unless an order is before another one, which may have nulls.

    Column by column, because Spark does not compare structs of decimals with other precisions.
    """
    pairs = list(zip(ours, theirs, strict=True))
    sql = "true"
    for own, other in reversed(pairs):
        sql = f"({other} is null or {own} > {other} or ({own} = {other} and {sql}))"
    return sql


def get_not_overtaken_sql(changes: str, table: TargetTable, sequence_by: Sequence[str]) -> str:
    """Return changes without those that come after a newer change of their key.

    Another batch would leave them out, where the newer change had already been written.

    Args:
        changes: a query that returns changes.
        table: the table.
        sequence_by: columns of the table that order the changes.
    """
    ours = f"struct({', '.join(table.order_names[: len(sequence_by)])})"
    arrival = ", ".join(table.arrival_names(len(sequence_by)))
    window = f"{table.by_key} order by {arrival} rows between unbounded preceding and 1 preceding"
    return (
        f"select * except (__newest) from "
        f"(select *, max({ours}) over ({window}) as __newest from (\n{changes}\n)) "
        f"where __newest is null or {ours} >= __newest"
    )


def get_filled_sql(
    changes: str, table: TargetTable, columns: Sequence[str], deleted_at: str | None = None
) -> str:
    """Return changes whose nulls in some columns are replaced by the row's value.

    The row's value is the last one that is not null since the row was deleted last.

    Args:
        changes: a query that returns changes.
        table: the table.
        columns: the columns whose nulls are replaced (`ignore_null_updates`).
        deleted_at: the column with the time of a delete, if rows that were deleted stay.
    """
    is_alive = f"d.__life = 0 and t.{quote(deleted_at)} is null" if deleted_at else "d.__life = 0"
    expressions = []
    for name in table.columns:
        column = quote(name)
        if name not in columns:
            expressions.append(f"d.{column}")
            continue
        last = (
            f"last_value(if(d.{DELETED}, null, d.{column})) ignore nulls "
            f"over ({_of_life(table)} {table.before})"
        )
        expressions.append(f"coalesce({last}, if({is_alive}, t.{column}, null)) as {column}")
    expressions += [f"d.{name}" for name in table.hidden]
    lives = f"count_if({DELETED}) over ({table.by_key} {table.before}) as __life"
    return table.joined(changes, lives, expressions)


def get_soft_deletes_sql(
    changes: str, table: TargetTable, deleted_at: str, sequence_by: Sequence[str] = ()
) -> str:
    """Return changes whose deletes become updates: the row's last values and the time.

    Args:
        changes: a query that returns changes.
        table: the table.
        deleted_at: the column that takes the time of a delete.
        sequence_by: columns of the table that order the changes; a delete keeps its own values. A
            delete of a key without a row stays a delete, so that older changes have no effect.
    """
    row = ", ".join(quote(name) for name in table.columns)
    last = (
        f"last_value(if({DELETED}, null, struct({row}))) ignore nulls "
        f"over ({table.by_key} {table.before}) as __last"
    )
    has_row = f"d.__last is not null or coalesce(t.{EXISTS}, false)"
    is_marked = f"d.{DELETED} and ({has_row})"
    expressions = []
    for name in table.columns:
        column = quote(name)
        last_value = f"if(d.__last is null, t.{column}, d.__last.{column})"
        if name in sequence_by:
            last_value = f"d.{column}"  # the delete's own: changes older than it are late
        expressions.append(f"if({is_marked}, {last_value}, d.{column}) as {column}")
    expressions.append(f"if({is_marked}, current_timestamp(), null) as {quote(deleted_at)}")
    expressions += [f"d.{name}" for name in table.order_names]
    expressions.append(f"d.{DELETED} and not ({has_row}) as {DELETED}")
    joined = table.joined(changes, last, expressions)
    return joined if sequence_by else f"{joined} where not d.{DELETED} or {has_row}"


def get_deletes_sql(changes: str, table: TargetTable) -> str:
    """Return a query of the keys that changes delete, each with the times of its deletes.

    Args:
        changes: a query that returns changes; their first order column is `__START_AT`.
        table: the table.
    """
    keys = ", ".join(quote(key) for key in table.keys)
    return f"select distinct {keys}, {ORDER}0 as {START} from (\n{changes}\n) where {DELETED}"


def get_versions_sql(changes: str, table: TargetTable, tombstones: str | None = None) -> str:
    """Return changes of versions, each from `__START_AT` to `__END_AT` (SCD type 2).

    A version ends where the next one begins, or where the row was deleted. Changes may arrive in
    any order: the versions of their keys are ordered again, and those that differ are returned.
    Versions that begin and end before the first change of their key stay as they are.

    Args:
        changes: a query that returns changes; their first order column is `__START_AT`.
        table: the table.
        tombstones: a view of keys, each with `__START_AT` as the time of a delete of an earlier
            batch: the version that it ends may be in this one. None if there is none.
    """
    columns = ", ".join(quote(name) for name in table.columns)
    of_key = f"{table.by_key} order by __at"
    nothing = ", ".join(quote(n) if n in table.keys else "null" for n in table.columns)
    last = ", ".join(f"{name} desc" for name in table.order_names)
    deletes = ""
    if tombstones is not None:
        deletes = (
            f"union all select {nothing}, {START}, true, 0 from {tombstones} as x "
            f"where exists (select 1 from c where {table.match('c', 'x')})"
        )
    return f"""
with c as (
  select {columns}, {ORDER}0 as __at, {DELETED}, 2 as __rank from (
    select *, row_number() over ({table.by_key}, {ORDER}0 order by {last}) as __n from (
{changes}
    )
  ) where __n = 1
),
h as (
  select {columns}, coalesce({START}, raise_error({literal(NO_START)})) as {START}, {END}
  from {table.relation} as t
  where exists (
    select 1 from c where {table.match("c", "t")}
      and (t.{END} is null or t.{END} > c.__at or t.{START} >= c.__at)
  )
),
events as (
  select * from c
  union all select {columns}, {START}, false, 1 from h
  union all select {nothing}, {END}, true, 0 from h where {END} is not null
  {deletes}
),
last_events as (
  select *, row_number() over ({table.by_key}, __at order by __rank desc) as __n from events
),
versions as (
  select {columns}, __at, {DELETED}, __rank, lead(__at) over ({of_key}) as __next
  from last_events where __n = 1
)
select v.* except (__at, __rank, __next, {DELETED}),
  v.__at as {START}, if(v.{DELETED}, null, v.__next) as {END},
  v.__at as {ORDER}0, 0L as {ORDER}1, v.{DELETED}
from versions as v left join h on {table.match("v", "h")} and v.__at = h.{START}
where if(v.{DELETED}, h.{START} is not null, v.__rank = 2 or not (h.{END} <=> v.__next))
"""


def _of_life(table: TargetTable) -> str:
    return "partition by " + ", ".join([*(f"d.{quote(k)}" for k in table.keys), "d.__life"])
