"""Merges by rewriting files, beside writers that were faster: only what they changed is redone."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, why_spark
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from dbt.adapters.iceberg_stream.tables.merge.spark_tasks import in_tasks
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads
from tests.integration.tables import LATER, insert

PLAN = MergePlan(("id",), ("n",), True)
DELETING = MergePlan(("id",), ("n",), True, Deletes.UNMATCHED)


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    ids, numbers = zip(*rows, strict=True)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())})


# PyIceberg does not write to tables of format version 3.
BY_PYICEBERG = pytest.mark.parametrize("name", [(2, "copy-on-write")], indirect=True)


@pytest.fixture(params=[(2, "copy-on-write"), (3, "merge-on-read")], ids=["v2", "v3-on-read"])
def name(request: pytest.FixtureRequest, lake: IcebergCatalog, spark: Session) -> str:
    """A table of four files with five rows each."""
    version, mode = request.param
    made = f"t{uuid.uuid4().hex[:8]}"
    properties = f"'format-version' = '{version}', 'write.merge.mode' = '{mode}'"
    spark.run(f"create table s.{made} (id bigint, n bigint) tblproperties ({properties})")
    for first in range(0, 40, 10):
        insert(lake, made, batch(*((n, 0) for n in range(first, first + 5))))
    return made


@pytest.fixture(params=["threads", "tasks"])
def runner(request: pytest.FixtureRequest, spark: Session) -> Runner:
    return in_threads if request.param == "threads" else in_tasks(spark.map_in_arrow)


def merging(
    lake: IcebergCatalog,
    name: str,
    *rows: tuple[int, int],
    plan: MergePlan = PLAN,
    runner: Runner = in_threads,
) -> RewriteMerge:
    source = Source(pa.Table.from_batches([batch(*rows)]), ["id"])
    refuses = partial(why_spark, plan, {}, False)
    return RewriteMerge(lake, ("s", name), source, plan, refuses, uuid.uuid4().hex, {}, runner)


def base_of(lake: IcebergCatalog, name: str) -> LoadedTable:
    base = lake.load(("s", name))
    assert base is not None
    return base


def expect(lake: IcebergCatalog, spark: Session, name: str, changed: dict[int, int | None]) -> None:
    """All rows, those that are not named as they were, None for none; and no file left over."""
    expected = {n: 0 for first in range(0, 40, 10) for n in range(first, first + 5)} | changed
    spark.run(f"refresh table s.{name}")
    rows = as_rows(spark.query(f"select id, n from s.{name} order by id"))
    assert rows == sorted((i, n) for i, n in expected.items() if n is not None)
    assert unreferenced_files(base_of(lake, name), LATER) == []


def test_merges_of_other_files_are_not_redone(
    lake: IcebergCatalog, spark: Session, name: str, runner: Runner
) -> None:
    base = base_of(lake, name)
    merges = [merging(lake, name, (first + 1, first), runner=runner) for first in (10, 20, 30)]
    for merge in merges:
        assert merge.run(base).updated == 1
    assert [merge.rewrites for merge in merges] == [1, 1, 1]
    expect(lake, spark, name, {11: 10, 21: 20, 31: 30})


def test_merges_of_the_same_file_come_one_after_the_other(
    lake: IcebergCatalog, spark: Session, name: str, runner: Runner
) -> None:
    base = base_of(lake, name)
    first, second = (
        merging(lake, name, (1, 1), (2, 1), runner=runner),
        merging(lake, name, (2, 2), (31, 2), runner=runner),
    )
    first.run(base)
    done = second.run(base)
    assert (done.updated, done.rewritten) == (2, 2)
    # The file that nobody else changed was written once only.
    assert second.rewrites == 3
    expect(lake, spark, name, {1: 1, 2: 2, 31: 2})


def test_rows_that_others_inserted_are_updated(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    base = base_of(lake, name)
    merging(lake, name, (50, 1)).run(base)
    done = merging(lake, name, (50, 2), (51, 2)).run(base)
    assert (done.updated, done.inserted) == (1, 1)
    expect(lake, spark, name, {50: 2, 51: 2})


def test_rows_without_a_match_are_deleted(
    lake: IcebergCatalog, spark: Session, name: str, runner: Runner
) -> None:
    same = [(n, 0) for n in range(5)]
    merge = merging(lake, name, *same, (10, 5), (77, 7), plan=DELETING, runner=runner)
    done = merge.run(base_of(lake, name))
    assert (done.updated, done.inserted, done.deleted) == (1, 1, 14)
    # One file stays, one is rewritten, two go.
    assert (merge.rewrites, done.rewritten) == (1, 3)
    gone = dict.fromkeys([11, 12, 13, 14, *range(20, 25), *range(30, 35)])
    expect(lake, spark, name, gone | {10: 5, 77: 7})


def test_so_are_those_that_others_insert_meanwhile(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    base = base_of(lake, name)
    insert(lake, name, batch((99, 9)))
    all_but_one = [(n, 0) for first in range(0, 40, 10) for n in range(first, first + 5) if n]
    done = merging(lake, name, *all_but_one, plan=DELETING).run(base)
    assert (done.updated, done.inserted, done.deleted) == (0, 0, 2)
    expect(lake, spark, name, {0: None})


def test_appends_of_other_keys_do_not_disturb(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    base = base_of(lake, name)
    insert(lake, name, batch((99, 9)))
    merge = merging(lake, name, (1, 1), (50, 1))
    merge.run(base)
    assert merge.rewrites == 1
    expect(lake, spark, name, {1: 1, 50: 1, 99: 9})


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda name: (
            f"call lake.system.rewrite_data_files(table => 's.{name}', options => map('rewrite-all', 'true'))"
        ),
        lambda name: f"update s.{name} set n = 7 where id = 2",
    ],
    ids=["compaction", "update"],
)
def test_beside_spark(
    lake: IcebergCatalog, spark: Session, name: str, meanwhile: Callable[[str], str]
) -> None:
    base = base_of(lake, name)
    statement = meanwhile(name)
    spark.fetch(spark.run(statement))
    done = merging(lake, name, (1, 1), (34, 1)).run(base)
    assert done.updated == 2
    expect(lake, spark, name, {1: 1, 34: 1} | ({2: 7} if "update" in statement else {}))


def test_deletes_that_came_meanwhile_are_not_undone(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    spark.run(f"alter table s.{name} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    base = base_of(lake, name)
    spark.run(f"delete from s.{name} where id = 2")
    merge = merging(lake, name, (1, 1), (2, 1), (11, 1))
    done = merge.run(base)
    assert (done.updated, done.inserted) == (2, 1)
    # Only the file with the deletes is processed again.
    assert merge.rewrites == 3
    expect(lake, spark, name, {1: 1, 2: 1, 11: 1})


def test_keys_of_several_columns_and_nulls(lake: IcebergCatalog, spark: Session) -> None:
    made = f"t{uuid.uuid4().hex[:8]}"
    spark.run(f"create table s.{made} (a bigint, b string, n int)")
    spark.run(
        f"insert into s.{made} values (1, 'x', 0), (1, null, 0), (null, 'x', 0), (null, null, 0)"
    )
    rows = pa.table(
        {"a": [1, None, 2], "b": [None, None, "x"], "n": pa.array([1, 2, 3], pa.int32())}
    )
    source = Source(rows, ["a", "b"])
    plan = MergePlan(("a", "b"), ("n",), True)
    refuses = partial(why_spark, plan, {}, False)
    merge = RewriteMerge(lake, ("s", made), source, plan, refuses, uuid.uuid4().hex, {})
    done = merge.run(base_of(lake, made))
    assert (done.updated, done.inserted) == (2, 1)
    spark.run(f"refresh table s.{made}")
    actual = as_rows(spark.query(f"select a, b, n from s.{made} order by a, b"))
    assert actual == [(None, None, 2), (None, "x", 0), (1, None, 1), (1, "x", 0), (2, "x", 3)]


def test_a_column_that_no_file_has_yet(lake: IcebergCatalog, spark: Session, name: str) -> None:
    spark.run(f"alter table s.{name} add column extra int")
    rows = pa.table({"id": [1, 2], "extra": pa.array([7, None], pa.int32())})
    plan = MergePlan(("id",), ("extra",), False)
    refuses = partial(why_spark, plan, {}, False)
    merge = RewriteMerge(
        lake, ("s", name), Source(rows, ["id"]), plan, refuses, uuid.uuid4().hex, {}
    )
    done = merge.run(base_of(lake, name))
    assert (done.updated, done.inserted) == (1, 0)
    spark.run(f"refresh table s.{name}")
    actual = as_rows(spark.query(f"select id, extra from s.{name} where id < 3 order by id"))
    assert actual == [(0, None), (1, 7), (2, None)]


def test_deletes_that_the_summary_does_not_tell(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    spark.run(f"alter table s.{name} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    spark.run(f"delete from s.{name} where id = 2")
    base = base_of(lake, name)
    for snapshot in base.metadata["snapshots"]:
        snapshot["summary"] = {"operation": snapshot["summary"]["operation"]}
    merging(lake, name, (1, 1)).run(base)
    expect(lake, spark, name, {1: 1, 2: None})


@BY_PYICEBERG
def test_files_without_ids(
    lake: IcebergCatalog, spark: Session, name: str, tmp_path: Path, runner: Runner
) -> None:
    pq.write_table(pa.table({"id": [50], "n": [0]}), tmp_path / "foreign.parquet")
    lake.table(("s", name)).add_files([str(tmp_path / "foreign.parquet")])
    with pytest.raises(NotByRewriting, match="has no field ids"):
        merging(lake, name, (50, 1), runner=runner).run(base_of(lake, name))


@BY_PYICEBERG
def test_what_pyiceberg_has_appended(lake: IcebergCatalog, spark: Session, name: str) -> None:
    lake.table(("s", name)).append(pa.table({"id": [50], "n": [0]}))
    done = merging(lake, name, (50, 1)).run(base_of(lake, name))
    assert (done.updated, done.inserted) == (1, 0)
    expect(lake, spark, name, {50: 1})


def test_a_file_that_is_lost_leaves_none_of_ours(
    lake: IcebergCatalog, spark: Session, name: str, runner: Runner
) -> None:
    before = base_of(lake, name)
    lost = next(f for f in live_files(before.io, before.metadata) if f.upper_bounds[1][0] == 24)
    path = Path(lost.file_path.removeprefix("file://"))
    content = path.read_bytes()
    path.unlink()
    merge = merging(lake, name, (1, 1), (11, 1), (21, 1), (31, 1), runner=runner)
    with pytest.raises(OSError, match=path.name):
        merge.run(before)
    path.write_bytes(content)
    expect(lake, spark, name, {})


@BY_PYICEBERG
def test_what_fails_before_the_commit_leaves_none_of_ours(
    lake: IcebergCatalog, spark: Session, name: str
) -> None:
    with lake.table(("s", name)).transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "of no kind"})
    with pytest.raises(ValueError, match="of no kind"):
        merging(lake, name, (1, 1)).run(base_of(lake, name))
    assert unreferenced_files(base_of(lake, name), LATER) == []
