"""Streams whose tables have no delete files, for readers that refuse them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.batches import runners
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import (
    CopyOnWrite,
    rewrite_here,
    rewrite_in_tasks,
)
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes
from dbt.adapters.iceberg_stream.tables.files.reader import OldFile
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads
from tests.integration.replica import Replica
from tests.integration.stream_bed import Bed, last_of_each, random_changes
from tests.integration.streams import NAME, Change, Truth, make_table, open_sink, write
from tests.integration.tables import LATER, duckdb_rows

MakeBed = Callable[..., Bed]


@pytest.fixture
def bed(lake: IcebergCatalog, spark: Session, tmp_path: Path) -> MakeBed:
    def make(version: int = 2, by: str = "", tasks: bool = False, **settings: Any) -> Bed:
        layout = f"tblproperties ('format-version' = '{version}')"
        if by:
            layout = f"partitioned by ({by}) {layout}"
            settings["partition"] = f"named_struct('f0', `{by}`)"
        options = {"deletes": "op = 'd'", "truncates": "op = 't'"}
        runner, rewriter = (
            (runners.in_tasks, rewrite_in_tasks) if tasks else (runners.in_process, rewrite_here)
        )
        return Bed(
            lake,
            spark,
            tmp_path / "landing",
            runner,
            {**options, "delete_encoding": "copy_on_write"},
            layout=layout,
            **{"rewriter": rewriter, **settings},
        )

    return make


def changed(*keys: int, op: str = "u", b: int = 0) -> list[dict[str, Any]]:
    return [{"id": key, "a": "x", "b": b, "at": 0, "op": op} for key in keys]


def rows_of_pyiceberg(made: Bed) -> list[tuple[Any, ...]]:
    """PyIceberg cannot read equality deletes: what it reads has none."""
    actual = made.lake.pyiceberg.load_table(("s", made.name)).scan().to_arrow()
    return sorted(as_rows(actual), key=lambda row: (row[0] is not None, row[0]))


def operations(made: Bed) -> list[str]:
    sql = f"select operation from s.{made.name}.snapshots order by committed_at"
    return [row[0] for row in as_rows(made.spark.query(sql))]


def orphans(made: Bed) -> list[Any]:
    base = made.lake.load(("s", made.name))
    assert base is not None
    return unreferenced_files(base, LATER)


@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize("by", ["", "a"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.variants(3)
def test_the_table_is_the_truth(bed: MakeBed, version: int, by: str, tasks: bool) -> None:
    made = bed(version, by, tasks)
    changes = random_changes(7, 60)
    for begin in range(0, 60, 15):
        made.land(changes[begin : begin + 15])
        made.drain()
        truth = last_of_each(changes[: begin + 15])
        assert made.rows() == truth
    assert rows_of_pyiceberg(made) == truth
    assert duckdb_rows(made.lake, made.name) == truth
    assert as_rows(made.spark.query(f"select * from s.{made.name}.all_delete_files")) == []
    assert operations(made) == ["append", *["overwrite"] * 3]
    assert orphans(made) == []


def test_rows_that_stay_keep_their_ids(bed: MakeBed) -> None:
    made = bed(3)
    for number in range(3):
        made.land(changed(*range(10 * number, 10 * number + 10)))
        made.drain()
    lineage = "id, _row_id, _last_updated_sequence_number"
    before = {row[0]: row for row in made.rows(lineage)}
    for number in range(2):  # the second time they have moved already
        made.land(changed(3 + number, b=1) + changed(14 + number, op="d"))
        made.drain()
    after = {row[0]: row for row in made.rows(lineage)}
    assert after.keys() == before.keys() - {14, 15}
    assert all(after[key] == before[key] for key in after.keys() - {3, 4})
    assert len({row[1] for row in after.values()}) == 28


def test_a_table_that_was_of_version_2_until_now(bed: MakeBed) -> None:
    made = bed(2)
    for number in range(2):
        made.land(changed(*range(10 * number, 10 * number + 3)))
        made.drain()
    made.spark.run(f"alter table s.{made.name} set tblproperties ('format-version' = '3')")
    for number in range(2):
        made.land(changed(number, b=1) + changed(10 + number, op="d"))
        made.drain()
    rows = made.rows("id, b, _row_id")
    assert [row[:2] for row in rows] == [(0, 1), (1, 1), (2, 0), (12, 0)]
    assert len({row[2] for row in rows}) == 4


def test_columns_that_the_stream_does_not_give_stay(bed: MakeBed) -> None:
    made = bed()
    made.land(changed(1, 2))
    made.drain()
    table = f"s.{made.name}"
    made.spark.run(f"alter table {table} add column note string first")
    made.spark.run(f"insert into {table} (id, note) values (3, 'c'), (4, 'd')")
    made.land(changed(1, 3, b=1))
    made.drain()
    assert made.rows("id, b, note") == [(1, 1, None), (2, 0, None), (3, 1, None), (4, None, "d")]


@pytest.mark.parametrize("version", [2, 3])
def test_a_stream_of_its_changes(bed: MakeBed, version: int) -> None:
    """Rows that only moved to another file are none."""
    made = bed(version)
    replica = Replica(made.lake, made.spark, made.name)
    changes = random_changes(11, 60)
    for begin in range(0, 60, 15):
        made.land(changes[begin : begin + 15])
        made.drain()
        replica.read()
        replica.expect_the_table()
    made.land(changed(100, 101))
    made.drain()
    replica.read()
    made.land(changed(100, op="d"))
    made.drain()
    assert [(row["id"], row["__stream"]["deleted"]) for row in replica.read()] == [(100, True)]


def test_what_changes_nothing_is_not_committed(bed: MakeBed) -> None:
    made = bed()
    made.land(changed(1, 2))
    made.drain()
    made.drain()
    made.land(changed(7, op="d"))
    made.drain()
    assert operations(made) == ["append"]
    made.land(changed(1, 2, op="d"))
    made.drain()
    assert operations(made) == ["append", "delete"]
    assert made.rows() == []


def test_truncates(bed: MakeBed) -> None:
    made = bed()
    made.land(changed(1, 2, 3))
    made.drain()
    made.land([*changed(1, b=1), {"op": "t"}, *changed(2, b=2)])
    made.drain()
    assert made.rows("id, b") == [(2, 2)]
    assert orphans(made) == []


def test_another_writer_meanwhile(bed: MakeBed) -> None:
    """What it has added is looked at as well."""
    commits: list[str] = []

    def slowly(session: Session) -> Runner:
        def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
            yield from in_threads(rewrite, files)
            if not commits:
                values = "(1, 'other', 0, 0), (8, 'o', 0, 0)"
                commits.append(f"insert into s.{made.name} values {values}")
                session.run(commits[0])

        return run

    made = bed(rewriter=slowly)
    made.land(changed(1, 2))
    made.drain()
    made.land(changed(1, b=1))
    made.drain()
    assert made.rows("id, a, b") == [(1, "x", 1), (2, "x", 0), (8, "o", 0)]
    assert orphans(made) == []


def test_a_run_that_fails_leaves_nothing(bed: MakeBed) -> None:
    made = bed()
    for key in (1, 2):
        made.land(changed(key, key + 10))
        made.drain()

    def failing(session: Session) -> Runner:
        def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
            yield rewrite.run(files[0])
            raise OSError("no space left on device")

        return run

    before = made.rows()
    made.land(changed(1, 2, b=1))
    made.rewriter = failing
    with pytest.raises(StreamError, match="no space left"):
        made.drain()
    assert made.rows() == before
    assert orphans(made) == []
    made.rewriter = rewrite_here
    made.drain()
    assert made.rows("id, b") == [(1, 1), (2, 1), (11, 0), (12, 0)]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_of_others_are_refused_with_their_cure(bed: MakeBed, version: int) -> None:
    made = bed(version)
    made.land(changed(1, 2, 3))
    made.drain()
    made.spark.run(
        f"alter table s.{made.name} set tblproperties ('write.delete.mode' = 'merge-on-read')"
    )
    made.spark.run(f"delete from s.{made.name} where id = 2")
    made.land(changed(1, b=1))
    with pytest.raises(StreamError, match="has delete files") as refused:
        made.drain()
    (cure,) = re.findall(r"call .*\)", str(refused.value))
    made.spark.run(cure)
    made.drain()
    assert made.rows("id, b") == [(1, 1), (3, 0)]


@pytest.mark.parametrize("before", ["equality", "position"])
def test_a_stream_that_has_left_deletes_until_now(bed: MakeBed, before: str) -> None:
    made = bed()
    made.options["delete_encoding"] = before
    for number, keys in enumerate([(1, 2, 3), (1, 2)]):
        made.land(changed(*keys, b=number))
        made.drain()
    made.options["delete_encoding"] = "copy_on_write"
    made.land(changed(1, b=2))
    with pytest.raises(StreamError, match="has delete files") as refused:
        made.drain()
    made.spark.run(re.findall(r"call .*\)", str(refused.value))[0])
    made.drain()
    assert made.rows("id, b") == [(1, 2), (2, 1), (3, 0)]
    assert rows_of_pyiceberg(made) == made.rows()


def test_other_files_are_refused(bed: MakeBed) -> None:
    made = bed()
    made.spark.run(f"alter table s.{made.name} set tblproperties ('write.format.default' = 'avro')")
    made.spark.run(f"insert into s.{made.name} values (1, 'x', 0, 0)")
    made.land(changed(1, b=1))
    with pytest.raises(StreamError, match="is in AVRO"):
        made.drain()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_changes_within_a_batch(tmp_path: Path, version: int, seed: int) -> None:
    """Chunks of a few rows: a later one replaces rows that an earlier one has written."""
    chosen = random.Random(seed)
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    make_table(lake, version)
    sink, truth = open_sink(lake), Truth()
    changes = [
        Change(chosen.randrange(9), None if chosen.random() < 0.3 else str(n)) for n in range(60)
    ]
    write_id, batch = write(sink, changes, 60, rows=7, max_keys=1000)
    rewriting = CopyOnWrite(None, rewrite_here, sink.table(), sink.plan(write_id))  # type: ignore[arg-type]
    rest = rewriting.remove_dead_rows(batch).by_position(TargetDeletes(None))
    sink.remove(sorted({*batch.files} - {*rest.files}))
    sink.commit(write_id, [rest])
    truth.apply(changes)
    assert duckdb_rows(lake, NAME[1]) == truth.sorted()
    base = sink.table()
    assert base.metadata["snapshots"][-1]["summary"]["operation"] == "append"
    assert unreferenced_files(base, LATER) == []
    lake.close()
