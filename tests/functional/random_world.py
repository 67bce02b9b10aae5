"""A project, what others do to its tables and sources, and what its tables must hold, in Python.

All that happens depends on a seed. The truth of a model is a function of the source's rows, so that
a build that skips what it should not shows, whatever was built before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tests.functional.random_projects import model

ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe"]
KEYS = [None, "", "a", "A", "it's", "Ä", "${x}"]
# Around a change of the clocks.
START = 1_772_953_200
MANY = 900


class Row(NamedTuple):
    """A row of the source; `at` is in seconds since the epoch."""

    id: int | None
    n: int | None
    k: str | None
    at: int


def literal(value: int | str | None) -> str:
    """A value in SQL, before its braces are formatted."""
    if isinstance(value, str):
        return "'" + value.replace("'", r"\'").replace("{", "{{").replace("}", "}}") + "'"
    return "null" if value is None else str(value)


def values(rows: list[Row]) -> str:
    """A query that returns rows of the source."""
    if not rows:
        return "select cast(id as bigint), n, k, at from {schema}.raw where false"
    return " union all ".join(
        f"select cast({literal(r.id)} as bigint) as id, cast({literal(r.n)} as bigint) as n, "
        f"cast({literal(r.k)} as string) as k, timestamp_seconds({r.at}) as at"
        for r in rows
    )


RAW = "{{ source('world', 'raw') }}"
FACTOR = "{%% macro factor() %%}{{ return(%d) }}{%% endmacro %%}"
SCHEMA = """
sources:
  - name: world
    schema: "{{ target.schema }}"
    tables: [{name: raw, config: {event_time: at, meta: {stream: {changes: true}}}}]
models:
  - name: plain
    columns:
      - name: id
        data_tests: [{not_null: {name: plain_id, config: {severity: warn}}}]
"""
TESTS = {
    "few": f"{{{{ config(severity='warn') }}}} select * from {RAW} where n > {MANY}",
    "as_before": (
        "{{ config(severity='warn') }} select 1 from "
        f"(select count(*) as c from {RAW}) as a, "
        f"(select count(*) as c from {RAW} version as of 'fixed') as b where a.c <> b.c"
    ),
}
# Events of the source after which a stream may have to begin again.
LOSE_CHANGES = {"back", "there and back", "expire", "recreate"}
# All days of the source, so that its batches are all its rows.
DAYS = ["--event-time-start", "2026-03-08", "--event-time-end", "2026-03-10"]
BATCHES = {"event_time": "at", "batch_size": "day", "begin": "2026-03-08"}
# Spark runs it as an append.
HOOK = """
merge into {{ this }} using (select -7L as id, 'hook' as t) as q on {{ this.identifier }}.id = q.id
when not matched then insert *
"""
DELETES_OTHERS = {"unique_key": "id", "not_matched_by_source_action": "delete"}
SNAPSHOT = """
snapshots:
  - name: snap
    relation: ref('of_view')
    config: {strategy: check, unique_key: id, check_cols: [N], hard_deletes: invalidate}
"""


@dataclass
class World:
    """The project and the source's rows.

    Attributes:
        rng: decides all.
        rows: of the source.
        fixed: rows of the version with the tag `fixed`.
        labels: the seed's rows.
        history: rows of the source's snapshots, by their ids.
        zone: time zone of dbt's sessions.
        user: whose output of the profile builds.
        happened: names of the events since the tables were last checked.
    """

    rng: Random
    rows: list[Row] = field(default_factory=list)
    fixed: list[Row] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=lambda: {"a": 1, "it's": 2})
    history: dict[int, list[Row]] = field(default_factory=dict)
    factor: int = 1
    without: int = -1
    plus: int = 0
    partitioned: bool = False
    is_view: bool = False
    zone: str = "UTC"
    user: str = "default"
    happened: list[str] = field(default_factory=list)

    def files(self) -> dict[str, str]:
        """The project's files, by their paths."""
        seed = "".join(f'"{key}",{number}\n' for key, number in self.labels.items())
        models = {
            "of_view": (
                f"select id, n * {{{{ factor() }}}} as n, k, at from {RAW} "
                f"where n is distinct from {self.without}"
            ),
            "plain": model(
                {"materialized": "view" if self.is_view else "table"},
                "select v.id, v.n, l.label from {{ ref('of_view') }} as v "
                "left join {{ ref('labels') }} as l on v.k = l.k",
            ),
            "merged": self._increment("merge", "select id, n, k from {{ ref('of_view') }}"),
            "overwritten": self._increment(
                "insert_overwrite",
                "select k, count(*) as c, sum(n) as s from {{ ref('of_view') }} group by k",
            ),
            "totals": model(
                {"materialized": "table"},
                "select count(*) as c, sum(n) as s, {{ var('plus') }} as plus from {{ ref('plain') }}",
            ),
            "pinned": model(
                {"materialized": "table"}, f"select id, n from {RAW} version as of 'fixed'"
            ),
            "both": model(
                {"materialized": "table"},
                f"select (select count(*) from {RAW}) as now, "
                f"(select count(*) from {RAW} version as of 'fixed') as before",
            ),
            "days": model(
                {"materialized": "table", "post_hook": HOOK},
                f"select id, date_format(at, 'yyyy-MM-dd HH:mm') as t from {RAW}",
            ),
            "batched": self._increment(
                "microbatch",
                f"select id, n, date_format(at, 'yyyy-MM-dd HH:mm') as t, at from {RAW}",
            ),
            "streamed": model(
                {"materialized": "stream", "unique_key": "id"},
                "select id, n, k from {{ stream(source('world', 'raw')) }}",
            ),
            "appended": self._increment(
                "append",
                f"select id, n from {RAW} where id > {{% if is_incremental() %}}"
                "(select coalesce(max(id), -1) from {{ this }}){% else %}-1{% endif %}",
            ),
        }
        return {
            **{f"models/{name}.sql": text for name, text in models.items()},
            "models/schema.yml": SCHEMA,
            "seeds/labels.csv": f"k,label\n{seed}",
            "macros/factor.sql": FACTOR % self.factor,
            "snapshots/snap.yml": SNAPSHOT,
            **{f"tests/{name}.sql": text for name, text in TESTS.items()},
        }

    def _increment(self, strategy: str, sql: str) -> str:
        config: dict[str, Any] = {"materialized": "incremental", "incremental_strategy": strategy}
        if strategy == "microbatch":
            config |= BATCHES
        if strategy == "merge":
            config |= DELETES_OTHERS
            if self.partitioned:
                config["partition_by"] = ["bucket(2, ID)"]
        return model(config, sql)

    def expected(self, appended: list[Any]) -> dict[str, Counter[Any]]:
        """The rows of all models after a build.

        Args:
            appended: rows of the model that only adds rows, before the build.
        """
        of_view = [
            (r.id, None if r.n is None else r.n * self.factor, r.k)
            for r in self.rows
            if r.n != self.without
        ]
        plain = [(i, n, self.labels.get(k) if k is not None else None) for i, n, k in of_view]
        groups = {k: [n for _, n, other in of_view if other == k] for k in {r[2] for r in of_view}}
        highest = max([-1, *(row[0] for row in appended)])
        zone = ZoneInfo(self.zone)
        new = [(r.id, r.n) for r in self.rows if r.id is not None and r.id > highest]
        expected: dict[str, list[Any]] = {
            "of_view": of_view,
            "plain": plain,
            "merged": of_view,
            "overwritten": [(k, len(group), total(group)) for k, group in groups.items()],
            "totals": [(len(plain), total([row[1] for row in plain]), self.plus)],
            "pinned": [(r.id, r.n) for r in self.fixed],
            "both": [(len(self.rows), len(self.fixed))],
            "days": [(-7, "hook"), *((r.id, minute(r.at, zone)) for r in self.rows)],
            "batched": [(r.id, r.n, minute(r.at, zone)) for r in self.rows],
            "streamed": [(r.id, r.n, r.k) for r in self.rows],
            "appended": [*appended, *new],
            "snap": of_view,
            "labels": list(self.labels.items()),
        }
        return {name: Counter(rows) for name, rows in expected.items()}

    def warnings(self) -> set[str]:
        """The tests that find rows."""
        found = {
            "few": any(r.n is not None and r.n > MANY for r in self.rows),
            "as_before": len(self.rows) != len(self.fixed),
            "plain_id": any(r.id is None and r.n != self.without for r in self.rows),
        }
        return {name for name, is_found in found.items() if is_found}

    def new_rows(self) -> list[Row]:
        """Some rows with keys that the source does not have."""
        used = {r.id for r in self.rows}
        free = [number for number in range(40) if number not in used]
        ids: list[int | None] = [*self.rng.sample(free, min(len(free), self.rng.randint(1, 3)))]
        if None not in used and self.rng.random() < 0.2:
            ids[0] = None
        return [
            Row(
                number,
                self.rng.choice([None, 1, 2, self.rng.randint(0, 1000)]),
                self.rng.choice(KEYS),
                START + self.rng.randrange(0, 86_400, 900),
            )
            for number in ids
        ]


def total(numbers: list[int | None]) -> int | None:
    """Their sum, as SQL has it."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def minute(at: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(at, timezone.utc).astimezone(zone).strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class Event:
    """Something that others do.

    Attributes:
        name: for messages.
        statements: in SQL; `{schema}` is the tables' namespace.
        apply: what it does to the world, after the statements.
        may_fail: whether there may be nothing to change.
    """

    name: str
    statements: tuple[str, ...] = ()
    apply: Callable[[], None] = lambda: None
    may_fail: bool = False


def source_event(world: World) -> Event:
    """Another writer's change of the source."""
    rng, rows = world.rng, [*world.rows]

    def becomes(after: list[Row]) -> Callable[[], None]:
        def apply() -> None:
            world.rows = after

        return apply

    def as_tagged() -> None:
        world.fixed = rows

    new = world.new_rows()
    one = rng.choice([row.id for row in rows if row.id is not None] or [0])
    version = rng.choice(sorted(world.history))
    changed = [row._replace(n=951) if row.id == one else row for row in rows]
    kept = [row for row in rows if row.id != one]
    alter = "alter table {schema}.raw "
    return rng.choice(
        [
            Event("insert", (f"insert into {{schema}}.raw {values(new)}",), becomes(rows + new)),
            Event(
                "update", (f"update {{schema}}.raw set n = 951 where id = {one}",), becomes(changed)
            ),
            Event("delete", (f"delete from {{schema}}.raw where id = {one}",), becomes(kept)),
            Event("overwrite", (f"insert overwrite {{schema}}.raw {values(new)}",), becomes(new)),
            Event("back", (set_current(version),), becomes(world.history[version])),
            Event("tag", (f"{alter} create or replace tag fixed",), as_tagged),
            Event(
                "there and back",
                (
                    f"insert into {{schema}}.raw {values(new)}",
                    set_current(next(reversed(world.history))),
                ),
            ),
            Event("compact", ("call lake.system.rewrite_data_files('{schema}.raw')",)),
            Event(
                "expire",
                (
                    "call lake.system.expire_snapshots(table => '{schema}.raw', "
                    "older_than => timestamp '2999-01-01', retain_last => 1)",
                ),
            ),
            Event("layout", (f"{alter} add partition field bucket({rng.randint(2, 99)}, id)",)),
            Event("vectors", (f"{alter} set tblproperties ('write.delete.mode'='merge-on-read')",)),
            Event(
                "case",
                (
                    f"{alter} rename column n to renamed",
                    f"{alter} rename column renamed to {rng.choice('nN')}",
                ),
            ),
            Event(
                "recreate",
                (
                    "create or replace table {schema}.raw_copy as select * from {schema}.raw",
                    "drop table {schema}.raw",
                    "create table {schema}.raw as select * from {schema}.raw_copy",
                    "drop table {schema}.raw_copy",
                    f"{alter} create tag fixed",
                ),
                as_tagged,
            ),
        ]
    )


def set_current(snapshot_id: int) -> str:
    return f"call lake.system.set_current_snapshot('{{schema}}.raw', {snapshot_id}L)"


def target_event(world: World) -> Event:
    """Another writer's change of what dbt has built."""
    plain = "drop view {schema}.plain" if world.is_view else "drop table {schema}.plain"
    return world.rng.choice(
        [
            Event("insert into merged", ("insert into {schema}.merged values (-5, 1, 'x')",)),
            Event("delete from merged", ("delete from {schema}.merged where id > 10",)),
            Event("empty overwritten", ("delete from {schema}.overwritten",)),
            Event("change labels", ("insert into {schema}.labels values ('A', 9)",)),
            Event("empty batched", ("delete from {schema}.batched where n > 1",)),
            Event("append", ("insert into {schema}.appended values (17, 1)",)),
            Event("drop", (plain,), may_fail=True),
            Event("drop totals", ("drop table if exists {schema}.totals",)),
            Event("change totals", ("update {schema}.totals set c = c + 1",)),
            Event(
                "replace the view",
                ("create or replace view {schema}.of_view as select 1 id, 2 n, 'x' k, now() at",),
            ),
        ]
    )


def project_event(world: World) -> Event:
    """A change of the project, or of how it is run."""
    rng = world.rng

    def sets(name: str, value: Any) -> Event:
        return Event(f"{name} = {value!r}", apply=lambda: setattr(world, name, value))

    return rng.choice(
        [
            sets("factor", rng.randint(1, 3)),
            sets("without", rng.choice([-1, 1, 2])),
            sets("plus", rng.randint(0, 2)),
            sets("is_view", not world.is_view),
            sets("partitioned", not world.partitioned),
            sets("labels", rng.choice([{"a": 1}, {"a": 1, "it's": 2}, {"A": 5, "Ä": 0}])),
        ]
    )
