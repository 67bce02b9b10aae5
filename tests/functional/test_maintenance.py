"""Tables that many small commits have fragmented, and what maintenance makes of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from click.testing import CliRunner, Result
from dbt.tests.util import get_connection, run_dbt, run_dbt_and_capture
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, UUIDType

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from tests.functional.lake import rows, run, snapshot_ids, summary, table
from tests.functional.orders_stream import ALL, SOURCES, land
from tests.functional.orders_stream import ORDERS as CHANGES
from tests.integration.tables import read_by_duckdb

ORDERS = """
{{ config(materialized='incremental', table_properties={'commit.manifest.min-count-to-merge': '1000'}) }}
select cast({{ var('id', 0) }} as bigint) as id, 'new' as status
"""
COPY = """
{{ config(materialized='stream') }}
select id, status from {{ stream(ref('orders')) }}
"""


def maintain(project: Any, *arguments: str) -> Result:
    """Run `iceberg-stream maintain` on the project."""
    place = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
    return CliRunner().invoke(main, ["maintain", *arguments, *place])


def insert_each(project: Any, name: str, ids: range) -> None:
    for number in ids:
        run(project, f"insert into {{schema}}.{name} values ({number}, 'new')")


def data_files(project: Any, name: str) -> int:
    return int(summary(project, name)["total-data-files"])


def ids(project: Any, name: str) -> list[int]:
    """The rows as PyIceberg and DuckDB read them, which must be the same."""
    loaded = table(project, name)
    by_pyiceberg = sorted(loaded.scan().to_arrow()["id"].to_pylist())
    by_duckdb = sorted(read_by_duckdb(loaded.metadata_location)["id"].to_pylist())
    assert by_pyiceberg == by_duckdb
    return by_pyiceberg


class TestTheCommand:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS}

    def test_files_are_merged(self, project: Any) -> None:
        run_dbt(["run"])
        insert_each(project, "orders", range(1, 12))
        before, commits = ids(project, "orders"), snapshot_ids(project, "orders")
        name = f"{project.test_schema}.orders"
        planned = maintain(project, name, "--dry-run")
        assert "compact            planned: 12 small files to merge" in planned.output
        assert snapshot_ids(project, "orders") == commits
        done = maintain(project, project.test_schema)
        assert done.exit_code == 0, done.output
        assert "12 data files rewritten as 1" in done.output
        assert data_files(project, "orders") == 1
        assert ids(project, "orders") == before
        again = maintain(project, name)
        assert again.exit_code == 0 and again.output.count("skipped: does not pay") == 2

    def test_manifests_and_statistics(self, project: Any) -> None:
        insert_each(project, "orders", range(12, 24))
        name, before = f"{project.test_schema}.orders", ids(project, "orders")
        steps = [f"--only={step}" for step in ("compute_statistics", "rewrite_manifests")]
        done = maintain(project, name, *steps)
        assert "13 manifests rewritten as 1" in done.output
        (statistics,) = table(project, "orders").metadata.statistics
        assert statistics.snapshot_id == snapshot_ids(project, "orders")[-1]
        # Neither step leaves a file that the next one would take for an orphan.
        orphans = maintain(project, name, "--remove-orphans", "--only", "remove_orphans",
                           "--orphans-older-than", "0")  # fmt: skip
        assert "no file older than 0 hours is without a snapshot" in orphans.output
        assert ids(project, "orders") == before

    def test_sorted(self, project: Any) -> None:
        name = f"{project.test_schema}.orders"
        done = maintain(
            project, name, "--only", "compact", "--sort", "id desc", "--option", "rewrite-all=true"
        )
        assert done.exit_code == 0, done.output
        loaded = read_by_duckdb(table(project, "orders").metadata_location)
        assert loaded["id"].to_pylist() == sorted(loaded["id"].to_pylist(), reverse=True)

    def test_mistakes(self, project: Any) -> None:
        schema = project.test_schema
        gone = maintain(project, f"{schema}.gone")
        assert gone.exit_code == 1 and f"There is no table {schema}.gone" in gone.output
        refused = maintain(project, f"{schema}.orders", "--option", "rewrite-all=true",
                           "--sort", "nothing")  # fmt: skip
        assert refused.exit_code == 1 and "Cannot find field 'nothing'" in refused.output
        assert maintain(project, f"{schema}.orders", "--all", "--only", "compact").exit_code == 2
        assert maintain(project, f"{schema}.orders", "--option", "rewrite-all").exit_code == 2

    def test_uuids_are_in_order(self, project: Any) -> None:
        # Spark sorts them as texts, and Java's bounds of partitions compare signed numbers.
        name = (project.test_schema, "uuids")
        project.adapter.catalog.pyiceberg.create_table(
            name,
            Schema(NestedField(1, "u", UUIDType()), NestedField(2, "v", UUIDType())),
            partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "u")),
            sort_order=SortOrder(SortField(2, IdentityTransform())),
        )
        ids = [f"('{d}0000000-0000-0000-0000-000000000000')" for d in "017f"]
        run(
            project,
            f"insert into {{schema}}.uuids select id, id from values {', '.join(ids)} as (id)",
        )
        checked = check_table(project.adapter.catalog.load(name), data=True)
        assert [f for f in checked.findings if f.severity != "note"] == []

    def test_beside_a_writer(self, project: Any) -> None:
        run(project, "create table {schema}.busy (id bigint, status string) using iceberg "
            "tblproperties ('write.delete.mode' = 'merge-on-read')")  # fmt: skip
        insert_each(project, "busy", range(6))
        done: list[Result] = []

        def compact() -> None:
            name = f"{project.test_schema}.busy"
            done.append(maintain(project, name, "--only=compact", "--option=rewrite-all=true"))

        thread = threading.Thread(target=compact)
        thread.start()
        for number in range(6):
            run(project, f"delete from {{schema}}.busy where id = {number}")
            insert_each(project, "busy", range(10 + number, 11 + number))
        thread.join()
        assert done[0].exit_code == 0 or "Other writers committed" in done[0].output
        assert ids(project, "busy") == list(range(10, 16))


class TestConversion:
    """A stream that leaves equality deletes, which PyIceberg refuses to read."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        equality = CHANGES.replace("**{", "delete_encoding='equality', **{")
        return {"orders.sql": equality, "sources.yml": SOURCES}

    def test_deletes_are_converted(self, project: Any) -> None:
        land(project, "1", *((number, "new", 1.0, "c") for number in range(6)))
        run_dbt(["run"])
        land(project, "2", (1, "paid", 1.0, "u"), (2, None, None, "d"))
        run_dbt(["run"])
        before = rows(project, ALL)
        with pytest.raises(ValueError, match="equality deletes"):
            table(project, "orders").scan().to_arrow()
        done = maintain(project, f"{project.test_schema}.orders")
        assert done.exit_code == 0, done.output
        assert "converted, which deleted 2 rows" in done.output
        assert ids(project, "orders") == [0, 1, 3, 4, 5]
        assert rows(project, ALL) == before
        land(project, "3", (1, None, None, "d"))
        run_dbt(["run"])
        assert [row[0] for row in rows(project, ALL)] == [0, 3, 4, 5]


class TestBesideAStream:
    """Every file is rewritten over and over, while a stream deletes rows of the same files."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": CHANGES, "sources.yml": SOURCES}

    def test_no_change_is_lost(self, project: Any) -> None:
        land(project, "0", *((number, "new", 0.0, "c") for number in range(20)))
        run_dbt(["run"])
        place = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
        name = f"{project.test_schema}.orders"
        command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "maintain", name, *place]
        command += ["--only", "compact", "--option", "rewrite-all=true"]
        outputs: list[str] = []
        streamed = threading.Event()

        def compact() -> None:
            while not streamed.is_set():
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                outputs.append(done.stdout + done.stderr)

        thread = threading.Thread(target=compact)
        thread.start()
        number, operations = 0, set()
        while number < 8 or "replace" not in operations:
            number += 1
            assert number < 50, outputs
            changes = [(key, "paid", float(number), "u") for key in range(10)]
            deleted = [(10 + number, None, None, "d")] if number <= 8 else []
            land(project, str(number), *changes, *deleted)
            run_dbt(["run"])
            snapshots = table(project, "orders").snapshots()
            operations = {snapshot.summary.operation.value for snapshot in snapshots}
            # A compaction that is slower than the runs always finds its files changed.
            streamed.wait(max(0, number - 8) / 20)
        streamed.set()
        thread.join()
        expected = [(key, "paid", float(number)) for key in range(10)]
        expected += [(10, "new", 0.0), (19, "new", 0.0)]
        assert rows(project, ALL) == expected
        assert ids(project, "orders") == [*range(11), 19]


class TestExpiry:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "copy.sql": COPY}

    def expire(self, project: Any) -> str:
        done = maintain(project, f"{project.test_schema}.orders", "--only", "expire_snapshots")
        assert done.exit_code == 0, done.output
        return done.output

    def test_tags_and_streams_keep_their_snapshots(self, project: Any) -> None:
        run_dbt(["run", "--select", "orders"])
        insert_each(project, "orders", range(1, 3))
        run(project, "alter table {schema}.orders create tag audited as of version "
            + str(snapshot_ids(project, "orders")[0]))  # fmt: skip
        insert_each(project, "orders", range(3, 5))
        run_dbt(["run", "--select", "copy"])
        # The stream stands at the fifth snapshot; two more follow.
        insert_each(project, "orders", range(5, 7))
        run(project, "alter table {schema}.orders set tblproperties "
            "('history.expire.max-snapshot-age-ms' = '1')")  # fmt: skip
        before = snapshot_ids(project, "orders")
        assert len(before) == 7
        assert "3 of 7 snapshots" in self.expire(project)
        assert snapshot_ids(project, "orders") == [before[0], *before[4:]]
        tagged = rows(project, "select id from {schema}.orders version as of 'audited'")
        assert tagged == [(0,)]
        assert "the stream model.test.copy of" in self.expire(project)
        run_dbt(["run", "--select", "copy"])
        assert ids(project, "copy") == list(range(7))
        self.expire(project)
        assert snapshot_ids(project, "orders") == [before[0], before[6]]
        insert_each(project, "orders", range(7, 8))
        run_dbt(["run", "--select", "copy"])
        assert ids(project, "copy") == list(range(8))


CONFIGURED = """
{{{{ config(materialized='incremental', maintenance={maintenance}) }}}}
select cast({{{{ var('id', 0) }}}} as bigint) as id, 'new' as status
"""
HOOKED = """
{{ config(materialized='table', post_hook=[
    "call " ~ target.database ~ ".system.rewrite_data_files(table => '" ~ target.schema ~ ".hooked', options => map('rewrite-all', 'true'))",
    "{{ maintain_table(this, steps=['compute_statistics']) }}",
]) }}
select 1 as id
"""


class TestModels:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "kept.sql": CONFIGURED.format(maintenance="true"),
            "wrong.sql": CONFIGURED.format(maintenance="['compat']"),
            "fails.sql": CONFIGURED.format(
                maintenance="{'steps': ['compact'], 'options': {'rewrite-all': true, 'max-file-size-bytes': 1}}"
            ),
            "hooked.sql": HOOKED,
        }

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"people.csv": "id,status\n1,new\n"}

    def test_an_incremental_model_is_compacted_when_that_pays(self, project: Any) -> None:
        files = []
        for number in range(7):
            run_dbt(["run", "--select", "kept", "--vars", f"id: {number}"])
            files.append(data_files(project, "kept"))
        assert files == [1, 2, 3, 4, 1, 2, 3]
        assert ids(project, "kept") == list(range(7))

    def test_a_wrong_config_is_refused_before_anything_is_written(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["run", "--select", "wrong"], expect_pass=False)
        assert "`maintenance`: `steps` must be one of convert_deletes, compact" in output
        assert ("wrong", "table") not in project.adapter.catalog.relations(project.test_schema)

    def test_a_failure_is_a_warning(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["run", "--select", "fails"])
        assert f"{project.test_schema}.fails: compact failed:" in output
        assert f"`iceberg-stream maintain {project.test_schema}.fails`" in output
        assert ids(project, "fails") == [0]

    def test_hooks(self, project: Any) -> None:
        run_dbt(["run", "--select", "hooked"])
        assert summary(project, "hooked")["operation"] == "replace"
        assert len(table(project, "hooked").metadata.statistics) == 1

    def test_a_seed_without_work_starts_nothing(self, project: Any) -> None:
        run_dbt(["seed"])
        assert ids(project, "people") == [1]

    def test_procedures_return_rows(self, project: Any) -> None:
        show = ["show", "--output", "json", "--inline"]
        name = f"{project.test_schema}.kept"
        call = f"call {{{{ target.database }}}}.system.rewrite_data_files('{name}', options => map('rewrite-all', 'true'))"
        (shown,) = run_dbt([*show, call]).results
        assert shown.agate_table.column_names[0] == "rewritten_data_files_count"
        assert int(shown.agate_table.rows[0][0]) == 3

    def test_operations(self, project: Any) -> None:
        operation = ["run-operation", "maintain_table", "--args"]
        name = f"{project.test_schema}.kept"
        _, output = run_dbt_and_capture(
            [*operation, f"{{table: {name}, steps: [compact], options: {{rewrite-all: true}}}}"]
        )
        assert f"{name}: compact: 1 data file rewritten as 1" in output
        _, output = run_dbt_and_capture(
            [*operation, f"{{table: {name}, steps: [remove_orphans]}}"], expect_pass=False
        )
        assert "remove_orphans never runs by itself" in output
        _, output = run_dbt_and_capture(
            [*operation, f"{{table: {project.test_schema}.gone}}"], expect_pass=False
        )
        assert f"There is no table {project.test_schema}.gone" in output


class TestCachedResults:
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return dbt_profile_target | {"result_cache": "disk"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS}

    def ask(self, project: Any) -> tuple[list[int], bool]:
        with get_connection(project.adapter):
            response, actual = project.adapter.execute(
                f"select id from {project.test_schema}.orders order by id", fetch=True
            )
        return [row[0] for row in actual.rows], bool(response.from_cache)

    def test_rows_are_read_again(self, project: Any) -> None:
        run_dbt(["run"])
        insert_each(project, "orders", range(1, 6))
        expected = list(range(6))
        assert [self.ask(project) for _ in range(2)] == [(expected, False), (expected, True)]
        assert maintain(project, f"{project.test_schema}.orders").exit_code == 0
        assert data_files(project, "orders") == 1
        # The files of the cached result may expire with their snapshots, so it is not used.
        assert [self.ask(project) for _ in range(2)] == [(expected, False), (expected, True)]
