"""Aliases of staged relations."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.builds.aliases import with_aliases, with_published_texts
from dbt.adapters.iceberg_stream.builds.names import with_published_names

ORDERS = "`l`.`s`.`orders__dbt_build_x`"
ITEMS = "`l`.`s`.`items__dbt_build_x`"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"select orders.id from {ORDERS}", f"select orders.id from {ORDERS} as `orders`"),
        (
            f"select orders.*, i.id from {ORDERS} left join {ITEMS} i using (id)",
            f"select orders.*, i.id from {ORDERS} as `orders` left join {ITEMS} i using (id)",
        ),
        (
            f"cache table v as select * from {ORDERS}, {ITEMS} where orders.id = items.id",
            f"cache table v as select * from {ORDERS} as `orders`, {ITEMS} as `items` where orders.id = items.id",
        ),
        (
            f"select {ORDERS}.id, s.orders.n, l.s.orders.m, {ORDERS}.* from {ORDERS}",
            f"select `orders`.id, `orders`.n, `orders`.m, `orders`.* from {ORDERS} as `orders`",
        ),
        (
            f"create or replace table {ITEMS} using iceberg partitioned by (day(a)) as select orders.id from {ORDERS} version as of 12 where 1 = 1",
            f"create or replace table {ITEMS} using iceberg partitioned by (day(a)) as select orders.id from {ORDERS} version as of 12 as `orders` where 1 = 1",
        ),
        (
            f"insert into t with ('overwrite-mode' = 'dynamic') select orders.id from {ORDERS}",
            f"insert into t with ('overwrite-mode' = 'dynamic') select orders.id from {ORDERS} as `orders`",
        ),
        (
            f"merge into {ITEMS} as t using {ORDERS} on orders.id = t.id when matched then delete",
            f"merge into {ITEMS} as t using {ORDERS} as `orders` on orders.id = t.id when matched then delete",
        ),
        (
            f"merge into {ITEMS} using a on S.Items.id = a.id when not matched then insert (id) values (a.id)",
            f"merge into {ITEMS} as `items` using a on `items`.id = a.id when not matched then insert (id) values (a.id)",
        ),
        (
            f"delete from {ORDERS} where orders.id = 1",
            f"delete from {ORDERS} as `orders` where orders.id = 1",
        ),
        (
            f"update {ORDERS} set n = orders.m + 1",
            f"update {ORDERS} as `orders` set n = orders.m + 1",
        ),
        (
            f"select orders.id from ({ORDERS} join {ITEMS} on orders.id = items.id)",
            f"select orders.id from ({ORDERS} as `orders` join {ITEMS} as `items` on orders.id = items.id)",
        ),
        (
            f"with orders as (select * from {ORDERS}) select orders.id from orders",
            f"with orders as (select * from {ORDERS} as `orders`) select orders.id from orders",
        ),
        (
            f"select orders.id from {ORDERS} version as of 1 tablesample ((9) rows) repeatable (3) where orders.id = 1",
            f"select orders.id from {ORDERS} version as of 1 tablesample ((9) rows) repeatable (3) as `orders` where orders.id = 1",
        ),
        (
            f"select * from {ORDERS} pivot (sum(orders.n) for id in (1, 2))",
            f"select * from {ORDERS} as `orders` pivot (sum(orders.n) for id in (1, 2))",
        ),
    ],
)
def test_columns_have_the_published_name(sql: str, expected: str) -> None:
    with_alias = with_aliases(sql)
    assert with_alias.replace("/* staged */ ", "") == expected
    if not any(f"`{name}`." in expected for name in ("orders", "items")):
        assert with_published_names(with_alias, "x") == sql.replace("__dbt_build_x", "")


@pytest.mark.parametrize(
    "sql",
    [
        "select orders.id from l.s.orders",
        f"select o.id from {ORDERS} as o",
        f"select * from {ORDERS}.files",
        f"describe table {ORDERS}",
        f"show columns from {ORDERS}",
        f"alter table {ORDERS} add column a int",
        f"select l.s.orders.id from {ORDERS} join `l`.`web`.`orders__dbt_build_x` using (id)",
    ],
)
def test_what_stays(sql: str) -> None:
    assert with_aliases(sql) == sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"select '{ORDERS}' as source", "select '`l`.`s`.`orders`' as source"),
        (
            f"create table {ITEMS} tblproperties ('a' = '{ORDERS}') location '/x/{ORDERS}' as\n"
            f"with a as (select \"it's {ORDERS}\" as b, r'{ORDERS}' from {ORDERS}) select * from a",
            f"create table {ITEMS} tblproperties ('a' = '{ORDERS}') location '/x/{ORDERS}' as\n"
            f"with a as (select \"it's `l`.`s`.`orders`\" as b, r'`l`.`s`.`orders`' from {ORDERS}) "
            "select * from a",
        ),
        (
            f"insert into {ITEMS} with ('x' = 'y') select 'orders__dbt_build_x-y' from {ORDERS}",
            f"insert into {ITEMS} with ('x' = 'y') select 'orders-y' from {ORDERS}",
        ),
        (
            "select 'orders__dbt_build_x-y' -- 'b__dbt_build_x'",
            "select 'orders' -- 'b__dbt_build_x'",
        ),
        (f"select * from identifier('{ORDERS}')", f"select * from identifier('{ORDERS}')"),
        (
            f"call l.system.compact(table => '{ORDERS}')",
            f"call l.system.compact(table => '{ORDERS}')",
        ),
    ],
)
def test_texts_have_the_published_name(sql: str, expected: str) -> None:
    assert with_published_texts(sql) == expected
