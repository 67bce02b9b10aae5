"""Keep when a stream has deleted which keys, so that an older change does not bring them back.

Each commit writes its deleted keys, with their `sequence_by` values, to a Parquet file in the
table's metadata folder. A table property lists the files; the commit sets it together with the
snapshot. Files of similar size are merged, and keys that were deleted long ago are forgotten.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_keys
from dbt.adapters.iceberg_stream.tables.files.field_ids import FIELD_ID, field_id
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

logger = Logger()

# Prefix of the table property that lists the files of a stream.
PROPERTY = "iceberg-stream.deleted-keys."
# The time of a delete, in milliseconds since the epoch. Its field id is above those of columns.
DELETED_AT = pa.field("__deleted_at", pa.int64(), metadata={FIELD_ID: b"2147000000"})
# Rows of a file that is not merged any more.
MOST_ROWS = 1_000_000
# Rows of a row group. They are in the order of time: look-ups for late changes skip early groups.
ROW_GROUP = 1 << 16
DAY = 24 * 60 * 60 * 1000


@dataclass(frozen=True)
class DeletedKeysFile:
    """A file of deleted keys.

    Attributes:
        location: of the file.
        rows: of the file.
        newest: time of its last delete, in milliseconds since the epoch.
    """

    location: str
    rows: int
    newest: int


@dataclass(frozen=True)
class DeletedKeysUpdate:
    """The files of deleted keys after a commit.

    Attributes:
        files: all of them, in the order of time.
        added: locations of files that the commit adds.
        removed: locations of files that are not needed after the commit.
        forgotten: ids of streams whose lists of files are removed.
    """

    files: tuple[DeletedKeysFile, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()

    def as_updates(self, sink_id: str) -> tuple[TableUpdate, ...]:
        """Return the updates that list the files in a property of the table.

        Args:
            sink_id: of the stream.
        """
        content = json.dumps([asdict(file) for file in self.files], separators=(",", ":"))
        updates: list[TableUpdate] = [
            SetPropertiesUpdate(updates={f"{PROPERTY}{sink_id}": content})
        ]
        if self.forgotten:
            names = [f"{PROPERTY}{one}" for one in self.forgotten]
            updates.append(RemovePropertiesUpdate(removals=names))
        return tuple(updates)


def deleted_keys_files(metadata: Metadata, sink_id: str) -> tuple[DeletedKeysFile, ...]:
    """Return the files of deleted keys of a stream.

    Args:
        metadata: of the table.
        sink_id: of the stream.
    """
    content = (metadata.get("properties") or {}).get(f"{PROPERTY}{sink_id}")
    return tuple(DeletedKeysFile(**file) for file in json.loads(content or "[]"))


def streams_with_deleted_keys(metadata: Metadata) -> list[str]:
    """Return the ids of the streams whose deleted keys a table has.

    Args:
        metadata: of the table.
    """
    names = metadata.get("properties") or {}
    return [name.removeprefix(PROPERTY) for name in names if name.startswith(PROPERTY)]


def deleted_keys_of_others(
    base: LoadedTable, sink_id: str, schema: pa.Schema
) -> dict[str, tuple[DeletedKeysFile, ...]]:
    """Return the files of deleted keys of other streams that have the same keys and order.

    Args:
        base: the table.
        sink_id: of the stream.
        schema: of its keys and the columns of their order.

    Returns:
        The files of each of these streams.

    Raises:
        OSError: the storage refuses a file.
    """
    target = WriteTarget.of(base.metadata, base.io)
    ids = _field_ids(schema)
    found: dict[str, tuple[DeletedKeysFile, ...]] = {}
    for sink in streams_with_deleted_keys(base.metadata):
        if sink == sink_id:
            continue
        # All files of a stream have the same columns.
        files = deleted_keys_files(base.metadata, sink)
        if files and _columns_of(target, files[-1].location) in (ids, None):
            found[sink] = files
    return found


def _columns_of(target: WriteTarget, location: str) -> frozenset[int] | None:
    """Return the ids of a file's columns; None if there is no such file."""
    try:
        with target.filesystem().open_input_file(target.path_of(location)) as opened:
            return _field_ids(pq.read_schema(opened)) - _field_ids([DELETED_AT])
    except FileNotFoundError:
        return None


def _field_ids(fields: Iterable[pa.Field]) -> frozenset[int]:
    ids = map(field_id, fields)
    return frozenset(number for number in ids if number is not None)


def deleted_keys_locations(metadata: Metadata) -> list[str]:
    """Return the locations of the files of all streams.

    Args:
        metadata: of the table.
    """
    sinks = streams_with_deleted_keys(metadata)
    return [file.location for sink in sinks for file in deleted_keys_files(metadata, sink)]


def add_deleted_keys(
    target: WriteTarget,
    files: Sequence[DeletedKeysFile],
    rows: pa.Table,
    days: float,
) -> DeletedKeysUpdate:
    """Write deleted keys to a file, with those of older files that are not larger.

    Args:
        target: the table's storage.
        files: the files so far.
        rows: the deleted keys with their order, at least one, with field ids.
        days: days after which keys are forgotten.

    Raises:
        OSError: the storage refuses a file.
        UnsupportedFile: an older file cannot be read with the columns' types.
    """
    now = int(time.time() * 1000)
    oldest = now - days * DAY
    kept = [file for file in files if file.newest >= oldest]
    removed = [file.location for file in files if file.newest < oldest]
    merged = [rows.append_column(DELETED_AT, pa.repeat(pa.scalar(now), rows.num_rows))]
    count = rows.num_rows
    # As the digits of a binary number: each key is written again with the logarithm of their count.
    while kept and kept[-1].rows <= count and kept[-1].rows + count <= MOST_ROWS:
        file = kept.pop()
        removed.append(file.location)
        count += file.rows
        try:
            merged += [
                part.filter(pc.greater_equal(part[DELETED_AT.name], oldest))
                for _, part in read_keys(target, merged[0].schema, file.location)
            ]
        except FileNotFoundError:
            warn_of_missing(file.location)
    all_rows = pa.concat_tables(merged)
    location = _write(target, all_rows)
    kept.append(DeletedKeysFile(location, all_rows.num_rows, now))
    return DeletedKeysUpdate(tuple(kept), (location,), tuple(removed))


def forget_later_deletes(
    target: WriteTarget, files: Sequence[DeletedKeysFile], until: int
) -> DeletedKeysUpdate:
    """Write the files that have deletes of a later time again, without those.

    Args:
        target: the table's storage.
        files: the files so far.
        until: time of the last delete that counts, in milliseconds since the epoch.

    Raises:
        OSError: the storage refuses a file.
    """
    kept, added, removed = [], [], []
    for file in files:
        if file.newest <= until:
            kept.append(file)
            continue
        removed.append(file.location)
        try:
            with target.filesystem().open_input_file(target.path_of(file.location)) as opened:
                rows = pq.read_table(opened)
        except FileNotFoundError:
            warn_of_missing(file.location)
            continue
        rows = rows.filter(pc.less_equal(rows[DELETED_AT.name], until))
        if rows.num_rows:
            location = _write(target, rows)
            added.append(location)
            kept.append(DeletedKeysFile(location, rows.num_rows, until))
    return DeletedKeysUpdate(tuple(kept), tuple(added), tuple(removed))


def warn_of_missing(location: str) -> None:
    """Warn that the keys in a file of deleted keys are forgotten.

    Args:
        location: of the file, which another program has removed.
    """
    logger.warning(
        f"{location} is missing, perhaps after a removal of orphan files. The stream has forgotten "
        "the deleted keys in it: changes that are older than their deletes may bring rows back."
    )


def _write(target: WriteTarget, rows: pa.Table) -> str:
    """Write a file of deleted keys; return its location."""
    location = f"{target.location}/metadata/{uuid.uuid4()}-deleted-keys.parquet"
    with ExitStack() as undo, target.io.new_output(location).create() as stream:
        undo.callback(remove_quietly, target.io, location)
        pq.write_table(rows, stream, compression="zstd", row_group_size=ROW_GROUP)
        undo.pop_all()
    return location
