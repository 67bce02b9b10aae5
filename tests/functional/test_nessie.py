"""A second REST catalog: Nessie, on S3, with storage keys that only the catalog gives out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import get_connection, run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.engines.embedded import stop
from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.sink.progress import read_property
from tests.functional.lake import rows, run, summary, table
from tests.functional.principals import DROP, INCREMENTAL, SNAPSHOT, TABLE, VIEW, contents
from tests.functional.shop_streams import ALL_ITEMS, ALL_ORDERS, MODELS, WRITE_ID, item, land
from tests.functional.test_stream_groups import order
from tests.integration.mart_readers import read_while_publishing
from tests.integration.streams import SINK, Change, make_table, open_sink, write
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
    endpoints = ("view-endpoints-supported", "transaction-endpoint-supported")
    return {"uri": catalog.uri, "warehouse": warehouse, **dict.fromkeys(endpoints, "true")}


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

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"drop.sql": DROP}

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
        run_dbt(["build", "--select", "merged", "history", *changed])
        merged = "select name from {schema}.merged order by id"
        assert rows(project, merged) == [("Ada!",), ("Grace!",)]
        history = "select name, dbt_valid_to is null from {schema}.history where id = 1 order by 2"
        assert rows(project, history) == [("Ada", False), ("Ada!", True)]
        run_dbt(["run", "--select", "merged", "--full-refresh"])
        assert rows(project, merged) == [("Ada",), ("Grace",)]

    def test_builds(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tables and views are published at once, new ones and those that change."""
        monkeypatch.setenv("ICEBERG_STREAM_PUBLISH", "atomic")
        read = "select name from {schema}.merged order by id"
        changed = ["--vars", "{suffix: '#'}"]
        merged = ["build", "--select", "merged", "a_view", "history", *changed]
        run_dbt(merged)
        assert rows(project, read) == [("Ada#",), ("Grace#",)]
        run_dbt(["run", "--full-refresh", "--select", "merged", "a_table"])
        assert rows(project, read) == [("Ada",), ("Grace",)]
        run(project, "drop table {schema}.merged")
        run_dbt(["build", "--select", "merged", *changed])
        assert rows(project, read) == [("Ada#",), ("Grace#",)]
        assert not [
            n for n, _ in project.adapter.catalog.relations(project.test_schema) if "__" in n
        ]

    @pytest.mark.slow
    def test_readers_find_whole_builds(self, project: Any) -> None:
        lake = project.adapter.catalog
        lake.create_namespace("s")
        problems, _ = read_while_publishing(lake)
        assert problems == []

    def test_docs(self, project: Any) -> None:
        nodes = run_dbt(["docs", "generate"]).nodes
        assert {node.split(".")[-1] for node in nodes} == {
            *("people", "a_table", "a_view", "merged", "history")
        }
        assert nodes["model.test.merged"].stats["num_rows"].value == 2

    def test_a_schema_is_dropped_with_its_views(self, project: Any) -> None:
        schema = f"{project.test_schema}_more"
        relation = project.adapter.Relation.create(database="lake", schema=schema)
        run(project, f"create namespace {schema}")
        run(project, f"create view {schema}.v as select 1 as id")
        run(project, f"create table {schema}.t as select 1 as id")
        with get_connection(project.adapter):
            project.adapter.drop_schema(relation)
        assert schema not in project.adapter.catalog.namespaces()

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
            (["seed"], "people"),
        ],
        ids=["table", "view", "merge", "seed"],
    )
    def test_the_reader_writes_nothing(
        self, project: Any, command: list[str], relation: str
    ) -> None:
        before = contents(project)
        _, output = run_dbt_and_capture([*command, "--target", "reader"], expect_pass=False)
        assert "rita" in output
        assert f"{project.test_schema}.{relation}" in output
        assert "administrator for the privilege" in " ".join(output.split())
        assert "Cannot determine" not in output
        assert contents(project) == before

    def test_the_reader_drops_nothing(self, project: Any) -> None:
        before = contents(project)
        drop = ["run-operation", "drop_people", "--target", "reader"]
        _, output = run_dbt_and_capture(drop, expect_pass=False)
        assert "refused to drop" in output
        assert "rita" in output
        assert contents(project) == before


@pytest.mark.slow
class TestStreams:
    """Two tables of one stream, on a catalog that tells of the newest snapshot only, and on S3."""

    @pytest.fixture(scope="class")
    def dbt_profile_data(self, target: dict[str, Any], catalog: Nessie) -> dict[str, Any]:
        # It is able to, and does not say so.
        options = properties(catalog, "lake") | {"transaction-endpoint-supported": "true"}
        writer = target | {"catalog_properties": options}
        return {"test": {"outputs": {"writer": writer}, "target": "writer"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    def test_they_are_committed_together(self, project: Any) -> None:
        land(project, "1", order(1, "new"), order(2, "new"), item(10, 1))
        run_dbt(["run"])
        land(project, "2", order(1, "paid"), order(2, None), item(11, 1))
        run_dbt(["run"])
        assert rows(project, ALL_ORDERS) == [(1, "paid")]
        assert rows(project, ALL_ITEMS) == [(10, 1), (11, 1)]
        assert summary(project, "orders")[WRITE_ID] == summary(project, "items")[WRITE_ID]
        before = summary(project, "orders")
        run_dbt(["run"])
        assert summary(project, "orders") == before

    def test_nobody_sees_one_without_the_other(self, project: Any) -> None:
        """Whichever is read later has all that the one read before had."""
        lake, stop, seen = project.adapter.catalog, threading.Event(), []
        assert lake.commits_together
        names = [(project.test_schema, name) for name in ("one", "two")]
        for name in names:
            make_table(lake, name=name)
        sinks = [open_sink(lake, name) for name in names]

        def offset(name: tuple[str, str]) -> int:
            progress = read_property(lake.load(name).metadata, SINK)
            return (
                0
                if progress is None or progress.frontier is None
                else int(progress.frontier["offset"])
            )

        def read() -> None:
            while not stop.is_set():
                for several in (names, names[::-1]):
                    earlier, later = (offset(name) for name in several)
                    seen.append((earlier, later))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(1, 31):
            written = [write(sink, [Change(1, str(number))], number) for sink in sinks]
            parts = [(sink, [one]) for sink, (_, one) in zip(sinks, written, strict=True)]
            commit_batches(written[0][0], parts)
        stop.set()
        reader.join()
        assert len({earlier for earlier, _ in seen}) > 5
        assert [pair for pair in seen if pair[1] < pair[0]] == []


class TestStorage:
    """Whose keys open the storage, and what is said when none do."""

    @pytest.fixture(scope="class")
    def dbt_profile_data(self, target: dict[str, Any], catalog: Nessie, s3: S3) -> dict[str, Any]:
        outputs = {
            name: target
            | {"catalog_properties": properties(catalog, name), "schema": f"{name}_people"}
            for name in WAREHOUSES
        }
        keys = {"s3.access-key-id": s3.access_key, "s3.secret-access-key": s3.secret_key}
        outputs["keys"] = target | {"catalog_properties": properties(catalog, "keyless") | keys}
        return {"test": {"outputs": outputs, "target": "keys"}}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"people.csv": PEOPLE}

    def test_keys_in_the_profile(self, project: Any) -> None:
        run_dbt(["seed", "--target", "keys"])
        assert table(project, "people").location().startswith("s3://keyless/")
        assert table(project, "people").scan().to_arrow().num_rows == 2
        assert rows(project, "select count(*) from {schema}.people") == [(2,)]

    @pytest.mark.parametrize(
        ("warehouse", "message"),
        [
            ("powerless", "The storage refused the credentials"),
            ("locked", "The catalog itself has no access to the storage"),
            ("keyless", "The catalog vends no storage credentials"),
        ],
    )
    def test_no_keys_or_useless_ones(self, project: Any, warehouse: str, message: str) -> None:
        _, output = run_dbt_and_capture(["seed", "--target", warehouse], expect_pass=False)
        assert message in output
        assert "nothing was changed" not in output
        assert project.adapter.catalog.relations(f"{warehouse}_people") == []
