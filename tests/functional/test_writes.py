"""After a write: snapshot properties, the user's hook, cached tables, Python models, schema changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.profile.factory import make_engine
from tests.functional.lake import rows, run, snapshot_ids, summary, table

HOOK = """
{% macro iceberg_stream__on_write(relation, snapshot_id) %}
  {% do run_query("insert into " ~ target.schema ~ ".written values ('" ~ relation.identifier ~ "', " ~ snapshot_id ~ ")") %}
{% endmacro %}
{% macro an_operation(sql) %}
  {% do run_query(sql) %}
{% endmacro %}
"""
HOOKED = """
{{ config(materialized='table', post_hook="insert into {{ this }} values (2)") }}
select 1 as id
"""


class TestOnWrite:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"a_table.sql": HOOKED}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"on_write.sql": HOOK}

    def test_the_hook_hears_of_every_write(self, project: Any) -> None:
        run(project, "create table {schema}.written (name string, snapshot bigint) using iceberg")
        run_dbt(["run"])
        # Spark deletes whole files by metadata, and a part of one by a job.
        for sql in (
            "insert into {} values (3), (4)",
            "insert into {} select /*+ coalesce(1) */ id from values (5), (6) as new(id)",
            "delete from {} where id = 2",
            "delete from {} where id = 5",
            "delete from {} where id = 99",
            "truncate table {}",
        ):
            statement = sql.format(f"{project.test_schema}.a_table")
            run_dbt(["run-operation", "an_operation", "--args", f"{{sql: '{statement}'}}"])
        written = rows(project, "select name, snapshot from {schema}.written")
        assert sorted(written) == sorted(("a_table", s) for s in snapshot_ids(project, "a_table"))
        assert len(written) == 8

    def test_snapshots_name_the_writer(self, project: Any) -> None:
        result = run_dbt(["run"])[0]
        first = table(project, "a_table").metadata.snapshots[-2].summary.additional_properties
        assert first["iceberg-stream.node-id"] == result.node.unique_id
        assert first["iceberg-stream.model"] == "a_table"
        assert first["iceberg-stream.invocation-id"]
        assert first["iceberg-stream.adapter-version"]
        hook = summary(project, "a_table")
        assert hook["iceberg-stream.write-id"] != first["iceberg-stream.write-id"]


@contextmanager
def a_session(project: Any) -> Iterator[Session]:
    """Another user's session on the same engine."""
    connections = project.adapter.connections
    identities = connections.resources.identities
    tokens = {name: identity.token() for name, identity in identities.items()}
    settings = connections.session_settings(tokens)
    engine = make_engine(connections.credentials, connections.project_root)
    session = Session(engine.endpoint(), settings)
    yield session
    session.close()
    engine.release()


CACHED = """
{{ config(materialized='incremental', unique_key='id') }}
select {{ var('id', 1) }} as id
"""


class TestCachedTables:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"cached.sql": CACHED, "over.sql": "select count(*) as n from {{ ref('cached') }}"}

    def test_a_cached_table_is_never_stale(self, project: Any) -> None:
        run_dbt(["run"])
        schema = project.test_schema
        with a_session(project) as session:
            for name in ("cached", "over"):
                session.run(f"cache table {schema}.{name}")

            def counts() -> list[int]:
                queries = (
                    f"select count(*) as n from {schema}.cached",
                    f"select n from {schema}.over",
                )
                return [session.query(sql).column("n")[0].as_py() for sql in queries]

            assert counts() == [1, 1]
            run_dbt(["run", "-s", "cached", "--vars", "id: 2"])
            assert counts() == [2, 2]
            run(project, "insert into {schema}.cached values (3)")
            assert counts() == [3, 3]
            run(project, "delete from {schema}.cached where id = 1")
            assert counts() == [2, 2]
            run_dbt(["run", "-s", "cached", "--full-refresh"])
            assert counts() == [1, 1]


PYTHON = """
def model(dbt, session):
    dbt.config(materialized="{kind}", unique_key="id", incremental_strategy="merge")
    frame = dbt.ref("numbers")
    if dbt.is_incremental:
        frame = frame.filter(frame.id < 2)
    {body}
"""


class TestPythonModels:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "numbers.sql": "{{ config(materialized='table') }} select id, id * 2 as n from range(5)",
            "of_spark.py": PYTHON.format(kind="table", body="return frame"),
            "of_pandas.py": PYTHON.format(kind="table", body="return frame.toPandas()"),
            "increment.py": PYTHON.format(kind="incremental", body="return frame"),
            "wrong.py": PYTHON.format(kind="table", body="return 5"),
        }

    def test_python_models(self, project: Any) -> None:
        results = run_dbt(["run"], expect_pass=False)
        run_dbt(["run", "-s", "increment"])
        for name in ("of_spark", "of_pandas", "increment"):
            assert rows(project, f"select count(*), sum(n) from {{schema}}.{name}") == [(5, 20)]
        wrong = next(r for r in results if r.node.name == "wrong")
        assert "returned an object of type `int`. Return a Spark, pandas" in wrong.message


LOCAL = """
from datetime import date, datetime, timezone
from decimal import Decimal

import pandas as pd
import pyarrow as pa


def model(dbt, session):
    dbt.config(materialized="table"{config})
    columns = {{
        "i": [1, 2, 3],
        "x": [1.5, None, float("nan")],
        "b": [True, None, False],
        "s": ["a", None, "ü"],
        "d": [date(2024, 2, 29), None, date(1969, 12, 31)],
        "m": [Decimal("1.25"), None, Decimal("-0.50")],
        "at": pd.to_datetime(["2024-02-29 10:11:12", None, "1969-12-31 00:00:00"]),
        "zoned": pd.to_datetime(["2024-02-29 10:11:12+02:00", None, "1969-12-31 00:00:00+02:00"]),
        "l": [[1, 2], None, []],
    }}
    return {returned}
"""
PANDAS = "pd.DataFrame(columns)"
ARROW = (
    "pa.table({**{k: columns[k] for k in 'isdm'}, 'times': [[datetime(2024, 2, 29)], None, []], 'at': pa.array(columns['at'], pa.timestamp('ms')),"
    " 'small': pa.array([1, None, 3], pa.int8()), 'large': pa.array(['a', None, 'b'], pa.large_string()),"
    " 'nested': [{'p': 1, 'q': ['x']}, None, {'p': None, 'q': None}]})"
)
# A layout has Spark make the table.
BY_SPARK = ", table_properties={'x': 'y'}"


class TestLocalFrames:
    """What a Python model returns makes the same table, whoever writes it."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            f"{kind}_{writer}.py": LOCAL.format(returned=returned, config=config)
            for kind, returned in (("pandas", PANDAS), ("arrow", ARROW))
            for writer, config in (("ours", ""), ("spark", BY_SPARK))
        }

    @pytest.mark.parametrize("kind", ["pandas", "arrow"])
    def test_the_same_table(self, project: Any, kind: str, request: pytest.FixtureRequest) -> None:
        for _ in range(2):
            run_dbt(["run", "--select", f"{kind}_ours", f"{kind}_spark"])
        ours, sparks = (
            (rows(project, f"select * from {{schema}}.{kind}_{writer} order by i"),
             table(project, f"{kind}_{writer}"))
            for writer in ("ours", "spark")
        )  # fmt: skip
        assert str(ours[0]) == str(sparks[0])
        # Replaced twice, nested fields may have other ids.
        types = [
            [(f.name, str(f.type)) for f in one.schema().as_arrow()] for _, one in (ours, sparks)
        ]
        assert types[0] == types[1]
        assert [len(one.metadata.snapshots) for _, one in (ours, sparks)] == [2, 2]
        if request.config.getoption("--method") == "embedded":
            (task,) = ours[1].scan().plan_files()
            assert "/ctas-" in task.file.file_path


EVOLVING = """
{{{{ config(materialized='incremental', unique_key='id', on_schema_change='{change}') }}}}
{{% if is_incremental() %}} select cast(2 as bigint) as id, 1.5 as added
{{% else %}} select 1 as id, 'x' as gone {{% endif %}}
"""
TEXT_NOW = """
{{ config(materialized='incremental', unique_key='id', on_schema_change='sync_all_columns') }}
select 1 as id, {% if is_incremental() %} 'text' as v, 2 as added {% else %} 5 as v, 'x' as gone {% endif %}
"""


# Iceberg stores these as `int`.
SMALL = """
{{{{ config(materialized='incremental', unique_key='id', on_schema_change='{change}') }}}}
select id, cast(id as tinyint) as t, array(cast(id as smallint)) as s,
  named_struct('tinyint', cast(id as tinyint)) as n {more} from range({{{{ var('ids', 2) }}}})
"""
SHRINKS = """
{{ config(materialized='incremental', unique_key='id', incremental_strategy=var('strategy', 'merge')) }}
select {{ var('columns', '1 as id, 2 as kept') }}
"""
ADDED = "{% if is_incremental() %}, cast(7 as smallint) as added {% endif %}"


class TestSchemaChanges:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "syncs.sql": EVOLVING.format(change="sync_all_columns"),
            "appends.sql": EVOLVING.format(change="append_new_columns").replace("bigint", "int"),
            "fails.sql": EVOLVING.format(change="fail"),
            "text_now.sql": TEXT_NOW,
            "shrinks.sql": SHRINKS,
            "small.sql": SMALL.format(change="fail", more=""),
            "small_synced.sql": SMALL.format(change="sync_all_columns", more=ADDED),
        }

    def test_every_way(self, project: Any) -> None:
        run_dbt(["run"])
        results = {r.node.name: r for r in run_dbt(["run"], expect_pass=False)}
        synced = table(project, "syncs").schema()
        assert [(f.name, str(f.field_type)) for f in synced.fields] == [
            ("id", "long"),
            ("added", "decimal(2, 1)"),
        ]
        appended = rows(project, "select id, gone, added is null from {schema}.appends order by id")
        assert appended == [(1, "x", True), (2, None, False)]
        assert "out of sync" in results["fails"].message
        assert "Iceberg changes a type in place only" in results["text_now"].message
        # A change that is refused leaves the others, too.
        assert rows(project, "select * from {schema}.text_now") == [(1, 5, "x")]

    @pytest.mark.parametrize("strategy", ["merge", "append", "delete+insert"])
    def test_a_column_that_the_model_no_longer_returns(self, project: Any, strategy: str) -> None:
        variables = {"strategy": strategy}
        run_dbt(["run", "--select", "shrinks", "--full-refresh", "--vars", json.dumps(variables)])
        variables["columns"] = "1 as id"
        (result,) = run_dbt(
            ["run", "--select", "shrinks", "--vars", json.dumps(variables)], expect_pass=False
        )
        assert "the new rows do not have" in result.message.lower()
        assert "`kept`" in result.message and "set `on_schema_change` to" in result.message
        assert rows(project, "select id, kept from {schema}.shrinks") == [(1, 2)]

    def test_small_integers_are_no_change(self, project: Any) -> None:
        for ids in (2, 3):
            run_dbt(["run", "--select", "small", "small_synced", "--vars", f"ids: {ids}"])
        run_dbt(["run", "--select", "small", "small_synced"])
        sql = "select id, t, s[0], n.tinyint from {schema}.%s order by id"
        for name in ("small", "small_synced"):
            assert rows(project, sql % name) == [(n, n, n, n) for n in range(3)]
        added = table(project, "small_synced").schema().find_field("added")
        assert str(added.field_type) == "int"
