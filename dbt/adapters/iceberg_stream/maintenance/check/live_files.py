"""Checks the live files, deletes and row ids of one snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.locations import comparable
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schemas import TableSchemas
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    FILE_FIRST_ROW_ID,
    REFERENCED_DATA_FILE,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file

# The column `file_path` of position delete files.
FILE_PATH_ID = 2147483546
VECTOR_FIELDS = {
    "referenced_data_file": REFERENCED_DATA_FILE,
    "content_offset": REFERENCED_DATA_FILE + 1,
    "content_size_in_bytes": REFERENCED_DATA_FILE + 2,
}
# Prefix of files of this adapter's streams, whose equality deletes have key columns only.
STREAM_PREFIX = "stream-"
DATA, POSITIONS, EQUALITY = (
    DataFileContent.DATA,
    DataFileContent.POSITION_DELETES,
    DataFileContent.EQUALITY_DELETES,
)


def check_live(
    metadata: Metadata, schemas: TableSchemas, ref: str, entries: Sequence[ManifestEntry]
) -> Iterator[Finding]:
    """Check the live entries of a branch or tag, without reading their files.

    Args:
        metadata: table metadata.
        schemas: the table's schemas.
        ref: the branch or tag.
        entries: its live entries.
    """
    data = [entry for entry in entries if entry.data_file.content == DATA]
    deletes = [entry for entry in entries if entry.data_file.content != DATA]
    spellings: dict[str, list[str]] = defaultdict(list)
    for entry in data:
        spellings[comparable(entry.data_file.file_path)].append(entry.data_file.file_path)
    for path, *others in spellings.values():
        if others:
            times = len(others) + 1
            yield Finding("file-twice", path, f"{ref} lists the file {times} times.")
    yield from _totals(metadata, ref, data, deletes)
    yield from _vectors(metadata["format-version"], deletes)
    yield from _position_deletes(ref, data, deletes)
    yield from _equality_deletes(schemas, ref, data, deletes)
    yield from _row_ids(metadata, ref, data)


def is_vector(file: DataFile) -> bool:
    """Return whether a file's descriptor is that of a deletion vector."""
    return file.content == POSITIONS and file.file_format == FileFormat.PUFFIN


def _vectors(version: int, deletes: list[ManifestEntry]) -> Iterator[Finding]:
    for entry in deletes:
        file = entry.data_file
        if not is_vector(file):
            continue
        if version < 3:
            yield Finding(
                "vector-version",
                file.file_path,
                f"It is a deletion vector, which format version {version} does not have.",
            )
        absent = [name for name, position in VECTOR_FIELDS.items() if file[position] is None]
        if absent:
            yield Finding(
                "vector-fields",
                file.file_path,
                f"Its manifest entry lacks {', '.join(absent)}: the vector cannot be found.",
            )


def can_be_read(vector: DataFile) -> bool:
    """Return whether a vector's descriptor says where the vector is.

    Args:
        vector: see `is_vector`.
    """
    return all(vector[position] is not None for position in VECTOR_FIELDS.values())


def _totals(
    metadata: Metadata, ref: str, data: list[ManifestEntry], deletes: list[ManifestEntry]
) -> Iterator[Finding]:
    snapshot_id = (
        (metadata.get("refs") or {})
        .get(ref, {})
        .get("snapshot-id", metadata.get("current-snapshot-id"))
    )
    snapshot: Mapping[str, Any] = next(
        (s for s in metadata.get("snapshots") or [] if s["snapshot-id"] == snapshot_id), {}
    )
    summary = snapshot.get("summary") or {}
    for key, actual in (
        ("total-data-files", len(data)),
        ("total-delete-files", len(deletes)),
        ("total-records", sum(e.data_file.record_count for e in data)),
        ("total-position-deletes", _rows_of(deletes, POSITIONS)),
        ("total-equality-deletes", _rows_of(deletes, EQUALITY)),
    ):
        if key in summary and summary[key] != str(actual):
            yield Finding(
                "summary-totals",
                f"snapshot {snapshot_id}",
                f"Its summary says {key} {summary[key]}; its manifests have {actual}.",
            )


def _rows_of(deletes: list[ManifestEntry], content: DataFileContent) -> int:
    return sum(e.data_file.record_count for e in deletes if e.data_file.content == content)


def _position_deletes(
    ref: str, data: list[ManifestEntry], deletes: list[ManifestEntry]
) -> Iterator[Finding]:
    numbers = {entry.data_file.file_path: entry.sequence_number or 0 for entry in data}
    files = {entry.data_file.file_path: entry.data_file for entry in data}
    live = LiveLocations(ref, files)
    vectors: dict[str, list[ManifestEntry]] = defaultdict(list)
    for entry in deletes:
        referenced = only_file(entry.data_file)
        if entry.data_file.content != POSITIONS or referenced is None:
            continue
        if referenced in files:
            yield from other_partition(entry.data_file, files[referenced])
        if is_vector(entry.data_file):
            vectors[referenced].append(entry)
        if referenced not in numbers:
            if referenced_file(entry.data_file) is None:
                continue  # `check_positions` reads which files it is about
            yield live.dangling(entry.data_file.file_path, referenced)
        elif (entry.sequence_number or 0) < numbers[referenced]:
            yield Finding(
                "dangling-delete",
                entry.data_file.file_path,
                f"Its sequence number {entry.sequence_number} is below {numbers[referenced]}, that "
                f"of {referenced}.",
            )
    for path, own in vectors.items():
        if len(own) > 1:
            yield Finding("vector-twice", path, f"{ref} has {len(own)} vectors of the file.")


class LiveLocations:
    """Locations of the live data files of a branch or tag.

    Args:
        ref: the branch or tag.
        locations: of the files.
    """

    def __init__(self, ref: str, locations: Iterable[str]) -> None:
        self._ref = ref
        self._locations = locations

    @cached_property
    def _by_spelling(self) -> dict[str, str]:
        return {comparable(location): location for location in self._locations}

    def dangling(self, where: str, location: str) -> Finding:
        """Return the finding for deletes whose data file is not listed under this location.

        Args:
            where: location of the delete file.
            location: of the file.
        """
        if spelling := self._by_spelling.get(comparable(location)):
            text = f"It names {location}; {self._ref} lists the same file as {spelling}."
            return Finding("delete-location", where, text)
        text = f"It deletes rows of {location}, which is not live in {self._ref}."
        return Finding("dangling-delete", where, text)


def only_file(delete: DataFile) -> str | None:
    """Return the only data file of a position delete file, by its descriptor; None if unknown.

    Args:
        delete: the delete file.
    """
    if (referenced := referenced_file(delete)) is not None:
        return referenced
    lower = (delete.lower_bounds or {}).get(FILE_PATH_ID)
    upper = (delete.upper_bounds or {}).get(FILE_PATH_ID)
    # Equal bounds may be truncated: then they are no file's location.
    return None if lower is None or lower != upper else bytes(lower).decode(errors="replace")


def other_partition(delete: DataFile, data: DataFile) -> Iterator[Finding]:
    """Find position deletes that are in another partition than their data file.

    Args:
        delete: the delete file or vector.
        data: a data file whose rows it deletes.
    """
    if _partition(delete) != _partition(data):
        yield Finding(
            "delete-partition",
            delete.file_path,
            f"It deletes rows of {data.file_path}, which is in another partition or has another "
            "partition spec.",
        )


def _equality_deletes(
    schemas: TableSchemas, ref: str, data: list[ManifestEntry], deletes: list[ManifestEntry]
) -> Iterator[Finding]:
    lowest: dict[Any, int] = {}
    for entry in data:
        number = entry.sequence_number or 0
        for scope in (None, _partition(entry.data_file)):
            lowest[scope] = min(lowest.get(scope, number), number)
    for entry in deletes:
        file = entry.data_file
        if file.content != EQUALITY:
            continue
        missing = [i for i in file.equality_ids or [] if i not in schemas.ids]
        if missing or not file.equality_ids:
            yield Finding(
                "equality-column",
                file.file_path,
                f"Its key columns have the ids {file.equality_ids}; the table never had {missing}."
                if missing
                else "It has no key columns.",
            )
        other_columns = {*(file.lower_bounds or {}), *(file.null_value_counts or {})}
        other_columns -= {*(file.equality_ids or [])}
        if other_columns and file.file_path.rsplit("/", 1)[-1].startswith(STREAM_PREFIX):
            yield Finding(
                "delete-metrics",
                file.file_path,
                f"It has metrics of the column ids {sorted(other_columns)}, which are not key "
                "columns.",
            )
        spec = schemas.specs.get(file.spec_id)
        scope = None if spec is None or spec.is_unpartitioned() else _partition(file)
        if lowest.get(scope, entry.sequence_number or 0) >= (entry.sequence_number or 0):
            yield Finding(
                "dangling-delete",
                file.file_path,
                f"No data file in its scope in {ref} is older than it.",
            )


def _partition(file: DataFile) -> tuple[int, tuple[Any, ...]]:
    return file.spec_id, tuple(file.partition[i] for i in range(len(file.partition)))


def _row_ids(metadata: Metadata, ref: str, data: list[ManifestEntry]) -> Iterator[Finding]:
    if metadata["format-version"] < 3:
        return
    end, last, limit = 0, "", metadata.get("next-row-id", 0)
    with_ids = [e.data_file for e in data if e.data_file[FILE_FIRST_ROW_ID] is not None]
    for file in sorted(with_ids, key=lambda f: (f[FILE_FIRST_ROW_ID], f.record_count)):
        first = file[FILE_FIRST_ROW_ID]
        if file.record_count and first < end:
            yield Finding(
                "row-ids",
                file.file_path,
                f"In {ref} its row ids begin at {first}; those of {last} end at {end}.",
            )
        if first + file.record_count > end:
            end, last = first + file.record_count, file.file_path
        if end > limit:
            yield Finding(
                "row-ids",
                file.file_path,
                f"Its row ids end at {end}; the table's next-row-id is {limit}.",
            )
            limit = end
