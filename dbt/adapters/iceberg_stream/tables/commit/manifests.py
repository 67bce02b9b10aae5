"""Reads manifests and manifest lists (spec, "Manifests" and "Manifest Lists").

PyIceberg's own readers drop the columns of format version 3. So this module uses its Avro files
with the schemas of version 3, which include those of version 2.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Literal

from cachetools import LRUCache
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.exceptions import ResolveError
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StructType,
    TimestampNanoType,
)
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.schema_conversion import LOGICAL_FIELD_TYPE_MAPPING

from dbt.adapters.iceberg_stream.tables.commit.avro_files import (
    SCHEMA_KEY,
    SameSchemaFile,
    iceberg_schema,
    paused_collection,
)
from dbt.adapters.iceberg_stream.tables.commit.avro_repairs import repair

repair()
ADDED, EXISTING, DELETED = (
    ManifestEntryStatus.ADDED,
    ManifestEntryStatus.EXISTING,
    ManifestEntryStatus.DELETED,
)
FormatVersion = Literal[1, 2, 3]
# What PyIceberg raises for files that are damaged, or have a form that it does not know.
DAMAGED = (
    *(ValueError, KeyError, IndexError, TypeError, EOFError, AssertionError),
    *(SystemError, zlib.error, ResolveError),
)
# Manifests that are read in advance.
READ_AHEAD = 8
# Threads do not wait for local files, but for each other: reading is Python code.
LOCAL = ("file:", "/")
# Entries that stay in memory, in all and of one manifest. Manifests never change.
CACHED_ENTRIES, CACHED_MANIFEST = 4096, 256
Test = Callable[[ManifestEntry], bool]
_Read = Callable[[], list["StoredEntry"]]
_CacheKey = tuple[str, int, int | None, int | None, int | None]
# Readers that stay in memory: one for each Avro schema, which differs with the partition spec.
CACHED_READERS = 128
_cache: LRUCache[_CacheKey, list[StoredEntry]] = LRUCache(CACHED_ENTRIES, getsizeof=len)
_cache_lock = threading.Lock()
# Ids of fields in manifests (Iceberg spec, "Manifests").
STATUS_ID, DATA_FILE_ID, FILE_FORMAT_ID, PARTITION_ID = 0, 2, 101, 102
CONTENT_ID, EQUALITY_IDS_ID, EQUALITY_IDS_ELEMENT_ID = 134, 135, 136
# PyIceberg writes partition values of nanosecond timestamps, but does not read them.
LOGICAL_FIELD_TYPE_MAPPING.setdefault(("timestamp-nanos", "long"), TimestampNanoType())
# The specification stores them as int, PyIceberg writes long.
READ_EQUALITY_IDS = ListType(EQUALITY_IDS_ELEMENT_ID, LongType(), element_required=True)


class DamagedFile(OSError):
    """A manifest or manifest list is damaged, or its form is unknown."""


class StoredEntry(ManifestEntry):
    """An entry of a manifest that was read, or that takes the place of such an entry.

    Attributes:
        schema: of the manifest, in Avro's JSON.
        data_file_bytes: the data file in that schema; None if it has inherited a value.
        is_copy: whether the bytes are written: what was read may have been changed since.
    """

    schema: str
    data_file_bytes: bytes | None = None
    is_copy: bool = False

    def changed(self, status: ManifestEntryStatus, snapshot_id: int | None) -> StoredEntry:
        """Return the entry with another status and snapshot.

        Args:
            status: existing or deleted.
            snapshot_id: the snapshot that added or deleted the file.
        """
        numbers = self.sequence_number, self.file_sequence_number
        result = StoredEntry(status, snapshot_id, *numbers, self.data_file)
        result.schema, result.data_file_bytes = self.schema, self.data_file_bytes
        result.is_copy = True
        return result


def read_manifest(
    io: FileIO, manifest: ManifestFile, test: Test = lambda _: True
) -> list[StoredEntry]:
    """Read the entries of a manifest, with the fields that they inherit from it.

    Args:
        io: the table's FileIO.
        manifest: the manifest list's entry.
        test: selects entries; others are not held in memory.

    Returns:
        Entries of all statuses, with sequence numbers and, in format version 3, first row ids.

    Raises:
        DamagedFile: the file is damaged; the message names it.
        OSError: the storage refuses the file.
    """
    with paused_collection():
        return list(filter(test, _entries(io, manifest)))


def _entries(io: FileIO, manifest: ManifestFile) -> Iterator[StoredEntry]:
    next_row_id, number = first_row_id(manifest), manifest.sequence_number
    snapshot_id, spec_id = manifest.added_snapshot_id, manifest.partition_spec_id
    file = SameSchemaFile[StoredEntry](
        io.new_input(manifest.manifest_path), _manifest_reader, manifest.manifest_length
    )
    with _naming(manifest.manifest_path), file as reader:
        schema = reader.header.meta[SCHEMA_KEY]
        for item, content in reader.with_bytes(DATA_FILE):
            if item.snapshot_id is None and snapshot_id is not None:
                item.snapshot_id = snapshot_id
            if item.sequence_number is None:
                item.sequence_number = number
            if item.file_sequence_number is None:
                item.file_sequence_number = number
            item.data_file.spec_id = spec_id
            item.schema = schema
            # Only live files get row ids from the manifest (spec, "First Row ID Inheritance").
            is_live = item.status != DELETED
            if next_row_id is not None and is_live and item.data_file[FILE_FIRST_ROW_ID] is None:
                item.data_file[FILE_FIRST_ROW_ID] = next_row_id
                next_row_id += item.data_file.record_count
            else:
                item.data_file_bytes = content
            yield item


@contextmanager
def _naming(location: str) -> Iterator[None]:
    """Raise errors of a damaged file with its location."""
    try:
        yield
    except DAMAGED as error:
        raise DamagedFile(f"{location} cannot be read ({type(error).__name__}: {error})") from error


def read_manifests(io: FileIO, manifests: Iterable[ManifestFile]) -> list[list[StoredEntry]]:
    """Read the entries of several manifests in parallel; see `read_manifest`."""
    return list(ExecutorFactory.get_or_create().map(lambda m: read_manifest(io, m), manifests))


def iter_manifests(
    io: FileIO, manifests: Iterable[ManifestFile], test: Test = lambda _: True
) -> Iterator[tuple[ManifestFile, list[StoredEntry]]]:
    """Iterate over manifests and those of their entries that a test selects, in order.

    A few manifests are read in advance, in threads unless they are local. Small ones, which
    frequent commits read again and again, stay in memory for a while; the caller must not change
    them.
    """
    pool, ahead = ExecutorFactory.get_or_create(), deque[tuple[ManifestFile, _Read]]()
    for manifest in manifests:
        ahead.append((manifest, _reading(pool, io, manifest, test)))
        if len(ahead) >= READ_AHEAD:
            first, read = ahead.popleft()
            yield first, read()
    while ahead:
        first, read = ahead.popleft()
        yield first, read()


def _reading(pool: Executor, io: FileIO, manifest: ManifestFile, test: Test) -> _Read:
    """Begin to read a manifest; the result waits for its entries."""
    with _cache_lock:
        entries = _cache.get(_cache_key(manifest))
    if entries is not None:
        return lambda: list(filter(test, entries))
    read = partial(_read_and_cache, io, manifest, test)
    return read if manifest.manifest_path.startswith(LOCAL) else pool.submit(read).result


def _read_and_cache(io: FileIO, manifest: ManifestFile, test: Test) -> list[StoredEntry]:
    if not _is_small(manifest):
        return read_manifest(io, manifest, test)
    entries = read_manifest(io, manifest)
    with _cache_lock:
        _cache[_cache_key(manifest)] = entries
    return list(filter(test, entries))


def _is_small(manifest: ManifestFile) -> bool:
    counts = (
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
    )
    # Writers of format version 1 may leave the counts out.
    return None not in counts and sum(filter(None, counts)) <= CACHED_MANIFEST


def _cache_key(manifest: ManifestFile) -> _CacheKey:
    """Return what the entries of a manifest depend on.

    A table that was dropped and created again has other manifests, whose names are unique. But what
    entries inherit is in the manifest list: a manifest gets its row ids after an upgrade, and those
    of a clone are others.
    """
    inherited = manifest.sequence_number, manifest.added_snapshot_id, first_row_id(manifest)
    return manifest.manifest_path, manifest.manifest_length, *inherited


def read_manifest_list(io: FileIO, location: str) -> list[ManifestFile]:
    """Read a snapshot's manifest list.

    Raises:
        DamagedFile, OSError: as for `read_manifest`.
    """
    file = SameSchemaFile[ManifestFile](io.new_input(location), _manifest_list_reader)
    with _naming(location), file as reader:
        return [manifest for manifest, _ in reader.with_bytes(-1)]


@lru_cache(CACHED_READERS)
def _manifest_reader(avro_schema: str) -> Reader:
    stored = iceberg_schema(avro_schema)
    return resolve_reader(
        stored,
        Schema(*_with_unknown(READ_ENTRY.fields, stored.fields)),
        {-1: StoredEntry, DATA_FILE_ID: DataFile},
        {
            STATUS_ID: ManifestEntryStatus,
            FILE_FORMAT_ID: FileFormat,
            CONTENT_ID: DataFileContent,
        },
    )


def _with_unknown(
    known: Sequence[NestedField], stored: Sequence[NestedField]
) -> Iterator[NestedField]:
    """Yield known fields, then those that only a file has: PyIceberg does not skip nested ones."""
    by_id = {field.field_id: field for field in stored}
    for field in known:
        own, kind = by_id.pop(field.field_id, field).field_type, field.field_type
        if field.field_id == DATA_FILE_ID and isinstance(kind, StructType):
            inner = own.fields if isinstance(own, StructType) else ()
            field = field.model_copy(
                update={"field_type": StructType(*_with_unknown(kind.fields, inner))}
            )
        yield field
    yield from by_id.values()


@lru_cache(CACHED_READERS)
def _manifest_list_reader(avro_schema: str) -> Reader:
    stored = iceberg_schema(avro_schema)
    return resolve_reader(
        stored,
        Schema(*_with_unknown(MANIFEST_LIST_FILE_SCHEMAS[3].fields, stored.fields)),
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    )


# Positions of fields in PyIceberg's records.
DATA_FILE = [f.name for f in MANIFEST_ENTRY_SCHEMAS[3].fields].index("data_file")
REFERENCED_DATA_FILE = [f.name for f in DATA_FILE_TYPE[3].fields].index("referenced_data_file")
FILE_FIRST_ROW_ID = [f.name for f in DATA_FILE_TYPE[3].fields].index("first_row_id")
FIRST_ROW_ID = [f.name for f in MANIFEST_LIST_FILE_SCHEMAS[3].fields].index("first_row_id")


def first_row_id(manifest: ManifestFile) -> int | None:
    """Return the first row id of a data manifest of format version 3; None if it has none."""
    row_id: int | None = manifest[FIRST_ROW_ID]
    return row_id


def entry_schema(version: FormatVersion, partition: StructType, equality_ids: ListType) -> Schema:
    """Return the schema of a manifest's entries.

    Args:
        version: of the format.
        partition: types of the partition values.
        equality_ids: type of the ids of an equality delete file's columns.
    """
    replaced: dict[int, IcebergType] = {PARTITION_ID: partition, EQUALITY_IDS_ID: equality_ids}
    data_file = StructType(
        *(
            NestedField(f.field_id, f.name, replaced[f.field_id], required=f.required, doc=f.doc)
            if f.field_id in replaced
            else f
            for f in DATA_FILE_TYPE[version].fields
        )
    )
    return Schema(
        *(
            NestedField(DATA_FILE_ID, "data_file", data_file, required=True)
            if f.field_id == DATA_FILE_ID
            else f
            for f in MANIFEST_ENTRY_SCHEMAS[version].fields
        )
    )


# With an empty partition type, the partition is read with the types of the file.
READ_ENTRY = entry_schema(3, StructType(), READ_EQUALITY_IDS)
