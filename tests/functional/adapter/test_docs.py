from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from dbt.tests.adapter.basic import expected_catalog
from dbt.tests.adapter.basic.test_docs_generate import BaseDocsGenerate, BaseDocsGenReferences
from dbt.tests.adapter.basic.test_get_catalog_for_single_relation import (
    BaseGetCatalogForSingleRelation,
)
from dbt.tests.adapter.catalog import files
from dbt.tests.adapter.catalog.relation_types import CatalogRelationTypes
from dbt.tests.util import AnyInteger
from dbt_common.contracts.metadata import CatalogTable, ColumnMetadata, TableMetadata

pytestmark = pytest.mark.manifest

TYPES = {
    "role": None,
    "id_type": "bigint",
    "text_type": "string",
    "time_type": "timestamp",
    "view_type": "view",
    "table_type": "table",
}
COLUMNS = {
    "id": "bigint",
    "first_name": "string",
    "email": "string",
    "ip_address": "string",
    "updated_at": "timestamp",
}


class TableStatistics:
    """Equals the statistics of a table with one row; the other values change with each build."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        expected = {"location", "format_version", "num_rows", "bytes", "num_files", "snapshot_id"}
        rows = other["num_rows"]
        return (
            expected <= set(other)
            and (rows["value"] if isinstance(rows, dict) else rows.value) == 1
        )


# Spark's types, our words for table and view, and the statistics of Iceberg's tables.
class TestDocsGenerate(BaseDocsGenerate):
    @pytest.fixture(scope="class")
    def expected_catalog(self, project):
        return expected_catalog.base_expected_catalog(
            project,
            **TYPES,
            model_stats=expected_catalog.no_stats(),
            seed_stats=TableStatistics(),
        )


# Spark's types, our words for table and view, and the statistics of Iceberg's tables.
class TestDocsGenReferences(BaseDocsGenReferences):
    @pytest.fixture(scope="class")
    def expected_catalog(self, project):
        catalog = expected_catalog.expected_references_catalog(
            project,
            **TYPES,
            bigint_type="bigint",
            model_stats=TableStatistics(),
            view_summary_stats=expected_catalog.no_stats(),
        )
        for node in [*catalog["nodes"].values(), *catalog["sources"].values()]:
            for column in node["columns"].values():
                column["index"] = AnyInteger()
        return catalog


# The suite asks each adapter for its own words, types and statistics.
class TestGetCatalogForSingleRelation(BaseGetCatalogForSingleRelation):
    @pytest.fixture(scope="class")
    def expected_catalog_my_seed(self, project):
        return self.catalog_table(project, "my_seed", "table", TableStatistics())

    @pytest.fixture(scope="class")
    def expected_catalog_my_view_model(self, project):
        return self.catalog_table(project, "my_view_model", "view", {})

    @staticmethod
    def catalog_table(project: Any, name: str, kind: str, statistics: Any) -> CatalogTable:
        return CatalogTable(
            metadata=TableMetadata(
                type=kind, schema=project.test_schema, name=name, database=project.database
            ),
            columns={
                column: ColumnMetadata(type=spark_type, index=AnyInteger(), name=column)
                for column, spark_type in COLUMNS.items()
            },
            stats=statistics,
        )


# No materialized views; our words for table and view.
class TestCatalogRelationTypes(CatalogRelationTypes):
    @pytest.fixture(scope="class", autouse=True)
    def models(self):
        return {"my_table.sql": files.MY_TABLE, "my_view.sql": files.MY_VIEW}

    @pytest.mark.parametrize(
        "node_name,relation_type",
        [
            ("seed.test.my_seed", "table"),
            ("model.test.my_table", "table"),
            ("model.test.my_view", "view"),
        ],
    )
    def test_relation_types_populate_correctly(self, docs, node_name, relation_type):
        super().test_relation_types_populate_correctly(docs, node_name, relation_type)
