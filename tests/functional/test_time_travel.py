"""Models, tests and snapshots that read earlier versions of tables."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.builds import AtomicProject, build_names, command, published, variables
from tests.functional.lake import rows, run, snapshot_ids, table

ORDERS = "{{ config(materialized='incremental') }} select {{ var('id', 1) }} as id"
TAG = ".at(tag=var('tag', \"it's\"))"
MODELS = {
    "orders.sql": ORDERS,
    "joined.sql": "{{ config(materialized='table') }}"
    "select now.id, old.id as old_id, (select max(id) from {{ source('own', 'all_orders')"
    + TAG
    + " }})"
    " as last from {{ ref('orders') }} now left join {{ ref('orders')" + TAG + " }} as old"
    " on now.id = old.id",
    "a_view.sql": "select orders.id from {{ ref('orders')" + TAG + " }} as orders",
    "merged.sql": "{{ config(materialized='incremental', unique_key='id') }}"
    "select id from {{ ref('orders').at(snapshot_id=var('snapshot', none)) }}"
    " where id in (select id from {{ ref('hidden') }})",
    "hidden.sql": "{{ config(materialized='ephemeral') }} select id from {{ ref('orders')"
    + TAG
    + "}}",
    "report.sql": "{{ config(materialized='table', read_at={'tag': var('tag', \"it's\")}) }}"
    "select o.id, (select max(id) from {{ ref('orders').at(branch='main') }}) as last"
    " from {{ ref('orders') }} as o",
    "models.yml": """
sources:
  - {name: own, schema: "{{ target.schema }}", tables: [{name: all_orders, identifier: orders}]}
unit_tests:
  - name: a_unit_test
    model: joined
    given:
      - {input: ref('orders'), rows: [{id: 7}]}
      - {input: "source('own', 'all_orders')", rows: [{id: 8}]}
    expect: {rows: [{id: 7, old_id: 7, last: 8}]}
""",
}
SNAPSHOT = (
    "{% snapshot a_snapshot %}{{ config(target_schema=target.schema, unique_key='id', "
    "strategy='check', check_cols=['id']) }} select id from {{ ref('orders')" + TAG + " }}"
    "{% endsnapshot %}"
)
NODES = ("joined", "a_view", "merged", "a_snapshot", "report", "no_second_order")
TEST = "select * from {{ ref('orders')" + TAG + " }} where id > 1"


class TestTimeTravel:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"a_snapshot.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"no_second_order.sql": TEST}

    def test_every_kind_of_node(self, project: Any) -> None:
        run_dbt(["run", "--select", "orders"])
        first = snapshot_ids(project, "orders")[0]
        run(project, "alter table {schema}.orders create tag `it's`")
        run(project, "insert into {schema}.orders values (2)")
        results = run_dbt(["build", "--select", *NODES])
        assert {r.node.name for r in results} >= {"a_unit_test", "no_second_order", "a_snapshot"}
        assert published(project, "joined") == [(1, 1, 1), (2, None, 1)]
        for name in ("a_view", "merged"):
            assert published(project, name) == [(1,)]
        shown = run_dbt(["show", "--inline", "select * from {{ ref('orders')" + TAG + " }} o"])
        assert [tuple(row) for row in shown.results[0].agate_table.rows] == [(1,)]

        assert published(project, "report") == [(1, 2)]
        shown = run_dbt(["show", "--select", "report"])
        assert [tuple(row) for row in shown.results[0].agate_table.rows] == [(1, 2)]

        # The tag moves: the view follows it without a run; an increment merges the new rows.
        run(project, "alter table {schema}.orders replace tag `it's`")
        assert published(project, "a_view") == [(1,), (2,)]
        run_dbt(["build", "--select", "merged", "a_snapshot"])
        assert published(project, "merged") == [(1,), (2,)]
        assert rows(project, "select id from {schema}.a_snapshot order by id") == [(1,), (2,)]
        run_dbt(["run", "--select", "merged", "--full-refresh", "--vars", f"snapshot: {first}"])
        assert published(project, "merged") == [(1,)]
        run_dbt(["run", "--select", "joined", "--empty"])
        assert published(project, "joined") == []

    def test_columns_of_a_version(self, project: Any) -> None:
        run(project, "create table {schema}.wide as select 1 as id, 2 as old_name")
        run(project, "alter table {schema}.wide create tag before")
        run(project, "alter table {schema}.wide rename column old_name to new_name")
        columns = (
            "adapter.get_columns_in_relation(api.Relation.create(schema=target.schema, "
            "identifier='wide'){}) | map(attribute='name') | join(', ')"
        )
        for at, names in ((".at(tag='before')", "id, old_name"), ("", "id, new_name")):
            query = f"select '{{{{ {columns.format(at)} }}}}' as names"
            shown = run_dbt(["show", "--inline", query])
            assert [tuple(row) for row in shown.results[0].agate_table.rows] == [(names,)]

    def test_a_missing_tag(self, project: Any) -> None:
        _, log = run_dbt_and_capture(
            ["run", "--select", "joined", "--vars", "tag: gone"], expect_pass=False
        )
        assert "has no tag `gone`. It has it's." in log
        assert "in model.test.joined" in log


class TestFunctions:
    """`read_at` of a model that calls a function which reads a table."""

    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        return {
            "last_id.sql": "select max(id) from {{ ref('orders') }}",
            "functions.yml": "functions: [{name: last_id, returns: {data_type: int}}]",
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "orders.sql": ORDERS,
            "report.sql": "{{ config(materialized='table', read_at='first') }} select"
            " count(*) as orders, {{ function('last_id') }}() as last from {{ ref('orders') }}",
        }

    def test_one_version(self, project: Any) -> None:
        run_dbt(["run", "--select", "orders"])
        run(project, "alter table {schema}.orders create tag first")
        run_dbt(["run", "--vars", "id: 2"])
        assert published(project, "report") == [(1, 1)]


class TestBuilds(AtomicProject):
    """Tables that a run stages, tags when they are published, and reads at a tag."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        tag = "{'name': 'r' ~ var('id', 1), 'retention': '30 days', 'replace': var('move', false)}"
        old = "{{ ref('orders').at(tag=var('tag', none)) }}"
        return {
            "orders.sql": ORDERS.replace("al')", f"al', tag_on_success={tag})"),
            "report.sql": "{{ config(materialized='table', tag_on_success='r' ~ var('id', 1)) }}"
            f"select count(*) as old, (select count(*) from {{{{ ref('orders') }}}}) as now from {old}",
            "a_view.sql": f"select id from {old}",
        }

    def test_builds(self, project: Any) -> None:
        run_dbt(["build"])
        tags = table(project, "orders").refs()
        assert tags["r1"].snapshot_id == snapshot_ids(project, "orders")[0]
        assert tags["r1"].max_ref_age_ms == 30 * 24 * 3600 * 1000
        assert "r1" in table(project, "report").refs()

        run_dbt(["build", *variables(id=2, tag="r1")])
        assert published(project, "report") == [(1, 2)]
        assert published(project, "a_view") == [(1,)]
        assert published(project, "orders version as of 'r2'") == [(1,), (2,)]
        assert published(project, "report version as of 'r1'") == [(1, 1)]

        # Nothing runs, because a tag would have to move.
        _, log = run_dbt_and_capture(["build", *variables(id=2)], expect_pass=False)
        assert "`tag_on_success` of model.test.orders" in log
        assert "already has the tag `r2`, on snapshot" in log
        assert len(published(project, "orders")) == 2
        for name in build_names(project):
            assert command(project, "discard", name).exit_code == 0
        run_dbt(["build", "--select", "orders", *variables(id=2, move=True)])
        assert published(project, "orders version as of 'r2'") == [(1,), (2,), (2,)]
