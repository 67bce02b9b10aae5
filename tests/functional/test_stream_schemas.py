"""Sources whose columns change while a stream runs."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from tests.functional.lake import rows, run, table
from tests.functional.stream_service import service, wait_for

SOURCES = """
sources:
  - name: landing
    schema: "{{ target.schema }}"
    tables:
      - name: files
        config: {meta: {stream: {type: files, path: landing, format: parquet}}}
"""
FILES = """
{{ config(materialized='stream', unique_key='id') }}
select * from {{ stream(source('landing', 'files')) }}
"""
ROUTED = """
{{ config(materialized='stream', unique_key='id', route_by='kind', create_tables=true) }}
select * from {{ stream(source('landing', 'files')) }}
"""
BRONZE = "{{ config(materialized='table') }} select 1 as id, 'a' as name"
SILVER = """
{{ config(materialized='stream', unique_key='id', commit_interval=0.5) }}
select * from {{ stream(ref('bronze')) }}
"""


def land(project: Any, name: str, seconds_ago: float = 0, **columns: pa.Array) -> None:
    folder = Path(project.project_root) / "landing"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f".{name}")
    if seconds_ago:
        os.utime(folder / f".{name}", (time.time() - seconds_ago,) * 2)
    (folder / f".{name}").rename(folder / f"{name}.parquet")


def ids(*values: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind or pa.int32())


class TestFiles:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES, "files.sql": FILES}

    def test_in_one_run(self, project: Any) -> None:
        """Another column, a wider one, and one that is missing: each in its place."""
        land(project, "1", id=ids(1), a=pa.array(["x"]))
        land(project, "2", id=ids(1, 2), a=pa.array(["y", "y"]), b=pa.array([1.5, 2.5]))
        land(project, "3", id=ids(2**40, kind=pa.int64()), a=pa.array(["z"]), b=pa.array([3.5]))
        land(project, "4", id=ids(4, kind=pa.int64()), b=pa.array([4.5]))
        run_dbt(["run"])
        actual = rows(project, "select id, a, b from {schema}.files order by id")
        assert actual == [(1, "y", 1.5), (2, "y", 2.5), (4, None, 4.5), (2**40, "z", 3.5)]
        schema = table(project, "files").schema()
        assert [(f.name, str(f.field_type)) for f in schema.fields] == [
            ("id", "long"),
            ("a", "string"),
            ("b", "double"),
        ]

    def test_one_that_does_not_fit(self, project: Any) -> None:
        """What comes before it is taken in, and what comes after waits."""
        land(project, "5", id=ids(5, kind=pa.int64()), b=pa.array([5.5]))
        land(project, "6", id=ids(6, kind=pa.int64()), b=pa.array(["text"]))
        land(project, "7", id=ids(7, kind=pa.int64()), b=pa.array([7.5]))
        _, said = run_dbt_and_capture(["run"], expect_pass=False)
        assert "b" in said and "but string in the new rows" in said
        assert "The stream stands at files of up to" in said
        assert rows(project, "select max(b) from {schema}.files") == [(5.5,)]
        (Path(project.project_root) / "landing" / "6.parquet").unlink()
        run_dbt(["run"])
        assert rows(project, "select max(b) from {schema}.files") == [(7.5,)]

    def test_full_refresh(self, project: Any) -> None:
        run_dbt(["run", "--full-refresh"])
        assert rows(project, "select count(*), max(b) from {schema}.files") == [(6, 7.5)]


# Spark compares their order with that of the table's rows, or they are laid out by columns that
# the source has widened.
ORDERED = "{{ config(materialized='stream', unique_key='id', sequence_by='at', %s) }}"
OF_ORDERED = " select * from {{ stream(source('landing', 'files')) }}"
COMPARED = {
    "kept": "ignore_null_updates=true",
    "marked": "soft_deletes='gone'",
    "by_equality": "delete_encoding='equality'",
    "by_rewriting": "delete_encoding='copy_on_write'",
}
LAID_OUT = {"by_key": "partition_by='id'", "in_buckets": "partition_by='bucket(2, id)'"}


def decimals(precision: int, *values: str) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(precision, 2))


class TestWiderColumns:
    """Columns that order changes and lay out tables get a wider type in the table."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        options = {**COMPARED, **LAID_OUT, "plain": ""}
        texts = {f"{name}.sql": ORDERED % text + OF_ORDERED for name, text in options.items()}
        return {"sources.yml": SOURCES, **texts}

    def test_the_table_is_wider_than_the_source(self, project: Any) -> None:
        land(project, "1", 90, id=ids(1, 2), at=decimals(9, "5", "5"), v=ids(1, 1))
        run_dbt(["run"])
        for name in (*COMPARED, "plain"):
            run(project, f"alter table {{schema}}.{name} alter column at type decimal(20, 2)")
        land(project, "2", 80, id=ids(1, 2), at=decimals(9, "4", "6"), v=ids(9, 2))
        run_dbt(["run"])
        self.assert_rows(project, [(1, 1), (2, 2)])

    def test_a_refresh_begins_with_the_narrow_columns(self, project: Any) -> None:
        """The table is sorted by one of them."""
        kind = pa.int64()
        land(project, "3", 70, id=ids(3, kind=kind), at=decimals(20, "7"), v=ids(3))
        run_dbt(["run"])
        run(project, "alter table {schema}.plain write ordered by at, id")
        run_dbt(["run", "--full-refresh"])
        self.assert_rows(project, [(1, 1), (2, 2), (3, 3)])

    def assert_rows(self, project: Any, expected: list[Any]) -> None:
        for name in (*COMPARED, *LAID_OUT, "plain"):
            actual = rows(project, f"select id, v from {{schema}}.{name} order by id")
            assert (name, actual) == (name, expected)


class TestRoutesOfFiles:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES, "routed.sql": ROUTED}

    def test_a_file_that_comes_late(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A route that comes up in a batch has the columns of that, not those of the late file."""
        land(project, "1", 30, kind=pa.array(["a"]), id=ids(1), value=pa.array(["x"]))
        run_dbt(["run"])
        land(project, "3", 10, kind=pa.array(["b"]), id=ids(2), value=pa.array(["y"]))
        present = FilesSource.present

        def then_one_comes_late(source: FilesSource, lower: Frontier | None) -> Frontier | None:
            actual = present(source, lower)
            land(project, "2", 20, kind=pa.array(["b"]), id=ids(3), other=pa.array([1.5]))
            return actual

        monkeypatch.setattr(FilesSource, "present", then_one_comes_late)
        run_dbt(["run"])
        assert rows(project, "select id, value from {schema}.routed__b") == [(2, "y")]
        monkeypatch.undo()
        run_dbt(["run"])
        actual = rows(project, "select id, value, other from {schema}.routed__b order by id")
        assert actual == [(2, "y", None), (3, None, 1.5)]


class TestTables:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"bronze.sql": BRONZE, "silver.sql": SILVER}

    @pytest.mark.slow
    def test_while_a_service_runs(self, project: Any) -> None:
        run_dbt(["run", "-s", "bronze"])
        with service(project, "silver", "-s", "silver") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            run(project, "alter table {schema}.bronze add column more int")
            run(project, "alter table {schema}.bronze alter column id type bigint")
            run(project, "insert into {schema}.bronze values (5000000000, 'b', 7)")
            actual = "select id, name, {more} from {schema}.silver order by id"

            def there() -> bool:
                columns = [field.name for field in table(project, "silver").schema().fields]
                return "more" in columns and rows(
                    project, actual.format(more="more", schema="{schema}")
                ) == [(1, "a", None), (5000000000, "b", 7)]

            wait_for(there)
            assert running.stop() == 0


class TestTablesThatWereAltered:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"bronze.sql": BRONZE, "silver.sql": SILVER}

    def test_before_a_stream_begins(self, project: Any) -> None:
        """Nothing was written there since."""
        run_dbt(["run", "-s", "bronze"])
        run(project, "alter table {schema}.bronze add column more int")
        run(project, "alter table {schema}.bronze alter column id type bigint")
        run_dbt(["run", "-s", "silver"])
        actual = "select id, name, more from {schema}.silver order by id"
        assert rows(project, actual) == [(1, "a", None)]
        run(project, "insert into {schema}.bronze values (5000000000, 'b', 7)")
        run_dbt(["run", "-s", "silver"])
        assert rows(project, actual) == [(1, "a", None), (5000000000, "b", 7)]
