"""Sources with the property `external`: files and tables of other databases, read by Spark."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dbt.tests.util import run_dbt, write_file
from dbt_common.exceptions import CompilationError

from tests.file_contents import file_contents
from tests.functional.lake import rows

SOURCES = """
sources:
  - name: landing
    tables:
      - name: orders
        external:
          location: data/orders
          file_format: csv
          options: {header: true, sep: ';', nullValue: '-'}
        columns:
          - {name: id, data_type: int, data_tests: [unique]}
          - {name: at, data_type: timestamp}
          - {name: note, data_type: string}
        config:
          loaded_at_field: at
          freshness: {error_after: {count: 1, period: day}}
      - name: prices
        external: {location: data/prices.parquet, using: parquet}
      - name: people
        external:
          file_format: jdbc
          options:
            url: "jdbc:sqlite:{{ env_var('SHOP_DATABASE') }}"
            dbtable: people
            password: {env_var: SHOP_SECRET}
"""
MODELS = {
    "sources.yml": SOURCES,
    "orders.sql": "{{ config(materialized='table') }} select * from {{ source('landing', 'orders') }}",
    "prices.sql": "{{ config(materialized='incremental', unique_key='id') }} select * from {{ source('landing', 'prices') }}",
    "people.sql": "{{ config(materialized='table') }} select * from {{ source('landing', 'people') }} order by id",
}


class TestExternalSources:
    @pytest.fixture(scope="class")
    def database(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("shop") / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("create table people (id integer, name text)")
            connection.execute("insert into people values (1, 'Ada'), (2, 'O''Brien')")
        return path

    @pytest.fixture(scope="class", autouse=True)
    def variables(self, database: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHOP_DATABASE", str(database))
            patch.setenv("SHOP_SECRET", "open sesame")
            yield

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def files(self, project: Any) -> Path:
        data = Path(project.project_root) / "data"
        (data / "orders").mkdir(parents=True)
        (data / "orders" / "1.csv").write_text("id;at;note\n1;2026-01-01 10:00:00;a,b\n2;-;-\n")
        pq.write_table(pa.table({"id": [1, 2], "price": [1.5, 2.5]}), data / "prices.parquet")
        return data

    def test_models_and_tests_read_them(self, project: Any, files: Path) -> None:
        results = run_dbt(["build"])
        assert len(results) == 4
        orders = rows(
            project, "select id, cast(at as string), note from {schema}.orders order by id"
        )
        assert orders == [(1, "2026-01-01 10:00:00", "a,b"), (2, None, None)]
        assert rows(project, "select * from {schema}.people") == [(1, "Ada"), (2, "O'Brien")]
        assert rows(project, "select sum(price) from {schema}.prices") == [(4.0,)]

    def test_new_files_are_read(self, project: Any, files: Path) -> None:
        """Also in a session that has read the folder before, and with skip_unchanged."""
        (files / "orders" / "2.csv").write_text("id;at;note\n1;2026-01-02 10:00:00;again\n")
        pq.write_table(pa.table({"id": [2, 3], "price": [9.0, 1.0]}), files / "prices.parquet")
        skip = ["--vars", "iceberg_stream_skip_unchanged: true"]
        run_dbt(["run", *skip])
        assert rows(project, "select count(*) from {schema}.orders") == [(3,)]
        prices = rows(project, "select * from {schema}.prices order by id")
        assert prices == [(1, 1.5), (2, 9.0), (3, 1.0)]
        (result,) = run_dbt(["test", *skip], expect_pass=False)
        assert result.failures == 1

    def test_freshness_docs_and_show(self, project: Any, files: Path) -> None:
        freshness = run_dbt(["source", "freshness"], expect_pass=False)
        assert [str(result.status) for result in freshness] == ["error"]
        assert freshness[0].max_loaded_at.isoformat().startswith("2026-01-0")
        run_dbt(["docs", "generate"])
        inline = "select max(id) as id from {{ source('landing', 'orders') }}"
        (shown,) = run_dbt(["show", "--inline", inline])
        assert [tuple(row) for row in shown.agate_table.rows] == [(2,)]

    def test_the_secret_is_in_no_artifact_and_log(self, project: Any, files: Path) -> None:
        files_of_project = file_contents(Path(project.project_root))
        assert not [file for file, content in files_of_project if b"open sesame" in content]

    def test_a_view_is_refused(self, project: Any, files: Path) -> None:
        view = "{{ config(materialized='view') }} select * from {{ source('landing', 'orders') }}"
        write_file(view, project.project_root, "models", "over.sql")
        (result,) = run_dbt(["run", "-s", "over"], expect_pass=False)
        assert "The view reads source.test.landing.orders, which is no table" in result.message

    @pytest.mark.parametrize(
        ("external", "messages"),
        [
            (
                {"location": "s3://a", "file_format": "excel", "options": {"password": "x", "sep": {"env": "Y"}}},
                ["`file_format` must be one of avro, csv", "`password` holds a secret", "`sep` must be a text"],
            ),
            ({"file_format": "csv"}, ["`location` is missing"]),
            ({"location": "a", "using": "json", "options": "x"}, ["`options` must be a mapping; got 'x'"]),
        ],
    )  # fmt: skip
    def test_all_errors_are_listed(
        self, project: Any, external: dict[str, Any], messages: list[str]
    ) -> None:
        tables = [{"name": "a", "external": external}]
        wrong = {"version": 2, "sources": [{"name": "wrong", "tables": tables}]}
        write_file(json.dumps(wrong), project.project_root, "models", "wrong.yml")
        with pytest.raises(CompilationError) as raised:
            run_dbt(["parse"])
        assert "`external` of source.test.wrong.a has errors:" in str(raised.value)
        for message in messages:
            assert message in str(raised.value)
