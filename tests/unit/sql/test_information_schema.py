"""What statements ask of `information_schema`, and how they read it."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.information_schema import mentions, with_views


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "/* {} */ select table_name from lake.information_schema.tables where 1 = 1",
            "/* {} */ select table_name from `v0` as `tables` where 1 = 1",
        ),
        (
            "select c.* from `Lake`.`INFORMATION_SCHEMA`.`Columns` as c",
            "select c.* from `v0` as c",
        ),
        (
            "with a as (select 1 from information_schema.views) select * from a, "
            "information_schema.tables b",
            "with a as (select 1 from `v0` as `views`) select * from a, `v1` b",
        ),
        (
            "insert into s.t select table_name from information_schema.tables",
            "insert into s.t select table_name from `v0` as `tables`",
        ),
        ("select * from other.information_schema.tables", None),
        ("select * from information_schema", None),
        ("select 'information_schema.tables' from s.t", None),
        ("select from information_schema.tables where", None),
    ],
)
def test_names(sql: str, expected: str | None) -> None:
    views = [(mention, f"v{index}") for index, mention in enumerate(mentions(sql, ["Lake"]))]
    assert with_views(sql, views) == (expected or sql)


NAMES = {(namespace, table) for namespace in ("shop", "web") for table in ("orders", "raw_orders")}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("true", NAMES),
        ("table_schema = 'shop'", {name for name in NAMES if name[0] == "shop"}),
        ("lower(tables.table_schema) = lower('SHOP')", {n for n in NAMES if n[0] == "shop"}),
        ("table_schema in ('shop', 'web')", NAMES),
        ("table_schema in ('x')", set()),
        ("table_name like 'raw%' and table_schema = 'web'", {("web", "raw_orders")}),
        ("(table_name ilike 'RAW_orders')", {("shop", "raw_orders"), ("web", "raw_orders")}),
        # What the adapter does not understand is left to Spark.
        ("table_schema = 'shop' or table_name = 'orders'", NAMES),
        ("table_schema <> 'shop'", NAMES),
        ("not table_schema = 'shop'", NAMES),
        ("table_schema not in ('shop')", NAMES),
        ("table_name not like 'raw%'", NAMES),
        ("table_name like '%orders' and table_name not ilike ''", NAMES),
        (
            "table_name not like 'ord%' and table_schema = 'web'",
            {n for n in NAMES if n[0] == "web"},
        ),
        ("table_name not rlike 'raw' and table_name not between 'a' and 'b'", NAMES),
        ("table_name like any ('raw%') and table_name is not null", NAMES),
        ("table_name like 'raw!_%' escape '!'", NAMES),
        ("table_schema = concat('sh', 'op')", NAMES),
        (r"table_name like 'raw\_%'", NAMES),
        ("table_name in (select name from s.names)", NAMES),
        ("'shop' = table_schema", NAMES),
        ("exists (select 1 from s.t where t.table_name = 'orders')", NAMES),
        ("t.table_schema = 'shop'", NAMES),
    ],
)
def test_what_a_query_asks_for(where: str, expected: set[tuple[str, str]]) -> None:
    (mention,) = mentions(f"select 1 from information_schema.tables where {where}", ["Lake"])
    asked = {
        (namespace, table)
        for namespace, table in NAMES
        if mention.asks_for_namespace(namespace) and mention.asks_for_table(table)
    }
    assert asked == expected


def test_conditions_of_joins() -> None:
    """A name without a qualifier may belong to either side."""
    (mention,) = mentions(
        "select 1 from information_schema.tables as a left join s.t as b on a.table_name = b.name "
        "where table_schema = 'shop' and a.table_name = 'orders'",
        "lake",
    )
    assert mention.asks_for_namespace("web")
    assert not mention.asks_for_table("raw_orders")


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select table_name from information_schema.tables", {"table_name"}),
        ("select count(*) from information_schema.tables", set()),
        (
            "select Table_Name from information_schema.tables order by comment",
            {"table_name", "comment"},
        ),
        ("select * from information_schema.tables", None),
        ("select t.* from information_schema.tables as t", None),
        ("select * except (comment) from information_schema.tables", None),
    ],
)
def test_columns(sql: str, columns: set[str] | None) -> None:
    (mention,) = mentions(sql, ["Lake"])
    assert mention.columns == columns
