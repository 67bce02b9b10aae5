"""Arrow data into a table in one commit (article on the write contract, "Three Entry Points")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import storage_error
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import replacing, schemas_changed
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID, new_write_id
from dbt.adapters.iceberg_stream.tables.files.arrow_types import new_schema
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter


class Mode(str, Enum):
    """What becomes of a table that is there, and whether one is made."""

    CREATE = "create"
    APPEND = "append"
    REPLACE = "replace"
    CREATE_APPEND = "create_append"


@dataclass(frozen=True)
class Ingested:
    """What was committed; sizes in bytes."""

    outcome: Outcome
    snapshot_id: int
    rows: int
    files: int
    size: int


def ingest(
    catalog: IcebergCatalog,
    name: Name,
    data: pa.RecordBatchReader,
    mode: Mode = Mode.APPEND,
    *,
    origin: str = "ingest",
    properties: Mapping[str, str] | None = None,
    stamps: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    confirm: Callable[[], None] | None = None,
) -> Ingested:
    """Write a stream of record batches to a table; all of it becomes visible at once, or nothing.

    Memory does not grow with the stream. `progress` is told how many rows have been taken.
    `properties` are a new table's; `stamps` go into the snapshot's summary. `confirm` is called
    when all files are written and raises if they are not to be committed.

    Raises:
        CatalogError: the table is there or is not, against the mode; the catalog refuses; others
            were faster each time. Nothing was written, but see CommitStateUnknown.
        ColumnError: the data do not fit the table.
        StorageError: the storage refuses.
    """
    write_id = new_write_id()
    base, updates = _base(catalog, name, data.schema, mode, dict(properties or {}))
    said = {**(stamps or {}), WRITE_ID: write_id}
    source = _Source(data, progress)
    try:
        writer = DataFileWriter(
            WriteTarget.of(with_schema(base.metadata, updates), base.io), origin, write_id
        )
        with writer:
            writer.write(source)
            files = writer.close()
            if confirm is not None:
                confirm()
        # From here on the files are the committer's: it alone knows whether a snapshot has them.
        change = append(*files, properties=said)
        if mode is Mode.REPLACE and base.exists:
            added = (AddedFiles(tuple(files)),)
            change = Change(Operation.OVERWRITE, added, removes_all=True, properties=said)
        same = _same_schema(base, updates)
        done = Committer(catalog, name, change, base, updates, same).commit()
    except OSError as error:
        if error is source.error:
            raise
        raise storage_error(error, base.io, base.metadata["location"]) from error
    size = sum(file.file_size_in_bytes for file in files)
    outcome = read_outcome(done.snapshot)
    return Ingested(outcome, outcome.snapshot_id, writer.rows, len(files), size)


def _base(
    catalog: IcebergCatalog, name: Name, arrow: pa.Schema, mode: Mode, properties: dict[str, str]
) -> tuple[LoadedTable, tuple[TableUpdate, ...]]:
    """The table, or what will be it, and how its schema changes."""
    table, place = catalog.load(name, history=False), ".".join(name)
    if table is None:
        if mode is Mode.APPEND:
            raise CatalogError(f"There is no table {place} to append to.")
        version = int(properties.get("format-version", 2))
        schema = new_schema(arrow, version)
        return catalog.stage(name, schema, UNPARTITIONED_PARTITION_SPEC, properties), ()
    if mode is Mode.CREATE:
        raise CatalogError(f"There is a table {place} already: append to it, or replace it.")
    if mode is not Mode.REPLACE:
        return table, ()
    return table, replacing(table.metadata, arrow, place)


def _same_schema(
    base: LoadedTable, updates: tuple[TableUpdate, ...]
) -> Callable[[Metadata], None] | None:
    if not updates:
        return None

    def check(metadata: Metadata) -> None:
        if schemas_changed(base.metadata, metadata):
            raise CatalogError(
                f"The schema of {'.'.join(base.name)} was changed while it was replaced. Nothing "
                "was written; run it again."
            )

    return check


class _Source:
    """Batches, and what went wrong with them: their errors are not those of the storage."""

    def __init__(
        self, data: Iterable[pa.RecordBatch], progress: Callable[[int], None] | None
    ) -> None:
        self._data = data
        self._progress = progress
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for batch in self._data:
                yield batch
                rows += batch.num_rows
                if self._progress is not None:
                    self._progress(rows)
        except OSError as error:
            self.error = error
            raise
