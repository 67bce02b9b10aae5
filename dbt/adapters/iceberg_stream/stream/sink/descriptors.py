"""Descriptors of the files that a stream has written (spec, "Data File Fields")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.partitioning import PartitionKey, PartitionSpec

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import MAIN, LoadedTable
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import Partition
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import (
    deletion_vectors,
    live_deletes,
    position_deletes,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import NewData, SubBatch
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.commit.manifests import read_manifest_list
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, partition_spec
from dbt.adapters.iceberg_stream.tables.files.data_files import (
    Describer,
    describe_in_place,
    with_lineage,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import write_position_deletes
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile, read_footer
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.candidates import live_files


class Descriptors:
    """Descriptors of the files that tasks have written, and of the deletes in them."""

    def __init__(
        self, target: WriteTarget, metadata: Metadata, write_id: str, keys: tuple[str, ...]
    ) -> None:
        self._key_ids = [target.schema.find_field(key).field_id for key in keys]
        self._target = target
        self._write_id = write_id
        self._v3 = metadata["format-version"] >= 3
        properties = dict(target.properties)
        self._data = Describer(target.schema, properties, target.spec.spec_id)
        self._of_keys: dict[tuple[tuple[int, ...], int], Describer] = {}
        everywhere = unpartitioned(metadata)
        self._global = everywhere.spec_id if everywhere is not None else target.spec.spec_id
        # Rows may have come into partitions of another kind since the files were planned.
        self._by_partition = partitioned_by(target.io, metadata, target, keys)

    def added(self, number: int, sub_batch: SubBatch) -> AddedFiles:
        """The files of a sub-batch; `number` tells it from others of the commit."""
        described = [
            (self._data.describe(made.file, self._key(made.partition)), made)
            for made in sub_batch.data
        ]
        dead = [(file, made) for file, made in described if len(made.dead)]
        deletes = [self._equality(file, part) for file, part in sub_batch.equality_deletes]
        if dead:
            name = f"stream-{self._write_id}-{number:05}-deletes"
            deletes += self._vectors(name, dead) if self._v3 else self._positions(name, dead)
        return AddedFiles(tuple(file for file, _ in described), tuple(deletes))

    def located(self, found: TargetDeletes, base: LoadedTable) -> tuple[AddedFiles, list[DataFile]]:
        """What deletes rows that the table has, and files that it takes the place of."""
        if found.replaced:
            made = tuple(self._in_place(one.old, one.made) for one in found.replaced if one.made)
            return AddedFiles(made), [one.old for one in found.replaced]
        places = found.positions
        data = live_files(base.io, base.metadata, test=lambda file: file.file_path in places)
        name = f"stream-{self._write_id}-located"
        if not self._v3:
            positions = position_deletes(self._target, name, found.positions, data)
            return AddedFiles(deletes=tuple(positions)), []
        older = live_deletes(base.io, base.metadata)
        vectors, replaced = deletion_vectors(self._target, name, found.positions, data, older)
        return AddedFiles(deletes=tuple(vectors)), replaced

    def _in_place(self, old: DataFile, made: WrittenFile) -> DataFile:
        schema = with_lineage(self._target.schema) if self._v3 else self._target.schema
        return describe_in_place(schema, dict(self._target.properties), old, made)

    def _equality(self, file: WrittenFile, partition: Partition) -> DataFile:
        ids = tuple(int(f.metadata[b"PARQUET:field_id"]) for f in _footer_schema(file))
        key = self._key(partition) if self._by_partition else None
        spec = self._target.spec.spec_id if key is not None else self._global
        return self._describer(ids, spec).describe(
            file, key, content=DataFileContent.EQUALITY_DELETES, equality_ids=self._key_ids
        )

    def _describer(self, ids: tuple[int, ...], spec: int) -> Describer:
        """Of files that have only some of the table's columns."""
        if (ids, spec) not in self._of_keys:
            known = self._target.schema
            schema = known.select(*(str(known.find_column_name(number)) for number in ids))
            self._of_keys[ids, spec] = Describer(schema, dict(self._target.properties), spec)
        return self._of_keys[ids, spec]

    def _vectors(self, name: str, dead: list[tuple[DataFile, NewData]]) -> list[DataFile]:
        vectors = [DeletionVector(file, made.dead.to_pylist()) for file, made in dead]
        return write_deletion_vectors(self._target, name, vectors)

    def _positions(self, name: str, dead: list[tuple[DataFile, NewData]]) -> list[DataFile]:
        by_partition: dict[Partition, dict[str, pa.Array]] = defaultdict(dict)
        for file, made in dead:
            by_partition[made.partition][file.file_path] = made.dead
        return [
            write_position_deletes(
                self._target, f"{name}-{number}", positions, self._key(partition)
            )
            for number, (partition, positions) in enumerate(by_partition.items())
        ]

    def _key(self, partition: Partition) -> PartitionKey | None:
        if not partition:
            return None
        return partition_key(self._target.spec, self._target.schema, partition)


def unpartitioned(metadata: Metadata) -> PartitionSpec | None:
    """A spec without fields: equality deletes under it are of all partitions ("Scan Planning")."""
    for known in metadata["partition-specs"]:
        spec = partition_spec(metadata, known["spec-id"])
        if not spec.fields:
            return spec
    return None


def partitioned_by(
    io: FileIO, metadata: Metadata, target: WriteTarget, keys: Sequence[str]
) -> bool:
    """Whether a key's row, whenever it was written, is in the partition that the key has now.

    Data files of other specs stay where they are when the table's partitions change: an equality
    delete of a partition does not reach them.
    """
    sources = {target.schema.find_column_name(f.source_id) for f in target.spec.fields}
    if not sources or not sources <= set(keys):
        return False
    return specs_with_data(io, metadata) <= {target.spec.spec_id}


def specs_with_data(io: FileIO, metadata: Metadata) -> set[int]:
    """Partition specs of the current snapshot's data files, by its manifest list."""
    snapshot = parent_snapshot(metadata, MAIN)
    if snapshot is None:
        return set()
    return {
        manifest.partition_spec_id
        for manifest in read_manifest_list(io, snapshot["manifest-list"])
        if manifest.content == ManifestContent.DATA
        and (manifest.has_added_files() or manifest.has_existing_files())
    }


def _footer_schema(file: WrittenFile) -> pa.Schema:
    return read_footer(file.footer).schema.to_arrow_schema()
