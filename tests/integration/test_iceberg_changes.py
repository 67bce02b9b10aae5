"""Changes of an Iceberg table, replayed into a dict that must become what the table is."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from tests.integration.replica import Replica, new_name
from tests.integration.streams import Change, commit, make_table, open_sink

ON_WRITE = {
    "copy-on-write": "'format-version' = '2'",
    "merge-on-read, v2": "'format-version' = '2', {}",
    "merge-on-read, v3": "'format-version' = '3', {}",
}
MERGE_ON_READ = ", ".join(
    f"'write.{what}.mode' = 'merge-on-read'" for what in ("merge", "update", "delete")
)


def spark_table(spark: Session, kind: str, columns: str = "id bigint, name string") -> str:
    name = new_name()
    properties = ON_WRITE[kind].format(MERGE_ON_READ)
    spark.run(f"create table lake.s.{name} ({columns}) tblproperties ({properties})")
    rows = ", ".join(f"({number}, 'v{number}')" for number in range(10))
    # One file, so that changes leave rows of it as they are.
    spark.run(f"insert into lake.s.{name} select /*+ coalesce(1) */ * from values {rows}")
    return name


def changed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], row["__stream"]["deleted"]) for row in rows)


def compact(spark: Session, name: str) -> None:
    spark.fetch(
        spark.run(
            f"call lake.system.rewrite_data_files(table => 's.{name}', "
            "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
        )
    )


@pytest.mark.parametrize("max_keys", [0, 3])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.variants(2)
def test_a_table_that_our_sink_writes(
    lake: IcebergCatalog, spark: Session, version: int, max_keys: int
) -> None:
    name = new_name()
    make_table(lake, version, name=("s", name))
    sink = open_sink(lake, ("s", name))
    draw = random.Random(version * 10 + max_keys)
    replica = Replica(lake, spark, name)
    numbers = itertools.count()
    for upper in range(5):
        changes = [
            Change(draw.randrange(6), None if draw.random() < 0.3 else str(next(numbers)))
            for _ in range(24)
        ]
        commit(sink, changes, upper, rows=4, max_keys=max_keys)
        if upper != 2:  # two commits in one batch
            replica.read()
            replica.expect_the_table()
        if upper == 3:
            assert convert_equality_deletes(lake, ("s", name), {}).rows > 0
            assert replica.read() == []
    convert_equality_deletes(lake, ("s", name), {})
    compact(spark, name)
    assert replica.read() == []


@pytest.mark.parametrize("kind", ON_WRITE)
@pytest.mark.variants(1)
def test_changes_by_spark(lake: IcebergCatalog, spark: Session, kind: str) -> None:
    name = spark_table(spark, kind)
    replica = Replica(lake, spark, name)
    assert len(replica.read()) == 10

    spark.run(f"update lake.s.{name} set name = 'u' where id in (2, 3)")
    assert changed(replica.read()) == [
        (2, "u", False),
        (2, "v2", True),
        (3, "u", False),
        (3, "v3", True),
    ]
    replica.expect_the_table()

    spark.run(f"delete from lake.s.{name} where id in (3, 4)")
    assert changed(replica.read()) == [(3, "u", True), (4, "v4", True)]
    replica.expect_the_table()

    new = "values (5, 'm'), (6, 'v6'), (7, null), (11, 'new') as s (id, name)"
    spark.run(
        f"merge into lake.s.{name} t using (select * from {new}) s on t.id = s.id "
        "when matched and s.name is null then delete "
        "when matched then update set * when not matched then insert *"
    )
    # The sixth was written again as it was.
    assert changed(replica.read()) == [
        (5, "m", False),
        (5, "v5", True),
        (7, "v7", True),
        (11, "new", False),
    ]
    replica.expect_the_table()

    spark.run(f"update lake.s.{name} set name = 'before' where id = 1")
    compact(spark, name)
    spark.run(f"delete from lake.s.{name} where id in (1, 8)")
    assert changed(replica.read()) == [
        (1, "before", False),
        (1, "before", True),
        (1, "v1", True),
        (8, "v8", True),
    ]
    replica.expect_the_table()

    spark.run(f"insert overwrite lake.s.{name} values (9, 'v9'), (12, 'all')")
    replica.read()
    replica.expect_the_table()
    spark.run(f"truncate table lake.s.{name}")
    replica.read()
    assert replica.rows == {}


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_spark_changes_what_our_sink_has_written(
    lake: IcebergCatalog, spark: Session, mode: str
) -> None:
    """A file may hold rows that equality deletes have deleted: they are not deleted again."""
    name = new_name()
    make_table(lake, 2, name=("s", name))
    spark.run(f"alter table lake.s.{name} set tblproperties ('write.delete.mode' = '{mode}')")
    sink = open_sink(lake, ("s", name))
    commit(sink, [Change(key, "a") for key in range(4)], 1)
    commit(sink, [Change(1, "b")], 2)
    replica = Replica(lake, spark, name)
    replica.read()
    spark.run(f"delete from lake.s.{name} where id = 2")
    taken = [(row["id"], row["__stream"]["deleted"]) for row in replica.read()]
    assert taken == [(2, True)]
    replica.expect_the_table()

    sink.claim()
    sink.replaces = True
    commit(sink, [Change(3, "a"), Change(1, "c"), Change(1, "d")], 3, rows=1)
    replica.read()
    replica.expect_the_table()
    assert set(replica.rows) == {1, 3}


def test_columns_are_known_by_their_ids(lake: IcebergCatalog, spark: Session) -> None:
    nested = "id bigint, name struct<a: int, b: array<string>>, m map<string, double>, n int"
    name = new_name()
    spark.run(f"create table lake.s.{name} ({nested}) tblproperties ('format-version' = '2')")
    value = "named_struct('a', 1, 'b', array('x')), map('k', 0.5D)"
    replica = Replica(lake, spark, name)
    spark.run(f"insert into lake.s.{name} select 1, {value}, 1 union all select 2, {value}, 2")
    replica.read()
    spark.run(f"delete from lake.s.{name} where id = 1")
    for change in ("rename column n to id2", "alter column id2 type bigint", "add column d date"):
        spark.run(f"alter table lake.s.{name} {change}")
    spark.run(f"insert into lake.s.{name} select 3, {value}, 3, date'2026-01-01'")
    taken = replica.read()
    assert [(row["id"], row["id2"], row["d"] is None) for row in taken] == [
        (1, 1, True),
        (3, 3, False),
    ]
    assert set(replica.rows) == {2, 3}


def test_columns_altered_since_the_last_write(lake: IcebergCatalog, spark: Session) -> None:
    """All rows have the columns of today, with those of before in them by their ids."""
    name = new_name()
    nested = "array<struct<a: int, b: int>>, m map<string, struct<c: int>>"
    spark.run(
        f"create table lake.s.{name} (id int, gone int, s struct<a: int, b: int>, l {nested})"
    )
    value = "named_struct('a', 1, 'b', 2)"
    spark.run(
        f"insert into lake.s.{name} select 1, 0, {value}, array({value}), "
        "map('k', named_struct('c', 3))"
    )
    spark.run(f"insert into lake.s.{name} select 2, 0, null, null, null")
    for change in (
        "add column late string",
        "drop column gone",
        "alter column id type bigint",
        "rename column s.a to z",
        "add column s.more double first",
        "alter column l.element.a type bigint",
        "add column l.element.more double",
        "add column m.value.more double",
    ):
        spark.run(f"alter table lake.s.{name} {change}")
    replica = Replica(lake, spark, name)
    upper = replica.source.plan_batch(None, 1000)
    assert upper is not None
    frame = replica.source.read(spark.spark, None, upper)
    assert frame.drop("__stream").dtypes == spark.spark.table(f"lake.s.{name}").dtypes
    assert len(replica.read()) == 2
    replica.expect_the_table()


def test_columns_that_come_while_a_stream_runs(lake: IcebergCatalog, spark: Session) -> None:
    """A batch has those that the table had when it was planned."""
    name = spark_table(spark, "copy-on-write")
    source = Replica(lake, spark, name).source
    lower = source.present(None)
    assert source.plan_batch(None, 1000, lower) == lower
    first = source.schema_id(None, lower)
    spark.run(f"alter table lake.s.{name} add column more int")
    assert source.schema_id(None, lower) == first
    spark.run(f"insert into lake.s.{name} values (11, 'new', 1)")
    upper = source.plan_batch(lower, 1000)
    assert source.schema_id(lower, upper) == Replica(lake, spark, name).source.schema_id(lower)
    assert source.schema_id(lower, upper) != first


def test_appends_alone(lake: IcebergCatalog, spark: Session) -> None:
    name = spark_table(spark, "copy-on-write")
    replica = Replica(lake, spark, name, changes=False)
    assert len(replica.read()) == 10
    spark.run(f"insert into lake.s.{name} values (11, 'new')")
    assert changed(replica.read()) == [(11, "new", False)]
    spark.run(f"delete from lake.s.{name} where id = 1")
    with pytest.raises(StreamError, match="`changes: true` to stream its changes"):
        replica.read()


def test_a_file_that_is_gone(lake: IcebergCatalog, spark: Session) -> None:
    name = spark_table(spark, "copy-on-write")
    replica = Replica(lake, spark, name)
    replica.read()
    spark.run(f"insert into lake.s.{name} values (20, 'gone')")
    query = f"select _file from lake.s.{name} where id = 20"
    (location,) = spark.query(query)["_file"].to_pylist()
    lake.table(("s", name)).io.delete(location)
    with pytest.raises(StatementError, match=r"\AThe file \S+ is gone: it was removed before"):
        replica.read()


def test_a_format_that_cannot_be_read(lake: IcebergCatalog, spark: Session) -> None:
    name = spark_table(spark, "copy-on-write")
    replica = Replica(lake, spark, name)
    replica.read()
    spark.run(f"alter table lake.s.{name} set tblproperties ('write.format.default' = 'orc')")
    spark.run(f"insert into lake.s.{name} values (20, 'orc')")
    with pytest.raises(StreamError, match="has the format ORC"):
        replica.read()


def test_snapshots_that_have_expired(lake: IcebergCatalog, spark: Session) -> None:
    name = spark_table(spark, "copy-on-write")
    replica = Replica(lake, spark, name)
    replica.read()
    spark.run(f"insert into lake.s.{name} values (20, 'a')")
    expire = "older_than => current_timestamp(), retain_last => 1"
    spark.fetch(spark.run(f"call lake.system.expire_snapshots(table => 's.{name}', {expire})"))
    with pytest.raises(StreamError, match="it has expired"):
        replica.read()
