"""Describe the files of a stream for manifests.

Iceberg spec, "Data File Fields": https://iceberg.apache.org/spec/
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
)
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.key_index.index import KeyIndex
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import Partition
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import NewData, SubBatch
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.indexed_commit import (
    IndexedCommit,
    write_indexed_deletes,
)
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries, live_spec_ids
from dbt.adapters.iceberg_stream.tables.commit.producer import partition_spec
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    UnsupportedFile,
    bitmap,
    deleted_rows,
    with_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.data_files import (
    Describer,
    describe_in_place,
    with_lineage,
)
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


class Descriptors:
    """Describes the files of batches, and writes the position deletes that they need.

    Attributes:
        delete_locations: locations of the position deletes and deletion vectors written so far.

    Args:
        target: the table's schema, spec, properties and storage.
        metadata: the table's metadata.
        write_id: of the commit, in the names of new files.
        keys: columns that identify a row.
    """

    def __init__(
        self, target: WriteTarget, metadata: Metadata, write_id: str, keys: tuple[str, ...]
    ) -> None:
        self._key_ids = [target.schema.find_field(key).field_id for key in keys]
        self._target = target
        # Tables of one commit may share a folder, and a commit may be prepared several times.
        self._name = f"stream-{write_id}-deletes-{uuid.uuid4().hex[:12]}"
        self.delete_locations: list[str] = []
        self._v3 = metadata["format-version"] >= 3
        properties = dict(target.properties)
        self._data = Describer(target.schema, properties, target.spec.spec_id)
        self._key_describers: dict[int, Describer] = {}
        global_spec = unpartitioned(metadata)
        self._global_spec_id = target.spec.spec_id if global_spec is None else global_spec.spec_id
        # Other writers may have added files of another spec since the files were planned.
        self._by_partition = partitioned_by(target.io, metadata, target, keys)

    def describe(self, number: int, sub_batch: SubBatch) -> AddedFiles:
        """Describe the files of a sub-batch.

        Args:
            number: of the sub-batch in the commit, from 0.
            sub_batch: the files.
        """
        data = self.describe_data(sub_batch)
        with_dead_rows = [(file, new) for file, new in data if len(new.dead)]
        deletes = [self._equality(file, part) for file, part in sub_batch.equality_deletes]
        if with_dead_rows:
            dead = [(file, bitmap(new.dead.to_numpy())) for file, new in with_dead_rows]
            deletes += self._write(f"{number:05}", dead).values()
        return AddedFiles(tuple(file for file, _ in data), tuple(deletes))

    def describe_data(self, sub_batch: SubBatch) -> list[tuple[DataFile, NewData]]:
        """Describe the data files of a sub-batch.

        Args:
            sub_batch: the files.
        """
        return [
            (self._data.describe(new.file, self._key(new.partition)), new) for new in sub_batch.data
        ]

    def describe_all(
        self, batches: Sequence[WrittenBatch], base: LoadedTable
    ) -> tuple[tuple[AddedFiles, ...], list[DataFile]]:
        """Describe the files of batches, and the deletes of the last one that a query has located.

        Args:
            batches: the batches, in their order.
            base: the table that the deletes were located in.

        Returns:
            The files to add, by data sequence number, and the files to remove.
        """
        added = tuple(
            self.describe(number, sub)
            for number, sub in enumerate(s for batch in batches for s in batch.sub_batches())
        )
        deletes = batches[-1].target_deletes
        if deletes is None or not (deletes.positions or deletes.replaced):
            return added, []
        files, removed = self.describe_target_deletes(deletes, base)
        return (files, *added), removed

    def describe_indexed(self, batches: Sequence[WrittenBatch], index: KeyIndex) -> IndexedCommit:
        """Describe the files of batches, and write the deletes that the index has located.

        Args:
            batches: the first batches that are pending in the index.
            index: the key index.
        """
        indexed = [batch.indexed for batch in batches if batch.indexed is not None]
        data = [
            file
            for batch in batches
            for sub_batch in batch.sub_batches()
            for file, _ in self.describe_data(sub_batch)
        ]
        deletes = index.deletes(indexed)
        return write_indexed_deletes(partial(self._write, "indexed"), indexed, data, deletes)

    def describe_target_deletes(
        self, deletes: TargetDeletes, base: LoadedTable
    ) -> tuple[AddedFiles, list[DataFile]]:
        """Describe the deletes of rows that the table has.

        Args:
            deletes: the rows, or the data files that were rewritten without them.
            base: the table that they were found in.

        Returns:
            The files to add, and the files to remove.

        Raises:
            StreamError: older deletes of these data files cannot be read.
            StreamConflict: the table does not have one of these data files any more.
        """
        if deletes.replaced:
            rewritten = tuple(
                self._rewritten(file.old, file.new) for file in deletes.replaced if file.new
            )
            return AddedFiles(rewritten), [file.old for file in deletes.replaced]
        located = list(self._located(deletes.positions, base).values())
        before = deleted_rows(base, located)
        after = [
            (item.file, before[item.path] | bitmap(deletes.positions[item.path].to_numpy()))
            for item in located
        ]
        files = self._write("located", after)
        replaced = [delete for item in located for delete in item.own_deletes]
        return AddedFiles(deletes=tuple(files.values())), replaced

    def _write(self, part: str, deletes: Sequence[tuple[DataFile, BitMap]]) -> dict[str, DataFile]:
        name = f"{self._name}-{part}"
        files = write_deletes_by_position(self._target, self._v3, name, deletes)
        # Deletion vectors share a file.
        self.delete_locations += dict.fromkeys(file.file_path for file in files.values())
        return files

    def _located(self, positions: Positions, base: LoadedTable) -> dict[str, SnapshotFile]:
        def is_located(item: ManifestEntry) -> bool:
            return item.data_file.file_path in positions

        def is_replaced(item: ManifestEntry) -> bool:
            # A vector hides older deletes. Those of version 2 add up, so that files that only Spark
            # reads, which has found the rows, may stay.
            return self._v3 or item.data_file.file_format == FileFormat.PARQUET

        io, metadata = base.io, base.metadata
        data = live_entries(io, metadata, ManifestContent.DATA, test=is_located)
        deletes = live_entries(io, metadata, ManifestContent.DELETES, test=is_replaced)
        if len(data) < len(positions):
            raise StreamConflict(
                f"Another writer committed to {'.'.join(base.name)} after the rows to delete were "
                "located."
            )
        try:
            return with_position_deletes(base, data, deletes)
        except UnsupportedFile as error:
            raise StreamError(
                f"{error}, which newer deletes of the same data files would hide. Compact the "
                "table with Spark: call system.rewrite_data_files(…, options => "
                "map('delete-file-threshold', '1'))"
            ) from error

    def _rewritten(self, old: DataFile, new: WrittenFile) -> DataFile:
        schema = with_lineage(self._target.schema) if self._v3 else self._target.schema
        return describe_in_place(schema, dict(self._target.properties), old, new)

    def _equality(self, file: WrittenFile, partition: Partition) -> DataFile:
        key = self._key(partition) if self._by_partition else None
        spec = self._target.spec.spec_id if key is not None else self._global_spec_id
        return self._key_describer(spec).describe(
            file, key, content=DataFileContent.EQUALITY_DELETES, equality_ids=self._key_ids
        )

    def _key_describer(self, spec: int) -> Describer:
        """Return the describer of files that have only the keys."""
        if spec not in self._key_describers:
            table = self._target.schema
            schema = table.select(*(str(table.find_column_name(n)) for n in self._key_ids))
            self._key_describers[spec] = Describer(schema, dict(self._target.properties), spec)
        return self._key_describers[spec]

    def _key(self, partition: Partition) -> PartitionKey | None:
        if not partition:
            return None
        return partition_key(self._target.spec, self._target.schema, partition)


def unpartitioned(metadata: Metadata) -> PartitionSpec | None:
    """Return the table's spec without fields, if it has one.

    Equality deletes of that spec apply to all partitions (Iceberg spec, "Scan Planning").
    """
    for candidate in metadata["partition-specs"]:
        spec = partition_spec(metadata, candidate["spec-id"])
        if not spec.fields:
            return spec
    return None


def partitioned_by(
    io: FileIO, metadata: Metadata, target: WriteTarget, keys: Sequence[str]
) -> bool:
    """Return whether all rows of a key are in the partition that the key has now.

    If the table's spec was changed, data files of other specs keep their partitions, which an
    equality delete of a partition does not reach.

    Args:
        io: of the table.
        metadata: of the table.
        target: the table's schema and current spec.
        keys: columns that identify a row.
    """
    sources = {target.schema.find_column_name(f.source_id) for f in target.spec.fields}
    if not sources or not sources <= set(keys):
        return False
    return live_spec_ids(io, metadata) <= {target.spec.spec_id}
