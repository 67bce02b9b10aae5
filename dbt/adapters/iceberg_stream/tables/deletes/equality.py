"""Finds the rows that equality deletes delete, and reads each delete file once.

Readers that apply deletes split by split read a delete file for each data file that it applies to
(article on high-scale streaming, "Querying Iceberg Tables"). Here the keys of all delete files are
gathered first, in sorted runs on the local disk, and the keys of each data file are looked up in
them. Which deletes apply to which rows is in the Iceberg specification, "Scan Planning".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import known_schemas, partition_spec
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    UnsupportedFile,
    bitmap,
    read_keys,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder
from dbt.adapters.iceberg_stream.tables.keys.codes import Mask, encode, equal
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    POSITION_BITS,
    Entries,
    Run,
    RunWriter,
    merge_entries,
    merge_runs,
    pack,
    unpack,
)

THREADS = max(2, min(8, os.cpu_count() or 2))
# Keys that are sorted at once.
KEYS_PER_RUN = 1 << 20
# Partition of a data file or a delete file; None for deletes of all partitions.
Scope = tuple[int, tuple[str, ...]] | None


@dataclass
class DeletedKeys:
    """The keys of all equality deletes with the same key columns.

    An entry has, in place of a data file's number, that of a scope, and in place of a position the
    rank of the delete's sequence number.

    Attributes:
        schema: of the key columns.
        scopes: number of each scope that deletes have.
        last: highest rank of the deletes of each scope, by its number.
        runs: the keys.
    """

    schema: pa.Schema
    scopes: dict[Scope, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def number(self, scope: Scope, rank: int) -> int:
        """Return the number of a scope, and record that it has deletes of a rank."""
        number = self.scopes.setdefault(scope, len(self.scopes))
        self.last[number] = max(rank, self.last.get(number, rank))
        return number

    def reaching(self, scope: Scope, lowest: int) -> list[int]:
        """Return the numbers of scopes with deletes of rows in a scope, from a rank on."""
        numbers = {self.scopes[s] for s in (None, scope) if s in self.scopes}
        return [number for number in numbers if self.last[number] >= lowest]


class EqualityDeletes:
    """The equality deletes of a snapshot. Close it to remove its files.

    Args:
        table: the table.
        files: manifest entries of delete files; those of the current snapshot by default.

    Raises:
        UnsupportedFile: a delete file cannot be read here.
        OSError: the storage refuses a file.
    """

    def __init__(self, table: LoadedTable, files: Sequence[ManifestEntry] | None = None) -> None:
        self.files = equality_delete_files(table) if files is None else list(files)
        numbers = {item.sequence_number or 0 for item in self.files}
        self._sequence_numbers = np.array(sorted(numbers), np.int64)
        self._folder = TemporaryFolder("deletes")
        self._run_numbers = count()
        self._lock = threading.Lock()
        self._metadata = table.metadata
        self._target = WriteTarget.of(table.metadata, table.io)
        self._by_columns: dict[tuple[int, ...], DeletedKeys] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            self._gather()
            undo.pop_all()

    def __enter__(self) -> EqualityDeletes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the local files."""
        self._folder.close()

    @property
    def keys(self) -> int:
        """How many keys the delete files have."""
        return sum(item.data_file.record_count for item in self.files)

    def apply_to(self, entry: ManifestEntry) -> bool:
        """Return whether some deletes may delete rows of a data file.

        Args:
            entry: the data file's manifest entry.
        """
        return any(True for _ in self._applicable(entry))

    def deleted(self, entry: ManifestEntry) -> BitMap:
        """Return the positions of a data file's rows that the equality deletes delete.

        Args:
            entry: the data file's manifest entry.

        Raises:
            UnsupportedFile: the file cannot be read here.
            OSError: the storage refuses the file.
        """
        file, positions = entry.data_file, BitMap()
        for deletes, scopes, lowest in self._applicable(entry):
            require_parquet(file)
            schema = self._target.schema_in(file, deletes.schema)
            for begin, rows in read_keys(self._target, schema, file.file_path):
                entries = Entries.of(encode(rows), 0, begin)
                positions |= _deleted(entries, deletes.runs, scopes, lowest)
        return positions

    def deleted_in(self, entries: Sequence[ManifestEntry]) -> Iterator[tuple[DataFile, BitMap]]:
        """Yield data files and the positions of their rows that the equality deletes delete.

        Args:
            entries: manifest entries of data files.

        Raises:
            UnsupportedFile: a file cannot be read here.
            OSError: the storage refuses a file.
        """
        with ThreadPoolExecutor(THREADS, thread_name_prefix="equality-deletes") as pool:
            results = pool.map(self.deleted, entries)
            for item, positions in zip(entries, results, strict=True):
                yield item.data_file, positions

    def _applicable(self, entry: ManifestEntry) -> Iterator[tuple[DeletedKeys, list[int], int]]:
        """Yield deletes that may delete rows of a data file, their scopes and lowest rank."""
        number = entry.sequence_number or 0
        lowest = int(np.searchsorted(self._sequence_numbers, number, "right"))
        scope = scope_of(self._metadata, entry.data_file)
        for deletes in self._by_columns.values():
            if scopes := deletes.reaching(scope, lowest):
                yield deletes, scopes, lowest

    def _gather(self) -> None:
        pending: dict[tuple[int, ...], list[Entries]] = {}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="equality-deletes") as pool:
            # A few files at a time, because memory holds their keys.
            for begin in range(0, len(self.files), 2 * THREADS):
                some = self.files[begin : begin + 2 * THREADS]
                for columns, entries in pool.map(self._read, some):
                    parts = pending.setdefault(columns, [])
                    parts.append(entries)
                    if sum(len(part.rows) for part in parts) >= KEYS_PER_RUN:
                        self._write_run(columns, pending.pop(columns))
        for columns, parts in pending.items():
            self._write_run(columns, parts)
        for deletes in self._by_columns.values():
            self._merge(deletes)

    def _read(self, entry: ManifestEntry) -> tuple[tuple[int, ...], Entries]:
        file = entry.data_file
        require_parquet(file)
        columns = tuple(sorted(file.equality_ids or ()))
        rank = int(np.searchsorted(self._sequence_numbers, entry.sequence_number or 0))
        with self._lock:
            if columns not in self._by_columns:
                self._by_columns[columns] = DeletedKeys(key_schema(self._metadata, columns))
            deletes = self._by_columns[columns]
            scope = deletes.number(scope_of(self._metadata, file), rank)
        parts = []
        for _, rows in read_keys(self._target, deletes.schema, file.file_path):
            place = pack(scope, np.full(rows.num_rows, rank, np.uint64))
            parts.append(Entries.at(encode(rows), place))
        return columns, merge_entries(parts)

    def _write_run(self, columns: tuple[int, ...], parts: Sequence[Entries]) -> None:
        entries = merge_entries(parts)
        latest = np.flatnonzero(_is_latest(entries))
        entries = Entries(entries.keys.take(latest), entries.rows[latest])
        if not len(entries.rows):
            return
        writer = RunWriter(self._new_folder())
        writer.append(entries)
        self._by_columns[columns].runs.append(writer.close())

    def _merge(self, deletes: DeletedKeys) -> None:
        if len(deletes.runs) > 1:
            merged = merge_runs(deletes.runs, self._new_folder(), _is_latest)
            for run in deletes.runs:
                run.remove()
            deletes.runs = [merged]

    def _new_folder(self) -> Path:
        return self._folder.path / f"run-{next(self._run_numbers)}"


def equality_delete_files(table: LoadedTable) -> list[ManifestEntry]:
    """Return the manifest entries of a snapshot's equality delete files.

    Args:
        table: the table.
    """
    entries = live_entries(table.io, table.metadata, ManifestContent.DELETES)
    return [item for item in entries if is_equality_delete(item.data_file)]


def deletes_of_keys(table: LoadedTable, keys: Iterable[pa.Field]) -> list[ManifestEntry]:
    """Return the manifest entries of equality delete files in Parquet with some key columns.

    Args:
        table: the table.
        keys: the key columns, with their ids; files with other ones, too, are left out.
    """
    ids = set(map(field_id, keys))
    return [
        item
        for item in equality_delete_files(table)
        if set(item.data_file.equality_ids or ()) == ids
        and item.data_file.file_format == FileFormat.PARQUET
    ]


def is_equality_delete(file: DataFile) -> bool:
    """Return whether a file has equality deletes."""
    return bool(file.content == DataFileContent.EQUALITY_DELETES)


def require_parquet(file: DataFile) -> None:
    """Require that a file is a Parquet file.

    Raises:
        UnsupportedFile: it is not.
    """
    if file.file_format != FileFormat.PARQUET:
        raise UnsupportedFile(
            f"{file.file_path} is a file in {file.file_format.value}, not Parquet"
        )


def scope_of(metadata: Metadata, file: DataFile) -> Scope:
    """Return the partition of a file; None if its spec is unpartitioned.

    Args:
        metadata: of the table.
        file: a data file or a delete file.
    """
    spec = partition_spec(metadata, file.spec_id)
    if all(isinstance(item.transform, VoidTransform) for item in spec.fields):
        return None
    # Equal for equal values only: NaN is NaN, and 0.0 is not -0.0.
    return file.spec_id, tuple(repr(file.partition[n]) for n in range(len(file.partition)))


def key_schema(metadata: Metadata, columns: Iterable[int]) -> pa.Schema:
    """Return the schema of key columns, which may have been dropped from the table.

    Args:
        metadata: of the table.
        columns: their field ids.

    Raises:
        UnsupportedFile: a column is nested.
    """
    fields = [_key_field(metadata, column) for column in columns]
    kinds = file_schema(Schema(*fields))
    # Names need not be unique: a column may have been dropped, and another one added.
    return pa.schema(
        pa.field(str(column.field_id), kind.type, metadata=kind.metadata)
        for column, kind in zip(fields, kinds, strict=True)
    )


def _key_field(metadata: Metadata, column: int) -> NestedField:
    for schema in known_schemas(metadata):
        for item in schema.fields:
            if item.field_id == column:
                return item
    raise UnsupportedFile(f"the key column with the field id {column} is nested")


def _deleted(entries: Entries, runs: Iterable[Run], scopes: list[int], lowest: int) -> BitMap:
    """Return the positions of rows whose keys are deleted in some scopes, from a rank on."""
    positions, keys = BitMap(), entries.lookup_keys()
    _, own = unpack(entries.rows)
    for run in runs:
        index, places = run.find(keys)
        numbers, ranks = unpack(places)
        positions |= bitmap(own[index[np.isin(numbers, scopes) & (ranks >= lowest)]])
    return positions


def _is_latest(entries: Entries) -> Mask:
    """Return which entries have the highest rank of their key and scope.

    Hashes that collide may leave an older entry, which does no harm.
    """
    codes, rows, values = entries.keys.codes, entries.rows, entries.keys.values
    latest = np.ones(len(rows), np.bool_)
    if len(rows) < 2:
        return latest
    same = codes[1:] == codes[:-1]
    repeated = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    order = repeated[np.lexsort((rows[repeated], codes[repeated]))]
    one, other = order[:-1], order[1:]
    older = (codes[one] == codes[other]) & (
        rows[one] >> POSITION_BITS == rows[other] >> POSITION_BITS
    )
    if values is not None:
        older[older] = equal(values, one[older], values, other[older])
    latest[one[older]] = False
    return latest
