"""Cached results: used where nothing has changed, and never stale, whoever writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dbt.tests.util import get_connection, run_dbt
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.functional.lake import run, table
from tests.servers.rest_catalog import RestCatalog

READER = Path(__file__).with_name("cached_reader.py")
ROUNDS = 30
MODEL = "{{ config(materialized='table') }} select 1 as n"
TESTS = """
models:
  - name: counted
    columns: [{name: n, data_tests: [not_null, unique]}]
"""


def ask(project: Any, sql: str) -> tuple[list[Any], bool]:
    """First column of a query's rows, and whether they were kept from before."""
    with get_connection(project.adapter):
        sql = sql.format(schema=project.test_schema)
        response, actual = project.adapter.execute(sql, fetch=True)
    return [row[0] for row in actual.rows], bool(response.from_cache)


class Cached:
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any], tmp_path_factory: Any) -> Any:
        return dbt_profile_target | {"result_cache": "disk"}


class TestInCommands(Cached):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"counted.sql": MODEL, "counted.yml": TESTS}

    def kept(self, *command: str) -> list[bool]:
        done = run_dbt([*command])
        return [bool(result.adapter_response.get("from_cache")) for result in done]

    def test_data_tests_and_show(self, project: Any) -> None:
        run_dbt(["run"])
        assert self.kept("test") == [False, False]
        assert self.kept("test") == [True, True]
        run_dbt(["run"])
        assert self.kept("test") == [False, False]
        query = ["show", "--inline", "select n, n + 1 as m from {{ ref('counted') }}"]
        first, second = (run_dbt(query).results[0] for _ in range(2))
        assert [tuple(row) for row in first.agate_table.rows] == [(1, 2)]
        assert [tuple(row) for row in second.agate_table.rows] == [(1, 2)]
        types = [
            [type(kind) for kind in shown.agate_table.column_types] for shown in (first, second)
        ]
        assert types[0] == types[1]


class TestDoors(Cached):
    """Every way to change what a query gives, one after the other."""

    @pytest.fixture(scope="class")
    def other_session(self, project: Any) -> Iterator[Session]:
        """Somebody else on the same Spark, who does not use the adapter."""
        connections = project.adapter.connections
        identities = connections.resources.identities
        tokens = {name: identity.token() for name, identity in identities.items()}
        settings = connections.session_settings(tokens)
        session = Session(connections.resources.engine.endpoint(), settings)
        yield session
        session.close()

    @pytest.fixture
    def spark(self, project: Any, other_session: Session) -> Callable[[str], Any]:
        return lambda sql: other_session.run(sql.format(schema=project.test_schema))

    @pytest.fixture(autouse=True)
    def tables(self, project: Any) -> None:
        run(project, "create or replace table {schema}.t using iceberg as select 1 as n, 'a' as s")
        run(project, "create or replace table {schema}.u using iceberg as select 1 as n")
        run(project, "create or replace view {schema}.v as select t.n from {schema}.t")
        run(project, "create or replace view {schema}.w as select max(n) as n from {schema}.v")

    def check(
        self, project: Any, change: Callable[[], Any], expected: dict[str, list[Any]]
    ) -> None:
        for sql in expected:
            ask(project, sql)
            assert ask(project, sql)[1], f"not kept: {sql}"
        change()
        for sql, rows in expected.items():
            assert ask(project, sql) == (rows, False)
            assert ask(project, sql) == (rows, True)

    QUERIES = (
        "select n from {schema}.t order by n",
        "select n from {schema}.v order by n",
        "select * from {schema}.w",
        "with u as (select * from {schema}.u) select max(t.n) from {schema}.t cross join u",
    )

    def expect(self, rows: list[int]) -> dict[str, list[Any]]:
        """What the queries give if these are the rows of `t`."""
        plain, view, most, joined = self.QUERIES
        top = [max(rows, default=None)]
        return {plain: rows, view: rows, most: top, joined: top}

    @pytest.mark.parametrize(
        ("sql", "rows"),
        [
            ("insert into {schema}.t values (2, 'b')", [1, 2]),
            ("update {schema}.t set n = 5", [5]),
            ("delete from {schema}.t where n = 1", []),
            ("truncate table {schema}.t", []),
            ("insert overwrite {schema}.t values (7, 'z')", [7]),
            ("create or replace table {schema}.t using iceberg as select 3 as n", [3]),
            (
                "merge into {schema}.t d using {schema}.u x on d.n = x.n "
                "when matched then update set n = 9",
                [9],
            ),
        ],
        ids=lambda value: value.split(" ")[0] if isinstance(value, str) else None,
    )
    @pytest.mark.parametrize("door", ["adapter", "other session"])
    @pytest.mark.variants(5)
    def test_statements(
        self, project: Any, spark: Callable[[str], Any], door: str, sql: str, rows: list[int]
    ) -> None:
        write = spark if door == "other session" else (lambda text: run(project, text))
        self.check(project, lambda: write(sql), self.expect(rows))

    def test_another_engine(self, project: Any) -> None:
        rows = pa.table({"n": pa.array([2], pa.int32()), "s": ["b"]})
        self.check(project, lambda: table(project, "t").append(rows), self.expect([1, 2]))

    def test_ingest(self, project: Any) -> None:
        rows = pa.table({"n": pa.array([4], pa.int32()), "s": ["b"]})
        name = (project.test_schema, "t")
        lake = project.adapter.catalog
        self.check(
            project, lambda: ingest(lake, name, rows.to_reader(), Mode.REPLACE), self.expect([4])
        )

    def test_a_rollback(self, project: Any, spark: Callable[[str], Any]) -> None:
        first = table(project, "t").current_snapshot().snapshot_id
        run(project, "insert into {schema}.t values (2, 'b')")

        def back() -> None:
            table(project, "t").manage_snapshots().set_current_snapshot(first).commit()

        self.check(project, back, self.expect([1]))

    def test_a_rename_of_columns(self, project: Any) -> None:
        def swap() -> None:
            with table(project, "t").update_schema() as update:
                update.rename_column("n", "old").rename_column("s", "n")

        self.check(project, swap, {"select n from {schema}.t": ["a"]})

    def test_a_table_in_the_place_of_another(
        self, project: Any, spark: Callable[[str], Any]
    ) -> None:
        def replace() -> None:
            spark("drop table {schema}.t")
            spark("alter table {schema}.u rename to {schema}.t")

        run(project, "insert into {schema}.u values (8)")
        self.check(project, replace, {self.QUERIES[0]: [1, 8], self.QUERIES[2]: [8]})

    def test_a_view_with_another_text(self, project: Any, spark: Callable[[str], Any]) -> None:
        text = "create or replace view {schema}.v as select n * 10 as n from {schema}.t"
        self.check(project, lambda: spark(text), {self.QUERIES[1]: [10], self.QUERIES[2]: [10]})

    def test_a_view_that_gets_its_text_back_meanwhile(
        self, project: Any, spark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "create or replace view {schema}.v as select %s as n from {schema}.t"
        query, sql = Session.query, self.QUERIES[1]

        def slowly(session: Session, sql: str, interpreted: bool = False) -> pa.Table:
            spark(text % "n * 10")
            rows = query(session, sql, interpreted)
            spark(text % "t.n")
            return rows

        spark(text % "t.n")
        with monkeypatch.context() as patch:
            patch.setattr(Session, "query", slowly)
            assert ask(project, sql) == ([10], False)
        assert ask(project, sql) == ([1], False)
        assert ask(project, sql) == ([1], True)

    def test_a_table_that_somebody_has_cached(
        self, project: Any, spark: Callable[[str], Any]
    ) -> None:
        """Spark's own cache is not brought into ours when another engine has written."""
        spark("cache table {schema}.t")
        rows = pa.table({"n": pa.array([2], pa.int32()), "s": ["b"]})
        sql = self.QUERIES[0]
        ask(project, sql)
        table(project, "t").append(rows)
        ask(project, sql)
        spark("uncache table {schema}.t")
        assert ask(project, sql)[0] == [1, 2]

    def test_settings_of_the_session(self, project: Any) -> None:
        sql = "select cast(date_format(timestamp_seconds(n), 'H') as int) from {schema}.t"
        ask(project, sql)
        hour, kept = ask(project, sql)
        assert kept
        moved = "set spark.sql.session.timeZone = +05:00; " + sql
        assert ask(project, moved) == ([(hour[0] + 5) % 24], False)
        assert ask(project, sql) == (hour, True)

    def test_functions_of_the_session(self, project: Any) -> None:
        sql = "select upper(s) from {schema}.t"
        ask(project, sql)
        assert ask(project, sql) == (["A"], True)
        class_name = "org.apache.hadoop.hive.ql.udf.generic.GenericUDFLower"
        own = f"create temporary function upper as '{class_name}'; " + sql
        with pytest.raises(DbtDatabaseError, match="routine `upper`"):
            ask(project, own)
        assert ask(project, sql) == (["A"], True)

    def test_temporary_views_are_not_cached(self, project: Any) -> None:
        for number in (1, 2):
            view = f"create or replace temporary view mine as select {number} as n; "
            assert ask(project, view + "select n from mine") == ([number], False)


class TestWhileOthersWrite(Cached):
    """Two processes share kept results while a third party writes."""

    def test_no_answer_is_older_than_its_question(self, project: Any, tmp_path: Path) -> None:
        run(project, "create or replace table {schema}.t using iceberg as select 0 as n")
        run(project, "create or replace view {schema}.v as select * from {schema}.t where n >= 0")
        progress, stop = tmp_path / "progress", tmp_path / "stop"
        progress.write_text("0")
        profile = asdict(project.adapter.config.credentials)
        query = f"select max(n) from {project.test_schema}.v"
        command = [sys.executable, str(READER), json.dumps(profile), str(project.project_root)]
        readers = [
            subprocess.Popen(
                [*command, query, str(progress), str(stop)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for _ in range(2)
        ]
        try:
            for number in range(1, ROUNDS + 1):
                self.write(project, number)
                progress.with_suffix(".new").write_text(str(number))
                progress.with_suffix(".new").rename(progress)
                time.sleep(0.6 if number % 3 else 0.0)
        finally:
            stop.touch()
            results = [process.communicate(timeout=60) for process in readers]
        for out, errors in results:
            actual = json.loads(out or "{}")
            assert actual, errors.decode()
            assert actual["faults"] == []
            assert actual["kept"] > 10
            assert actual["asked"] - actual["kept"] > 10

    def write(self, project: Any, number: int) -> None:
        """By turns: another engine appends, a statement of ours, all rows replaced."""
        rows = pa.table({"n": pa.array([number], pa.int32())})
        if number % 3 == 0:
            run(project, f"insert into {{schema}}.t values ({number})")
        elif number % 3 == 1:
            table(project, "t").append(rows)
        else:
            table(project, "t").overwrite(rows)


class TestUsers:
    """Kept results of one user are nobody else's, and go with the privilege to read."""

    @pytest.fixture(scope="class")
    def token_file(self, catalog: RestCatalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("token") / "token"
        path.write_text(catalog.token("uma"))
        return path

    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, dbt_profile_target: dict[str, Any], catalog: RestCatalog, token_file: Path
    ) -> dict[str, Any]:
        common = {k: v for k, v in dbt_profile_target.items() if k not in ("warehouse", "token")}
        return common | {
            "result_cache": "disk",
            "catalog_properties": {"uri": catalog.uri},
            "token_file": str(token_file),
        }

    def become(self, token_file: Path, token: str) -> None:
        token_file.write_text(token)
        stamp = time.time_ns() + 5_000_000_000
        os.utime(token_file, ns=(stamp, stamp))

    def test_of_two_users(self, project: Any, catalog: RestCatalog, token_file: Path) -> None:
        run(project, "create or replace table {schema}.t using iceberg as select 1 as n")
        sql = "select n from {schema}.t"
        ask(project, sql)
        assert ask(project, sql) == ([1], True)
        self.become(token_file, catalog.token("ugo"))
        assert ask(project, sql) == ([1], False)
        assert ask(project, sql) == ([1], True)
        self.become(token_file, catalog.token("uma", seconds=3000))
        assert ask(project, sql) == ([1], True)
        self.become(token_file, catalog.token("uma", role="nobody"))
        with pytest.raises(DbtDatabaseError, match="uma"):
            ask(project, sql)
        self.become(token_file, catalog.token("uma"))
