"""Writes Arrow data to a table in one commit.

Article on the write contract, "Three Entry Points".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, TableChanged
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.storage import storage_error
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    replacement_updates,
    schemas_changed,
    with_comments,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID, new_write_id
from dbt.adapters.iceberg_stream.tables.files.arrow_types import new_schema
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter


class Mode(str, Enum):
    """What to do with an existing table, and whether to create a missing one.

    CREATE creates a new table, APPEND adds rows to an existing one, REPLACE creates a table or
    replaces all its rows, CREATE_APPEND creates a table or adds rows to it.
    """

    CREATE = "create"
    APPEND = "append"
    REPLACE = "replace"
    CREATE_APPEND = "create_append"


@dataclass(frozen=True)
class Ingested:
    """The committed rows.

    Attributes:
        outcome: rows and files that changed.
        snapshot_id: the committed snapshot's.
        rows: number of rows written.
        files: number of data files written.
        size: of the data files, in bytes.
    """

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
    comments: Mapping[str, str] | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    check_base: Callable[[Metadata | None], None] | None = None,
    confirm: Callable[[], None] | None = None,
    check_attempt: Callable[[Metadata], None] | None = None,
    branch: str = MAIN,
) -> Ingested:
    """Write record batches to a table in one snapshot: all rows become visible at once, or none.

    Memory does not grow with the number of rows.

    Args:
        catalog: the catalog, as the user who writes.
        name: namespace and identifier of the table.
        data: the rows.
        mode: what to do with an existing or missing table.
        origin: first word of the files' names.
        properties: table properties of a new or replaced table.
        comments: of columns of a new or replaced table; None to keep those that it has.
        snapshot_properties: properties of the snapshot's summary.
        progress: is called with the number of rows written so far.
        check_base: is called before anything is written, with the metadata of the table that the
            rows go to, or None for a new table; raises to cancel the write.
        confirm: is called when all files are written; raises to cancel the commit.
        check_attempt: is called before each attempt to commit, with the metadata of the table as
            it is then; raises to cancel the commit.
        branch: the branch that rows are appended to; other modes write to main.

    Raises:
        CatalogError: the table exists or does not exist, contrary to the mode; the catalog
            refuses; or the commit conflicted in every attempt. Nothing was written, except maybe
            after CommitStateUnknown.
        ColumnError: the data do not fit the table.
        StorageError: a file cannot be written or read.
    """
    write_id = new_write_id()
    table = catalog.load(name, history=False)
    if check_base is not None:
        check_base(None if table is None else table.metadata)
    base, updates = _base(catalog, name, table, data.schema, mode, dict(properties or {}), comments)
    summary = {**(snapshot_properties or {}), WRITE_ID: write_id}
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
        # From here on the committer owns the files: only it knows whether a snapshot has them.
        change = append(*files, properties=summary, branch=branch)
        if mode is Mode.REPLACE and base.exists:
            added = (AddedFiles(tuple(files)),)
            change = Change(Operation.OVERWRITE, added, removes_all=True, properties=summary)
        check = _all_of(_same_schema(base, updates), check_attempt)
        committed = Committer(catalog, name, change, base, updates, check).commit()
    except OSError as error:
        if error is source.error:
            raise
        raise storage_error(error, base.io, base.metadata["location"]) from error
    size = sum(file.file_size_in_bytes for file in files)
    outcome = read_outcome(committed.snapshot)
    if mode is Mode.REPLACE:
        # Those of the new table, as for Spark's statement, also if there are none.
        outcome = replace(outcome, rows_affected=writer.rows)
    return Ingested(outcome, outcome.snapshot_id, writer.rows, len(files), size)


def _base(
    catalog: IcebergCatalog,
    name: Name,
    table: LoadedTable | None,
    arrow: pa.Schema,
    mode: Mode,
    properties: dict[str, str],
    comments: Mapping[str, str] | None,
) -> tuple[LoadedTable, tuple[TableUpdate, ...]]:
    """Return the table, or a staged one, and the updates of its schema."""
    table_name = ".".join(name)
    if table is None:
        if mode is Mode.APPEND:
            raise CatalogError(
                f"The table {table_name} does not exist. Create it, or use another mode."
            )
        version = int(properties.get("format-version", 2))
        schema = with_comments(new_schema(arrow, version), comments or {})
        return catalog.stage(name, schema, UNPARTITIONED_PARTITION_SPEC, properties), ()
    if mode is Mode.CREATE:
        raise CatalogError(f"The table {table_name} already exists. Append to it, or replace it.")
    if mode is not Mode.REPLACE:
        return table, ()
    updates = replacement_updates(table.metadata, arrow, table_name, comments)
    if properties.items() <= (table.metadata.get("properties") or {}).items():
        return table, updates
    return table, (*updates, SetPropertiesUpdate(updates=properties))


def _same_schema(
    base: LoadedTable, updates: tuple[TableUpdate, ...]
) -> Callable[[Metadata], None] | None:
    if not updates:
        return None

    def check(metadata: Metadata) -> None:
        if schemas_changed(base.metadata, metadata):
            raise TableChanged(
                f"The schema of {'.'.join(base.name)} changed while this write replaced it. "
                "Nothing was written; run it again."
            )

    return check


def _all_of(*checks: Callable[[Metadata], None] | None) -> Callable[[Metadata], None]:
    def check_all(metadata: Metadata) -> None:
        for check in filter(None, checks):
            check(metadata)

    return check_all


class _Source:
    """Iterates over batches, and keeps their error to tell it from errors of the storage."""

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
