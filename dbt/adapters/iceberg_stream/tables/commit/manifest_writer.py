"""Writes manifests and manifest lists (spec, "Manifests" and "Manifest Lists").

PyIceberg's own writers support neither format version 3 nor deletes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    NestedField,
    StructType,
    UnknownType,
)

from dbt.adapters.iceberg_stream.tables.commit.avro_files import CopyWriter, avro_schema
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DATA_FILE_ID,
    DELETED,
    EQUALITY_IDS_ELEMENT_ID,
    EXISTING,
    FIRST_ROW_ID,
    PARTITION_ID,
    FormatVersion,
    StoredEntry,
    entry_schema,
    first_row_id,
    read_manifest,
)
from dbt.adapters.iceberg_stream.tables.commit.partition_summaries import summaries

# The sequence number of a new manifest until its snapshot's manifest list is written.
UNASSIGNED = -1
# The name of a manifest's records.
ENTRY = "manifest_entry"
# Positions of the fields that count files and rows.
COUNTS = {
    field.name: position
    for position, field in enumerate(MANIFEST_LIST_FILE_SCHEMAS[3].fields)
    if field.name.endswith("_count")
}
# The specification stores equality ids as int; Iceberg Java cannot read a manifest with long.
EQUALITY_IDS = ListType(EQUALITY_IDS_ELEMENT_ID, IntegerType(), element_required=True)


@dataclass(frozen=True)
class ManifestWriter:
    """Writes manifests of one snapshot and one partition spec.

    Attributes:
        io: the table's FileIO.
        format_version: of the table.
        schema: the table's current schema.
        spec: the partition spec.
        partition: types of the partition values, also of dropped source columns.
        snapshot_id: the snapshot's id.
    """

    io: FileIO
    format_version: FormatVersion
    schema: Schema
    spec: PartitionSpec
    partition: StructType
    snapshot_id: int

    def write(
        self, location: str, content: ManifestContent, entries: Sequence[ManifestEntry]
    ) -> ManifestFile:
        """Write a manifest.

        Args:
            location: of the new file.
            content: whether the entries are of data files or of delete files.
            entries: at least one.

        Returns:
            The manifest list's entry, with unassigned sequence numbers.
        """
        file_schema = entry_schema(self.format_version, self.partition, EQUALITY_IDS)
        schema = avro_schema(file_schema, ENTRY)
        output = AvroOutputFile[ManifestEntry](
            output_file=self.io.new_output(location),
            file_schema=file_schema,
            record_schema=entry_schema(3, self.partition, EQUALITY_IDS),
            schema_name=ENTRY,
            metadata={
                "schema": self.schema.model_dump_json(),
                "partition-spec": _spec_fields(self.spec),
                "partition-spec-id": str(self.spec.spec_id),
                "format-version": str(self.format_version),
                "content": "data" if content == ManifestContent.DATA else "deletes",
            },
        )
        output.writer = CopyWriter(output.writer, lambda entry: _stored(entry, schema))
        with output as writer:
            writer.write_block(list(entries))
            length = writer.output_stream.tell()
        return self._manifest_file(location, length, content, entries)

    def _manifest_file(
        self, location: str, length: int, content: ManifestContent, entries: Sequence[ManifestEntry]
    ) -> ManifestFile:
        numbers = [
            e.sequence_number
            for e in entries
            if e.status != DELETED and e.sequence_number is not None
        ]
        return ManifestFile.from_args(
            _table_format_version=3,
            manifest_path=location,
            manifest_length=length,
            partition_spec_id=self.spec.spec_id,
            content=content,
            sequence_number=UNASSIGNED,
            min_sequence_number=min(numbers, default=UNASSIGNED),
            added_snapshot_id=self.snapshot_id,
            **_counts(entries),
            partitions=summaries(self.partition, [e.data_file.partition for e in entries]),
            key_metadata=None,
            first_row_id=None,
        )


def write_manifest_list(
    io: FileIO,
    location: str,
    format_version: FormatVersion,
    snapshot: dict[str, Any],
    manifests: Iterable[ManifestFile],
) -> int:
    """Write a snapshot's manifest list.

    New manifests get the snapshot's sequence number and, in format version 3, row ids.

    Args:
        io: the table's FileIO.
        location: of the new file.
        format_version: of the table.
        snapshot: as JSON.
        manifests: the list's entries.

    Returns:
        How many row ids were assigned (spec, "Row Lineage").
    """
    begin: int = snapshot.get("first-row-id") or 0
    next_row_id = begin
    numbered = []
    for manifest in manifests:
        item = copy.deepcopy(manifest)
        if format_version > 1:
            _complete_counts(io, item)
        if item.sequence_number == UNASSIGNED:
            item.sequence_number = snapshot["sequence-number"]
        if item.min_sequence_number == UNASSIGNED:
            item.min_sequence_number = snapshot["sequence-number"]
        if item.content == ManifestContent.DATA and first_row_id(item) is None:
            item[FIRST_ROW_ID] = next_row_id
            next_row_id += (item.existing_rows_count or 0) + (item.added_rows_count or 0)
        numbered.append(item)
    parent = snapshot.get("parent-snapshot-id")
    with AvroOutputFile[ManifestFile](
        output_file=io.new_output(location),
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[format_version],
        schema_name="manifest_file",
        metadata={
            "snapshot-id": str(snapshot["snapshot-id"]),
            "parent-snapshot-id": "null" if parent is None else str(parent),
            "sequence-number": str(snapshot["sequence-number"]),
            "format-version": str(format_version),
        },
    ) as writer:
        writer.write_block(numbered)
    return next_row_id - begin if format_version >= 3 else 0


def _counts(entries: Sequence[ManifestEntry]) -> dict[str, int]:
    """Return the fields of a manifest that count its files and rows by status."""
    statuses = {"added": ADDED, "existing": EXISTING, "deleted": DELETED}
    groups = {name: [e for e in entries if e.status == s] for name, s in statuses.items()}
    files = {f"{name}_files_count": len(group) for name, group in groups.items()}
    rows = {name: sum(e.data_file.record_count for e in group) for name, group in groups.items()}
    return files | {f"{name}_rows_count": count for name, count in rows.items()}


def _complete_counts(io: FileIO, manifest: ManifestFile) -> None:
    """Count what a writer of version 1 has left out; later versions require it."""
    missing = [name for name, position in COUNTS.items() if manifest[position] is None]
    if missing:
        counts = _counts(read_manifest(io, manifest))
        for name in missing:
            manifest[COUNTS[name]] = counts[name]


def partition_types(
    io: FileIO, manifest: ManifestFile | None, spec: PartitionSpec, schemas: Iterable[Schema]
) -> StructType:
    """Return the types of a partition spec's values.

    The type of a dropped column is that of the first schema that has it, or else the manifest's.

    Args:
        io: the table's FileIO.
        manifest: a manifest of the spec, if there is one.
        spec: the partition spec.
        schemas: the table's schemas, the current one first.
    """
    sources: dict[int, IcebergType] = {}
    missing = {field.source_id for field in spec.fields}
    for schema in schemas:
        present = {number for number in missing if schema.find_column_name(number)}
        sources |= {number: schema.find_type(number) for number in present}
        missing -= present
        if not missing:
            break
    manifest_types = _stored_types(io, manifest) if missing and manifest is not None else {}
    kinds = [
        manifest_types.get(field.field_id, UnknownType())
        if field.source_id in missing
        else field.transform.result_type(sources[field.source_id])
        for field in spec.fields
    ]
    return StructType(
        *(
            NestedField(field.field_id, field.name, kind, required=False)
            for field, kind in zip(spec.fields, kinds, strict=True)
        )
    )


def _stored_types(io: FileIO, manifest: ManifestFile) -> dict[int, IcebergType]:
    with AvroFile[ManifestEntry](io.new_input(manifest.manifest_path)) as reader:
        data_file = reader.schema.find_type(DATA_FILE_ID)
    assert isinstance(data_file, StructType)
    partition = next(f.field_type for f in data_file.fields if f.field_id == PARTITION_ID)
    assert isinstance(partition, StructType)
    return {field.field_id: field.field_type for field in partition.fields}


def entry(
    status: ManifestEntryStatus,
    file: DataFile,
    snapshot_id: int | None,
    sequence_number: int | None = None,
    file_sequence_number: int | None = None,
) -> ManifestEntry:
    """Return a manifest entry.

    Args:
        status: added, existing or deleted.
        file: the data or delete file.
        snapshot_id: the snapshot that added or deleted the file.
        sequence_number: data sequence number; None inherits the snapshot's.
        file_sequence_number: None inherits the snapshot's.
    """
    return ManifestEntry.from_args(
        _table_format_version=3,
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
        file_sequence_number=file_sequence_number,
        data_file=file,
    )


def _stored(entry: ManifestEntry, schema: str) -> bytes | None:
    """Return the bytes of an entry's data file in a schema; None if it has to be encoded."""
    if isinstance(entry, StoredEntry) and entry.is_copy and entry.schema == schema:
        return entry.data_file_bytes
    return None


def _spec_fields(spec: PartitionSpec) -> str:
    return "[" + ",".join(field.model_dump_json() for field in spec.fields) + "]"
