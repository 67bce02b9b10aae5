"""Processes a write's files in Spark's tasks, whose workers need PyArrow but not this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.files.reader import OLD_FILES, NotByRewriting, OldFile
from dbt.adapters.iceberg_stream.tables.files.worker_code import READS_FILES, WRITES_FILES
from dbt.adapters.iceberg_stream.tables.merge import (
    actions,
    conditions,
    file_rewrite,
    file_task,
    rows,
)
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.file_task import (
    TASK_RESULT,
    read_task_result,
    run_task,
)
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads

WORKER_CODE = (*READS_FILES, *WRITES_FILES, actions, conditions, rows, file_rewrite, file_task)
# The source is sent with the statement, and servers accept messages of up to 128 MiB.
MOST_BYTES = 64 * 1024 * 1024
# The first tasks of a session take two seconds, so that this process handles a few small files
# sooner, if it reads and writes 20 MB a second.
MOST_BYTES_HERE = 32 * 1024 * 1024
# Each task takes a fifth of a second, so that it gets several files if they are small; but a few
# tasks are always made, for the cores of the cluster.
BYTES_PER_TASK = 16 * 1024 * 1024
FEW_TASKS = 4
# Arguments: rows, the number of tasks, the task, the schema of its result, modules to send along.
MapInArrow = Callable[
    [pa.Table, int, Callable[..., Any], pa.Schema, Sequence[ModuleType]], pa.Table
]


class TooLarge(NotByRewriting):
    """A write is too large to be sent to Spark's tasks."""


def on_cluster(map_in_arrow: MapInArrow) -> Runner:
    """Return a runner that processes few bytes in this process, and more in Spark's tasks.

    Args:
        map_in_arrow: runs a function on rows in Spark's tasks.
    """

    def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
        is_little = sum(file.size for file in files) <= MOST_BYTES_HERE
        yield from (in_threads if is_little else in_tasks(map_in_arrow))(rewrite, files)

    return run


def in_tasks(map_in_arrow: MapInArrow) -> Runner:
    """Return a runner that processes files in tasks of a Spark session.

    Args:
        map_in_arrow: runs a function on rows in Spark's tasks.
    """

    def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
        table = pa.Table.from_pylist([vars(file) for file in files], OLD_FILES)
        size = table.nbytes + (rewrite.source.rows.nbytes if rewrite.source else 0)
        if size > MOST_BYTES:
            raise TooLarge(f"the source has over {MOST_BYTES >> 20} MiB")
        if not files:
            return
        with ExitStack() as undo:
            # If a task fails, the files of other tasks are unknown.
            undo.callback(rewrite.sweep, files)
            count = _number_of_tasks(files)
            found = map_in_arrow(table, count, _task(rewrite), TASK_RESULT, WORKER_CODE)
            results = found.to_pylist()
            changes = [read_task_result(row) for row in results]
            if any(row["attempt"] for row in results):
                # A task that Spark ran again may have left files of its first attempt.
                rewrite.sweep(files, changes)
            yield from changes
            undo.pop_all()

    return run


def _number_of_tasks(files: Sequence[OldFile]) -> int:
    wanted = sum(file.size for file in files) // BYTES_PER_TASK
    return min(len(files), max(FEW_TASKS, wanted))


def _task(rewrite: FileRewrite) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from run_task(rewrite, batches, context.attemptNumber() if context else 0)

    return work
