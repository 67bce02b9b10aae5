"""Processes a merge's files in Spark's tasks, whose workers need PyArrow but not this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.files import casting, field_ids, parquet, uploads
from dbt.adapters.iceberg_stream.tables.merge import file_rewrite, rows
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import (
    TASK_RESULT,
    Candidate,
    FileMerge,
    NotByRewriting,
    Rewritten,
    read_task_result,
    run_task,
)
from dbt.adapters.iceberg_stream.tables.merge.rewrite import Runner

WORKER_CODE = (casting, field_ids, parquet, uploads, rows, file_rewrite)
# The source is sent with the statement, and servers accept messages of up to 128 MiB.
MOST_BYTES = 64 * 1024 * 1024
# Arguments: rows, the task, the schema of its result, modules to send along.
MapInArrow = Callable[[pa.Table, Callable[..., Any], pa.Schema, Sequence[ModuleType]], pa.Table]


def in_tasks(map_in_arrow: MapInArrow) -> Runner:
    """Return a runner that processes files in tasks of a Spark session, one task per file.

    Args:
        map_in_arrow: runs a function on rows in Spark's tasks.
    """

    def run(merge: FileMerge, candidates: list[Candidate]) -> Iterator[Rewritten]:
        if merge.source.rows.nbytes > MOST_BYTES:
            raise NotByRewriting(f"the source has over {MOST_BYTES >> 20} MiB")
        if not candidates:
            return
        table = pa.Table.from_pylist([vars(candidate) for candidate in candidates])
        with ExitStack() as undo:
            # If a task fails, the files of other tasks are unknown.
            undo.callback(merge.sweep, candidates)
            rows = map_in_arrow(table, _task(merge), TASK_RESULT, WORKER_CODE).to_pylist()
            results = [read_task_result(row) for row in rows]
            if any(row["attempt"] for row in rows):
                # A task that Spark ran again may have left files of its first attempt.
                merge.sweep(candidates, results)
            yield from results
            undo.pop_all()

    return run


def _task(merge: FileMerge) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from run_task(merge, batches, context.attemptNumber() if context else 0)

    return work
