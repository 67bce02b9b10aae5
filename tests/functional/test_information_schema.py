"""`information_schema`: queries of the catalog's metadata."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.functional.lake import rows, run

PROPERTIES = """
models:
  - name: orders
    description: All orders.
    config: {contract: {enforced: true}, persist_docs: {relation: true, columns: true}}
    columns:
      - {name: id, data_type: bigint, description: The key., constraints: [{type: not_null}]}
      - {name: tags, data_type: "array<string>"}
"""
SELECT = "select {columns} from {{{{ target.database }}}}.information_schema.{view} where table_schema = '{{{{ target.schema }}}}' order by all"


class TestInformationSchema:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "orders.sql": "{{ config(materialized='table') }} "
            "select cast(1 as bigint) as id, array('a') as tags",
            "open_orders.sql": "select id from {{ ref('orders') }}",
            "overview.sql": "-- depends_on: {{ ref('open_orders') }}\n"
            "{{ config(materialized='table') }} "
            + SELECT.format(columns="table_name, table_type", view="tables"),
            "properties.yml": PROPERTIES,
        }

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> None:
        run_dbt(["build"])

    def select(self, project: Any, columns: str, view: str, where: str = "true") -> list[Any]:
        return rows(
            project,
            f"select {columns} from information_schema.{view} "
            f"where table_schema = '{{schema}}' and {where} order by all",
        )

    def test_a_model_reads_it(self, project: Any) -> None:
        """The model's own table did not exist when its query began."""
        assert rows(project, "select * from {schema}.overview order by all") == [
            ("open_orders", "VIEW"),
            ("orders", "BASE TABLE"),
        ]

    def test_tables(self, project: Any) -> None:
        run(project, "insert into {schema}.orders values (2, null), (3, null)")
        columns = "table_name, table_type, comment, record_count, file_count > 1"
        assert self.select(project, columns, "tables", "table_name <> 'overview'") == [
            ("open_orders", "VIEW", None, None, None),
            ("orders", "BASE TABLE", "All orders.", 3, True),
        ]
        run(project, "delete from {schema}.orders where id > 1")

    def test_names_of_the_catalog(self, project: Any) -> None:
        catalog = project.adapter.catalog.name
        query = f"select table_catalog from {catalog}.information_schema.tables limit 1"
        assert rows(project, query) == [(catalog,)]
        query = "select count(*) from information_schema.schemata where schema_name = '{schema}'"
        assert rows(project, query) == [(1,)]

    def test_columns(self, project: Any) -> None:
        columns = "ordinal_position, column_name, data_type, is_nullable, comment"
        assert self.select(project, columns, "columns", "table_name = 'orders'") == [
            (1, "id", "bigint", "NO", "The key."),
            (2, "tags", "array<string>", "YES", None),
        ]

    def test_views(self, project: Any) -> None:
        ((name, text),) = self.select(project, "table_name, view_definition", "views")
        assert name == "open_orders"
        assert text.split()[:3] == ["select", "id", "from"]

    def test_snapshots_and_files(self, project: Any) -> None:
        where = "table_name = 'overview'"
        ((operation, is_current, added),) = self.select(
            project, "operation, is_current, summary['added-records']", "snapshots", where
        )
        assert (operation, is_current, added) == ("overwrite", True, "2")
        assert self.select(project, "content, record_count", "files", where) == [(0, 2)]
        query = "select file_path from {schema}.overview.files"
        assert self.select(project, "file_path", "files", where) == rows(project, query)

    def test_joins(self, project: Any) -> None:
        query = """
            with big as (select table_name from information_schema.tables where record_count > 0)
            select c.column_name from information_schema.columns as c join big using (table_name)
            where c.table_schema = '{schema}' and table_name = 'orders' order by 1"""
        assert rows(project, query) == [("id",), ("tags",)]

    def test_names_that_are_not_like_a_pattern(self, project: Any) -> None:
        where = "table_name like '%rde%' and table_name not like 'x%' and table_name not ilike ''"
        names = [("open_orders",), ("orders",)]
        assert self.select(project, "table_name", "tables", where) == names

    def test_only_what_a_query_asks_for(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded: list[str] = []
        metadata = IcebergCatalog.metadata

        def record(self: IcebergCatalog, name: tuple[str, str]) -> Any:
            loaded.append(name[1])
            return metadata(self, name)

        monkeypatch.setattr(IcebergCatalog, "metadata", record)
        assert len(self.select(project, "table_name", "tables")) == 3
        assert loaded == []
        self.select(project, "column_name", "columns", "table_name = 'orders'")
        assert loaded == ["orders"]

    def test_a_table_that_is_dropped_is_gone(self, project: Any) -> None:
        run(project, "create table {schema}.temporary (id int)")
        where = "table_name = 'temporary'"
        assert self.select(project, "table_type", "tables", where) == [("BASE TABLE",)]
        run(project, "drop table {schema}.temporary")
        assert self.select(project, "table_type", "tables", where) == []

    def test_an_unknown_view(self, project: Any) -> None:
        with pytest.raises(Exception, match="has no view `routines`. It has columns, files, sche"):
            self.select(project, "*", "routines")


class TestViews:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"overview.sql": "select * from information_schema.tables"}

    def test_a_view_cannot_keep_it(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["run"], expect_pass=False)
        assert "The view reads `information_schema`" in output
        assert "Materialize the model as `table`." in output
