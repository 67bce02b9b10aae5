"""`skip_unchanged`: queries that depend on more than their text, and increments."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from dbt.adapters.iceberg_stream.catalog.views import view_query
from tests.functional.lake import rows, run
from tests.functional.skipping import Skipping, built, edit

INCREMENTAL = "{{ config(materialized='incremental', unique_key='id') }} "
APPENDING = "{{ config(materialized='incremental') }} "
TABLE = "{{ config(materialized='table') }} "
PROPERTIES = """
models:
  - {name: by_meta, config: {meta: {factor: 2}}}
  - {name: by_description, description: first}
  - {name: python, config: {meta: {factor: 2}}}
functions:
  - name: plus
    arguments: [{name: v, data_type: int}]
    returns: {data_type: int}
"""


class TestQueries(Skipping):
    """What a query gets from elsewhere than the model's code."""

    # The function is made for each run.
    ALWAYS: ClassVar = {"header", "own_setting", "plus"}

    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        return {"plus.sql": "v + 1"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        base = "from {{ ref('base') }}"
        return {
            "short.sql": f"{{{{ config(materialized='ephemeral') }}}} select id, v {base}",
            "by_ephemeral.sql": INCREMENTAL + "select id, v from {{ ref('short') }}",
            "by_function.sql": INCREMENTAL
            + f"select id, {{{{ function('plus') }}}}(v) as v {base}",
            "by_meta.sql": INCREMENTAL
            + f"select id, v * {{{{ config.get('meta').get('factor') }}}} as v {base}",
            "by_description.sql": INCREMENTAL
            + f"select id, '{{{{ model.description }}}}' as v {base}",
            "python.py": "def model(dbt, session):\n"
            "    dbt.config(materialized='table', deterministic=True)\n"
            "    factor = dbt.config.get('meta')['factor']\n"
            "    return dbt.ref('base').selectExpr('id', f'v * {factor} as v')\n",
            "by_views.sql": TABLE
            + "select a.x, b.y from {{ this.schema }}.view_a as a, {{ this.schema }}.view_b as b",
            "own_view.sql": f"select id, v {base}",
            "tagged.sql": f"{{{{ config(tag_on_success='ok') }}}} select id {base}",
            "header.sql": "{% call set_sql_header(config) %} "
            "declare or replace variable one int default 1; {% endcall %}" + TABLE + "select one",
            "own_setting.sql": "{% if execute %}{% do run_query("
            "'set spark.sql.session.timeZone=' ~ env_var('ZONE', 'UTC')) %}{% endif %}"
            + TABLE
            + f"select hour(timestamp '2026-01-01T00:00:00Z') as h, id {base}",
            "properties.yml": PROPERTIES,
        }

    @pytest.fixture(scope="class", autouse=True)
    def first_builds(self, project: Any) -> None:
        run(project, "create namespace if not exists lake.{schema}")
        self.create_views(project, "'one' as x, 'two' as y", "'three' as x, 'four' as y")
        built()
        # The first increments change nothing.
        built()
        assert built() == self.ALWAYS

    def create_views(self, project: Any, one: str, other: str) -> None:
        run(project, f"create or replace view {{schema}}.view_a as select {one}")
        run(project, f"create or replace view {{schema}}.view_b as select {other}")

    @pytest.mark.parametrize(
        "path, before, after, changed",
        [
            ("models/short.sql", "id, v", "id, v + 100 as v", "by_ephemeral"),
            ("functions/plus.sql", "v + 1", "v + 100", "by_function"),
            (
                "models/properties.yml",
                "by_meta, config: {meta: {factor: 2",
                "by_meta, config: {meta: {factor: 7",
                "by_meta",
            ),
            ("models/properties.yml", "first", "second", "by_description"),
            (
                "models/properties.yml",
                "python, config: {meta: {factor: 2",
                "python, config: {meta: {factor: 7",
                "python",
            ),
        ],
    )
    @pytest.mark.variants(2)
    def test_code(self, project: Any, path: str, before: str, after: str, changed: str) -> None:
        edit(project, path, before, after)
        assert built() == {changed, *self.ALWAYS}
        contents = rows(project, f"select * from {{schema}}.{changed} order by 1")
        assert built("--vars", "{iceberg_stream_skip_unchanged: false}")
        assert rows(project, f"select * from {{schema}}.{changed} order by 1") == contents

    def test_views_that_swap_their_queries(self, project: Any) -> None:
        self.create_views(project, "'three' as x, 'four' as y", "'one' as x, 'two' as y")
        assert built() == {"by_views", *self.ALWAYS}
        assert rows(project, "select * from {schema}.by_views") == [("three", "two")]

    def test_views_that_swap_their_columns(self, project: Any) -> None:
        run(project, "create or replace view {schema}.view_a (x, y) as select 5 as a, 6 as b")
        built()
        run(project, "create or replace view {schema}.view_a (y, x) as select 5 as a, 6 as b")
        assert "by_views" in built()
        query = view_query(project.adapter.catalog.metadata((project.test_schema, "own_view")))
        run(project, f"create or replace view {{schema}}.own_view (x, y) as {query}")
        assert "own_view" in built()


class TestIncrements(Skipping):
    """Increments that would change a table again are built again."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        base, more = "from {{ ref('base') }} ", "where id > (select max(id) from {{ this }}) "
        return {
            "one_by_one.sql": APPENDING
            + f"select id {base}{{% if is_incremental() %}} {more}{{% endif %}} order by id limit 1",
            "first_ones.sql": INCREMENTAL
            + f"select id {base}{{% if is_incremental() %}} {more}{{% else %}} where id < 2{{% endif %}}",
            "all_again.sql": APPENDING + f"select id {base}",
            "counter.sql": TABLE
            + "select {% if load_relation(this) %}(select max(n) + 1 from {{ this }}){% else %}1{% endif %} as n",
            "new_ones.sql": INCREMENTAL
            + f"select id {base}{{% if is_incremental() %}} {more}{{% endif %}}",
        }

    def test_builds(self, project: Any) -> None:
        assert len(built()) == 6
        assert built() == {"one_by_one", "first_ones", "all_again", "counter", "new_ones"}
        assert built() == {"one_by_one", "first_ones", "all_again", "counter"}
        assert rows(project, "select id from {schema}.one_by_one order by 1") == [(1,), (2,), (3,)]
        assert rows(project, "select id from {schema}.first_ones order by 1") == [(1,), (2,), (3,)]
        # The last increment of these has found nothing new.
        assert built() == {"one_by_one", "all_again", "counter"}
        assert built() == {"all_again", "counter"}
        assert rows(project, "select count(*), max(n) from {schema}.counter") == [(1, 5)]

    def test_maintenance(self, project: Any) -> None:
        """Compactions of each night, and the expiry of the snapshots before them."""
        built()
        for _ in range(3):
            for name in ("base", "new_ones"):
                options = "options => map('rewrite-all', 'true')"
                table = f"table => '{{schema}}.{name}'"
                run(project, f"call lake.system.rewrite_data_files({table}, {options})")
            assert not {"base", "new_ones"} & built()
            for name in ("base", "new_ones"):
                older = "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1"
                run(
                    project,
                    f"call lake.system.expire_snapshots(table => '{{schema}}.{name}', {older})",
                )
            assert not {"base", "new_ones"} & built()
