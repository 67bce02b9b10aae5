"""Staged writes that only append, and depend on the rows that are there: another writer is first."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.builds.errors import BuildConflict
from tests.functional.builds import (
    AtomicProject,
    build_names,
    command,
    published,
    run_as_another,
)
from tests.functional.foreign_writer import foreign_writer
from tests.functional.lake import rows
from tests.functional.random_projects import model

SQL = "select {{ var('n', 1) }} as id, 'dbt' as who"
NEW = "select * from (" + SQL + ") as q {% if is_incremental() %} where "
# Spark runs a MERGE that only inserts as an append, which conflicts with nothing.
HOOK = """
merge into {{ this }} using (select {{ var('n', 1) }} as id, 'dbt' as who) as q
on {{ this.identifier }}.id = q.id when not matched then insert *
"""
MODELS = {
    "merged": ({"unique_key": "id"}, SQL),
    "by_spark": ({"unique_key": "id", "merge_engine": "spark"}, SQL),
    "on_read": ({"unique_key": "id", "merge_mode": "merge-on-read"}, SQL),
    "replaced": ({"unique_key": "id", "incremental_strategy": "delete+insert"}, SQL),
    "newest": ({}, NEW + "id > (select max(id) from {{ this }}) {% endif %}"),
    "by_name": (
        {},
        NEW + "id > (select max(id) from identifier('{{ this.schema }}.{{ this.identifier }}'))"
        "{% endif %}",
    ),
    "with_file": (
        {},
        NEW + "id > (select max(id) from {{ this }} "
        f"cross join (select 1 from text.`{__file__}` limit 1)) {{% endif %}}",
    ),
    "absent": (
        {},
        NEW + "not exists (select 1 from {{ this }} as t where t.id = q.id) {% endif %}",
    ),
    "queried": (
        {},
        "{% set n = run_query('select max(id) from ' ~ this).columns[0][0] if is_incremental() else 0 %}"
        f"select * from ({SQL}) as q where id > {{{{ n }}}}",
    ),
    "hooked": ({"post_hook": HOOK}, SQL + "{% if is_incremental() %} where false {% endif %}"),
}

PYTHON = """
def model(dbt, session):
    dbt.config(materialized="incremental")
    n = dbt.config.get("n") or 1
    newest = 0
    if dbt.is_incremental:
        newest = session.sql(f"select max(id) from {dbt.this}").collect()[0][0]
    return session.sql(f"select {n} as id, 'dbt' as who").where(f"id > {newest}")
"""
NAMES = [*MODELS, "in_python"]
# It depends on no row that is there.
BLIND = "blind"


class TestKeysOfAnotherWriter:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        files = {
            f"{name}.sql": model({"materialized": "incremental", **config}, sql)
            for name, (config, sql) in MODELS.items()
        }
        config = "models: [{name: in_python, config: {n: \"{{ var('n', 1) }}\"}}]"
        blind = model({"materialized": "incremental"}, SQL)
        return {
            **files,
            f"{BLIND}.sql": blind,
            "in_python.py": PYTHON,
            "models.yml": config,
        }

    @pytest.fixture(scope="class", autouse=True)
    def first_rows(self, project: Any) -> None:
        run_dbt(["run"])

    @pytest.mark.parametrize("name", [*NAMES, BLIND])
    @pytest.mark.variants(5)
    def test_no_key_is_there_twice(
        self, project: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A build for each: of one that conflicts, all tables are named that others changed."""
        with monkeypatch.context() as patch:
            patch.setenv("ICEBERG_STREAM_BUILD", f"of_{name}")
            run_dbt(["run", "--select", name, "--vars", "n: 2"])
        project.adapter.build = None
        project.adapter.Relation = type(project.adapter).Relation
        run_as_another(project, f"insert into {{schema}}.{name} values (2, 'other')")
        result = command(project, "publish", f"of_{name}")
        actual = rows(project, f"select * from {{schema}}.{name} order by id, who")
        if name == BLIND:
            assert (result.exit_code, actual) == (0, [(1, "dbt"), (2, "dbt"), (2, "other")])
            return
        assert (result.exit_code, actual) == (1, [(1, "dbt"), (2, "other")])
        assert f".{name} has the new snapshot" in result.output
        assert command(project, "discard", f"of_{name}").exit_code == 0


class TestConflictAtTheEnd(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        merged = model({"materialized": "incremental", "unique_key": "id"}, SQL)
        count = "select count(*) as n from {{ ref('appended') }}"
        return {
            "merged.sql": merged,
            "other.sql": model({"materialized": "table"}, SQL),
            "appended.sql": model({"materialized": "incremental"}, SQL),
            "counted.sql": model({"materialized": "table"}, count),
        }

    def test_the_models_are_built_again_and_published(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with foreign_writer(lambda: None, None) as calls:
            run_dbt(["run"])
        sql = "insert into {schema}.merged values (9, 'other')"

        def write() -> None:
            # A thread has one connection at a time.
            writer = Thread(target=run_as_another, args=(project, sql))
            writer.start()
            writer.join()

        with foreign_writer(write, calls.names.index("commit_all")), pytest.raises(BuildConflict):
            run_dbt(["run", "--vars", "n: 2"])
        (build,) = build_names(project)
        with monkeypatch.context() as patch:
            patch.setenv("ICEBERG_STREAM_BUILD", build)
            run_dbt(["run", "--select", "merged+", "--vars", "n: 2"])
        project.adapter.build = None
        result = command(project, "publish", build)
        assert (result.exit_code, result.output) == (0, result.output)
        assert published(project, "merged") == [(1, "dbt"), (2, "dbt"), (9, "other")]
        assert published(project, "other") == [(2, "dbt")]

    def test_rows_of_two_builds_are_counted(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model that is built again reads what both builds have appended."""
        run_dbt(["run", "--full-refresh"])
        both = ["run", "--select", "appended", "counted"]
        for build, n in (("b2", 2), ("b3", 3)):
            with monkeypatch.context() as patch:
                patch.setenv("ICEBERG_STREAM_BUILD", build)
                run_dbt([*both, "--vars", f"n: {n}"])
        project.adapter.build = None
        assert command(project, "publish", "b2").exit_code == 0
        refused = command(project, "publish", "b3")
        assert refused.exit_code == 1
        assert "appended+ counted+" in refused.output or "counted+ appended+" in refused.output
        with monkeypatch.context() as patch:
            patch.setenv("ICEBERG_STREAM_BUILD", "b3")
            run_dbt(["run", "--select", "appended+", "counted+", "--vars", "n: 3"])
        project.adapter.build = None
        assert command(project, "publish", "b3").exit_code == 0
        assert published(project, "appended") == [(1, "dbt"), (2, "dbt"), (3, "dbt")]
        assert published(project, "counted") == [(3,)]
