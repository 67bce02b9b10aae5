"""Write changes to the files of row deltas, with bounded memory.

Articles on the streaming sink ("The Delete Problem") and on many data sequence numbers ("Improving
write performance"). Worker code: it imports the standard library, PyArrow and other worker code
only.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.stream.row_deltas.changes import (
    ORDER,
    chunks,
    last_changes,
    order_columns,
    overtaken_deletes,
    with_one_zero_and_nan,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import (
    POS,
    DeltaPlan,
    OpenSubBatch,
    SubBatch,
    deleted_keys,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.uploads import Uploads

FILE_TYPE = [
    ("location", pa.string()),
    ("size", pa.int64()),
    ("footer", pa.binary()),
    ("row_groups", pa.int32()),
]
# What a file of a task has: rows, equality deletes, or what `SubBatch` has of deleted keys.
DATA, EQUALITY_DELETES, CHANGED_KEYS, DELETES = (
    "data",
    "equality deletes",
    "changed keys",
    "deletes",
)
# Rows that a task returns: one for each file, and one without a file for its totals or its error.
TASK_RESULT = pa.schema(
    [
        ("task", pa.string()),
        ("sub_batch", pa.int32()),
        ("file", pa.struct(FILE_TYPE)),
        ("content", pa.string()),
        ("partition", pa.binary()),
        ("dead", pa.list_(pa.int64())),
        ("totals", pa.binary()),
        ("refused", pa.string()),
    ]
)


class TooManyKeys(Exception):
    """A batch has more keys than fit in memory, and its changes are not ordered."""


class MissingOrderValue(ValueError):
    """A change has no value in the column that orders it."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} changes have no value in the column that orders them")


@dataclass
class Delta:
    """The files that one task has written for a batch's changes, and their counts.

    Attributes:
        sub_batches: in the order of their data sequence numbers.
        changes: changes that were read.
        upserts: rows that were written.
        deletes: keys whose last change is a delete.
        first: lowest value of the first order column; None for no changes.
        last: highest value of the first order column; None for no changes.
    """

    sub_batches: list[SubBatch] = field(default_factory=list)
    changes: int = 0
    upserts: int = 0
    deletes: int = 0
    first: Any = None
    last: Any = None


def write_changes(plan: DeltaPlan, batches: Iterable[pa.RecordBatch]) -> Delta:
    """Write the files of a batch's changes; an error leaves no file behind.

    Args:
        plan: how the files are written.
        batches: the changes, with their order columns.

    Returns:
        The files and their counts.

    Raises:
        TooManyKeys: the plan says that changes come in any order, and has not memory for all keys.
        MissingOrderValue: a change has no value in an order column.
        ColumnError: a column does not fit the table.
        OSError: the storage refuses a file.
    """
    with DeltaWriter(plan) as writer:
        for chunk in chunks(batches, plan.chunk_bytes):
            writer.write(chunk)
        return writer.close()


class DeltaWriter:
    """Writes chunks of changes to files: one thread collects rows while another one writes."""

    def __init__(self, plan: DeltaPlan) -> None:
        self._plan = plan
        self._delta = Delta()
        self._uploads = Uploads()
        self._sub_batch = OpenSubBatch(plan, self._uploads)
        self._finished: list[OpenSubBatch] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stream-files")
        self._work: Future[None] | None = None

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        self._uploads.shutdown()
        if kind is not None:
            for sub_batch in [*self._finished, self._sub_batch]:
                sub_batch.abort()

    def write(self, chunk: pa.Table) -> None:
        """Write changes; their files are complete after `close`."""
        self._wait()
        self._work = self._pool.submit(self._process, chunk)

    def close(self) -> Delta:
        """Finish all files and return them."""
        self._wait()
        self._finish_sub_batch()
        self._uploads.finish()
        return self._delta

    def _wait(self) -> None:
        if self._work is not None:
            self._work.result()

    def _process(self, chunk: pa.Table) -> None:
        self._update_bounds(chunk)
        chunk = with_one_zero_and_nan(chunk, self._plan.keys)
        if not self._plan.keys:
            self._sub_batch.append(chunk)
            self._delta.upserts += chunk.num_rows
            return
        if self._sub_batch.is_full():
            self._finish_sub_batch()
        if self._finished and not self._plan.ordered:
            raise TooManyKeys
        last = last_changes(chunk, self._plan.keys, self._plan.ordered)
        overtaken = None
        if self._plan.sequence_by and last.num_rows < chunk.num_rows:
            count = len(self._plan.sequence_by)
            overtaken = overtaken_deletes(chunk, last, self._plan.keys, count)
        upserts, deletes = self._sub_batch.apply(last, overtaken)
        self._delta.upserts += upserts
        self._delta.deletes += deletes

    def _update_bounds(self, chunk: pa.Table) -> None:
        delta = self._delta
        delta.changes += chunk.num_rows
        for name in order_columns(chunk):
            # Nothing is older or newer than NaN.
            missing = pc.sum(pc.is_null(chunk[name], nan_is_null=True)).as_py()
            if missing:
                raise MissingOrderValue(missing)
        try:
            bounds = pc.min_max(chunk[f"{ORDER}0"]).as_py()
        except (ValueError, OverflowError) as error:
            name = next(iter(self._plan.sequence_by), "the order of changes")
            reason = "has a date or time outside the years 1 to 9999, which cannot order changes"
            raise ColumnError(name, reason) from error
        delta.first = bounds["min"] if delta.first is None else min(delta.first, bounds["min"])
        delta.last = bounds["max"] if delta.last is None else max(delta.last, bounds["max"])

    def _finish_sub_batch(self) -> None:
        sub_batch = self._sub_batch.close()
        self._finished.append(self._sub_batch)
        if sub_batch.data or sub_batch.equality_deletes or sub_batch.changed_keys is not None:
            self._delta.sub_batches.append(sub_batch)
        self._sub_batch = OpenSubBatch(self._plan, self._uploads)


def sweep(plan: DeltaPlan) -> None:
    """Remove all files of a write from its folder, including those of failed tasks.

    Args:
        plan: of the write; files are matched by its `write_id`.
    """
    with contextlib.suppress(OSError):
        for info in plan.filesystem.get_file_info(fs.FileSelector(plan.path)):
            if info.base_name.startswith(f"stream-{plan.write_id}-"):
                plan.filesystem.delete_file(info.path)


def run_task(plan: DeltaPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write changes in a task of Spark.

    Args:
        plan: how the files are written.
        batches: the task's changes.

    Yields:
        Rows of TASK_RESULT, for `read_deltas`.
    """
    try:
        yield _as_rows(plan, write_changes(plan, batches))
    except (MissingOrderValue, ColumnError) as error:
        # An exception would make Spark retry the task in vain, and show a stack trace to the user.
        yield pa.RecordBatch.from_pylist([{"refused": str(error)}], TASK_RESULT)


def to_bytes(values: Sequence[Any]) -> bytes:
    """Serialize values of any types as Arrow IPC, which, unlike pickle, executes no code."""
    batch = pa.record_batch(
        [pa.array([value]) for value in values], [str(n) for n in range(len(values))]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> tuple[Any, ...]:
    """Return the values that `to_bytes` has serialized.

    Args:
        data: an Arrow IPC stream.

    Raises:
        ArrowInvalid: the bytes are not from `to_bytes`.
    """
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    batch.validate(full=True)
    return tuple(column[0].as_py() for column in batch.columns)


def _as_rows(plan: DeltaPlan, delta: Delta) -> pa.RecordBatch:
    task = uuid.uuid4().hex
    totals = (delta.changes, delta.upserts, delta.deletes, delta.first, delta.last)
    rows: list[dict[str, Any]] = [{"task": task, "totals": to_bytes(totals)}]
    for number, sub_batch in enumerate(delta.sub_batches):
        origin = {"task": task, "sub_batch": number}
        for new in sub_batch.data:
            partition, dead = to_bytes(new.partition), new.dead.to_pylist()
            rows.append(origin | _of_file(DATA, new.file, partition) | {"dead": dead})
        for file, values in sub_batch.equality_deletes:
            rows.append(origin | _of_file(EQUALITY_DELETES, file, to_bytes(values)))
        for content, keys in (
            (CHANGED_KEYS, _without_row(sub_batch)),
            (DELETES, sub_batch.deletes),
        ):
            if keys is not None:
                # In files: results of tasks have to be small.
                keys = deleted_keys(plan, keys)
                with plan.writer(keys.schema) as writer:
                    writer.write(keys, may_roll=False)
                    rows += [origin | _of_file(content, file) for file in writer.close()]
    return pa.RecordBatch.from_pylist(rows, TASK_RESULT)


def _without_row(sub_batch: SubBatch) -> pa.Table | None:
    changed = sub_batch.changed_keys
    return None if changed is None else changed.filter(pc.less(changed[POS], 0))


def _of_file(content: str, file: WrittenFile, partition: bytes | None = None) -> dict[str, Any]:
    return {"content": content, "file": vars(file), "partition": partition}
