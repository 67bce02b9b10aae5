"""`publish: atomic`: a run's models are published in one commit, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

from dbt.adapters.iceberg_stream.builds.build import list_builds
from tests.functional.lake import rows, run, snapshot_ids, table

ORDERS = """
{{ config(materialized='incremental', unique_key='id') }}
select id, {{ var('version', 1) }} as version from range({{ var('rows', 3) }})
"""
TOTALS = "{{ config(materialized='table') }} select count(*) as orders from {{ ref('orders') }}"
LARGE = """
{{ config(materialized='view') }}
select id, version from {{ ref('orders') }} where id > {{ var('least', 0) }}
"""
TESTS = """
models:
  - name: orders
    columns: [{name: id, data_tests: [unique, not_null]}]
  - name: totals
    columns:
      - name: orders
        data_tests:
          - accepted_values: {arguments: {values: "{{ var('accepted', [3, 4, 5]) }}", quote: false}}
"""
PUBLISHED = "select * from {schema}.{name} order by 1"


def variables(**values: Any) -> list[str]:
    return ["--vars", json.dumps(values)]


class Builds:
    """A project whose profile publishes atomically."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, object]) -> dict[str, object]:
        return {**dbt_profile_target, "publish": "atomic"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "orders.sql": ORDERS,
            "totals.sql": TOTALS,
            "large.sql": LARGE,
            "tests.yml": TESTS,
        }

    @pytest.fixture(autouse=True)
    def no_builds_left(self, project: Any) -> Iterator[None]:
        yield
        assert [b.name for b in list_builds(project.adapter.catalog, [project.test_schema])] == []

    def published(self, project: Any, name: str) -> list[tuple[Any, ...]]:
        # A reader of its own, who knows nothing of the build.
        return rows(project, f"select * from {{schema}}.{name} order by 1")


class TestPublishAtomically(Builds):
    def test_new_and_changed_relations(self, project: Any) -> None:
        run_dbt(["build"])
        assert self.published(project, "orders") == [(0, 1), (1, 1), (2, 1)]
        assert self.published(project, "totals") == [(3,)]
        assert self.published(project, "large") == [(1, 1), (2, 1)]
        history = snapshot_ids(project, "orders")
        run_dbt(["build", *variables(version=2, rows=4, least=1)])
        assert self.published(project, "orders") == [(0, 2), (1, 2), (2, 2), (3, 2)]
        assert self.published(project, "totals") == [(4,)]
        assert self.published(project, "large") == [(2, 2), (3, 2)]
        assert snapshot_ids(project, "orders")[: len(history)] == history
        assert "gc.enabled" not in table(project, "orders").properties
