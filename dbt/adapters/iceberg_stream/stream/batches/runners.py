"""Write the files of a batch, in this process or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.engines import arrow_offsets
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas import changes, row_delta, sub_batch
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import ORDER, row_positions, without
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import (
    DATA,
    DELETES,
    EQUALITY_DELETES,
    TASK_RESULT,
    Delta,
    MissingOrderValue,
    TooManyKeys,
    from_bytes,
    run_task,
    sweep,
    write_changes,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import (
    FILE,
    POS,
    DeltaPlan,
    NewData,
    SubBatch,
    deleted_schema,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.reader import read_rows
from dbt.adapters.iceberg_stream.tables.files.worker_code import READS_FILES, WRITES_FILES
from dbt.adapters.iceberg_stream.tables.merge import rows as merge_rows

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

WORKER_CODE = (
    *(arrow_offsets, *READS_FILES, *WRITES_FILES),
    *(merge_rows, changes, sub_batch, row_delta),
)
# Writes the changes of a query to files, given the query's views by their names.
Runner = Callable[[Session, DeltaPlan, str, dict[str, "DataFrame"]], list[Delta]]


def in_process(
    session: Session, plan: DeltaPlan, sql: str, views: dict[str, DataFrame]
) -> list[Delta]:
    """Write changes in this process, as fast as Spark returns them.

    Args:
        session: of the engine.
        plan: how the files are written.
        sql: a query that returns changes.
        views: the frames that the query reads, by their names in it.

    Returns:
        One delta.

    Raises:
        StreamError: a change cannot be written; no file is left.
    """
    try:
        if plan.ordered or plan.max_keys:
            return [_write(session, plan, sql, views)]
    except TooManyKeys:
        pass
    # The keys do not fit in memory, so Spark sorts all changes.
    names = session.arrow_schema(sql, **views).names
    order = ", ".join(name for name in names if name.startswith(ORDER))
    ordered = replace(plan, ordered=True, max_keys=0)
    return [_write(session, ordered, f"select * from (\n{sql}\n) order by {order}", views)]


def _write(session: Session, plan: DeltaPlan, sql: str, views: dict[str, DataFrame]) -> Delta:
    batches = session.stream(sql, **views)
    next(batches)
    return write_here(plan, batches)


def write_here(plan: DeltaPlan, batches: Iterator[pa.RecordBatch]) -> Delta:
    """Write changes in this process.

    Args:
        plan: how the files are written.
        batches: the changes.

    Raises:
        StreamError: a change cannot be written; no file is left.
    """
    try:
        return write_changes(plan, batches)
    except (MissingOrderValue, ColumnError) as error:
        raise StreamError(str(error)) from error


def in_tasks(
    session: Session, plan: DeltaPlan, sql: str, views: dict[str, DataFrame]
) -> list[Delta]:
    """Write changes in Spark's tasks, whose workers need PyArrow only.

    Each task has all changes of its keys, in their order.

    Args:
        session: of the engine.
        plan: how the files are written.
        sql: a query that returns changes.
        views: the frames that the query reads, by their names in it.

    Returns:
        A delta for each task.

    Raises:
        StreamError: a change cannot be written; no file is left.
    """
    names = session.arrow_schema(sql, **views).names
    frame = session.frame(sql, **views)
    if plan.keys:
        order = [name for name in names if name.startswith(ORDER)]
        keys = [quote(key) for key in plan.keys]
        frame = frame.repartition(*keys).sortWithinPartitions(*order)
    in_order = replace(plan, ordered=True)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from run_task(in_order, batches)

    with ExitStack() as undo:
        # If a task fails, the files of the others are unknown.
        undo.callback(sweep, plan)
        rows = session.run_in_tasks(frame, work, TASK_RESULT, WORKER_CODE, **views).to_pylist()
        if refused := [row["refused"] for row in rows if row["refused"]]:
            raise StreamError(refused[0])
        deltas = read_deltas(plan, rows)
        undo.pop_all()
    return deltas


def _changed_keys(plan: DeltaPlan, sub: SubBatch, deleted: Sequence[pa.Table]) -> pa.Table:
    """Return the changed keys of a task, as `SubBatch` has them."""
    parts = [
        _with_places(keys, -1, pa.repeat(pa.scalar(-1, pa.int64()), keys.num_rows))
        for keys in deleted
    ]
    for number, new in enumerate(sub.data):
        keys = _read_keys(plan, new.file)
        parts.append(without(_with_places(keys, number, row_positions(keys.num_rows)), new.dead))
    return pa.concat_tables(parts)


def _with_places(keys: pa.Table, file: int, positions: pa.Int64Array) -> pa.Table:
    files = pa.repeat(pa.scalar(file, pa.int32()), keys.num_rows)
    return keys.append_column(FILE, files).append_column(POS, positions)


def _read_keys(plan: DeltaPlan, file: WrittenFile) -> pa.Table:
    with (
        plan.filesystem.open_input_file(plan.path_of(file.location)) as opened,
        pq.ParquetFile(opened) as parquet,
    ):
        return read_rows(parquet, deleted_schema(plan))


def read_deltas(plan: DeltaPlan, rows: list[dict[str, Any]]) -> list[Delta]:
    """Return the deltas of the tasks.

    Args:
        plan: how the files were written.
        rows: rows of TASK_RESULT, of all tasks.

    Raises:
        OSError: the storage refuses a file.
    """
    deltas: dict[str, Delta] = {}
    for row in rows:
        delta = deltas.setdefault(row["task"], Delta())
        if row["totals"] is not None:
            totals = from_bytes(row["totals"])
            delta.changes, delta.upserts, delta.deletes, delta.first, delta.last = totals
            continue
        while len(delta.sub_batches) <= row["sub_batch"]:
            delta.sub_batches.append(SubBatch())
        files = delta.sub_batches[row["sub_batch"]]
        file, content = WrittenFile(**row["file"]), row["content"]
        if content == DATA:
            dead = pa.array(row["dead"], pa.int64())
            files.data.append(NewData(file, from_bytes(row["partition"]), dead))
        elif content == EQUALITY_DELETES:
            files.equality_deletes.append((file, from_bytes(row["partition"])))
        else:
            keys = _read_keys(plan, file)
            with suppress(OSError):
                plan.filesystem.delete_file(plan.path_of(file.location))
            if content == DELETES:
                files.deletes = keys
            else:
                files.changed_keys = keys
    if plan.keeps_keys:
        for sub in (sub for delta in deltas.values() for sub in delta.sub_batches):
            deleted = [] if sub.changed_keys is None else [sub.changed_keys]
            sub.changed_keys = _changed_keys(plan, sub, deleted)
    return list(deltas.values())
