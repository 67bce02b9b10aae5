"""Copy-on-write deletes: rewrite the data files that have the rows, without them.

Article on the write contract, "Row-Level Writes: Copy-on-Write".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.manifest import FileFormat, ManifestContent

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.row_deltas.written import RewrittenFile, WrittenBatch
from dbt.adapters.iceberg_stream.tables.commit.live_files import has_deletes, live_entries
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import old_file
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.data_files import with_lineage
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting, OldFile
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.spark_tasks import TooLarge, in_tasks
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads

# Returns what processes files: threads of this process, or the tasks of a session.
Rewriter = Callable[[Session], Runner]


def rewrite_here(session: Session) -> Runner:
    """Return a runner that rewrites files in this process.

    Args:
        session: of the engine; not used.
    """
    return in_threads


def rewrite_in_tasks(session: Session) -> Runner:
    """Return a runner that rewrites files in Spark's tasks.

    Args:
        session: of the engine.
    """

    def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
        try:
            yield from in_tasks(session.map_in_arrow)(rewrite, files)
        except TooLarge:
            yield from in_threads(rewrite, files)

    return run


@dataclass(frozen=True)
class CopyOnWrite:
    """Rewrites data files without the rows that a batch deletes.

    Attributes:
        session: of the engine.
        rewriter: rewrites files.
        base: the table; no other writer may change it before the batch is committed.
        plan: how the batch's own files were written.
    """

    session: Session
    rewriter: Rewriter
    base: LoadedTable
    plan: DeltaPlan

    def remove_dead_rows(self, batch: WrittenBatch) -> WrittenBatch:
        """Rewrite a batch's own data files without rows that later changes in it replace.

        The replaced files are not removed.

        Args:
            batch: the batch.

        Returns:
            The batch with the new files.

        Raises:
            StreamError: a file cannot be rewritten.
        """
        data = [new for delta in batch.deltas for sub in delta.sub_batches for new in sub.data]
        with_dead_rows = [new for new in data if len(new.dead)]
        items = [
            OldFile(
                new.file.location,
                self.plan.path_of(new.file.location),
                new.dead,
                size=new.file.size,
            )
            for new in with_dead_rows
        ]
        files = self._rewrite("own", self.plan.schema, items)
        replacements = {
            new.file.location: file for new, file in zip(with_dead_rows, files, strict=True)
        }
        return batch.with_files(replacements)

    def rewrite_table_files(self, positions: Positions) -> list[RewrittenFile]:
        """Rewrite the table's data files without the rows at some positions.

        Args:
            positions: of the rows, by the location of their data file.

        Raises:
            StreamError: the table's files cannot be rewritten, or the table has delete files.
            StreamConflict: another writer has changed the table meanwhile.
        """
        metadata = self.base.metadata
        self._require_rewritable()
        if not positions:
            return []
        target = WriteTarget.of(metadata, self.base.io)
        live = live_entries(
            self.base.io,
            metadata,
            ManifestContent.DATA,
            test=lambda entry: entry.data_file.file_path in positions,
        )
        entries = {entry.data_file.file_path: entry for entry in live}
        if not positions.keys() <= entries.keys():
            raise StreamConflict(
                f"Another writer committed to {'.'.join(self.base.name)} while the rows to delete "
                "were being located."
            )
        old = [entries[path].data_file for path in positions]
        if other := next((f for f in old if f.file_format != FileFormat.PARQUET), None):
            reason = f"{other.file_path} is in {other.file_format.value}"
            raise StreamError(_cannot_rewrite(self.base.name, reason))
        items = [old_file(target, entries[path], rows) for path, rows in positions.items()]
        v3 = metadata["format-version"] >= 3
        schema = file_schema(with_lineage(target.schema)) if v3 else target.file_schema
        new = self._rewrite("table", schema, items)
        return [RewrittenFile(*pair) for pair in zip(old, new, strict=True)]

    def _require_rewritable(self) -> None:
        name = ".".join(self.base.name)
        if has_deletes(self.base.io, self.base.metadata):
            # The rows that they delete would reappear in the rewritten files.
            raise StreamError(
                f"{name} has delete files, which `delete_encoding: copy_on_write` does not "
                f"support. Compact it once: call system.rewrite_data_files(table => '{name}', "
                "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
            )

    def _rewrite(
        self, whose: str, schema: pa.Schema, items: Sequence[OldFile]
    ) -> list[WrittenFile | None]:
        if not items:
            return []
        plan = self.plan
        # The batch's own files and the table's are rewritten under different ids, so that an error
        # in one of the two removes only its files.
        write_id = f"{plan.write_id}-{whose}"
        prefix = f"stream-{write_id}-rest-"
        rewrite = FileRewrite(plan.filesystem, schema, plan.options, prefix)
        with ExitStack() as undo:
            # If a thread or task fails, the files of the others are unknown.
            undo.callback(rewrite.sweep, items)
            try:
                run = self.rewriter(self.session)
                changes = {change.location: change for change in run(rewrite, items)}
            except NotByRewriting as error:
                raise StreamError(_cannot_rewrite(self.base.name, str(error))) from error
            except ColumnError as error:
                raise StreamError(_cannot_rewrite(self.base.name, error.clause)) from error
            undo.pop_all()
        return [next(iter(changes[item.location].new_files), None) for item in items]


def _cannot_rewrite(name: Name, reason: str) -> str:
    return (
        f"Files of {'.'.join(name)} cannot be rewritten for `delete_encoding: copy_on_write`: "
        f"{reason}. Compact the table with Spark, or set another `delete_encoding`."
    )
