"""Models that query their own table before they write it, with and without another writer.

`{{ log('WRITE …', info=true) }}` lets another writer commit at that place.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.builds import AtomicProject, run_as_another
from tests.functional.lake import rows
from tests.functional.test_foreign_writers import foreign_write

CHANGED = "has changed, and the rows were computed from it"
QUERY = (
    "{% set m = run_query('select max(id) from ' ~ this).rows[0][0] if is_incremental() else 0 %}"
)
NEW = "select id from range({{ m }} + 1, {{ m }} + 3)"
WRITE = "{{ log('WRITE insert into {schema}.' ~ this.identifier ~ ' values (100)', info=true) }}"
COMPACT = (
    "{{ log('WRITE call lake.system.rewrite_data_files(table => \\'{schema}.' ~ this.identifier "
    "~ '\\', options => map(\\'rewrite-all\\', \\'true\\'))', info=true) }}"
)


def model(sql: str, **config: Any) -> str:
    options = {"materialized": "incremental", **config}
    return f"{{{{ config({', '.join(f'{k}={v!r}' for k, v in options.items())}) }}}}\n{sql}"


def incremental(sql: str) -> str:
    return f"{{% if is_incremental() %}}{sql}{{% endif %}}"


# The rows of the second run are computed from what another writer has changed since.
REFUSED = {
    "queried": model(QUERY + WRITE + NEW),
    "of_metadata": model(
        "{% set m = run_query('select sum(record_count) from ' ~ this ~ '.files').rows[0][0] "
        "if is_incremental() else 0 %}" + WRITE + NEW
    ),
    "by_identifier": model(
        "{% set m = run_query(\"select max(id) from identifier('\" ~ this.schema ~ '.' ~ "
        'this.identifier ~ "\')").rows[0][0] if is_incremental() else 0 %}' + WRITE + NEW
    ),
    "in_parentheses": model(
        "{% set m = run_query('(select max(id) from ' ~ this ~ ')').rows[0][0] "
        "if is_incremental() else 0 %}" + WRITE + NEW
    ),
    "in_a_variable": model(
        incremental(
            "{% do run_query('declare or replace variable newest bigint') %}"
            "{% do run_query('set var newest = (select max(id) from ' ~ this ~ ')') %}" + WRITE
        )
        + "select id from range(1, 5)"
        + incremental(" where id > newest")
    ),
    "in_a_table": model(
        "{% if is_incremental() %}"
        "{% do run_query('create or replace table ' ~ this.schema ~ '.newest as select max(id) as m "
        "from ' ~ this) %}" + WRITE + "select m + 1 as id from {{ this.schema }}.newest"
        "{% else %}select cast(1 as bigint) as id{% endif %}"
    ),
    "of_a_view": model(
        "{% set m = run_query('select max(id) from ' ~ this.schema ~ '.viewed').rows[0][0] "
        "if is_incremental() else 0 %}" + WRITE + NEW,
        alias="behind_a_view",
    ),
    "after_a_tag": model(
        incremental("{% do run_query('select * from ' ~ this ~ \" version as of 'first'\") %}")
        + QUERY
        + WRITE
        + NEW
    ),
    "of_ephemeral": model("select id from {{ ref('numbers') }}"),
    # Its own write is not the other writer's.
    "after_a_hook": model(
        QUERY + NEW,
        pre_hook=[incremental("insert into {{ this }} select -1 as id"), WRITE],
    ),
    # The hook is computed from its own query.
    "in_a_hook": model(
        "select cast(1 as bigint) as id",
        post_hook=QUERY + WRITE + "insert into {{ this }} " + NEW,
    ),
}
EPHEMERAL = (
    "{{ config(materialized='ephemeral') }}"
    "{% set written = adapter.get_relation(this.database, this.schema, 'of_ephemeral') %}"
    "{% set m = run_query('select max(id) from ' ~ written).rows[0][0] if written else 0 %}"
    "{{ log('WRITE insert into {schema}.of_ephemeral values (100)', info=true) }}" + NEW
)
PYTHON = """
def model(dbt, session):
    dbt.config(materialized="incremental")
    newest = 0
    if dbt.is_incremental:
        newest = session.sql("select max(id) from SCHEMA.in_python").collect()[0][0]
    return session.sql(f"select id from range({newest} + 1, {newest} + 3)")
"""
# Nobody has changed any row that they depend on.
PASS = {
    "more_columns": model(
        QUERY + NEW.replace("id from", "id{{ ', 1 as n' if is_incremental() }} from"),
        on_schema_change="append_new_columns",
    ),
    "qualified": model(
        QUERY + NEW,
        pre_hook=[
            incremental("delete from {{ this }} where qualified.id = -1"),
            incremental("update {{ this }} set qualified.id = 0 where qualified.id = -1"),
        ],
    ),
    "qualified_in_its_hook": model(
        "select cast(1 as bigint) as id",
        post_hook=QUERY + "update {{ this }} set id = {{ m }} + 1 where {{ this }}.id = 1",
    ),
    "own_writes": model(
        QUERY + NEW,
        pre_hook=[
            incremental("insert into {{ this }} select -1 as id"),
            incremental("alter table {{ this }} set tblproperties ('a' = 'b')"),
            incremental("delete from {{ this }} where id = -1"),
        ],
    ),
    "expired": model(
        QUERY + NEW,
        pre_hook=[
            incremental("insert into {{ this }} select -1 as id"),
            incremental("delete from {{ this }} where id = -1"),
            incremental(
                "call lake.system.rewrite_data_files(table => '{{ this.schema }}.expired', "
                "options => map('rewrite-all', 'true'))"
            ),
            incremental(
                "call lake.system.expire_snapshots(table => '{{ this.schema }}.expired', "
                "older_than => timestamp '2100-01-01', retain_last => 1)"
            ),
        ],
    ),
    "unchanged": model(
        QUERY + "select cast(1 as bigint) as id",
        unique_key="id",
        post_hook="alter table {{ this }} set tblproperties ('a' = 'b')",
    ),
    "compacted": model(QUERY + COMPACT + NEW),
    "later": model(QUERY + NEW, post_hook=[WRITE, "insert into {{ this }} select 200 as id"]),
    # What it reads is not what it changes.
    "of_another": model(
        "{% set other = ref('queried') %}"
        "{% set m = run_query('select max(id) from ' ~ other).rows[0][0] "
        "if is_incremental() else 0 %}"
        "{{ log('WRITE insert into {schema}.queried values (100)', info=true) }}" + NEW
    ),
}


class TestQueries:
    @pytest.fixture(scope="class")
    def models(self, unique_schema: str) -> dict[str, str]:
        files = {f"{name}.sql": text for name, text in {**REFUSED, **PASS}.items()}
        python = PYTHON.replace("SCHEMA", unique_schema)
        return {**files, "numbers.sql": EPHEMERAL, "in_python.py": python}

    def run(self, project: Any, *select: str, write: bool = True) -> dict[str, Any]:
        def on_event(event: Any) -> None:
            _, found, sql = getattr(event.info, "msg", "").partition("WRITE ")
            if write and found:
                foreign_write(project, sql.strip())()

        command = ["run", "--select", *select]
        results = run_dbt(command, expect_pass=None, callbacks=[on_event])  # type: ignore[arg-type]
        return {result.node.name: result for result in results}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> None:
        self.run(project, *REFUSED, *PASS, "in_python", write=False)
        with_view = "create view {schema}.viewed as select * from {schema}.behind_a_view"
        foreign_write(project, with_view)()
        foreign_write(project, "alter table {schema}.after_a_tag create tag first")()

    def test_rows_of_another_writer_are_seen(self, project: Any) -> None:
        # dbt compiles an ephemeral model that is selected as a node of its own.
        results = self.run(project, *REFUSED, "numbers")
        messages = {name: result.message for name, result in results.items()}
        assert {n: m for n, m in messages.items() if CHANGED not in m} == {}
        for name in REFUSED:
            table = "behind_a_view" if name == "of_a_view" else name
            ids = [n for (n,) in rows(project, f"select id from {{schema}}.{table} where id > 1")]
            assert len(set(ids)) == len(ids), (name, ids)

    def test_nothing_else_is_refused(self, project: Any) -> None:
        for _ in range(2):
            results = self.run(project, *PASS)
            failed = {n: r.message for n, r in results.items() if r.status != "success"}
            assert failed == {}
        for name in ("compacted", "own_writes", "qualified", "expired"):
            ids = [n for (n,) in rows(project, f"select id from {{schema}}.{name} order by id")]
            assert ids == [*range(1, 7)], name

    def test_a_python_model_that_names_its_table(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from dbt.adapters.iceberg_stream.materializations import python_model

        original = python_model.run_python_model

        def run_model(*arguments: Any) -> Any:
            frame = original(*arguments)
            foreign_write(project, "insert into {schema}.in_python values (100)")()
            return frame

        monkeypatch.setattr(python_model, "run_python_model", run_model)
        assert CHANGED in self.run(project, "in_python")["in_python"].message


@pytest.mark.manifest
class TestBuilds(AtomicProject):
    """Models that are built again in the same build begin with the current table."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return {**dbt_profile_target, "publish": "atomic", "rebuild_on_conflict": True}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        hook = WRITE.replace("this.identifier", "ref('counted_on').identifier")
        count = "select count(*) as n from {{ ref('counted_on') }}"
        return {
            "counted_on.sql": model(QUERY + NEW, unique_key="id"),
            "counted.sql": model(count, materialized="table", post_hook=hook),
        }

    def test_a_model_that_has_queried_its_table(self, project: Any) -> None:
        run_dbt(["run"])
        writes = iter(["insert into {schema}.counted_on values (100)"])

        def on_event(event: Any) -> None:
            if "WRITE " in getattr(event.info, "msg", "") and (sql := next(writes, None)):
                writer = Thread(target=run_as_another, args=(project, sql))
                writer.start()
                writer.join()

        run_dbt(["run"], callbacks=[on_event])  # type: ignore[arg-type]
        ids = [n for (n,) in rows(project, "select id from {schema}.counted_on order by id")]
        assert ids == [1, 2, 100, 101, 102]
