"""Whether rows of the table may be newer than changes, for a stream without a key index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import ManifestContent

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict
from dbt.adapters.iceberg_stream.stream.key_index.highest_values import HighestValues, higher
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import recorded_ids, watermark_of_others
from dbt.adapters.iceberg_stream.stream.sink.watermark import from_json
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.projection import constant
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


@dataclass
class NewestRows:
    """The highest value of the first `sequence_by` column in a table's files, of all writers.

    Attributes:
        column: the column, as files have it, with its id.
        sink_id: of the stream; the changes of other streams count as rows.
        is_only: whether no other column orders changes.
        highest: the value; null if there are no rows.
        is_known: whether all files could be read.
    """

    column: pa.Field
    sink_id: str
    is_only: bool
    highest: pa.Scalar = field(init=False)
    is_known: bool = field(default=True, init=False)
    _snapshot_id: int | None = field(default=None, init=False)
    _in_files: HighestValues = field(init=False)

    def __post_init__(self) -> None:
        self.highest = pa.scalar(None, self.column.type)
        self._in_files = HighestValues(self.column)

    def follow(self, base: LoadedTable) -> None:
        """Look at the table's files, if others have committed since the last call.

        Args:
            base: the table.

        Raises:
            OSError: the storage refuses a file.
        """
        snapshot_id = current_snapshot_id(base.metadata)
        if snapshot_id == self._snapshot_id:
            return
        target = WriteTarget.of(base.metadata, base.io)
        default = target.schema.find_field(self.column.name).initial_default
        highest = constant(default, self.column.type, 1)[0]
        entries = live_entries(base.io, base.metadata, ManifestContent.DATA)
        try:
            in_files = self._in_files.of(target, (entry.data_file for entry in entries))
            highest, self.is_known = higher(highest, in_files), True
        except UnsupportedFile:
            self.is_known = False
        others = {*recorded_ids(base.metadata)} - {self.sink_id}
        watermark = watermark_of_others(base.metadata, self.column, others)
        self.highest = higher(highest, watermark)
        self._snapshot_id = snapshot_id

    def require_older(self, base: LoadedTable, batches: Sequence[WrittenBatch]) -> None:
        """Check, before a commit, that other writers have not added newer rows since.

        Args:
            base: the table that the commit is based on.
            batches: that are committed.

        Raises:
            StreamConflict: rows may be newer than changes, which were not compared with them.
            OSError: the storage refuses a file.
        """
        self.follow(base)
        if self.may_precede(batches):
            raise StreamConflict(
                f"Another writer added rows to {'.'.join(base.name)} that may be newer than "
                "changes of this batch."
            )

    def committed(self, snapshot_id: int | None) -> None:
        """Record a commit of the stream, whose watermark has the values of its rows.

        Args:
            snapshot_id: of the commit, on top of the snapshot that was looked at.
        """
        self._snapshot_id = snapshot_id

    def may_precede(self, batches: Sequence[WrittenBatch]) -> bool:
        """Return whether changes of a batch may be older than rows, which were not compared.

        Args:
            batches: the batches.
        """
        return any(self._may_precede(batch) for batch in batches if not batch.not_late)

    def _may_precede(self, batch: WrittenBatch) -> bool:
        first = from_json(batch.first)
        if first is None or not (self.is_known and self.highest.is_valid):
            return first is not None and not self.is_known
        is_before = pc.less if self.is_only else pc.less_equal
        try:
            return bool(is_before(pa.scalar(first, self.column.type), self.highest).as_py())
        except pa.ArrowException:
            return True
