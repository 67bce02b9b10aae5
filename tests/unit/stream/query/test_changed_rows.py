"""Random changes that depend on rows: the table is the same wherever a batch ends.

DuckDB runs the queries. The truth is what each change makes of the rows, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest
import sqlglot

from dbt.adapters.iceberg_stream.stream.query.changed_rows import (
    TargetTable,
    get_deletes_sql,
    get_filled_sql,
    get_soft_deletes_sql,
    get_versions_sql,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER

KEYS, VALUES = ("k1", "k2"), ("v", "w")
COLUMNS = (*KEYS, *VALUES)
GONE = "gone_at"
TARGET = TargetTable("t", KEYS, COLUMNS, 1)


@dataclass(frozen=True)
class Change:
    """A change of the row of a key."""

    key: tuple[Any, ...]
    values: tuple[Any, ...]
    deletes: bool


def random_changes(chance: random.Random) -> list[Change]:
    keys = [(None, 1), (1, None), (None, None), (1, 1)]
    values = [None, None, "a", "b"]
    return [
        Change(
            chance.choice(keys[: chance.randint(1, 4)]),
            (chance.choice(values), chance.choice(values)),
            chance.random() < 0.35,
        )
        for _ in range(chance.randint(1, 8))
    ]


def truth(changes: Sequence[Change], fills: bool, soft: bool) -> dict[Any, Any]:
    """Values of the rows and whether they are deleted, by key."""
    rows: dict[Any, tuple[tuple[Any, ...], bool]] = {}
    for change in changes:
        before, is_gone = rows.get(change.key, (None, False))
        if change.deletes and soft:
            if before is not None:
                rows[change.key] = (before, True)
        elif change.deletes:
            rows.pop(change.key, None)
        elif fills and before is not None and not is_gone:
            pairs = zip(change.values, before, strict=True)
            filled = tuple(old if new is None else new for new, old in pairs)
            rows[change.key] = (filled, False)
        else:
            rows[change.key] = (change.values, False)
    return rows


def apply(connection: Any, changes: Sequence[Change], fills: bool, soft: bool) -> None:
    """Apply a batch as a stream does: the last change of each key decides."""
    columns = [*COLUMNS, f"{ORDER}0", DELETED]
    connection.execute("delete from c")
    for place, change in enumerate(changes):
        row = [*change.key, *change.values, place, change.deletes]
        connection.execute("insert into c values (?, ?, ?, ?, ?, ?)", row)
    sql = f"select {', '.join(columns)} from c"
    if fills:
        sql = get_filled_sql(sql, TARGET, VALUES, GONE if soft else None)
    if soft:
        sql = get_soft_deletes_sql(sql, TARGET, GONE)
    else:
        sql = f"select *, null as {GONE} from ({sql})"
    names = ", ".join([*COLUMNS, GONE, DELETED])
    by = ", ".join(KEYS)
    last = (
        f"select {names} from (select *, row_number() over (partition by {by} "
        f"order by {ORDER}0 desc) as n from ({sql})) where n = 1"
    )
    connection.execute(
        f"create or replace table r as {sqlglot.transpile(last, 'spark', 'duckdb')[0]}"
    )
    same = " and ".join(f"t.{key} is not distinct from r.{key}" for key in KEYS)
    connection.execute(f"delete from t where exists (select 1 from r where {same})")
    connection.execute(
        f"insert into t select {', '.join([*COLUMNS, GONE])} from r where not {DELETED}"
    )


@pytest.mark.parametrize("fills, soft", [(True, False), (False, True), (True, True)])
def test_any_batches(fills: bool, soft: bool) -> None:
    chance = random.Random(7)
    for _ in range(40):
        changes = random_changes(chance)
        with duckdb.connect() as connection:
            connection.execute("create table t (k1 int, k2 int, v text, w text, gone_at timestamp)")
            connection.execute(
                f"create table c (k1 int, k2 int, v text, w text, {ORDER}0 int, {DELETED} boolean)"
            )
            start = 0
            while start < len(changes):
                end = start + chance.randint(1, len(changes))
                apply(connection, changes[start:end], fills, soft)
                start = end
            rows = connection.execute(f"select k1, k2, v, w, {GONE} is not null from t").fetchall()
        actual = {row[:2]: (row[2:4], row[4]) for row in rows}
        assert len(actual) == len(rows)
        assert actual == truth(changes, fills, soft), changes


VERSIONS = TargetTable("t", KEYS, COLUMNS, 2)


def true_versions(changes: Sequence[tuple[int, Change]]) -> set[tuple[Any, ...]]:
    """The versions, from the changes in the order of their times; the last one of a time counts."""
    by_key: dict[Any, dict[int, Change]] = {}
    for at, change in changes:
        by_key.setdefault(change.key, {})[at] = change
    versions = set()
    for key, by_time in by_key.items():
        times = sorted(by_time)
        for at, end in zip(times, [*times[1:], None], strict=True):
            if not by_time[at].deletes:
                versions.add((*key, *by_time[at].values, at, end))
    return versions


def apply_to_versions(connection: Any, changes: Sequence[tuple[int, Change]]) -> None:
    connection.execute("delete from c")
    for place, (at, change) in enumerate(changes):
        row = [*change.key, *change.values, at, place, change.deletes]
        connection.execute("insert into c values (?, ?, ?, ?, ?, ?, ?)", row)
    sql = get_versions_sql("select * from c", VERSIONS, "x")
    for name, query in (("r", sql), ("d", get_deletes_sql("select * from c", VERSIONS))):
        text = sqlglot.transpile(query, "spark", "duckdb")[0]
        connection.execute(f"create or replace table {name} as {text}")
    same = " and ".join(f"t.{k} is not distinct from r.{k}" for k in (*KEYS, "__START_AT"))
    connection.execute(f"delete from t where exists (select 1 from r where {same})")
    names = ", ".join([*COLUMNS, "__START_AT", "__END_AT"])
    connection.execute(f"insert into t select {names} from r where not {DELETED}")
    connection.execute("insert into x select * from d")


def test_versions_in_any_order() -> None:
    chance = random.Random(11)
    for _ in range(60):
        changes = [(chance.randint(0, 6), change) for change in random_changes(chance)]
        with duckdb.connect() as connection:
            connection.execute("create macro raise_error(message) as error(message)")
            rows = "k1 int, k2 int, v text, w text"
            connection.execute(f"create table t ({rows}, __START_AT int, __END_AT int)")
            connection.execute("create table x (k1 int, k2 int, __START_AT int)")
            connection.execute(
                f"create table c ({rows}, {ORDER}0 int, {ORDER}1 int, {DELETED} boolean)"
            )
            start = 0
            while start < len(changes):
                end = start + chance.randint(1, len(changes))
                apply_to_versions(connection, changes[start:end])
                start = end
            actual = connection.execute("select * from t").fetchall()
        assert len(actual) == len(set(actual))
        assert set(actual) == true_versions(changes), changes
