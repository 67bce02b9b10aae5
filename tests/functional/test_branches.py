"""Models, seeds and snapshots that write to a branch of their table (`write_branch`)."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture, write_file
from pyiceberg.table.metadata import TableMetadata

from tests.functional.builds import published, variables
from tests.functional.lake import rows, run, table

AUDIT = {"branch": "audit"}
VERSION = "{{ var('version', 1) }}"
KEYED = f"select id, {VERSION} as version from range({{{{ var('rows', 3) }}}})"
MODELS = {
    "built.sql": f"{{{{ config(materialized='table', sort_order='id') }}}} {KEYED}",
    "merged.sql": "{{ config(unique_key='id', merge_engine=var('engine', 'auto')) }}" + KEYED,
    "appended.sql": KEYED
    + "{% if is_incremental() %} where id > (select max(id) from {{ this }}){% endif %}",
    "deleted.sql": "{{ config(unique_key='id', incremental_strategy='delete+insert') }}" + KEYED,
    "overwritten.sql": "{{ config(incremental_strategy='insert_overwrite', partition_by='id') }}"
    + KEYED.replace("range(", "range(1, "),
    "hooked.sql": "{{ config(materialized='table', post_hook=["
    '"insert into {{ this }} values (7, 7)", '
    "\"{{ delete_rows(this, 'select 0 as id', 'id') }}\"]) }}" + KEYED,
    "as_python.py": "import pandas\n\n\ndef model(dbt, session):\n"
    "    dbt.config(materialized='table')\n"
    "    merged = dbt.ref('merged')\n"
    "    rows = sorted((row.id, row.version) for row in merged.collect())\n"
    "    return pandas.DataFrame(rows, columns=['id', 'version'])\n",
    "joined.sql": "{{ config(materialized='table', tag_on_success='joined_' ~ var('version', 1)) }}"
    " select merged.id, merged.version, seeded.name from {{ ref('merged') }}"
    " join {{ ref('seeded') }} on merged.id = seeded.id",
    "on_main.sql": "{{ config(materialized='table') }}"
    "select merged.version, old.version as old from {{ ref('merged') }}"
    " left join {{ ref('merged').at(branch='main') }} old using (id)",
    "models.yml": """
models:
  - name: merged
    columns: [{name: version, data_tests: [{accepted_values: {values: "{{ var('accepted', [1]) }}"}}]}]
""",
}
SNAPSHOT = (
    "{% snapshot history %}{{ config(unique_key='id', strategy='check', check_cols=['version']) }}"
    " select * from {{ ref('merged') }}{% endsnapshot %}"
)
SEED = "id,name\n0,zero\n1,one\n2,two\n3,three\n"
TABLES = ("built", "merged", "appended", "deleted", "overwritten", "hooked", "as_python", "joined")
ALL = (*TABLES, "seeded", "history")


def on_branch(project: Any, name: str, branch: str = "audit") -> list[tuple[Any, ...]]:
    """Return the rows of a branch, as Spark reads it."""
    return sorted(
        rows(project, f"select * from {{schema}}.{name} version as of '{branch}'"), key=str
    )


def on_main(project: Any, name: str) -> list[tuple[Any, ...]]:
    """Return the rows of main, as PyIceberg reads them."""
    read = table(project, name).scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in read), key=str)


def shape(metadata: TableMetadata) -> tuple[Any, ...]:
    """Return what readers of main depend on."""
    return (
        metadata.refs["main"].snapshot_id,
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.default_sort_order_id,
        metadata.properties,
    )


class OnBranches:
    """A project whose models write to the branch of the variable `branch`, if it is set."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"seeded.csv": SEED}

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        branch = {"+write_branch": "{{ var('branch', '') }}"}
        own = {"+materialized": "incremental", "on_main": {"+write_branch": None}}
        return {"models": {"test": {**branch, **own}}, "seeds": branch, "snapshots": branch}


class TestEveryMaterialization(OnBranches):
    def test_a_run_on_a_branch(self, project: Any) -> None:
        run_dbt(["build"])
        before = {name: on_main(project, name) for name in ALL}
        shapes = {name: shape(table(project, name).metadata) for name in ALL}
        write_file("id,name\n0,nil\n1,one\n3,three\n", project.project_root, "seeds", "seeded.csv")
        results = run_dbt(["build", *variables(version=2, rows=5, accepted=[2], **AUDIT)])

        # Main is as it was: rows, schema, layout, properties.
        for name in ALL:
            assert on_main(project, name) == before[name], name
            assert shape(table(project, name).metadata) == shapes[name], name
        five = [(id, 2) for id in range(5)]
        for name in ("built", "merged", "deleted", "as_python"):
            assert on_branch(project, name) == five, name
        assert on_branch(project, "appended") == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]
        assert on_branch(project, "overwritten") == [(1, 2), (2, 2), (3, 2), (4, 2)]
        assert on_branch(project, "hooked") == [*five[1:], (7, 7)]
        assert on_branch(project, "seeded") == [(0, "nil"), (1, "one"), (3, "three")]
        # Later models, and the test of `merged`, read what this run has written.
        joined = [(0, 2, "nil"), (1, 2, "one"), (3, 2, "three")]
        assert on_branch(project, "joined") == joined
        assert on_branch(project, "joined", "joined_2") == joined
        assert published(project, "on_main") == [(2, None), (2, None), (2, 1), (2, 1), (2, 1)]
        history = rows(
            project,
            "select id, version, dbt_valid_to is null from {schema}.history version as of 'audit'",
        )
        assert sorted(history) == sorted(
            [(id, 1, False) for id in range(3)] + [(id, 2, True) for id in range(5)]
        )
        merged = next(r for r in results if r.node.name == "merged").adapter_response
        head = table(project, "merged").metadata.refs["audit"].snapshot_id
        assert (merged["branch"], merged["snapshot_id"]) == ("audit", head)
        assert merged["merge_engine"] in ("rewrite", "spark")
        assert (merged["rows_before"], merged["rows_after"]) == (3, 5)

        # Publish: main takes the snapshots of the branch.
        run(project, "call lake.system.fast_forward('{schema}.merged', 'main', 'audit')")
        assert on_main(project, "merged") == five


class TestFirstBuild(OnBranches):
    def test_main_is_empty(self, project: Any) -> None:
        run_dbt(["build", "--exclude", "on_main", *variables(**AUDIT)])
        for name in ALL:
            assert on_main(project, name) == [], name
        assert on_branch(project, "merged") == [(0, 1), (1, 1), (2, 1)]
        assert on_branch(project, "appended") == [(0, 1), (1, 1), (2, 1)]
        assert on_branch(project, "as_python") == [(0, 1), (1, 1), (2, 1)]
        assert len(on_branch(project, "joined")) == 3
        # The second build continues on the branch.
        run_dbt(["run", "-s", "appended", "merged", *variables(rows=4, version=2, **AUDIT)])
        assert on_branch(project, "appended") == [(0, 1), (1, 1), (2, 1), (3, 2)]
        assert on_branch(project, "merged") == [(id, 2) for id in range(4)]
        assert on_main(project, "merged") == []
        # A model that is not built on another branch is read on main.
        run_dbt(["run", "-s", "merged"])
        run_dbt(["run", "-s", "joined", *variables(branch="other", version=3)])
        assert on_branch(project, "joined", "other") == []
        listed = rows(project, "show tables in {schema}")
        assert {row[1] for row in listed} == set(ALL)


class TestColumns(OnBranches):
    """Models whose columns are not those of their table."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        columns = "{{ var('columns', '1 as id') }}"
        change = "{{ config(on_schema_change=var('change', 'ignore')) }}"
        return {
            "built.sql": "{{ config(materialized='table') }} select " + columns,
            "grown.sql": f"{change} select {columns}",
            "read.sql": "{{ config(materialized='view', write_branch=none) }}"
            " select * from {{ ref('between') }}",
            "between.sql": "{{ config(materialized='ephemeral', write_branch=none) }}"
            " select * from {{ ref('grown') }}",
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT.replace("merged", "grown").replace("version", "id")}

    def test_changes_are_refused(self, project: Any) -> None:
        run_dbt(["build", "--exclude", "seeded"])
        run_dbt(["run", "-s", "grown", *variables(**AUDIT)])
        new, both = "1 as id, 2 as more", ("built", "grown")
        for nodes, arguments, *messages in (
            (both, {"columns": new, "change": "append_new_columns"}, "table: `more` is new. "),
            (both, {"columns": "2 as more", "change": "sync_all_columns"}, "`id` is missing. "),
            (("built", "read"), {"columns": "'a' as id"}, "string instead of int.", "is a view of"),
        ):
            _, log = run_dbt_and_capture(
                ["run", "-s", *nodes, *variables(**AUDIT, **arguments)], expect_pass=False
            )
            for message in messages:
                assert message in log, (arguments, message)
            assert f"ERROR={len(nodes)}" in log
            assert all(f"model.test.{node}" in log for node in nodes)
        # The columns that the table has are written, as in every run with `ignore`.
        run_dbt(["run", "-s", "grown", *variables(columns=new, **AUDIT)])
        assert [f.name for f in table(project, "grown").schema().fields] == ["id"]
        assert on_main(project, "grown") == [(1,)]

        # Iceberg has stored a smaller integer as `int`.
        run_dbt(["run", "-s", "built", *variables(columns="cast(2 as tinyint) as id", **AUDIT)])
        assert on_main(project, "built") == [(1,)]

        # With a branch in the catalog, but not in this run, views read main.
        run_dbt(["run", "-s", "read"])
        assert published(project, "read") == [(1,)]

    def test_a_tag_of_this_name(self, project: Any) -> None:
        run_dbt(["run", "-s", "built"])
        run(project, "alter table {schema}.built create tag taken")
        _, log = run_dbt_and_capture(
            ["run", "-s", "built", *variables(branch="taken")], expect_pass=False
        )
        assert "`write_branch` of model.test.built" in log and "has a tag `taken`" in log

    def test_an_atomic_run(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ICEBERG_STREAM_PUBLISH", "atomic")
        _, log = run_dbt_and_capture(["run", "-s", "built", *variables(**AUDIT)], expect_pass=False)
        assert "model.test.built writes to the branch `audit`" in log


class TestOtherFeatures:
    """Microbatch, a strategy of two statements, hooks and `skip_unchanged` on a branch."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "source.sql": "{{ config(materialized='table', event_time='at') }} select * from values"
            " (1, timestamp '2026-01-01 05:00:00'), (2, timestamp '2026-01-02 05:00:00') t (id, at)",
            "kept.sql": "{{ config(materialized='table', skip_unchanged=true,"
            " write_branch=var('branch', '')) }} select 1 as id",
            "batches.sql": "{{ config(materialized='incremental', event_time='at', begin='2026-01-01',"
            " incremental_strategy='microbatch', batch_size='day', unique_key='id',"
            " write_branch=var('branch', '')) }}"
            " select id, at, {{ var('version', 1) }} as version from {{ ref('source') }}",
            "counted.sql": "{{ config(incremental_strategy='replaced', materialized='incremental',"
            " unique_key='id', write_branch=var('branch', '')) }}"
            "{% if is_incremental() %} select id, n + 1 as n from {{ this }}"
            "{% else %} select 1 as id, 1 as n {% endif %}",
        }

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {
            "on_write.sql": "{% macro iceberg_stream__on_write(relation, snapshot_id) %}"
            "{% do log('written: ' ~ relation, info=True) %}{% endmacro %}",
            "replaced.sql": "{% macro get_incremental_replaced_sql(arg_dict) %}"
            "{% set new = arg_dict['temp_relation'] %} delete from {{ arg_dict['target_relation'] }} "
            "where id in (select id from {{ new }}); insert into {{ arg_dict['target_relation'] }} "
            "(id, n) select id, n from {{ new }}{% endmacro %}",
        }

    def test_two_statements(self, project: Any) -> None:
        """The second one inserts rows that were read before the first one deleted them."""
        run_dbt(["run", "-s", "counted"])
        for n in (2, 3):
            run_dbt(["run", "-s", "counted", *variables(**AUDIT)])
            assert on_branch(project, "counted") == [(1, n)]
        run_dbt(["run", "-s", "counted"])
        assert on_main(project, "counted") == [(1, 2)]

    def test_batches(self, project: Any) -> None:
        days = ["--event-time-start", "2026-01-01", "--event-time-end", "2026-01-03"]
        run_dbt(["run", *days])
        _, log = run_dbt_and_capture(
            ["run", "-s", "batches", *days, *variables(version=2, **AUDIT)]
        )
        assert "`batches`.`branch_audit`" in log.split("written: ")[1].splitlines()[0]
        assert [row[2] for row in on_branch(project, "batches")] == [2, 2]
        assert [row[2] for row in on_main(project, "batches")] == [1, 1]

    def test_skip_unchanged(self, project: Any) -> None:
        """A build on the branch does not count as a build of main, and is never left out."""
        run_dbt(["run", "-s", "kept"])
        for _ in range(2):
            on_audit = run_dbt(["run", "-s", "kept", *variables(**AUDIT)])
            assert on_audit.results[0].message == "INSERT 1 rows"
        assert "unchanged since" in str(run_dbt(["run", "-s", "kept"]).results[0].message)
