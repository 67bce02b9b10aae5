"""A second REST catalog: Nessie, on S3, with storage keys that only the catalog gives out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.engines.embedded import stop
from tests.functional.lake import rows, table
from tests.functional.test_principals import INCREMENTAL, SNAPSHOT, TABLE, VIEW, contents
from tests.servers.nessie import WAREHOUSES, Nessie, nessie
from tests.servers.s3 import S3, s3_server

PEOPLE = "id,name\n1,Ada\n2,Grace\n"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3"), *WAREHOUSES) as server:
        yield server


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Nessie]:
    with nessie(tmp_path_factory.mktemp("nessie"), s3) as server:
        yield server


@pytest.fixture(scope="module")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of an engine that knows S3; no keys lie about where it or the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        home = tmp_path_factory.mktemp("engine")
        yield home
        stop(home)


@pytest.fixture(scope="class")
def target(unique_schema: str, engine_home: Path, catalog: Nessie) -> dict[str, Any]:
    return {
        "type": "iceberg_stream",
        "threads": 4,
        "schema": unique_schema,
        "engine_home": str(engine_home),
        "packages": ["org.apache.iceberg:iceberg-aws-bundle:1.12.0"],
        "keep_alive": 120,
        "progress": False,
        "token": catalog.token("wanda"),
    }


def properties(catalog: Nessie, warehouse: str) -> dict[str, str]:
    return {"type": "rest", "uri": catalog.uri, "warehouse": warehouse}


class TestWriterAndReader:
    @pytest.fixture(scope="class")
    def dbt_profile_data(self, target: dict[str, Any], catalog: Nessie) -> dict[str, Any]:
        writer = target | {"catalog_properties": properties(catalog, "lake")}
        reader = writer | {"token": catalog.token("rita", "reader")}
        return {"test": {"outputs": {"writer": writer, "reader": reader}, "target": "writer"}}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"people.csv": PEOPLE}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "a_table.sql": "{{ config(materialized='table') }}" + TABLE,
            "a_view.sql": VIEW,
            "merged.sql": INCREMENTAL,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> Iterator[None]:
        run_dbt(["build"])
        yield
        # The last command's user drops the schema.
        run_dbt(["compile", "--target", "writer"])

    def test_everything_is_built(self, project: Any) -> None:
        for relation in ("people", "a_table", "a_view", "merged", "history"):
            names = rows(project, f"select name from {{schema}}.{relation} order by id")
            assert names == [("Ada",), ("Grace",)], relation
        assert table(project, "merged").location().startswith("s3://lake/")

    def test_pyiceberg_reads_with_the_catalogs_keys(self, project: Any) -> None:
        assert table(project, "a_table").scan().to_arrow().num_rows == 2

    def test_a_second_run(self, project: Any) -> None:
        changed = ["--vars", "{suffix: '!'}"]
        run_dbt(["run", *changed])
        run_dbt(["snapshot", *changed])
        merged = "select name from {schema}.merged order by id"
        assert rows(project, merged) == [("Ada!",), ("Grace!",)]
        history = "select name, dbt_valid_to is null from {schema}.history where id = 1 order by 2"
        assert rows(project, history) == [("Ada", False), ("Ada!", True)]
        run_dbt(["run", "--select", "merged", "--full-refresh"])
        assert rows(project, merged) == [("Ada",), ("Grace",)]

    def test_docs(self, project: Any) -> None:
        nodes = run_dbt(["docs", "generate"]).nodes
        assert {node.split(".")[-1] for node in nodes} == {
            *("people", "a_table", "a_view", "merged", "history")
        }
        assert nodes["model.test.merged"].stats["num_rows"].value == 2

    def test_the_reader_reads(self, project: Any) -> None:
        show = ["show", "--inline", "select * from {{ ref('a_view') }} order by id"]
        results = run_dbt([*show, "--target", "reader"])
        assert [row[1] for row in results.results[0].agate_table.rows] == ["Ada", "Grace"]

    @pytest.mark.parametrize(
        ("command", "relation"),
        [
            (["run", "--select", "a_table"], "a_table"),
            (["run", "--select", "a_view"], "a_view"),
            (["run", "--select", "merged", "--vars", "{suffix: '?'}"], "merged"),
            (["run", "--select", "merged", "--full-refresh"], "merged"),
            (["seed"], "people"),
            (["snapshot", "--vars", "{suffix: '?'}"], "history"),
        ],
        ids=lambda value: "-".join(value[:3]) if isinstance(value, list) else value,
    )
    def test_the_reader_writes_nothing(
        self, project: Any, command: list[str], relation: str
    ) -> None:
        before = contents(project)
        _, output = run_dbt_and_capture([*command, "--target", "reader"], expect_pass=False)
        print(output)
        assert contents(project) == before
