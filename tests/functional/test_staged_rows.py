"""An increment stays as it was computed, whatever other sessions of the engine write meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.engines.session import Session
from tests.functional.lake import rows, run
from tests.functional.random_projects import model
from tests.functional.test_foreign_writers import foreign_write

MERGE = {"materialized": "incremental", "unique_key": "id"}
NEWER = "DBT_INTERNAL_SOURCE.v > DBT_INTERNAL_DEST.v"
READ = "select id, v from {{ target.schema }}.src"
TWICE = "{% if is_incremental() %}, 2 as n, 3 as N{% endif %}"
HEADER = """
{% call set_sql_header(config) %}
-- nothing unless it is needed
{% if var('unset', false) %} set spark.sql.ansi.enabled = false; {% endif %}
{% endcall %}
"""
NEEDED = """
{% call set_sql_header(config) %}
create or replace temporary view of_header as select 1 as id;
{% endcall %}
"""
SNAPSHOT = """
snapshots:
  - name: history
    relation: source('lake', 'src')
    config: {strategy: check, unique_key: id, check_cols: [v]}
"""
SOURCE = """
sources:
  - name: lake
    schema: "{{ target.schema }}"
    tables: [{name: src}]
"""


class TestStagedRows:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        merged = model({**MERGE, "matched_condition": NEWER}, READ)
        named = model({**MERGE, "alias": "odd-name `x`", "merge_engine": "spark"}, "select 1 as id")
        by_spark = {**MERGE, "merge_engine": "spark"}
        twice = model(by_spark, f"select 1 as id{TWICE}")
        header = model(by_spark, "select 1 as id").replace("select", HEADER + "select", 1)
        return {
            "merged.sql": merged,
            "named.sql": named,
            "twice.sql": twice,
            "needs_header.sql": model(by_spark, "select id from of_header").replace(
                "select", NEEDED + "select", 1
            ),
            "header.sql": header,
            "source.yml": SOURCE,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.yml": SNAPSHOT}

    @pytest.mark.parametrize(
        ("command", "name"),
        [
            (["run", "--select", "merged"], "merged"),
            (["snapshot"], "history where dbt_valid_to is null"),
        ],
    )
    def test_rows_are_staged_once(
        self, project: Any, command: list[str], name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark would compute the rows of a cached query again after the other session's write."""
        run(project, "create or replace table {schema}.src as values (1, 10), (2, 20) as t(id, v)")
        run_dbt(command)
        run(project, "update {schema}.src set v = v + 1")
        writes = foreign_write(project, "delete from {schema}.src where id = 1")
        monkeypatch.setattr(Session, "stream", then(Session.stream, writes))
        run_dbt(command)
        assert sorted(rows(project, f"select id, v from {{schema}}.{name}")) == [(1, 11), (2, 21)]

    @pytest.mark.parametrize(
        "name, relation",
        [
            ("named", "`odd-name ``x```"),
            ("header", "header"),
            ("needs_header", "needs_header"),
        ],
    )
    def test_odd_names_and_headers(self, project: Any, name: str, relation: str) -> None:
        for _ in range(2):
            run_dbt(["run", "--select", name])
        assert rows(project, f"select id from {{schema}}.{relation}") == [(1,)]

    def test_a_column_that_occurs_twice(self, project: Any) -> None:
        run_dbt(["run", "--select", "twice"])
        message = run_dbt(["run", "--select", "twice"], expect_pass=False)[0].message
        assert "returns the column `n` more than once" in message


def then(stream: Callable[..., Iterator[Any]], act: Callable[[], None]) -> Callable[..., Any]:
    """Streams a query's rows, and does something after the last one, once."""
    acts = iter([act])

    def streamed(*args: Any, **options: Any) -> Iterator[Any]:
        yield from stream(*args, **options)
        for one in acts:
            one()

    return streamed
