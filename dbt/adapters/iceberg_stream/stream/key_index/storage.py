"""Keep a key index beside its table, so that the next run need not read the key columns.

The index is a Puffin file in the table's metadata folder; a table property has its location, which
other engines ignore. It is a cache: a file that is lost, damaged or of another version is built
again. It is not among the table's statistics, because PyIceberg 0.12 refuses metadata with blob
types that it does not know, and Iceberg's REST server (1.12) cannot load a table without its older
snapshots if one of them has statistics.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table.update import SetPropertiesUpdate
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import require_location
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.puffin_footer import MAGIC, footer, read_footer
from dbt.adapters.iceberg_stream.tables.keys.runs import CODES, ROWS, Run, StoredRun

BLOB = "iceberg-stream-key-index-v1"
# Prefix of the table property with the location of a stream's index.
PROPERTY = "iceberg-stream.key-index."
COPIED_AT_ONCE = 8 * 1024 * 1024


@dataclass(frozen=True)
class StoredIndex:
    """The content of an index file.

    Attributes:
        run: the entries.
        files: the number of each data file, and the positions of its deleted rows.
    """

    run: Run
    files: Mapping[str, tuple[int, BitMap]]


def write_index(table: LoadedTable, schema: pa.Schema, stored: StoredIndex, prefix: int = 0) -> str:
    """Write the file of an index.

    Args:
        table: the table, whose current snapshot is indexed.
        schema: of the key columns.
        stored: the content.
        prefix: how many first key columns rows are found by; 0 for all.

    Returns:
        The location of the file.

    Raises:
        OSError: the storage refuses the file.
    """
    folder = f"{table.metadata['location']}/metadata"
    location = f"{folder}/{uuid.uuid4()}-{BLOB}.puffin"
    blobs: list[dict[str, Any]] = []
    size = len(MAGIC)
    with ExitStack() as undo, table.io.new_output(location).create() as stream:
        undo.callback(remove_quietly, table.io, location)
        stream.write(MAGIC)
        for name, content in stored.run.columns().items():
            # Numbers are read in place, which is faster where they are aligned.
            padding = -size % 8
            stream.write(bytes(padding))
            size += padding
            blobs.append(_blob(name, size, len(content), schema, stored.run.count))
            for begin in range(0, len(content), COPIED_AT_ONCE):
                stream.write(bytes(content[begin : begin + COPIED_AT_ONCE]))
                stored.run.release_pages()
            size += len(content)
        end = footer(blobs, files=_encode_files(stored.files), schema=_schema_id(schema, prefix))
        stream.write(end)
        undo.pop_all()
    return location


def with_index(sink_id: str, location: str) -> SetPropertiesUpdate:
    """Return the update that makes a file the index of a stream.

    Args:
        sink_id: of the stream.
        location: of the file.
    """
    return SetPropertiesUpdate(updates={f"{PROPERTY}{sink_id}": location})


def index_location(metadata: Metadata, sink_id: str) -> str | None:
    """Return the location of a stream's index; None if it has none.

    Args:
        metadata: of the table.
        sink_id: of the stream.
    """
    location: str | None = (metadata.get("properties") or {}).get(f"{PROPERTY}{sink_id}")
    return location


def read_index(
    table: LoadedTable, sink_id: str, schema: pa.Schema, folder: Path, prefix: int = 0
) -> StoredIndex | None:
    """Open the index of a stream.

    Args:
        table: the table.
        sink_id: of the stream.
        schema: of the key columns.
        folder: where a file of a remote storage is copied to.
        prefix: how many first key columns rows are found by; 0 for all.

    Returns:
        The index; None if there is none for these keys, or it cannot be read.
    """
    location = index_location(table.metadata, sink_id)
    if location is None:
        return None
    try:
        return _open(table.io, location, _schema_id(schema, prefix), folder)
    except (OSError, ValueError, LookupError, TypeError, struct.error):
        # Nothing is lost but the time to build it.
        return None


def _open(io: FileIO, location: str, schema_id: str, folder: Path) -> StoredIndex:
    payload = read_footer(io.new_input(location))
    properties = payload["properties"]
    if properties["schema"] != schema_id:
        raise ValueError("the index has other keys")
    sections = {
        blob["properties"]["column"]: (blob["offset"], blob["length"]) for blob in payload["blobs"]
    }
    count = int(payload["blobs"][0]["properties"]["count"])
    run = StoredRun(_local_path(io, location, folder), count, sections)
    # Mapped now: the file may be removed while the stream waits for its first batch.
    if any(len(run.columns()[name]) != 8 * count for name in (CODES, ROWS)):
        raise ValueError("the index is damaged")
    return StoredIndex(run, _decode_files(properties["files"]))


def _local_path(io: FileIO, location: str, folder: Path) -> Path:
    if local_path(location) is not None:
        return Path(require_location(io.properties, location))
    path = folder / location.rsplit("/", 1)[1]
    with io.new_input(location).open() as source, path.open("wb") as copy:
        shutil.copyfileobj(source, copy, COPIED_AT_ONCE)
    return path


def _blob(name: str, offset: int, length: int, schema: pa.Schema, count: int) -> dict[str, Any]:
    return {
        "type": BLOB,
        "fields": [field_id(field) for field in schema],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": offset,
        "length": length,
        "properties": {"column": name, "count": str(count)},
    }


def _schema_id(schema: pa.Schema, prefix: int) -> str:
    """Identify key columns: an index of others, or of other types, is of no use."""
    fields = [(field_id(f), str(f.type)) for f in schema]
    return json.dumps([*fields, prefix] if prefix else fields)


def _encode_files(files: Mapping[str, tuple[int, BitMap]]) -> str:
    return json.dumps(
        {
            path: [number, base64.b64encode(deleted.serialize()).decode()]
            for path, (number, deleted) in files.items()
        }
    )


def _decode_files(text: str) -> dict[str, tuple[int, BitMap]]:
    return {
        path: (number, BitMap.deserialize(base64.b64decode(deleted)))
        for path, (number, deleted) in json.loads(text).items()
    }
