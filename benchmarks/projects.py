"""The dbt projects that are run, as texts by path."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Sequence
from datetime import date, timedelta

BARE_PROJECT = """\
name: bench
profile: bench
"""

PROJECT = f"""\
{BARE_PROJECT}
models:
  +file_format: iceberg
seeds:
  +file_format: iceberg
"""

STG_CUSTOMERS = """\
{{ config(materialized='view') }}
select customer_id, initcap(name) as name, cast(joined as date) as joined
from {{ ref('raw_customers') }}
"""

STG_ORDERS = """\
{{ config(materialized='view') }}
select order_id, customer_id, cast(ordered as date) as ordered,
  cast(amount as decimal(10, 2)) as amount
from {{ ref('raw_orders') }}
"""

# The last days come again on every run, with a new time: each merge has rows to write.
ORDERS = """\
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='order_id') }}
select o.order_id, o.ordered, o.amount, c.name, current_timestamp() as loaded_at
from {{ ref('stg_orders') }} as o
join {{ ref('stg_customers') }} as c on c.customer_id = o.customer_id
{% if is_incremental() %}
where o.ordered >= (select date_sub(max(ordered), 7) from {{ this }})
{% endif %}
"""

CUSTOMERS = """\
{{ config(materialized='table') }}
select c.customer_id, c.name, c.joined, count(o.order_id) as orders, sum(o.amount) as revenue
from {{ ref('stg_customers') }} as c
left join {{ ref('stg_orders') }} as o on o.customer_id = c.customer_id
group by c.customer_id, c.name, c.joined
"""

DAILY_REVENUE = """\
{{ config(materialized='table') }}
select ordered, count(*) as orders, sum(amount) as revenue
from {{ ref('orders') }}
group by ordered
"""

TABLE = """\
{{{{ config(materialized='table') }}}}
select id, id * {number} as amount, concat('name ', id) as name from range(100)
"""

MERGE = """\
{{{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}}}
select id, id * {number} as amount, current_timestamp() as loaded_at
from {{% if is_incremental() %}}range(900, 1100){{% else %}}range(1000){{% endif %}}
"""

APPEND = """\
{{{{ config(materialized='incremental', incremental_strategy='append') }}}}
select id, id * {number} as amount, current_timestamp() as loaded_at
from range({{% if is_incremental() %}}200{{% else %}}1000{{% endif %}})
"""

# The first look for a relation lists its whole namespace into the cache. The query before it
# makes the connection, so that the engine's start is not in the time.
LISTING = """\
{{% macro time_listing() %}}
  {{% do run_query('select 1') %}}
  {{% set begin = modules.datetime.datetime.now() %}}
  {{% set found = adapter.get_relation(target.database, target.schema, '{table}') %}}
  {{% set seconds = (modules.datetime.datetime.now() - begin).total_seconds() %}}
  {{{{ log('found ' ~ found.identifier ~ ' in ' ~ seconds ~ ' s', info=true) }}}}
{{% endmacro %}}
"""

DIAMOND = """
{{{{ config(materialized='{kind}', unique_key='id') }}}}
select one.id, one.v + other.v as v
from {{{{ ref('{one}') }}}} as one join {{{{ ref('{other}') }}}} as other on other.id = one.id
"""

MIXED = """\
{{{{ config(materialized='{kind}', unique_key='id', incremental_strategy='merge') }}}}
select {alias}.id, ({sum}) % 1000 as v, {number} as node{clock}
from {joins}
{{% if is_incremental() %}}where {alias}.id < 50{{% endif %}}
"""

FIRST_DAY = date(2026, 1, 1)


def shop(orders: int) -> dict[str, str]:
    """Five models: two staging views, two tables and an incremental merge."""
    chance = random.Random(1)
    customers = orders // 5
    return {
        "dbt_project.yml": PROJECT,
        "seeds/raw_customers.csv": _csv(
            ["customer_id", "name", "joined"],
            ([n, f"customer {n}", _day(chance.randrange(90))] for n in range(customers)),
        ),
        "seeds/raw_orders.csv": _csv(
            ["order_id", "customer_id", "ordered", "amount"],
            (
                [n, chance.randrange(customers), _day(n * 90 // orders), chance.randrange(1, 999)]
                for n in range(orders)
            ),
        ),
        "models/stg_customers.sql": STG_CUSTOMERS,
        "models/stg_orders.sql": STG_ORDERS,
        "models/orders.sql": ORDERS,
        "models/customers.sql": CUSTOMERS,
        "models/daily_revenue.sql": DAILY_REVENUE,
    }


def tables(count: int) -> dict[str, str]:
    """Small table models that do not depend on each other."""
    return _numbered("table", TABLE, count)


def merges(count: int) -> dict[str, str]:
    """Small incremental models; each later run updates 100 rows and keeps 100 new ones."""
    return _numbered("merge", MERGE, count)


def appends(count: int) -> dict[str, str]:
    """Small incremental models without a key; each later run appends 200 rows."""
    return _numbered("append", APPEND, count)


def diamonds(count: int, width: int = 20) -> dict[str, str]:
    """Models in layers, each of which reads two of the layer before, over one seed.

    Views, tables and incremental models take turns.
    """
    files = {"dbt_project.yml": PROJECT, "seeds/raw.csv": _csv(["id", "v"], [[1, 1], [2, 2]])}
    for number in range(count):
        layer, place = divmod(number, width)
        above = [f"node_{(layer - 1) * width + (place + step) % width:03}" for step in (0, 1)]
        one, other = above if layer else ("raw", "raw")
        kind = ("view", "table", "incremental")[layer % 3]
        files[f"models/node_{number:03}.sql"] = DIAMOND.format(kind=kind, one=one, other=other)
    return files


def mixed(count: int) -> dict[str, str]:
    """Small models of one to three inputs each: 60 % tables, 25 % incremental, 15 % views.

    Later runs of the incremental models merge 50 rows, which change in every other model.
    """
    chance = random.Random(1)
    files = {
        "dbt_project.yml": PROJECT,
        "seeds/raw.csv": _csv(["id", "v"], ([n, n % 7] for n in range(200))),
    }
    kinds = ["table"] * 12 + ["incremental"] * 5 + ["view"] * 3
    tables = ["raw"]
    for number in range(count):
        kind = kinds[number * 7 % len(kinds)]
        inputs = sorted(set(chance.choices(tables[-60:], k=chance.randint(1, 3))))
        joins = " join ".join(
            f"{{{{ ref('{name}') }}}} as i{place}" + (f" on i{place}.id = i0.id" if place else "")
            for place, name in enumerate(inputs)
        )
        name = f"model_{number:03}"
        files[f"models/{name}.sql"] = MIXED.format(
            kind=kind,
            alias="i0",
            sum=" + ".join(f"i{place}.v" for place in range(len(inputs))),
            number=number,
            clock=", current_timestamp() as at" if kind == "incremental" and number % 2 else "",
            joins=joins,
        )
        if kind != "view" or number % 3:
            tables.append(name)
    return files


def seed(rows: int) -> dict[str, str]:
    """One seed of six columns: whole numbers, texts, a date, fractions."""
    chance = random.Random(1)
    body = (
        [n, f"name {n}", _day(n % 365), chance.randrange(10**6), n / 8, f"city {n % 50}"]
        for n in range(rows)
    )
    header = ["id", "name", "born", "points", "score", "city"]
    return {"dbt_project.yml": PROJECT, "seeds/people.csv": _csv(header, body)}


def listing(table: str) -> dict[str, str]:
    """A macro that times the filling of the relation cache, by looking for a table."""
    return {"dbt_project.yml": BARE_PROJECT, "macros/time_listing.sql": LISTING.format(table=table)}


def _numbered(name: str, text: str, count: int) -> dict[str, str]:
    models = {f"models/{name}_{n:03}.sql": text.format(number=n) for n in range(1, count + 1)}
    return {"dbt_project.yml": PROJECT, **models}


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _day(number: int) -> str:
    return (FIRST_DAY + timedelta(days=number)).isoformat()
