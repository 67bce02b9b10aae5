"""The work on one file, as Spark's workers do it: with PyArrow alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions
from dbt.adapters.iceberg_stream.tables.files.reader import (
    LAST_UPDATED,
    OLD_FILES,
    ROW_ID,
    NotByRewriting,
    OldFile,
)
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.file_task import (
    TASK_RESULT,
    read_task_result,
    run_task,
)
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from dbt.adapters.iceberg_stream.tables.merge.spark_tasks import WORKER_CODE, in_tasks

SCHEMA = pa.schema(
    [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        for number, name in enumerate(("id", "n"), 1)
    ]
)
# What a worker does: it knows Spark's pickles and PyArrow, and has nothing of ours.
WORKER = """
import pickle, sys
import pyarrow as pa

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dbt", "pyiceberg"):
            raise ImportError(name + " is not on the workers")

sys.meta_path.insert(0, Nothing())
task = pickle.load(open(sys.argv[1], "rb"))
row = {"location": "x://" + sys.argv[2], "path": sys.argv[2], "dead": []}
batch = pa.RecordBatch.from_pylist([row], pickle.load(open(sys.argv[5], "rb")))
with pa.ipc.new_stream(sys.argv[3], pickle.load(open(sys.argv[4], "rb"))) as out:
    for result in task([batch]):
        out.write_batch(result)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "one.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "n": [0, 0, 0]}, schema=SCHEMA), path)
    return path


def file_merge(deletes: Deletes = Deletes.NONE) -> FileRewrite:
    source = Source(pa.table({"id": [2, 9], "n": [5, 5]}, schema=SCHEMA), ["id"])
    options = ParquetOptions()
    return FileRewrite(fs.LocalFileSystem(), SCHEMA, options, "merge-abc-", source, ["n"], deletes)


def test_a_worker_has_nothing_of_ours(file: Path, tmp_path: Path) -> None:
    for module in WORKER_CODE:
        cloudpickle.register_pickle_by_value(module)
    (tmp_path / "task").write_bytes(cloudpickle.dumps(partial(run_task, file_merge())))
    (tmp_path / "schema").write_bytes(cloudpickle.dumps(TASK_RESULT))
    (tmp_path / "files").write_bytes(cloudpickle.dumps(OLD_FILES))
    names = [str(tmp_path / "task"), str(file)]
    names += [str(tmp_path / name) for name in ("out", "schema", "files")]
    subprocess.run([sys.executable, "-c", WORKER, *names], check=True)
    (row,) = pa.ipc.open_stream(tmp_path / "out").read_all().to_pylist()
    result = read_task_result(row)
    assert (result.matched.to_pylist(), result.changed, result.deleted) == ([0], 1, 0)
    (made,) = result.new_files
    new = file.with_name(made.location.rsplit("/", 1)[1])
    assert pq.read_table(new).to_pydict() == {"id": [1, 2, 3], "n": [0, 5, 0]}


def test_what_was_made_is_removed(file: Path) -> None:
    merge, candidate = file_merge(), OldFile(f"x://{file}", str(file))
    result = merge.run(candidate)
    assert len(list(file.parent.iterdir())) == 2
    merge.remove(candidate, result)
    assert list(file.parent.iterdir()) == [file]
    merge.run(candidate)
    other = file.with_name("merge-other-1.parquet")
    other.touch()
    merge.sweep([candidate])
    assert sorted(file.parent.iterdir()) == sorted([file, other])


def test_rows_without_a_match_are_left_out(file: Path) -> None:
    result = file_merge(Deletes.UNMATCHED).run(OldFile(str(file), str(file)))
    assert (result.changed, result.deleted) == (1, 2)
    assert pq.read_table(result.new_files[0].location).to_pydict() == {"id": [2], "n": [5]}


def test_rows_with_a_match_are_left_out(file: Path) -> None:
    merge = replace(file_merge(Deletes.MATCHED), updates=())
    result = merge.run(OldFile(str(file), str(file)))
    assert (result.changed, result.deleted) == (0, 1)
    assert pq.read_table(result.new_files[0].location).to_pydict() == {"id": [1, 3], "n": [0, 0]}


def test_a_refusal_travels(file: Path) -> None:
    pq.write_table(pa.table({"id": [1], "n": [0]}), file)
    batch = pa.RecordBatch.from_pylist([vars(OldFile("here", str(file)))], OLD_FILES)
    (answer,) = run_task(file_merge(), [batch])
    with pytest.raises(NotByRewriting, match="has no field ids"):
        read_task_result(answer.to_pylist()[0])


def test_what_the_first_attempt_of_a_task_has_left_goes(file: Path) -> None:
    def map_in_arrow(rows: pa.Table, *_: object) -> pa.Table:
        """The executor is lost once, after its file was written."""
        list(run_task(file_merge(), rows.to_batches()))
        return pa.Table.from_batches(run_task(file_merge(), rows.to_batches(), attempt=1))

    candidate = OldFile(f"x://{file}", str(file))
    (result,) = in_tasks(map_in_arrow)(file_merge(), [candidate])
    new = file.with_name(result.new_files[0].location.rsplit("/", 1)[1])
    assert sorted(file.parent.iterdir()) == sorted([file, new])


def test_a_task_that_fails_says_which_file(file: Path) -> None:
    def map_in_arrow(rows: pa.Table, *_: object) -> pa.Table:
        return pa.Table.from_batches(run_task(file_merge(), rows.to_batches()))

    there, lost = (OldFile(f"x://{f}", str(f)) for f in (file, file.with_name("lost.parquet")))
    with pytest.raises(OSError, match="lost.parquet"):
        list(in_tasks(map_in_arrow)(file_merge(), [there, lost]))
    assert list(file.parent.iterdir()) == [file]


LINEAGE = pa.schema(
    [
        *SCHEMA,
        *(
            pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
            for name, number in ((ROW_ID, 2147483540), (LAST_UPDATED, 2147483539))
        ),
    ]
)


def merge_rows(file: Path, rewrite: FileRewrite, **known: Any) -> FileChange:
    """Merge ids 2 and 9 into a file of three rows."""
    return rewrite.run(OldFile(str(file), str(file), **known))


def test_deleted_rows_do_not_match_and_go(file: Path) -> None:
    change = merge_rows(file, file_merge(), dead=pa.array([1]))
    assert (change.matched.to_pylist(), change.changes_rows) == ([], False)
    change = merge_rows(file, file_merge(), dead=pa.array([2]))
    (new,) = change.new_files
    assert pq.read_table(new.location).to_pydict() == {"id": [1, 2], "n": [0, 5]}


def test_a_file_whose_last_rows_are_deleted(file: Path) -> None:
    rewrite = replace(file_merge(Deletes.MATCHED), updates=())
    change = merge_rows(file, rewrite, dead=pa.array([0, 2]))
    assert (change.deleted, change.new_files) == (1, ())


def test_rows_keep_their_ids(file: Path) -> None:
    rewrite = replace(file_merge(), schema=LINEAGE)
    change = merge_rows(file, rewrite, first_row_id=100, sequence_number=7)
    rows = pq.read_table(change.new_files[0].location)
    assert rows[ROW_ID].to_pylist() == [100, 101, 102]
    # The row that changes gets the number of the commit.
    assert rows[LAST_UPDATED].to_pylist() == [7, None, 7]


@pytest.mark.parametrize("in_place", [True, False])
def test_rows_that_go_to_other_files(file: Path, in_place: bool) -> None:
    rewrite = replace(file_merge(), schema=LINEAGE, moved_by=["n"], in_place=in_place)
    change = merge_rows(file, rewrite, dead=pa.array([0]), first_row_id=100, sequence_number=7)
    assert change.moved is not None
    assert change.moved.to_pylist() == [{"id": 2, "n": 5, ROW_ID: 101, LAST_UPDATED: None}]
    assert change.changed == 1
    if in_place:
        left = pq.read_table(change.new_files[0].location)
        assert left["id"].to_pylist() == [3]
    else:
        assert (change.new_files, sorted(change.dead.to_pylist())) == ((), [0, 1])
    task = read_task_result(next(run_task(rewrite, [old_files(file)])).to_pylist()[0])
    assert task.moved is not None
    assert task.moved["id"].to_pylist() == [2]


NESTED = pa.struct([pa.field("d", pa.float64(), metadata={"PARQUET:field_id": "4"})])


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), NESTED])
def test_rows_of_another_partition_go_if_they_are_equal_in_sql(
    file: Path, kind: pa.DataType
) -> None:
    """0.0 and -0.0 are two partitions; NaN is one, and a row that stays is in another one."""
    part = pa.field("p", kind, metadata={"PARQUET:field_id": "3"})
    schema = SCHEMA.append(part)

    def table(n: int, *values: float) -> pa.Table:
        parts = pa.array([{"d": v} for v in values] if pa.types.is_struct(kind) else values, kind)
        return pa.table({"id": range(4), "n": [n] * 4, "p": parts}, schema=schema)

    nan = float("nan")
    pq.write_table(table(0, 0.0, -0.0, nan, -0.0), file)
    source = Source(table(5, -0.0, 0.0, -nan, -0.0), ["id"])
    rewrite = replace(
        file_merge(), schema=schema, source=source, updates=["n", "p"], moved_by=["p"]
    )
    change = merge_rows(file, rewrite)
    assert change.moved is not None
    assert (change.changed, change.moved["id"].to_pylist()) == (4, [0, 1])
    assert pq.read_table(change.new_files[0].location)["id"].to_pylist() == [2, 3]


def old_files(file: Path) -> pa.RecordBatch:
    old = OldFile(str(file), str(file), dead=pa.array([0]))
    return pa.RecordBatch.from_pylist([vars(old)], OLD_FILES)


def test_located_rows(file: Path) -> None:
    """No key is read: rows 0 and 2 are paired with the source's first row, and row 1 goes."""
    pairs = {"in_file": pa.array([0, 2]), "in_source": pa.array([0, 0]), "gone": pa.array([1])}
    change = merge_rows(file, file_merge(), is_located=True, **pairs)
    assert (change.changed, change.deleted) == (2, 1)
    rows = pq.read_table(change.new_files[0].location).to_pydict()
    assert rows == {"id": [1, 3], "n": [5, 5]}
    change = merge_rows(file, file_merge(), is_located=True)
    assert not change.changes_rows


def test_located_rows_in_any_order(file: Path) -> None:
    """Spark returns them in the order of its join."""
    source = Source(pa.table({"id": [7, 8, 9], "n": [70, 80, 90]}, schema=SCHEMA), ["id"])
    pairs = {"in_file": pa.array([2, 0, 1]), "in_source": pa.array([0, 1, 2])}
    change = merge_rows(file, replace(file_merge(), source=source), is_located=True, **pairs)
    rows = pq.read_table(change.new_files[0].location).to_pydict()
    assert rows == {"id": [1, 2, 3], "n": [80, 90, 70]}
