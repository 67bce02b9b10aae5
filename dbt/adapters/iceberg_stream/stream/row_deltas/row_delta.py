"""Changes in, files of row deltas out, with bounded memory.

Articles on the streaming sink ("The Delete Problem") and on many data sequence numbers ("Improving
write performance"). Worker code: the standard library, PyArrow and other worker code.
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
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import (
    DeltaPlan,
    OpenSubBatch,
    SubBatch,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.uploads import Uploads

FILE_TYPE = [
    ("location", pa.string()),
    ("size", pa.int64()),
    ("footer", pa.binary()),
    ("row_groups", pa.int32()),
]
# What a task says: of each file, and, without one, of the whole.
TASK_RESULT = pa.schema(
    [
        ("task", pa.string()),
        ("sub_batch", pa.int32()),
        ("file", pa.struct(FILE_TYPE)),
        ("is_data", pa.bool_()),
        ("partition", pa.binary()),
        ("dead", pa.list_(pa.int64())),
        ("totals", pa.binary()),
        ("refused", pa.string()),
    ]
)


class TooManyKeys(Exception):
    """The changes of a batch are too many to be put in order here."""


class MissingOrderValue(ValueError):
    """A change has no value in the column that orders it."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} changes have no value in the column that orders them")


@dataclass
class Delta:
    """What became of a batch's changes in one task.

    Attributes:
        sub_batches: in the order of their data sequence numbers.
        changes: that came in.
        upserts: rows that were written.
        deletes: keys whose last change is a delete.
        first, last: bounds of what orders the changes, its first column; None for no changes.
    """

    sub_batches: list[SubBatch] = field(default_factory=list)
    changes: int = 0
    upserts: int = 0
    deletes: int = 0
    first: Any = None
    last: Any = None


def write_changes(plan: DeltaPlan, batches: Iterable[pa.RecordBatch]) -> Delta:
    """Write the files of a batch's changes. Whatever goes wrong leaves no file.

    Raises:
        TooManyKeys: memory does not do for changes that come in any order.
        MissingOrderValue: a change has nothing that orders it.
        ColumnError: a column does not fit the table.
        OSError: the storage refuses.
    """
    with DeltaWriter(plan) as writer:
        for chunk in chunks(batches, plan.chunk_bytes):
            writer.write(chunk)
        return writer.close()


class DeltaWriter:
    """Turns chunks of changes into files: one thread gathers rows while another writes."""

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
        """Take changes in; they are in files after `close`."""
        self._wait()
        self._work = self._pool.submit(self._process, chunk)

    def close(self) -> Delta:
        self._wait()
        self._finish_sub_batch()
        self._uploads.finish()
        return self._delta

    def _wait(self) -> None:
        if self._work is not None:
            self._work.result()

    def _process(self, chunk: pa.Table) -> None:
        self._note(chunk)
        if not self._plan.keys:
            self._sub_batch.append(chunk)
            self._delta.upserts += chunk.num_rows
            return
        if self._sub_batch.is_full():
            self._finish_sub_batch()
        if self._finished and not self._plan.ordered:
            raise TooManyKeys
        last = last_changes(chunk, self._plan.keys, self._plan.ordered)
        upserts, deletes = self._sub_batch.apply(last)
        self._delta.upserts += upserts
        self._delta.deletes += deletes

    def _note(self, chunk: pa.Table) -> None:
        delta = self._delta
        delta.changes += chunk.num_rows
        for name in order_columns(chunk):
            if chunk[name].null_count:
                raise MissingOrderValue(chunk[name].null_count)
        column = chunk[f"{ORDER}0"]
        bounds = pc.min_max(column).as_py()
        delta.first = bounds["min"] if delta.first is None else min(delta.first, bounds["min"])
        delta.last = bounds["max"] if delta.last is None else max(delta.last, bounds["max"])

    def _finish_sub_batch(self) -> None:
        made = self._sub_batch.close()
        self._finished.append(self._sub_batch)
        if made.data or made.equality_deletes:
            self._delta.sub_batches.append(made)
        self._sub_batch = OpenSubBatch(self._plan, self._uploads)


def sweep(plan: DeltaPlan) -> None:
    """Remove whatever the write has put into its folder, known or not."""
    with contextlib.suppress(OSError):
        for found in plan.filesystem.get_file_info(fs.FileSelector(plan.path)):
            if found.base_name.startswith(f"stream-{plan.write_id}-"):
                plan.filesystem.delete_file(found.path)


def run_task(plan: DeltaPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task of Spark: changes come in, rows for whoever commits them go out."""
    try:
        yield _as_rows(write_changes(plan, batches))
    except (MissingOrderValue, ColumnError) as error:
        # It would be no better the next time, and Spark would show where in the code it arose.
        yield pa.RecordBatch.from_pylist([{"refused": str(error)}], TASK_RESULT)


def to_bytes(values: Sequence[Any]) -> bytes:
    """Values of any types as Arrow's bytes, which run nothing when they are read."""
    batch = pa.record_batch(
        [pa.array([value]) for value in values], [str(n) for n in range(len(values))]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> tuple[Any, ...]:
    """The values.

    Raises:
        ArrowInvalid: they are no bytes of `to_bytes`.
    """
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    batch.validate(full=True)
    return tuple(column[0].as_py() for column in batch.columns)


def _as_rows(delta: Delta) -> pa.RecordBatch:
    task = uuid.uuid4().hex
    totals = (delta.changes, delta.upserts, delta.deletes, delta.first, delta.last)
    rows: list[dict[str, Any]] = [{"task": task, "totals": to_bytes(totals)}]
    for number, sub_batch in enumerate(delta.sub_batches):
        said = {"task": task, "sub_batch": number}
        for made in sub_batch.data:
            at = {"file": vars(made.file), "partition": to_bytes(made.partition)}
            rows.append(said | at | {"is_data": True, "dead": made.dead.to_pylist()})
        for file, partition in sub_batch.equality_deletes:
            at = {"file": vars(file), "partition": to_bytes(partition)}
            rows.append(said | at | {"is_data": False})
    return pa.RecordBatch.from_pylist(rows, TASK_RESULT)
