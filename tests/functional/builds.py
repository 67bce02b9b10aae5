"""What the tests of builds share: a project, its readers, and its builds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from dbt.tests.util import get_connection

from dbt.adapters.iceberg_stream.builds.build import list_builds
from dbt.adapters.iceberg_stream.cli import main
from tests.functional.lake import rows

ORDERS = """
{{ config(materialized='incremental', unique_key='id') }}
select id, {{ var('version', 1) }} as version from range({{ var('rows', 3) }})
"""
TOTALS = "{{ config(materialized='table') }} select count(*) as orders from {{ ref('orders') }}"
LARGE = """
{{ config(materialized='view') }}
select id, version from {{ ref('orders') }} where id > {{ var('least', 0) }}
"""
FEW_ORDERS = "select * from {{ ref('totals') }} where orders > {{ var('most', 9) }}"
TESTS = """
models:
  - name: orders
    columns: [{name: id, data_tests: [unique, not_null]}]
"""


def variables(**values: Any) -> list[str]:
    """Arguments that set variables."""
    return ["--vars", json.dumps(values)]


def published(project: Any, name: str) -> list[tuple[Any, ...]]:
    """Rows that readers see who know nothing of a build, in order."""
    return rows(project, f"select * from {{schema}}.{name} order by all")


def run_as_another(project: Any, sql: str) -> None:
    """Run a statement that the build knows nothing of; `{schema}` is the test's namespace."""
    with get_connection(project.adapter):
        project.adapter.connections.execute(sql.format(schema=project.test_schema))


def relations(project: Any) -> list[str]:
    """Names of all relations of the project's schema, staged ones included."""
    return sorted(name for name, _ in project.adapter.catalog.relations(project.test_schema))


def build_names(project: Any) -> list[str]:
    """Names of the builds that are not published."""
    catalog = project.adapter.catalog
    return [build.name for build in list_builds(catalog, [project.test_schema])]


def command(project: Any, *arguments: str) -> Result:
    """Run a command of `iceberg-stream` on the project."""
    folders = ["--project-dir", str(project.project_root)]
    folders += ["--profiles-dir", str(project.profiles_dir)]
    result: Result = CliRunner().invoke(main, [*arguments, *folders])
    return result


class AtomicProject:
    """A project whose profile publishes atomically; no test leaves a build."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, object]) -> dict[str, object]:
        return {**dbt_profile_target, "publish": "atomic"}

    @pytest.fixture(autouse=True)
    def no_builds_left(self, project: Any) -> Iterator[None]:
        yield
        # The build of the last command is published or discarded, and its process has ended.
        project.adapter.build = None
        project.adapter.Relation = type(project.adapter).Relation
        assert build_names(project) == []
        assert not [name for name in relations(project) if "__dbt_" in name]


class Shop(AtomicProject):
    """An incremental table, a table and a view, with tests."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "orders.sql": ORDERS,
            "totals.sql": TOTALS,
            "large.sql": LARGE,
            "tests.yml": TESTS,
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"few_orders.sql": FEW_ORDERS}
