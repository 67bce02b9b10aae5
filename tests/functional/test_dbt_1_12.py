"""What dbt 1.12 adds, and what the adapter makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file
from dbt.version import get_installed_version
from dbt_common.semver import VersionSpecifier

from tests.functional.lake import rows

pytestmark = pytest.mark.skipif(
    get_installed_version().compare(VersionSpecifier.from_version_string("1.12.0")) < 0,
    reason="dbt has `latest_version_pointer` since 1.12",
)

ITEMS = """
{{ config(materialized='incremental', unique_key='id', partition_by=['id'], read_at=none) }}
select 1 as id, 'v1' as x
"""
VERSIONS = """
models:
  - name: items
    latest_version: 2
    config: {latest_version_pointer: {enabled: true}}
    versions: [{v: 1}, {v: 2}]
"""


class TestLatestVersionPointer:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "items_v1.sql": ITEMS,
            "items_v2.sql": ITEMS.replace("v1", "v2"),
            "versions.yml": VERSIONS,
        }

    @pytest.mark.parametrize("publish", ["immediately", "atomic"])
    @pytest.mark.parametrize("skip", ["false", "true"])
    def test_it_is_a_view_of_the_latest_version(
        self, project: Any, publish: str, skip: str
    ) -> None:
        variables = f"{{iceberg_stream_publish: {publish}, iceberg_stream_skip_unchanged: {skip}}}"
        for text in ("v2", "changed", "changed", "v2"):
            write_file(ITEMS.replace("v1", text), project.project_root, "models", "items_v2.sql")
            run_dbt(["run", "--vars", variables])
            assert rows(project, "select * from {schema}.items") == [(1, text)]
        assert dict(project.adapter.catalog.relations(project.test_schema)) == {
            "items": "view",
            "items_v1": "table",
            "items_v2": "table",
        }

    def test_it_reads_no_earlier_version(self, project: Any) -> None:
        run_dbt(["run"])
        model = ITEMS.replace("v1", "later").replace("none", "'2026-01-01'")
        write_file(model, project.project_root, "models", "items_v2.sql")
        run_dbt(["run"])
        assert rows(project, "select x from {schema}.items") == [("later",)]
