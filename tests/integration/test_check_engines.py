"""`iceberg-stream check` on tables of other engines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from tests.integration.flink import run_flink
from tests.integration.table_model import MOMENTS

ROWS = """
select id, cast(id as decimal(12, 3)) / 7 as d, if(id % 5 = 0, double('NaN'), -id / 3.0) as f,
    if(id % 7 = 0, null, repeat(concat('é', id), 9)) as s, cast('x' as binary) as b,
    timestamp'1969-12-30 00:00:00' + make_interval(0, 0, 0, cast(id as int)) as ts,
    if(id % 3 = 0, null, named_struct('a', cast(id as int), 'b', array(1, null))) as st
from range(20)
"""
MODES = [(1, "copy-on-write"), (2, "copy-on-write"), (2, "merge-on-read"), (3, "merge-on-read")]


def wrong(lake: IcebergCatalog, name: str) -> list[Finding]:
    loaded = lake.load(("s", name))
    assert loaded is not None
    return [f for f in check_table(loaded, data=True).findings if f.severity != "note"]


@pytest.mark.parametrize(("version", "mode"), MODES)
@pytest.mark.variants(2)
def test_nothing_is_wrong_with_tables_of_spark(
    lake: IcebergCatalog, spark: Session, version: int, mode: str
) -> None:
    name = f"spark{version}{mode[0]}"
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    for sql in (
        f"create table s.{name} using iceberg partitioned by (days(ts), bucket(4, id)) "
        f"tblproperties ('format-version' = '{version}', {modes}) as {ROWS}",
        f"update s.{name} set f = 1.5 where id % 4 = 0",
        f"delete from s.{name} where id % 4 = 1",
        f"alter table s.{name} write ordered by id",
        f"insert into s.{name} select * from s.{name}",
        f"alter table s.{name} replace partition field ts_day with hours(ts)",
        f"merge into s.{name} t using (select id + 1 as id from range(9)) k on t.id = k.id "
        "when matched then update set f = 2.5 when not matched then insert (id) values (k.id)",
        f"alter table s.{name} drop column d",
    ):
        spark.run(sql)
    assert wrong(lake, name) == []
    spark.run(f"call lake.system.rewrite_manifests(table => 's.{name}')")
    spark.run(
        f"call lake.system.rewrite_data_files(table => 's.{name}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert wrong(lake, name) == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nothing_is_wrong_with_a_long_history_of_spark(
    lake: IcebergCatalog, spark: Session, version: int
) -> None:
    """Replaced, evolved, tagged, branched, rolled back and expired, with nested columns."""
    name = f"history{version}"
    modes = ", 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
    table = f"s.{name}"
    for sql in (
        f"create table {table} using iceberg partitioned by (a) tblproperties "
        f"('format-version' = '{version}'{modes if version > 1 else ''}) as "
        "select cast(id as int) as id, cast(id % 2 as int) as a, "
        "named_struct('x', cast(id as int), 'y', array(1, null)) as st, "
        "map('k', named_struct('z', 1.5d)) as m, cast(1.25 as decimal(5, 2)) as d from range(9)",
        f"alter table {table} create tag before",
        f"delete from {table} where id = 3",
        f"alter table {table} alter column id type bigint",
        f"alter table {table} alter column d type decimal(9, 2)",
        f"alter table {table} alter column st.x type bigint",
        f"alter table {table} add column st.n string",
        f"alter table {table} add column late int",
        f"alter table {table} rename column m to mm",
        f"alter table {table} add column m string",
        f"update {table} set late = 1 where id = 4",
        f"alter table {table} create branch audit",
        f"insert into {table}.branch_audit select * from {table} where id = 5",
        f"alter table {table} replace partition field a with bucket(3, id)",
        f"insert into {table} select * from {table} where id = 6",
        f"update {table} set late = 2 where id < 6",
        f"alter table {table} drop column m",
    ):
        spark.run(sql)
    assert wrong(lake, name) == []
    loaded = lake.load(("s", name))
    assert loaded is not None
    parent = loaded.metadata["snapshots"][-2]["snapshot-id"]
    for sql in (
        f"call lake.system.rollback_to_snapshot('{table}', {parent})",
        f"insert into {table} (id, a, st) values (70, 1, null)",
        f"call lake.system.expire_snapshots(table => '{table}', retain_last => 1, "
        "older_than => timestamp '2999-01-01', clean_expired_metadata => true)",
    ):
        spark.run(sql)
    assert wrong(lake, name) == []
    # The columns of the same names keep their ids, and the tag its files. A branch would be read
    # with the new types.
    spark.run(f"alter table {table} drop branch audit")
    spark.run(
        f"create or replace table {table} using iceberg as select 'x' as id, 1L as a, 2 as st"
    )
    assert wrong(lake, name) == []


EXPIRED = (
    "call lake.system.expire_snapshots(table => '{t}', retain_last => 1, "
    "older_than => timestamp '2999-01-01', clean_expired_metadata => true)"
)
HEALTHY = {
    "null_struct": [
        "create table {t} (id int, st struct<a: int not null>)",
        "insert into {t} values (1, named_struct('a', 1)), (2, null)",
    ],
    "far_dates": [
        "create table {t} (at date) using iceberg partitioned by (at)",
        "insert into {t} select date'9999-12-31' + 5 union all select date'0001-01-01' - 400",
    ],
    "long_decimals": [
        "create table {t} (d decimal(38, 10))",
        "insert into {t} values (1234567890123456789012345678.0123456789)",
    ],
    "added_again": [
        "create table {t} (id int)",
        "insert into {t} values (0)",
        "alter table {t} add column b int",
        "insert into {t} values (1, 2)",
        "alter table {t} drop column b",
        "insert into {t} values (3)",
        EXPIRED,
        "alter table {t} add column b int",
        "insert into {t} values (4, 5)",
    ],
    "renamed_back": [
        "create table {t} (a int, b int)",
        "alter table {t} rename column a to x",
        "alter table {t} rename column b to a",
        "insert into {t} values (1, 2)",
        "alter table {t} rename column a to b",
        "alter table {t} rename column x to a",
        "insert into {t} values (3, 4)",
        EXPIRED,
    ],
    "replaced": [
        "create table {t} (id int, s string) using iceberg partitioned by (id)",
        "insert into {t} values (1, 'a')",
        "create or replace table {t} (id string, s string) using iceberg partitioned by (id)",
        "insert into {t} values ('x', 'a')",
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_a_table_of_spark(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    for sql in HEALTHY[name]:
        spark.run(sql.format(t=f"s.{name}"))
    assert wrong(lake, name) == []


def test_nothing_is_wrong_with_encodings_of_arrow(lake: IcebergCatalog) -> None:
    texts = {
        "d": pa.array(["a", "b"]).dictionary_encode(),
        "v": pa.array(["a"] * 2, pa.string_view()),
    }
    rows = pa.table({"id": [1, 2], **texts})
    lake.pyiceberg.create_table(("s", "encoded"), rows.schema).append(rows)
    assert wrong(lake, "encoded") == []


def test_nothing_is_wrong_with_tables_of_pyiceberg(lake: IcebergCatalog) -> None:
    rows = pa.table({"id": range(5), "at": pa.array(MOMENTS), "s": list("abcde")})
    table = lake.pyiceberg.create_table(("s", "py"), rows.schema)
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "b").add_field("at", DayTransform(), "d")
    table.append(rows)
    table.delete("id = 2")
    table.overwrite(rows.slice(0, 2), "id < 2")
    with table.update_schema() as schema:
        schema.rename_column("s", "text")
    table.append(rows.rename_columns(["id", "at", "text"]))
    assert wrong(lake, "py") == []


@pytest.mark.slow
def test_nothing_is_wrong_with_tables_of_flink(lake: IcebergCatalog) -> None:
    statements, names = [], []
    for version in (2, 3):
        for keys, clause in (("id", ""), ("id, part", " partitioned by (part)")):
            name = f"flink{version}{len(keys)}"
            names.append(name)
            statements += [
                f"create table lake.s.{name} (id bigint, part string, x double, at_ timestamp(6), "
                f"primary key ({keys}) not enforced){clause} "
                f"with ('format-version' = '{version}', 'write.upsert.enabled' = 'true')",
                f"insert into lake.s.{name} values "
                + ", ".join(
                    f"({n}, '{'ab'[n % 2]}', {n} / 3e0, timestamp '1969-12-31 23:59:59.9')"
                    for n in range(9)
                ),
                f"insert into lake.s.{name} values (1, 'b', 7e0, timestamp '2025-01-01 00:00:00'), "
                "(1, 'b', 8e0, cast(null as timestamp)), (99, 'a', cast(null as double), cast(null as timestamp))",
            ]
    rows = run_flink(lake, {name: {} for name in names}, statements)
    for name in names:
        assert len(rows[name]) == 10
        assert wrong(lake, name) == []
