"""Queries that read few rows: Spark interprets them, and nobody but the clock can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.engines.session import Session
from tests.functional.lake import run

TABLES = {
    "few": "select id, id % 3 as n, concat('n', id) as name from range(100)",
    "many": "select id from range(5001)",
}


class TestInterpretedQueries:
    @pytest.fixture(scope="class", autouse=True)
    def tables(self, project: Any) -> None:
        for name, query in TABLES.items():
            run(project, f"create table {{schema}}.{name} as {query}")
        run(project, "create view {schema}.pairs as select a.id from {schema}.few a, {schema}.few")

    @pytest.fixture(autouse=True)
    def connection(self, project: Any) -> Iterator[None]:
        with project.adapter.connection_named("interpreted"):
            yield

    def ask(self, project: Any, sql: str) -> list[tuple[Any, ...]]:
        text = sql.format(schema=project.test_schema)
        return list(project.adapter.execute(text, fetch=True)[1].rows)

    def session(self, project: Any) -> Session:
        session: Session = project.adapter.connections.get_thread_connection().handle.session
        return session

    def interprets(self, project: Any) -> bool:
        # The engine of the tests never generates code: it starts faster.
        return self.session(project).setting("spark.sql.adaptive.enabled") == "false"

    @pytest.mark.parametrize(
        ("sql", "interpreted"),
        [
            ("select count(*) from {schema}.few", True),
            ("select a.n from {schema}.few a join {schema}.few b using (id)", True),
            ("with a as (select 1 as x) select x from a", True),
            ("select count(*) from {schema}.many", False),
            ("select count(*) from {schema}.few a cross join {schema}.few b", False),
            ("select count(*) from {schema}.few a join {schema}.few b on a.id > b.id", False),
            ("select count(*) from {schema}.pairs", False),
            ("select count(*) from range(5001)", False),
            ("select explode(sequence(1, 3))", False),
            ("with recursive r as (select 1 as i union all select i + 1 from r where i < 3) "
             "select * from r", False),
        ],
    )  # fmt: skip
    def test_which_queries(self, project: Any, sql: str, interpreted: bool) -> None:
        assert self.ask(project, sql)
        assert self.interprets(project) == interpreted

    def test_a_statement_after_such_a_query(self, project: Any) -> None:
        self.ask(project, "select count(*) from {schema}.few")
        run(project, "insert into {schema}.many values (-1)")
        assert not self.interprets(project)

    def test_settings_of_the_user_stay(self, project: Any) -> None:
        name = "spark.sql.shuffle.partitions"
        self.ask(project, "select count(*) from {schema}.few")
        project.adapter.execute(f"set {name} = 7")
        self.ask(project, "select n, count(*) from {schema}.few group by n")
        assert self.session(project).setting(name) == "7"

    def test_settings_of_the_profile_come_back(self, project: Any) -> None:
        project.adapter.connections.discard_session()
        session = self.session(project)
        session.configure({"spark.sql.adaptive.enabled": "false"})
        before = session.settings(("spark.sql.",))
        session.query("select 1", interpreted=True)
        session.query("select 1")
        after = session.settings(("spark.sql.",))
        assert before.items() <= after.items()

    def test_an_error_says_the_same(self, project: Any) -> None:
        sql = "select id / (id - id) from {schema}.few"
        with pytest.raises(DbtDatabaseError, match="DIVIDE_BY_ZERO"):
            self.ask(project, sql)
