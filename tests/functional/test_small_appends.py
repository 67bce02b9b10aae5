"""Small increments that are appended: written by the adapter, they are what Spark would insert."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from tests.functional.builds import AtomicProject, build_names, command
from tests.functional.lake import rows, run, snapshot_ids, summary, table
from tests.functional.random_appends import RandomAppends
from tests.functional.table_contents import differences
from tests.functional.test_random_projects import Histories, seeds
from tests.functional.test_small_tables import SmallTables, writer

APPEND = "{{ config(materialized='incremental', incremental_strategy='append') }}\n"
# Of a table's metadata, what does not depend on who has written it and when.
PARTITIONS = """
select to_json(struct(* except (
  file_count, total_data_file_size_in_bytes, last_updated_at, last_updated_snapshot_id)))
from lake.{schema}.{name}.partitions order by 1
"""
# Without an id, a file is unsorted, too (spec, "Data File Fields").
ORDERS = "select distinct coalesce(sort_order_id, 0) from lake.{schema}.{name}.files order by 1"


@pytest.fixture(autouse=True)
def is_embedded(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--method") == "connect":
        pytest.skip("on a cluster Spark appends all increments")
    if request.config.getoption("--few-rows") == "off":
        pytest.skip("these tests are of what dbt's process appends")


class TestHistories(Histories):
    targets = {"ours": {}, "spark": {"small_table_rows": 0}}

    @pytest.mark.parametrize("seed", seeds(), indirect=True, scope="class")
    def test_tables_are_those_of_spark(self, project: Any, seed: int) -> None:
        random = RandomAppends(seed)
        writers = []
        for number in range(2):
            at = f"seed {seed}, step {number}"
            step = random.next_step()
            ours, sparks = (self.build(project, step, target) for target in self.targets)
            assert (at, ours) == (at, sparks)
            tables, expected = (self.contents(project, target) for target in self.targets)
            assert (at, differences(expected, tables)) == (at, [])
            writers += [writer(project, name) for name in tables if number]
        assert writers.count("adapter") > len(writers) / 2
        for name in tables:
            for layout in (PARTITIONS, ORDERS):
                ours, sparks = (
                    rows(project, layout.format(schema=self.schema(project, target), name=name))
                    for target in self.targets
                )
                assert (seed, name, ours) == (seed, name, sparks)


PARTS = """
{{ config(materialized='incremental', incremental_strategy='append',
    partition_by=['bucket(4, id)'], sort_order=['name desc']) }}
select cast(id as int) as {{ "ID, 'x' as more" if is_incremental() else 'id' }},
  concat('n', id % 10) as name, rand() as luck
from range({{ var('rows', 50) }})
"""
REQUIRED = APPEND + "select {{ var('id', 1) }} as id, 'a' as name"
BRANCHED = """
{{ config(materialized='incremental', incremental_strategy='append', write_branch=var('branch', '')) }}
select {{ var('id', 1) }} as id
"""


class TestAppends(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"parts.sql": PARTS, "required.sql": REQUIRED, "branched.sql": BRANCHED}

    def append(self, target: str = "ours", expect_pass: bool = True, **variables: Any) -> Any:
        arguments = ["--select", "parts", "--target", target, "--vars", json.dumps(variables)]
        return run_dbt(["run", *arguments], expect_pass=expect_pass)[0].adapter_response

    def test_few_rows_and_many(self, project: Any) -> None:
        run_dbt(["run", "--select", "parts"])
        for count, expected in ((50, "adapter"), (101, "spark"), (7, "spark"), (8, "adapter")):
            snapshots = len(snapshot_ids(project, "parts"))
            response = self.append(rows=count)
            assert (response["rows_inserted"], response["_message"]) == (
                count,
                f"INSERT {count} rows",
            )
            assert writer(project, "parts") == expected
            assert len(snapshot_ids(project, "parts")) == snapshots + 1
        assert rows(project, "select count(*) from {schema}.parts") == [(216,)]
        files = table(project, "parts").inspect.files()
        assert {*files["spec_id"].to_pylist()} == {table(project, "parts").spec().spec_id}

    def test_the_response_and_the_snapshot(self, project: Any) -> None:
        run_dbt(["run", "--select", "parts", "--full-refresh"])
        run_dbt(["run", "--select", "parts", "--full-refresh", "--target", "spark"])
        for count in (0, 5):
            ours, sparks = (self.append(target, rows=count) for target in ("ours", "spark"))
            depends = {"snapshot_id", "relation", "files_added", "bytes_written"}
            assert {k: ours[k] for k in ours if k not in depends} == {
                k: sparks[k] for k in sparks if k not in depends
            }
            assert ours["snapshot_id"] == table(project, "parts").current_snapshot().snapshot_id
            properties = summary(project, "parts")
            assert properties["operation"] == "append"
            assert properties["iceberg-stream.node-id"] == "model.test.parts"
            assert "iceberg-stream.write-id" in properties
            assert writer(project, "parts") == "adapter"

    def test_required_columns(self, project: Any) -> None:
        run_dbt(["run", "--select", "parts"])
        run_dbt(["run", "--select", "parts", "--target", "spark"])
        messages: dict[str, list[str]] = {"": [], "_spark": []}
        for suffix, collected in messages.items():
            target = "spark" if suffix else "ours"
            run(project, f"create table {{schema}}{suffix}.required (id int not null, name string)")
            for given in ("{}", "id: 2", "id: cast(null as int)", "{}"):
                command = ["run", "--select", "required", "--target", target, "--vars", given]
                result = run_dbt(command, expect_pass="null" not in given)[0]
                message = str(result.message) if result.status == "error" else ""
                collected.append(message.replace("_spark", ""))
        assert messages[""] == messages["_spark"]
        assert [bool(message) for message in messages[""]] == [False, False, True, False]
        ours, sparks = self.both(project, "required")
        assert ours == sparks
        assert writer(project, "required") == "adapter"

    def test_a_branch_gets_the_rows(self, project: Any) -> None:
        run_dbt(["run", "--select", "branched"])
        main = table(project, "branched").current_snapshot()
        for number in (2, 3):
            variables = json.dumps({"branch": "dev", "id": number})
            (result,) = run_dbt(["run", "--select", "branched", "--vars", variables])
            loaded = table(project, "branched")
            snapshot = loaded.snapshot_by_name("dev")
            assert result.adapter_response["branch"] == "dev"
            assert result.adapter_response["snapshot_id"] == snapshot.snapshot_id
            assert "spark.app.id" not in snapshot.summary.additional_properties
            assert loaded.current_snapshot() == main
        on_branch = "select id from {schema}.branched version as of 'dev' order by id"
        assert rows(project, on_branch) == [(1,), (2,), (3,)]

    def test_a_storage_that_only_spark_reaches(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> Any:
            raise OSError("no file system for this address")

        run_dbt(["run", "--select", "parts", "--full-refresh"])
        monkeypatch.setattr(DataFileWriter, "write", refuse)
        assert self.append(rows=3)["rows_inserted"] == 3
        assert writer(project, "parts") == "spark"


EVOLVING = """
{{{{ config(materialized='incremental', on_schema_change='append_new_columns', {}) }}}}
select {{{{ var('id', 1) }}}} as id {{{{ ", 'x' as Note" if var('wide', false) else '' }}}}
"""
TYPED = """
{{ config(materialized='incremental', on_schema_change='fail') }}
select cast({{ var('id', 1) }} as {{ var('type', 'int') }}) as id
"""
CONTRACT = """
models:
  - name: typed
    config: {contract: {enforced: true}}
    columns: [{name: id, data_type: int}]
"""


class TestSchemaChanges(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        appended, merged = (
            EVOLVING.format(option)
            for option in ("incremental_strategy='append'", "unique_key='id'")
        )
        models = {"appended.sql": appended, "merged.sql": merged, "typed.sql": TYPED}
        return {**models, "typed.yml": CONTRACT}

    def run_both(self, project: Any, *names: str, **variables: Any) -> str:
        """Run models in both profiles; return who wrote the rows of the first one of ours."""
        for target in ("ours", "spark"):
            run_dbt(["run", "-s", *names, "--target", target, "--vars", json.dumps(variables)])
        for name in names:
            ours, sparks = self.both(project, name)
            assert ours == sparks
        return writer(project, names[0])

    def test_increments_that_change_no_column(self, project: Any) -> None:
        names = ("appended", "merged")
        self.run_both(project, *names)
        for number, wide, expected in (
            (2, False, "adapter"),
            (3, True, "spark"),
            (4, True, "adapter"),
        ):
            assert self.run_both(project, *names, id=number, wide=wide) == expected
        notes = [(1, None), (2, None), (3, "x"), (4, "x")]
        for name in names:
            assert rows(project, f"select * from {{schema}}.{name} order by id") == notes

    def test_a_contract(self, project: Any) -> None:
        self.run_both(project, "typed")
        assert self.run_both(project, "typed", id=2) == "adapter"
        wide = ["run", "-s", "typed", "--vars", '{"type": "bigint", "id": 3}']
        (result,) = run_dbt(wide, expect_pass=False)
        assert "bigint" in result.message
        assert rows(project, "select id from {schema}.typed order by id") == [(1,), (2,)]


# What only Spark appends: by what follows the table's creation.
BY_SPARK = {
    "avro_files": "alter table {table} set tblproperties ('write.format.default' = 'avro')",
    "bloom_filters": """alter table {table} set tblproperties (
        'write.parquet.bloom-filter-enabled.column.id' = 'true')""",
    "sorted_by_bucket": "alter table {table} write ordered by bucket(4, id)",
}
OTHER_TYPES = {
    "rounded": ("cast(id as decimal(10, 1))", "id + 0.25"),
    "texts": ("cast(id as string)", "id"),
    "no_field": ("named_struct('x', id, 'y', 1)", "named_struct('y', 1, 'x', id)"),
}


class TestLeftToSpark(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        header = "{{ config(sql_header='set spark.sql.shuffle.partitions = 1;') }}"
        hook = "{{ config(pre_hook='set spark.sql.shuffle.partitions = 1') }}"
        query = APPEND + "select id from range(3)"
        models = {**dict.fromkeys(BY_SPARK, query), "header": header + query, "hook": hook + query}
        for name, (first, then) in OTHER_TYPES.items():
            expression = f"{{% if is_incremental() %}}{then}{{% else %}}{first}{{% endif %}}"
            models[name] = APPEND + f"select {expression} as id from range(3)"
        return {f"{name}.sql": sql for name, sql in models.items()}

    def test_what_only_spark_appends(self, project: Any) -> None:
        for target, suffix in (("ours", ""), ("spark", "_spark")):
            run_dbt(["run", "--target", target])
            for name, statement in BY_SPARK.items():
                run(project, statement.format(table=f"{{schema}}{suffix}.{name}"))
            run_dbt(["run", "--target", target])
        for name in (*BY_SPARK, *OTHER_TYPES, "header", "hook"):
            assert writer(project, name) == "spark", name
            ours, sparks = self.both(project, name)
            assert ours == sparks
            assert ours["rows"] == "6"


class TestAtomic(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        failing = "select cast(raise_error('no') as int) as x"
        return {
            "appended.sql": APPEND + "select id from range({{ var('rows', 3) }})",
            "failing.sql": "{{ config(enabled=var('fails', false), materialized='table') }}"
            + failing,
        }

    def test_a_build_publishes_its_appends_or_none(self, project: Any) -> None:
        run_dbt(["run"])
        run_dbt(["run", "--vars", "rows: 4"])
        assert writer(project, "appended") == "adapter"
        snapshots = snapshot_ids(project, "appended")
        run_dbt(["run", "--vars", "{rows: 5, fails: true}"], expect_pass=False)
        assert snapshot_ids(project, "appended") == snapshots
        assert rows(project, "select count(*) from {schema}.appended") == [(7,)]
        (build,) = build_names(project)
        assert command(project, "discard", build).exit_code == 0
