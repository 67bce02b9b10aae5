"""Changes the rows of data files in a task of Spark, and tells the result.

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting, OldFile
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite

# Columns of OLD_FILES that stay Arrow arrays.
POSITIONS = ("dead", "in_file", "in_source", "gone")

# How often a task tries to process a file that the storage refuses.
TRIES = 3
# A task's result of each file; `moved` is an Arrow stream.
TASK_RESULT = pa.schema(
    [
        ("location", pa.string()),
        ("matched", pa.list_(pa.int64())),
        ("changed", pa.int64()),
        ("deleted", pa.int64()),
        (
            "new_files",
            pa.list_(
                pa.struct(
                    [
                        ("location", pa.string()),
                        ("size", pa.int64()),
                        ("footer", pa.binary()),
                        ("row_groups", pa.int32()),
                    ]
                )
            ),
        ),
        ("dead", pa.list_(pa.int64())),
        ("moved", pa.binary()),
        ("refused", pa.string()),
        ("failed", pa.string()),
        ("attempt", pa.int32()),
    ]
)


def run_task(
    rewrite: FileRewrite, batches: Iterable[pa.RecordBatch], attempt: int = 0
) -> Iterator[pa.RecordBatch]:
    """Process files in a task of Spark.

    Args:
        rewrite: the write.
        batches: the files, as OLD_FILES.
        attempt: Spark's number of the attempt, from 0.

    Yields:
        The files' results, as TASK_RESULT.
    """
    for batch in batches:
        for number, row in enumerate(batch.drop_columns(list(POSITIONS)).to_pylist()):
            file = OldFile(**row, **{name: batch[name][number].values for name in POSITIONS})
            result = {"location": file.location, "attempt": attempt}
            result |= run_with_retries(partial(_result, rewrite, file))
            yield pa.RecordBatch.from_pylist([result], TASK_RESULT)


def _result(rewrite: FileRewrite, file: OldFile) -> dict[str, Any]:
    result = vars(rewrite.run(file))
    return result | {
        "matched": result["matched"].to_pylist(),
        "dead": result["dead"].to_pylist(),
        "new_files": [vars(new) for new in result["new_files"]],
        "moved": None if result["moved"] is None else _serialized(result["moved"]),
    }


def _serialized(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def run_with_retries(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Process a file in a task, and return errors as a result.

    A failed task would leave files of other tasks behind, so the task itself retries.

    Args:
        work: processes the file and returns its result.

    Returns:
        The result, or the error's message as `refused` or `failed`.
    """
    for trial in range(1, TRIES + 1):
        try:
            return work()
        except NotByRewriting as error:
            return {"refused": str(error)}
        except ColumnError as error:
            return {"refused": error.clause}
        except OSError as error:
            if trial == TRIES:
                return {"failed": str(error)}
            time.sleep(trial)
    raise AssertionError


def read_task_result(row: Mapping[str, Any]) -> FileChange:
    """Parse a task's result of a file.

    Args:
        row: a row of TASK_RESULT.

    Raises:
        NotByRewriting: the file cannot be rewritten.
        OSError: the file is damaged, or the storage refuses it.
    """
    if row["failed"] is not None:
        raise OSError(row["failed"])
    if row["refused"] is not None:
        raise NotByRewriting(row["refused"])
    return FileChange(
        row["location"],
        pa.array(row["matched"], pa.int64()),
        row["changed"],
        row["deleted"],
        tuple(WrittenFile(**file) for file in row["new_files"]),
        pa.array(row["dead"], pa.int64()),
        None if row["moved"] is None else pa.ipc.open_stream(row["moved"]).read_all(),
    )
