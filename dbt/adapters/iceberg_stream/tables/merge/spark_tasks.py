"""A merge's work on files in Spark's tasks, whose workers need PyArrow and nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.files import casting, parquet, uploads
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

WORKER_CODE = (casting, parquet, uploads, rows, file_rewrite)
# The source travels with the statement, and servers take messages of 128 MiB.
MOST_BYTES = 64 * 1024 * 1024
# Rows, what a task makes of them, the columns of that, and modules that travel along.
MapInArrow = Callable[[pa.Table, Callable[..., Any], pa.Schema, Sequence[ModuleType]], pa.Table]


def in_tasks(map_in_arrow: MapInArrow) -> Runner:
    """Does the work on files in tasks of a Spark session, one for each file."""

    def run(merge: FileMerge, candidates: list[Candidate]) -> Iterator[Rewritten]:
        if merge.source.rows.nbytes > MOST_BYTES:
            raise NotByRewriting(f"the source has over {MOST_BYTES >> 20} MiB")
        if not candidates:
            return
        places = pa.Table.from_pylist([vars(candidate) for candidate in candidates])
        with ExitStack() as undo:
            # What other tasks have made when one goes wrong is not known.
            undo.callback(merge.sweep, candidates)
            rows = map_in_arrow(places, _task(merge), TASK_RESULT, WORKER_CODE).to_pylist()
            done = [read_task_result(row) for row in rows]
            if any(row["attempt"] for row in rows):
                # Of a task that was run again the first attempt may have left files.
                merge.sweep(candidates, done)
            yield from done
            undo.pop_all()

    return run


def _task(merge: FileMerge) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from run_task(merge, batches, context.attemptNumber() if context else 0)

    return work
