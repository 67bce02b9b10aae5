"""Deletes without delete files: the data files that hold the rows are rewritten without them.

Article on the write contract, "Row-Level Writes: Copy-on-Write".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas import row_removal
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions
from dbt.adapters.iceberg_stream.stream.row_deltas.row_removal import (
    LOSSES,
    TASK_RESULT,
    Loss,
    RowRemoval,
    read_task_result,
    run_task,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.row_deltas.written import RewrittenFile, WrittenBatch
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.files import casting, parquet
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.data_files import with_lineage
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge import file_rewrite, rows
from dbt.adapters.iceberg_stream.tables.merge.candidates import has_deletes, live_entries
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import NotByRewriting

WORKER_CODE = (casting, parquet, rows, file_rewrite, row_removal)
WORKERS = max(1, min(4, os.cpu_count() or 1))
# The positions travel with the statement, and servers take messages of 128 MiB.
MOST_BYTES = 64 * 1024 * 1024

# Writes files without rows, here or elsewhere; in the losses' order, None where no row is left.
Rewriter = Callable[[Session, RowRemoval, Sequence[Loss]], "list[WrittenFile | None]"]


def in_threads(
    session: Session, removal: RowRemoval, losses: Sequence[Loss]
) -> list[WrittenFile | None]:
    """The work on files in this process."""
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="stream-rest") as pool:
        return list(pool.map(removal.run, losses))


def in_tasks(
    session: Session, removal: RowRemoval, losses: Sequence[Loss]
) -> list[WrittenFile | None]:
    """The work on files in Spark's tasks, one for each file."""
    table = pa.Table.from_pylist([vars(loss) for loss in losses], LOSSES)
    if table.nbytes > MOST_BYTES:
        return in_threads(session, removal, losses)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from run_task(removal, batches, context.attemptNumber() if context else 0)

    said = session.map_in_arrow(table, work, TASK_RESULT, WORKER_CODE).to_pylist()
    made = {row["replaced"]: read_task_result(row) for row in said}
    if any(row["attempt"] for row in said):
        # Of a task that was run again the first attempt may have left files.
        removal.sweep(losses, made.values())
    return [made[loss.location] for loss in losses]


@dataclass(frozen=True)
class CopyOnWrite:
    """Takes rows out of data files.

    Attributes:
        session: of the engine, which may do the work.
        rewriter: does the work on files.
        base: the table as it is now; nobody else may have changed it when this is committed.
        plan: how the batch's own files were written.
    """

    session: Session
    rewriter: Rewriter
    base: LoadedTable
    plan: DeltaPlan

    def own(self, batch: WrittenBatch) -> WrittenBatch:
        """The batch without the rows in its files that later changes in it replace.

        The files that others take the place of are there still.
        """
        data = [new for delta in batch.deltas for sub in delta.sub_batches for new in sub.data]
        dead = [new for new in data if len(new.dead)]
        losses = [
            Loss(new.file.location, self.plan.path_of(new.file.location), new.dead) for new in dead
        ]
        made = self._rewritten("own", self.plan.schema, losses)
        instead = {old.file.location: file for old, file in zip(dead, made, strict=True)}
        return batch.with_files(instead)

    def of_table(self, positions: Positions) -> list[RewrittenFile]:
        """Files in place of the table's that hold rows at the positions.

        Raises:
            StreamError: the table's files cannot be rewritten, or have deletes already.
            StreamConflict: another writer has changed the table meanwhile.
        """
        metadata = self.base.metadata
        self._require_rewritable()
        if not positions:
            return []
        target = WriteTarget.of(metadata, self.base.io)
        found = live_entries(
            self.base.io,
            metadata,
            ManifestContent.DATA,
            test=lambda entry: entry.data_file.file_path in positions,
        )
        entries = {entry.data_file.file_path: entry for entry in found}
        if not positions.keys() <= entries.keys():
            raise StreamConflict("Another writer has committed while rows were looked for.")
        wanted = [entries[path].data_file for path in positions]
        if other := next((f for f in wanted if f.file_format != FileFormat.PARQUET), None):
            raise StreamError(_cannot(self.base.name, f"one is in {other.file_format.value}"))
        losses = [_loss(target, entries[path], gone) for path, gone in positions.items()]
        v3 = metadata["format-version"] >= 3
        schema = file_schema(with_lineage(target.schema)) if v3 else target.file_schema
        made = self._rewritten("table", schema, losses)
        return [RewrittenFile(*pair) for pair in zip(wanted, made, strict=True)]

    def _require_rewritable(self) -> None:
        name = ".".join(self.base.name)
        if has_deletes(self.base.io, self.base.metadata):
            # The rows that they delete would come back with the files that take their place.
            raise StreamError(
                f"{name} has delete files, which `delete_encoding: copy_on_write` does not go "
                f"with. Compact it once: call system.rewrite_data_files(table => '{name}', options "
                "=> map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
            )
        if "'initial-default'" in str(self.base.metadata["schemas"]):
            raise StreamError(_cannot(self.base.name, "a column has a default"))

    def _rewritten(
        self, whose: str, schema: pa.Schema, losses: Sequence[Loss]
    ) -> list[WrittenFile | None]:
        if not losses:
            return []
        plan = self.plan
        # By its name what one leaves is swept away, and not what the other one has made.
        write_id = f"{plan.write_id}-{whose}"
        removal = RowRemoval(plan.filesystem, schema, plan.options, write_id)
        with ExitStack() as undo:
            # What other threads or tasks have made when one goes wrong is not known.
            undo.callback(removal.sweep, losses)
            try:
                made = self.rewriter(self.session, removal, losses)
            except (NotByRewriting, ColumnError) as error:
                raise StreamError(_cannot(self.base.name, str(error))) from error
            undo.pop_all()
        return made


def _loss(target: WriteTarget, entry: ManifestEntry, rows: pa.Int64Array) -> Loss:
    file = entry.data_file
    return Loss(
        file.file_path,
        target.path_of(file.file_path),
        rows,
        file[FILE_FIRST_ROW_ID],
        entry.sequence_number,
    )


def _cannot(name: Name, because: str) -> str:
    return (
        f"Files of {'.'.join(name)} cannot be rewritten for `delete_encoding: copy_on_write`: "
        f"{because}. Compact the table with Spark, or take another `delete_encoding`."
    )
