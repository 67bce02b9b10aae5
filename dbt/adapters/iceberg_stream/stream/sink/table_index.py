"""The key index of a stream's table: opened, kept up with other writers, and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
from pyiceberg.table.update import TableUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.stream.errors import RowsMoved, StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import (
    DeletedKeysFile,
    DeletedKeysUpdate,
    add_deleted_keys,
    deleted_keys_files,
    deleted_keys_of_others,
    streams_with_deleted_keys,
    warn_of_missing,
)
from dbt.adapters.iceberg_stream.stream.key_index.index import KeyIndex
from dbt.adapters.iceberg_stream.stream.key_index.late_changes import LateChanges, LiveRows
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import NotIndexable
from dbt.adapters.iceberg_stream.stream.key_index.storage import index_location, with_index
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    forgotten_version,
    recorded_ids,
    watermark_of_others,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.deletes.equality import (
    equality_delete_files,
)
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    UnsupportedFile,
    read_rows_at,
)
from dbt.adapters.iceberg_stream.tables.files.reader import no_rows
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.keys.runs import Indices


@dataclass(frozen=True)
class ChangeOrder:
    """How changes of a key are ordered that may arrive in any order.

    Attributes:
        sequence_by: columns of the table that order the changes.
        deleted_keys_days: days for which deleted keys are kept, to leave out older changes.
    """

    sequence_by: tuple[str, ...]
    deleted_keys_days: float


@dataclass(frozen=True)
class RowLookup:
    """The rows that a batch needs.

    Attributes:
        keys: the key columns that the index finds rows by, and the time that `period` needs.
        columns: of the rows.
        most_rows: rows of the keys, at most.
        most_bytes: size of the rows, at most.
        period: the columns with the times when a row begins and ends, if there are any. Rows that
            begin and end before the time that their key has in the first column are left out.
    """

    keys: pa.Table
    columns: Sequence[str]
    most_rows: int
    most_bytes: int
    period: tuple[str, ...] = ()


def file_schema(
    base: LoadedTable, updates: tuple[TableUpdate, ...], names: Sequence[str]
) -> pa.Schema:
    """Return the schema of some columns in data files.

    Args:
        base: the table.
        updates: of its metadata in the next commit.
        names: of the columns.
    """
    target = WriteTarget.of(with_schema(base.metadata, updates), base.io)
    return pa.schema([target.file_schema.field(name) for name in names])


def order_column(
    base: LoadedTable, updates: tuple[TableUpdate, ...], sequence_by: Sequence[str]
) -> pa.Field:
    """Return the first of the columns that order changes, as data files have it.

    Args:
        base: the table.
        updates: of its metadata in the next commit.
        sequence_by: the columns.

    Raises:
        StreamError: values of the column's type cannot be compared.
    """
    column = file_schema(base, updates, sequence_by).field(0)
    kind = column.type
    is_extension = isinstance(kind, pa.BaseExtensionType)
    if is_extension or pa.types.is_nested(kind) or pa.types.is_time(kind):
        raise StreamError(
            f"`sequence_by` names `{column.name}` of {'.'.join(base.name)}, whose type {kind} does "
            "not order changes. Name a column of numbers, dates, timestamps, text or bytes."
        )
    return column


def open_index(
    base: LoadedTable,
    updates: tuple[TableUpdate, ...],
    keys: tuple[str, ...],
    index: KeyIndex | None,
    max_rows: int,
    sink_id: str,
    refresh: bool,
    prefix: int,
) -> KeyIndex:
    """Return the index of a table's keys, which is not loaded yet.

    Args:
        base: the table.
        updates: of its metadata in the next commit.
        keys: columns that identify a row.
        index: of an earlier attempt, which is used again if it has the same keys.
        max_rows: rows of the table that are indexed, at most.
        sink_id: of the stream, whose stored index is opened.
        refresh: whether the run replaces all rows.
        prefix: how many of the keys, from the first, rows are found by; 0 for all.
    """
    schema = file_schema(base, updates, keys)
    is_same = index is not None and index.schema.equals(schema, check_metadata=True)
    if index is not None and is_same and index.prefix == prefix:
        return index
    index = KeyIndex(schema, max_rows, prefix)
    if not refresh:
        index.restore(base, sink_id)
    return index


def late_changes(
    base: LoadedTable,
    updates: tuple[TableUpdate, ...],
    keys: tuple[str, ...],
    order: ChangeOrder,
    load: Callable[[], LoadedTable],
    sink_id: str,
    refresh: bool,
) -> LateChanges:
    """Return what finds the late changes of a stream.

    Args:
        base: the table.
        updates: of its metadata in the next commit.
        keys: columns that identify a row.
        order: of the changes.
        load: loads the table.
        sink_id: of the stream, which has deleted keys.
        refresh: whether the run replaces all rows.
    """
    schema = file_schema(base, updates, tuple(dict.fromkeys((*keys, *order.sequence_by))))
    finder = LateChanges(schema, keys, order.sequence_by, order.deleted_keys_days, load)
    if not refresh:
        finder.deleted_keys = deleted_keys_files(base.metadata, sink_id)
        _find_deletes_of_others(finder, base, sink_id)
        finder.followed.update(finder.of_others)
    return finder


def _find_deletes_of_others(finder: LateChanges, base: LoadedTable, sink_id: str) -> None:
    """Let changes be compared with the deletes of other streams."""
    column = finder.schema.field(finder.sequence_by[0])
    others = deleted_keys_of_others(base, sink_id, finder.schema)
    finder.deleted_by_others = tuple(file for files in others.values() for file in files)
    # Their rows have bounds; the watermark is needed for what they have deleted.
    streams = {*recorded_ids(base.metadata), *others} - {sink_id}
    finder.highest_of_others = watermark_of_others(base.metadata, column, streams)


def deleted_keys(
    base: LoadedTable, sink_id: str, is_versioned: bool, schema: pa.Schema
) -> list[str]:
    """Return the locations of files with the keys that were deleted, and with their order.

    Args:
        base: the table.
        sink_id: of the stream.
        is_versioned: whether the table has all versions of its rows: only the stream's own deletes.
        schema: of the stream's keys and the columns of their order.
    """
    target = WriteTarget.of(base.metadata, base.io)
    files = [*deleted_keys_files(base.metadata, sink_id)]
    if not is_versioned:
        for of_other in deleted_keys_of_others(base, sink_id, schema).values():
            files += of_other
    paths = [target.path_of(file.location) for file in files]
    locations = []
    for file, info in zip(files, target.filesystem().get_file_info(paths), strict=True):
        if info.type == fs.FileType.NotFound:
            warn_of_missing(file.location)
        else:
            locations.append(file.location)
    return locations


def follow_index(index: KeyIndex, base: LoadedTable, schema: pa.Schema, sink_id: str) -> None:
    """Index what other writers have committed.

    Args:
        index: the key index.
        base: the table, with its current snapshot.
        schema: of the key columns.
        sink_id: of the stream.

    Raises:
        RowsMoved: other writers are changing the table; another attempt may succeed.
        StreamConflict: the index has to be built again, or is not possible any more.
    """
    name = ".".join(base.name)
    if not index.schema.equals(schema, check_metadata=True):
        raise StreamConflict(f"Another writer changed the key columns of {name}.")
    try:
        finder = index.late_changes
        if finder is not None:
            # Another stream's full refresh has forgotten them.
            finder.deleted_keys = deleted_keys_files(base.metadata, sink_id)
            _find_deletes_of_others(finder, base, sink_id)
            # Before the index: a change that is left out deletes no row.
            for location in finder.of_others:
                if location not in finder.followed:
                    for deleted in finder.read_deleted(location):
                        index.follow_deletes(deleted)
                    finder.followed.add(location)
        index.follow(base)
    except UnsupportedFile as error:
        raise StreamConflict(
            f"The changes of {name} cannot be compared with another stream's: {error}."
        ) from error
    except FileNotFoundError as error:
        raise RowsMoved(name) from error
    except NotIndexable as error:
        raise StreamConflict(
            f"The key index of {name} cannot follow another writer's commit: {error}."
        ) from error


def rows_of(
    index: KeyIndex, base: LoadedTable, lookup: RowLookup, schema: pa.Schema
) -> pa.Table | None:
    """Return the live rows that have some keys.

    Args:
        index: the key index, at the table's snapshot.
        base: the table.
        lookup: the keys.
        schema: of the columns to return, with field ids.

    Returns:
        The rows; None if equality deletes may have deleted them, or if they are too many.

    Raises:
        UnsupportedFile: a file cannot be read with these columns.
        OSError: the storage refuses a file.
    """
    target = WriteTarget.of(base.metadata, base.io)
    if equality_delete_files(base):
        # The index does not look at them.
        return None
    parts, size = [no_rows(schema)], 0
    with index.lock:
        if index.most_rows(lookup.keys) > lookup.most_rows:
            return None
        for rows in index.live_rows(lookup.keys):
            positions = (
                _not_ended(target, lookup, schema, rows) if lookup.period else rows.positions
            )
            columns = target.schema_in(rows.file, schema)
            parts.append(read_rows_at(target, columns, rows.location, positions))
            size += parts[-1].nbytes
            if size > lookup.most_bytes:
                return None
    return pa.concat_tables(parts)


def _not_ended(
    target: WriteTarget, lookup: RowLookup, schema: pa.Schema, rows: LiveRows
) -> Indices:
    """Return the positions of rows that have not ended by the time of their key."""
    start, end = lookup.period
    columns = pa.schema([schema.field(start), schema.field(end)])
    columns = target.schema_in(rows.file, columns)
    times = read_rows_at(target, columns, rows.location, rows.positions)
    by = lookup.keys[start].cast(schema.field(start).type).take(pa.array(rows.changes))
    has_ended = pc.and_(pc.less_equal(times[end], by), pc.less(times[start], by))
    return rows.positions[~pc.fill_null(has_ended, False).to_numpy()]


def store_index(
    catalog: IcebergCatalog,
    base: LoadedTable,
    index: KeyIndex,
    sink_id: str,
    remove: Callable[[Sequence[str]], None],
) -> None:
    """Store a key index beside the table, for the next run; not if others commit meanwhile.

    Args:
        catalog: the catalog.
        base: the table.
        index: the key index.
        sink_id: of the stream.
        remove: removes files by their locations.

    Raises:
        CommitStateUnknown: it is not known whether the index is stored; its file stays.
        CatalogError: the catalog refuses the commit.
        OSError: the storage refuses the file.
    """
    if index.snapshot_id != current_snapshot_id(base.metadata):
        return
    location = index.store(base)
    if location is None:
        return
    older = index_location(base.metadata, sink_id)
    try:
        catalog.commit(base, unchanged(base), (with_index(sink_id, location),))
    except CommitStateUnknown:
        raise
    except CatalogError as error:
        remove([location])
        if not isinstance(error, CommitConflict):
            raise
    else:
        remove([older] if older is not None else [])


def update_deleted_keys(
    base: LoadedTable,
    sink_id: str,
    index: KeyIndex | None,
    batches: Sequence[WrittenBatch],
    replaces: bool,
    is_refresh: bool = False,
    kept: tuple[DeletedKeysFile, ...] = (),
) -> DeletedKeysUpdate | None:
    """Write the deleted keys of batches to a file, if changes may be older than their deletes.

    Args:
        base: the table.
        sink_id: of the stream.
        index: the key index; None without one.
        batches: that the next commit has.
        replaces: whether the commit replaces all rows of the table.
        is_refresh: whether it does so for a full refresh, which forgets the deletes of all streams.
        kept: the files that stay, if it replaces all rows.

    Returns:
        The files of deleted keys after the commit; None if they stay as they are.

    Raises:
        StreamError: an older file cannot be read with the types of the columns.
        OSError: the storage refuses a file.
    """
    before = deleted_keys_files(base.metadata, sink_id)
    finder = index.late_changes if index is not None else None
    early = [batch.early_deletes for batch in batches if batch.early_deletes is not None]
    indexed = [batch.indexed for batch in batches if batch.indexed is not None]
    tables = [deleted for each in indexed for deleted in each.deleted if deleted.num_rows]
    tables = [*(tables if finder is not None else ()), *(deletes.keys for deletes in early)]
    days = [*([finder.days] if finder is not None else ()), *(deletes.days for deletes in early)]
    removed, forgotten = (
        _replaced_deleted_keys(base.metadata, sink_id, is_refresh) if replaces else ((), ())
    )
    if not tables:
        return DeletedKeysUpdate(kept, (), removed, forgotten) if removed or kept else None
    target = WriteTarget.of(base.metadata, base.io)
    files = kept if replaces else before
    try:
        update = add_deleted_keys(target, files, pa.concat_tables(tables), max(days))
    except UnsupportedFile as error:
        raise StreamError(
            f"{'.'.join(base.name)}: {error}, so that the keys that its stream has deleted cannot "
            "be kept. Rebuild the table with --full-refresh."
        ) from error
    return DeletedKeysUpdate(update.files, update.added, (*update.removed, *removed), forgotten)


def _replaced_deleted_keys(
    metadata: Metadata, sink_id: str, is_refresh: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of deleted keys that a replacement makes useless, and whose else they are.

    Those of forgotten streams are of rows that the table does not have any more. After a full
    refresh, so are those of all streams: it may bring a key back that another one had deleted, and
    later changes of the key must not be older than a delete that the table does not show.
    """
    sinks = streams_with_deleted_keys(metadata)
    forgotten = [one for one in sinks if is_refresh or forgotten_version(metadata, one) is not None]
    own = [sink_id, *(one for one in forgotten if one != sink_id)]
    files = [file.location for one in own for file in deleted_keys_files(metadata, one)]
    return tuple(files), tuple(own[1:])
