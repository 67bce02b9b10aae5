"""One project with three catalogs: a SQLite file, and two servers with a user of their own each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from dbt.tests.util import get_artifact, run_dbt, run_dbt_and_capture
from dbt.version import get_installed_version
from dbt_common.semver import VersionSpecifier

from tests.functional.lake import rows, run
from tests.servers.rest_catalog import RestCatalog, rest_catalog

SOUTH_TOKEN = "DBT_ENV_SECRET_SOUTH_TOKEN"
SOUTH_TOKEN_TEXT = f"{{{{ env_var('{SOUTH_TOKEN}') }}}}"
STORES = """
{{ config(materialized='table', database='north') }}
select id, name from {{ ref('cities') }} where {{ var('stores', 'true') }}
"""
SALES = """
{{ config(materialized='incremental', unique_key='id', catalog_name='south') }}
select id, length(name) as amount from {{ ref('stores') }}
"""
REPORT = """
{{ config(materialized=var('report', 'view')) }}
select s.name, a.amount from {{ ref('stores') }} as s join {{ ref('sales') }} as a using (id)
"""
# The same namespace and name in two catalogs.
TWIN = "{{ config(materialized='table', alias='twin', database='%s') }} select '%s' as place"
BOTH = """
{{ config(materialized='table') }}
select a.place as here, b.place as there from {{ ref('twin_here') }} as a, {{ ref('twin_there') }} b
"""
FOLLOWED = """
{{ config(materialized='stream', unique_key='id', database='south') }}
select id, name from {{ stream(ref('stores')) }}
"""
PYTHON = """
def model(dbt, session):
    dbt.config(materialized='table', database='south')
    return dbt.ref('seen').groupBy('amount').count()
"""
HISTORY = """
{% snapshot history %}
{{ config(unique_key='id', strategy='check', check_cols='all', target_database='north',
    target_schema=schema) }}
select * from {{ ref('sales') }}
{% endsnapshot %}
"""
PROPERTIES = """
models:
  - name: stores
    columns: [{name: id, data_tests: [unique, not_null]}]
  - name: sales
    columns: [{name: id, data_tests: [{relationships: {to: ref('stores'), field: id}}]}]
sources:
  - name: landed
    database: south
    schema: "{{ target.schema }}"
    config: {freshness: {error_after: {count: 1, period: hour}}}
    tables: [{name: sales}]
"""
ON_WRITE = """
{% macro iceberg_stream__on_write(relation, snapshot_id) %}{{ log('WROTE ' ~ relation) }}{% endmacro %}
"""


@pytest.fixture(scope="module")
def north(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("north")) as server:
        yield server


@pytest.fixture(scope="module")
def south(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("south")) as server:
        yield server


class Project:
    """The profile has the catalog `north`; catalogs.yml adds `south`."""

    @pytest.fixture(scope="class")
    def settings(self) -> dict[str, Any]:
        return {}

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self,
        unique_schema: str,
        dbt_profile_target: dict[str, Any],
        north: RestCatalog,
        settings: dict[str, Any],
    ) -> dict[str, Any]:
        other = {"catalog_properties": {"uri": north.uri}, "token": north.token("nora")}
        target = {**dbt_profile_target, "schema": unique_schema, "catalogs": {"north": other}}
        return {"test": {"outputs": {"default": {**target, **settings}}, "target": "default"}}

    @pytest.fixture(scope="class")
    def catalogs_text(self, south: RestCatalog) -> dict[str, Any]:
        properties = {"catalog_properties": {"uri": south.uri}, "token": SOUTH_TOKEN_TEXT}
        integration = {
            "name": "south_rest",
            "catalog_type": "iceberg_rest",
            "table_format": "iceberg",
            "adapter_properties": properties,
        }
        return {"name": "south", "write_integrations": [integration]}

    @pytest.fixture(scope="class", autouse=True)
    def catalogs_yml(
        self, project_root: Any, south: RestCatalog, catalogs_text: dict[str, Any]
    ) -> Iterator[None]:
        text = yaml.safe_dump({"catalogs": [catalogs_text]})
        Path(project_root, "catalogs.yml").write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SOUTH_TOKEN, south.token("sam"))
            yield

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"cities.csv": "id,name\n1,Oslo\n2,Rome\n"}


class TestCatalogs(Project):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "stores.sql": STORES,
            "sales.sql": SALES,
            "report.sql": REPORT,
            "twin_here.sql": TWIN % ("lake", "here"),
            "twin_there.sql": TWIN % ("north", "there"),
            "both.sql": BOTH,
            "followed.sql": FOLLOWED,
            "seen.sql": "{{ config(materialized='view', database='north') }}"
            "select * from {{ ref('report') }}",
            "counted.py": PYTHON,
            "properties.yml": PROPERTIES,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": HISTORY}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"on_write.sql": ON_WRITE}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any, catalogs_yml: None) -> str:
        _, output = run_dbt_and_capture(["build"])
        return str(output)

    def test_rows(self, project: Any) -> None:
        assert rows(project, "select * from {schema}.report order by 1") == [
            ("Oslo", 4),
            ("Rome", 4),
        ]
        assert rows(project, "select * from {schema}.both") == [("here", "there")]
        followed = "select name from south.{schema}.followed order by 1"
        assert rows(project, followed) == [("Oslo",), ("Rome",)]
        assert rows(project, "select count(*) from north.{schema}.history") == [(2,)]
        assert rows(project, "select * from south.{schema}.counted") == [(4, 2)]
        run_dbt(["run", "--select", "seen"])
        assert rows(project, "select name from north.{schema}.seen order by 1") == [
            ("Oslo",),
            ("Rome",),
        ]

    def test_each_table_is_in_its_catalog_only(self, project: Any) -> None:
        adapter, schema = project.adapter, project.test_schema
        assert {
            name: sorted(adapter.catalogs.get(name).relations(schema))
            for name in adapter.catalogs.names
        } == {
            "lake": [("both", "table"), ("cities", "table"), ("report", "view"), ("twin", "table")],
            "north": [
                ("history", "table"),
                ("seen", "view"),
                ("stores", "table"),
                ("twin", "table"),
            ],
            "south": [("counted", "table"), ("followed", "table"), ("sales", "table")],
        }

    def test_the_summary_names_the_catalogs(self, project: Any, built: str) -> None:
        schema = project.test_schema
        assert f"north.{schema}.stores" in built
        assert f"south.{schema}.sales" in built

    def test_the_hook_gets_the_relation_with_its_catalog(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["--debug", "run", "--select", "twin_there", "twin_here"])
        for catalog in ("lake", "north"):
            assert f"WROTE `{catalog}`.`{project.test_schema}`.`twin`" in output

    def test_increments_merge_again(self, project: Any) -> None:
        run(project, "insert into north.{schema}.stores values (3, 'Lima')")
        run_dbt(["run", "--select", "sales", "followed"])
        query = "select count(*) from south.{schema}.%s"
        assert [rows(project, query % name) for name in ("sales", "followed")] == [[(3,)], [(3,)]]
        run_dbt(["build", "--full-refresh", "--select", "stores", "sales", "followed"])
        assert rows(project, query % "sales") == [(2,)]

    def test_snapshots_name_the_user_of_their_catalog(self, project: Any) -> None:
        catalogs, schema = project.adapter.catalogs, project.test_schema
        for catalog, table, principal in (
            ("north", "stores", "nora"),
            ("south", "sales", "sam"),
            ("south", "followed", "sam"),
        ):
            snapshot = next(catalogs.get(catalog).snapshots((schema, table)))
            assert snapshot.properties["iceberg-stream.principal"] == principal
        own = next(catalogs.own.snapshots((schema, "both")))
        principal = own.properties.get("iceberg-stream.principal") or ""
        assert principal == project.adapter.connections.principal_of(catalogs.own.name)

    def test_docs_and_freshness(self, project: Any) -> None:
        run_dbt(["docs", "generate"])
        nodes = get_artifact("target", "catalog.json")["nodes"]
        databases = {
            key.split(".")[-1]: node["metadata"]["database"] for key, node in nodes.items()
        }
        assert databases["stores"] == databases["history"] == databases["twin_there"] == "north"
        assert (databases["sales"], databases["report"]) == ("south", "lake")
        (freshness,) = run_dbt(["source", "freshness"])
        assert freshness.status == "pass"

    def test_information_schema_of_each_catalog(self, project: Any) -> None:
        query = "select table_name from {}.information_schema.tables order by 1"
        names = [("counted",), ("followed",), ("sales",)]
        assert rows(project, query.format("south")) == names
        # The profile's own catalog also has the tables of other tests.
        query = """select a.table_name from information_schema.tables as a
            join north.information_schema.tables as b using (table_schema, table_name)"""
        assert rows(project, query) == [("twin",)]

    def test_versions(self, project: Any) -> None:
        show = ["show", "--output", "json", "--inline"]
        run(project, "alter table north.{schema}.stores create tag audited")
        run(project, "insert into north.{schema}.stores values (3, 'Lima')")
        query = "select count(*) as n from {{ ref('stores').at(tag='audited') }}"
        assert json.loads(run_dbt_and_capture([*show, query, "-q"])[1])["show"] == [{"n": 2}]

    def test_a_token_never_reaches_another_catalog(
        self, north: RestCatalog, south: RestCatalog
    ) -> None:
        for server, principal in ((north, "nora"), (south, "sam")):
            requests = server.requests()
            assert {who for who, *_ in requests} == {principal}
            assert 401 not in {status for *_, status in requests}
        # The log would show it.
        stranger = Request(f"{north.uri}/v1/config")
        stranger.add_header("Authorization", f"Bearer {south.token('sam')}")
        with pytest.raises(HTTPError, match="401"):
            urlopen(stranger)
        assert north.requests()[-1][3] == 401

    def test_a_catalog_that_does_not_exist(self, project: Any) -> None:
        path = Path(project.project_root, "models", "lost.sql")
        path.write_text("{{ config(database='west') }} select 1 as id")
        try:
            _, output = run_dbt_and_capture(["run", "--select", "lost"], expect_pass=False)
        finally:
            path.unlink()
        assert "The profile has no catalog `west`. It has lake, north, south." in output


class TestSkipUnchanged(Project):
    @pytest.fixture(scope="class")
    def settings(self) -> dict[str, Any]:
        return {"skip_unchanged": True, "result_cache": "memory"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "stores.sql": STORES,
            "sales.sql": SALES.replace("incremental", "table"),
            "report.sql": "{{ config(materialized='table') }}" + REPORT.split("\n", 2)[2],
            "twin_here.sql": TWIN % ("lake", "here"),
            "twin_there.sql": TWIN % ("north", "there"),
            "both.sql": BOTH,
        }

    def run(self) -> set[str]:
        results = run_dbt(["build"])
        return {r.node.name for r in results if not r.message.startswith("unchanged")}

    def test_what_changes_in_any_catalog_is_built(self, project: Any) -> None:
        self.run()
        assert self.run() == set()
        run(project, "insert into south.{schema}.sales values (1, 9)")
        # A foreign write to a model's table builds it, and what reads it.
        assert self.run() == {"sales", "report"}
        run(project, "insert into north.{schema}.twin values ('elsewhere')")
        assert self.run() == {"twin_there", "both"}
        assert self.run() == set()

    def test_another_user_of_another_catalog(
        self, project: Any, south: RestCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.run()
        assert self.run() == set()
        monkeypatch.setenv(SOUTH_TOKEN, south.token("sue"))
        assert "sales" in self.run()

    def test_cached_rows_follow_writes_to_any_catalog(self, project: Any) -> None:
        query = "select count(*) from {{schema}}.twin, {0}.{{schema}}.twin as other"
        before = [rows(project, query.format(name)) for name in ("lake", "north")]
        assert before == [[(1,)], [(1,)]]
        run(project, "insert into north.{schema}.twin values ('more')")
        after = [rows(project, query.format(name)) for name in ("lake", "north")]
        assert after == [[(1,)], [(2,)]]


@pytest.mark.skipif(
    get_installed_version().compare(VersionSpecifier.from_version_string("1.12.0")) < 0,
    reason="dbt has this form of catalogs.yml since 1.12",
)
class TestSecondForm(Project):
    """The form of catalogs.yml that dbt 1.12 reads with the flag `use_catalogs_v2`."""

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"flags": {"use_catalogs_v2": True}}

    @pytest.fixture(scope="class")
    def catalogs_text(self, south: RestCatalog) -> dict[str, Any]:
        config = {"catalog_properties": {"uri": south.uri}, "token": SOUTH_TOKEN_TEXT}
        return {
            "name": "south",
            "type": "iceberg_rest",
            "table_format": "iceberg",
            "config": {"iceberg_stream": config},
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"stores.sql": STORES, "sales.sql": SALES}

    def test_models(self, project: Any) -> None:
        run_dbt(["build"])
        assert rows(project, "select count(*) from south.{schema}.sales") == [(2,)]


class TestWhatIsNotIceberg(Project):
    """Sources may be what Spark can read; nothing is written there."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "joined.sql": "{{ config(materialized='table') }} select name, p.v from {{ source('legacy', 'prices') }} as p "
            "join {{ ref('cities') }} using (id)"
            # Spark asks the profile's own catalog for the name first, and a server refuses it.
            "{% if target.method == 'embedded' %} join parquet.`{{ var('path') }}` using (id)"
            "{% endif %}",
            "refused.sql": "{{ config(materialized='table', database='spark_catalog') }} select 1",
            "sources.yml": """
sources:
  - name: legacy
    database: spark_catalog
    schema: default
    tables: [{name: prices, columns: [{name: id, data_tests: [unique]}]}]
""",
        }

    def test_sources(self, project: Any, tmp_path: Path) -> None:
        path = str(tmp_path / "prices")
        run(project, "drop table if exists spark_catalog.default.prices")
        run(
            project,
            f"create table spark_catalog.default.prices using parquet location '{path}' "
            "as select 1 as id, 9.5D as v",
        )
        run_dbt(["build", "--exclude", "refused", "--vars", json.dumps({"path": path})])
        assert rows(project, "select name from {schema}.joined") == [("Oslo",)]
        run_dbt(["docs", "generate", "--vars", json.dumps({"path": path})])
        _, output = run_dbt_and_capture(["run", "--select", "refused"], expect_pass=False)
        assert "`spark_catalog` is Spark's own catalog, which the adapter only reads" in output


class TestOneCommit(Project):
    """What is committed together must be in one catalog; what follows a commit follows it there."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        grouped = STORES.replace("'table'", "'table', tag_on_success='built'")
        stream = "commit_group='both', unique_key='id', database"
        return {
            "stores.sql": grouped,
            "first.sql": FOLLOWED.replace("unique_key='id', database", stream),
            "second.sql": FOLLOWED.replace("unique_key='id', database='south'", stream + "='lake'"),
            "kept.sql": "{{ config(materialized='table', database='south',"
            " maintenance={'steps': ['compute_statistics']}) }} select 1 as id",
        }

    def test_a_group_in_two_catalogs(self, project: Any) -> None:
        run_dbt(["build", "--exclude", "first", "second"])
        _, output = run_dbt_and_capture(["run", "--select", "first", "second"], expect_pass=False)
        assert "are in the catalogs lake, south" in output
        assert "Give the models of each catalog a group of their own" in output
        kept = project.adapter.catalogs.get("south").metadata((project.test_schema, "kept"))
        assert kept["statistics"]
        refs = "select count(*) from north.{schema}.stores version as of 'built'"
        assert rows(project, refs) == [(2,)]


class TestAtomicRuns(Project):
    @pytest.fixture(scope="class")
    def settings(self) -> dict[str, Any]:
        return {"publish": "atomic"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "twin_here.sql": TWIN % ("lake", "here"),
            "twin_there.sql": TWIN % ("north", "there"),
            "both.sql": BOTH,
        }

    def test_another_catalog_is_written_immediately_or_not_at_all(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["run"], expect_pass=False)
        assert "publishes tables of the catalog `lake` in one commit" in output
        assert project.adapter.catalogs.get("north").relations(project.test_schema) == []
        path = Path(project.project_root, "models", "twin_there.sql")
        text = TWIN.replace("alias", "publish='immediately', alias")
        path.write_text(text % ("north", "there"))
        run_dbt(["run"])
        assert rows(project, "select * from {schema}.both") == [("here", "there")]
