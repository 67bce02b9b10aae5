"""Tables of Postgres as sources of streams: their rows, and then what changes in them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from datetime import date
from typing import Any

import psycopg
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows
from tests.functional.stream_service import service, wait_for
from tests.servers.postgres import postgres_server, programs

pytestmark = pytest.mark.skipif(programs() is None, reason="Debian's `postgresql` is not installed")

SOURCES = """
sources:
  - name: shop
    schema: shop
    tables:
      - name: orders
        config: {meta: {stream: {type: postgres, connection: shop, table: public.orders}}}
      - name: Odd Names
        config: {meta: {stream: {type: postgres, connection: shop, table: "odd.Odd Names"}}}
      - name: keyless
        config: {meta: {stream: {type: postgres, connection: shop, table: keyless}}}
      - name: unpublished
        config: {meta: {stream: {type: postgres, connection: shop, table: unpublished}}}
      - name: absent
        config: {meta: {stream: {type: postgres, connection: shop, table: absent}}}
      - name: unlogged
        config: {meta: {stream: {type: postgres, connection: shop, table: unlogged}}}
      - name: indexed
        config: {meta: {stream: {type: postgres, connection: shop, table: indexed}}}
      - name: odd
        config: {meta: {stream: {type: postgres, connection: shop}}}
      - name: elsewhere
        config: {meta: {stream: {type: postgres, connection: nowhere, table: orders}}}
"""
MODEL = "{{ config(materialized='stream'%s) }} select * from {{ stream(source('shop', '%s')) }}"
TABLES = """
create table orders (id bigint primary key, name text, note text, total numeric(10,2),
  at timestamptz, wall timestamp(3), day date, done boolean, weight double precision, ratio real,
  small smallint, raw bytea, code char(4), free numeric, payload jsonb, tags text[],
  key uuid, twice bigint generated always as (id * 2) stored);
alter table orders alter note set storage external;
create table other (id int primary key);
create schema odd;
create table odd."Odd Names" ("a" int, "B 'b" text, "%" text, primary key ("B 'b", a));
create table keyless (id int);
create table unpublished (id int primary key);
create unlogged table unlogged (id int primary key);
create table indexed (id int primary key, email text not null unique);
alter table indexed replica identity using index indexed_email_key;
create type "e%t" as enum ('a', 'b');
create domain code as char(4);
create table inets (k inet primary key, v int);
create table codes (k code primary key, v int, note text);
alter table codes alter note set storage external;
create table longs (k text, b int, v int, primary key (k, b));
alter table longs alter k set storage external;
create table enums (k "e%t" primary key, n numeric(3,5), v int);
alter table enums replica identity full;
create table parents (k int primary key, v text);
create table children () inherits (parents);
create table days (k int primary key, v date);
create table parts (k int, v int, primary key (k)) partition by range (k);
create table parts1 partition of parts for values from (0) to (10);
create table bytes (k int primary key, v double precision, raw bytea);
create publication dbt for table orders, other, odd."Odd Names", keyless, indexed, inets, codes,
  longs, enums, parents, children, days, parts, bytes with (publish_via_partition_root = true);
"""
LARGE = "x" * 10_000
ALL = (
    "select id, name, note, total, cast(at as string), cast(wall as string), cast(day as string), \
done, weight, ratio, small, hex(raw), code, free, payload, tags, key from {schema}.%s order by id"
)
THEIRS = """select id, name, note, total, to_char(at, 'YYYY-MM-DD HH24:MI:SS.US'),
to_char(wall, 'YYYY-MM-DD HH24:MI:SS.US'), day::text, done, weight, ratio, small,
upper(encode(raw, 'hex')), code, free::text, payload::text, tags::text, key::text
from orders order by id"""


@pytest.fixture(scope="class")
def options() -> Iterator[dict[str, Any]]:
    with postgres_server() as options:
        yield options


@pytest.fixture(scope="class")
def database(options: dict[str, Any]) -> Iterator[Any]:
    with psycopg.connect(**options, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("set timezone to 'UTC'")
        yield connection


# Statements before the first run and after it, and what the stream's table has in the end.
ODD = {
    "inets": (
        "insert into inets values ('10.0.0.1', 1), ('10.0.0.2', 1)",
        "delete from inets where k = '10.0.0.1'; update inets set v = 2",
        [("10.0.0.2", 2)],
    ),
    "codes": (
        f"insert into codes values ('ab', 1, '{LARGE}'), ('b', 1, null)",
        "update codes set v = 2; delete from codes where k = 'b'",
        [("ab  ", 2, LARGE)],
    ),
    "longs": (
        f"insert into longs values ('{LARGE[:2500]}', 1, 1)",
        "update longs set v = 2; update longs set b = 2",
        [(LARGE[:2500], 2, 2)],
    ),
    "enums": (
        "insert into enums values ('a', 0.00123, 1)",
        "update enums set v = 2",
        [("a", "0.00123", 2)],
    ),
    "parents": (
        "insert into parents values (1, 'a'); insert into children values (2, 'b')",
        "update only parents set v = 'c'",
        [(1, "c")],
    ),
    "days": (
        "insert into days values (1, '0044-03-15 BC'), (2, '2026-01-01')",
        "insert into days values (3, '0044-03-15 BC')",
        [(2, date(2026, 1, 1))],
    ),
    "parts": (
        "insert into parts values (1, 1), (2, 1)",
        "update parts set v = 2 where k = 1; delete from parts where k = 2",
        [(1, 2)],
    ),
    "bytes": (
        "alter database postgres set bytea_output = 'escape'; "
        "alter database postgres set extra_float_digits = -3; "
        r"insert into bytes values (1, 1.2345678901234567, '\xff00')",
        "update bytes set v = v / 2",
        [(1, "0.6172839450617283", "FF00")],
    ),
}


def random_row(chance: random.Random) -> dict[str, Any]:
    second = chance.randint(0, 10**9)
    return {
        "name": chance.choice([None, "", "é", "a'b\"\\", "x\ny"]),
        "note": chance.choice([None, LARGE + str(second), "short"]),
        "total": chance.choice([None, "0.01", "-99999999.99"]),
        "at": chance.choice([None, f"1999-12-31 23:59:59.{second % 10**6:06}+05:30"]),
        "wall": chance.choice([None, "0001-01-01 00:00:00", "2024-02-29 12:00:00.123"]),
        "day": chance.choice([None, "9999-12-31", "1500-01-01"]),
        "done": chance.choice([None, True, False]),
        "weight": chance.choice([None, 0.1, "NaN", "-Infinity", 1e300]),
        "ratio": chance.choice([None, 1.5]),
        "small": chance.choice([None, -32768]),
        "raw": chance.choice([None, b"", b"\0\xff"]),
        "code": chance.choice([None, "ab", "abcd"]),
        "free": chance.choice([None, "123456789012345678901234567890.123"]),
        "payload": chance.choice([None, '{"a": [1, null]}']),
        "tags": chance.choice([None, "{a,NULL}"]),
        "key": chance.choice([None, "00000000-0000-0000-0000-00000000000a"]),
    }


def change(database: Any, chance: random.Random) -> None:
    """Change rows in a transaction of one or several statements, which may be rolled back."""
    with database.transaction() as transaction:
        for _ in range(chance.randint(1, 6)):
            row, key = random_row(chance), chance.randint(0, 12)
            kind = chance.choice("iiuuudmo")
            if kind == "i":
                names, marks = ", ".join(row), ", ".join(f"%({name})s" for name in row)
                sql = f"insert into orders (id, {names}) values (%(id)s, {marks}) on conflict do nothing"
                database.execute(sql, row | {"id": key})
            elif kind == "u":
                names = chance.sample(list(row), k=chance.randint(1, 4))
                listed = ", ".join(f"{name} = %({name})s" for name in names)
                database.execute(f"update orders set {listed} where id = %(id)s", row | {"id": key})
            elif kind == "d":
                database.execute("delete from orders where id = %s", [key])
            elif kind == "m":
                sql = "update orders set id = %s where id = %s and not exists (select from orders where id = %s)"
                database.execute(sql, [key + 100, key, key + 100])
            else:
                database.execute("insert into other values (%s) on conflict do nothing", [key])
        if chance.random() < 0.1:
            raise psycopg.Rollback(transaction)
        if chance.random() < 0.03:
            database.execute("truncate orders")


def shown(found: list[tuple[Any, ...]]) -> list[list[str]]:
    def text(place: int, value: Any) -> str:
        if place in (4, 5) and value is not None:
            return str(value).ljust(19).rstrip("0").rstrip(".") if "." in str(value) else str(value)
        return (
            repr(float(value)) if place in (3, 8, 9) and value is not None else str(value).rstrip()
        )

    return [[text(place, value) for place, value in enumerate(row)] for row in found]


def slots(database: Any) -> list[tuple[str, bool]]:
    sql = "select slot_name, active from pg_replication_slots order by 1"
    return list(database.execute(sql).fetchall())


class TestPostgres:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "sources.yml": SOURCES,
            "orders.sql": MODEL % (", batch_rows=7", "orders"),
            "small.sql": (MODEL % (", unique_key='id'", "orders")).replace(
                "*", "id, upper(name) as name"
            )
            + " where id < 8",
            "named.sql": MODEL % (", unique_key='name'", "orders"),
            "odd.sql": MODEL % ("", "Odd Names"),
            "keyless.sql": MODEL % ("", "keyless"),
            "unpublished.sql": MODEL % ("", "unpublished"),
            "absent.sql": MODEL % ("", "absent"),
            "elsewhere.sql": MODEL % ("", "elsewhere"),
            "unlogged.sql": MODEL % ("", "unlogged"),
            "indexed.sql": MODEL % ("", "indexed"),
            **{
                f"{table}.sql": MODEL.replace("'%s')", f"'odd'), table='{table}'")
                % ", on_bad_record='dead_letters'"
                for table in ODD
            },
        }

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any, options: dict[str, Any]) -> Any:
        return {**dbt_profile_target, "postgres": {"shop": options}}

    def assert_same(self, project: Any, database: Any) -> None:
        theirs = database.execute(THEIRS).fetchall()
        assert shown(rows(project, ALL % "orders")) == shown(theirs)
        small = [(row[0], row[1] and row[1].upper()) for row in theirs if row[0] < 8]
        assert rows(project, "select id, name from {schema}.small order by id") == small

    def test_random_changes(self, project: Any, database: Any) -> None:
        chance = random.Random(4)
        for run in range(6):
            for _ in range(chance.choice([0, 5, 40])):
                change(database, chance)
            if run == 3:
                database.execute("alter table orders replica identity full")
            run_dbt(["run", "-s", "orders", "small", *(["--full-refresh"] if run == 4 else [])])
            self.assert_same(project, database)
            assert len(slots(database)) == 2
            assert not any(active for _, active in slots(database))

    def test_services_that_are_killed(self, project: Any, database: Any) -> None:
        """Each leaves batches behind that are written and not committed, or not forgotten."""
        chance = random.Random(5)
        for run in range(3):
            with service(project, f"run{run}", "-s", "orders small") as running:
                for _ in range(60):
                    change(database, chance)
                    time.sleep(chance.random() / 50)
                if run == 2:
                    wait_for(lambda: self.is_same(project, database))
                    assert running.stop() == 0
        self.assert_same(project, database)
        run_dbt(["run", "-s", "orders", "small"])
        self.assert_same(project, database)
        assert len(slots(database)) == 2

    def is_same(self, project: Any, database: Any) -> bool:
        try:
            self.assert_same(project, database)
        except AssertionError:
            return False
        return True

    def test_commits_that_wait_for_a_standby(
        self, project: Any, database: Any, options: dict[str, Any]
    ) -> None:
        """The log has them before queries see them."""

        def commit_late(*statements: str) -> Iterator[None]:
            """Let a commit wait until a standby would have it; there is none."""
            settings = "alter system set synchronous_standby_names = '%s'"
            database.execute(settings % "nobody")
            database.execute("select pg_reload_conf()")
            time.sleep(0.5)
            with psycopg.connect(**options, autocommit=True) as waiting:
                thread = threading.Thread(
                    target=lambda: [waiting.execute(sql) for sql in statements]
                )
                thread.start()
                time.sleep(1)
                yield
                database.execute("set synchronous_commit to local")
                database.execute(settings % "")
                database.execute("select pg_reload_conf()")
                thread.join()

        database.execute("alter table orders replica identity default")
        insert = f"insert into orders (id, note) values (70, '{LARGE}')"
        moved = "update orders set id = 71 where id = 70"
        for arguments, statement in ((["--full-refresh"], insert), ([], moved)):
            late = commit_late(statement)
            next(late)
            run = threading.Thread(target=run_dbt, args=(["run", "-s", "orders", *arguments],))
            run.start()
            time.sleep(3)
            assert run.is_alive()
            next(late, None)
            run.join()
            run_dbt(["run", "-s", "orders"])
            self.assert_same(project, database)

    def test_columns_that_change(self, project: Any, database: Any) -> None:
        database.execute("insert into orders (id, name) values (50, 'before')")
        database.execute("alter table orders add extra text, alter small type int, drop tags")
        database.execute("insert into orders (id, small, extra) values (51, 70000, 'new')")
        run_dbt(["run", "-s", "orders"])
        sql = "select id, name, small, extra from {schema}.orders where id in (50, 51) order by id"
        assert rows(project, sql) == [(50, "before", None, None), (51, None, 70000, "new")]

    def test_a_slot_that_is_lost(self, project: Any, database: Any) -> None:
        sql = "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        database.execute(sql)
        database.execute("insert into orders (id) values (60)")
        _, said = run_dbt_and_capture(["run", "-s", "orders"], expect_pass=False)
        assert "Run the model with --full-refresh" in said
        run_dbt(["run", "-s", "orders", "--full-refresh"])
        assert (60,) in rows(project, "select id from {schema}.orders")

    def test_names(self, project: Any, database: Any) -> None:
        insert = """insert into odd."Odd Names" values (%s, %s, %s)"""
        database.cursor().executemany(insert, [(1, "x", "a"), (2, "X", "b"), (3, "x", None)])
        run_dbt(["run", "-s", "odd"])
        database.execute("""delete from odd."Odd Names" where a = 1""")
        database.execute("""update odd."Odd Names" set "%" = 'c' where a = 3""")
        run_dbt(["run", "-s", "odd"])
        sql = "select a, `B 'b`, `%` from {schema}.odd order by a"
        assert rows(project, sql) == [(2, "X", "b"), (3, "x", "c")]

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("keyless", "public.keyless has no primary key"),
            ("unpublished", "public.unpublished is not in the publication dbt. Run: create"),
            ("unlogged", "public.unlogged is unlogged"),
            ("indexed", "alter table public.indexed replica identity default"),
            ("absent", "Postgres has no table public.absent"),
            ("elsewhere", "no connection `nowhere` under `postgres`, where it has: shop"),
        ],
    )
    def test_what_is_refused(self, project: Any, database: Any, name: str, words: str) -> None:
        _, said = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
        assert words in " ".join(said.split())

    def test_odd_tables(self, project: Any, database: Any) -> None:
        for place in (0, 1):
            for statements in ODD.values():
                database.execute(statements[place])
            run_dbt(["run", "-s", *ODD])
        for table, (_, _, expected) in ODD.items():
            columns = "k, cast(v as string), hex(raw)" if table == "bytes" else "*"
            found = rows(project, f"select {columns} from {{schema}}.{table}")
            assert [tuple(row) for row in found] == expected, table

    def test_another_table_of_the_name(self, project: Any, database: Any) -> None:
        database.execute("drop table days; create table days (k int primary key, v date)")
        database.execute("alter publication dbt add table days")
        _, said = run_dbt_and_capture(["run", "-s", "days"], expect_pass=False)
        assert "public.days is another table" in " ".join(said.split())

    def test_a_run_that_fails_leaves_no_slot(self, project: Any, database: Any) -> None:
        before = slots(database)
        run_dbt(["run", "-s", "unpublished", "keyless", "unlogged"], expect_pass=False)
        assert slots(database) == before

    def test_a_key_that_deletes_do_not_have(self, project: Any, database: Any) -> None:
        database.execute("alter table orders replica identity default")
        run_dbt(["run", "-s", "named"])
        database.execute("delete from orders where id = 60")
        _, said = run_dbt_and_capture(["run", "-s", "named"], expect_pass=False)
        assert "alter table public.orders replica identity full" in " ".join(said.split())
        database.execute("alter table orders replica identity full")
        _, said = run_dbt_and_capture(["run", "-s", "named"], expect_pass=False)
        assert "Run the model with --full-refresh" in " ".join(said.split())
