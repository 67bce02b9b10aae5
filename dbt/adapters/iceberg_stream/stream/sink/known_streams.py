"""Which streams may write to a table: those that it knows.

A stream that is renamed would not find its progress, and read its source again into the same table.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index import storage
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    FORGOTTEN,
    Progress,
    committed_progress,
    forgotten_version,
    property_name,
    read_property,
    recorded_ids,
    sinks,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged


def require_known(metadata: Metadata, sink_id: str, table: str) -> None:
    """Require that a stream has written to a table before, or that no other one has.

    Args:
        metadata: of the table.
        sink_id: of the stream.
        table: the table's name, for the message.

    Raises:
        StreamError: only other streams have written to the table.
    """
    if sink_id in recorded_ids(metadata) or committed_progress(metadata, sink_id) is not None:
        return
    if others := other_streams(metadata, sink_id):
        names = ", ".join(others)
        raise StreamError(
            f"{table} has the rows of the stream {names}, and the stream {sink_id} has not written "
            "to it yet: it would read its source from the beginning, into the same table. If the "
            f"project or the model was renamed, set `sink_id: {others[0]}` in the model's config: "
            "the stream then continues where it stopped. To replace all rows of the table, run "
            "the model with --full-refresh. If several streams write to the table, run "
            f"`iceberg-stream streams {table} add {sink_id}`."
        )


def other_streams(metadata: Metadata, sink_id: str) -> list[str]:
    """Return the ids of the streams that a table may have rows of, also of forgotten ones.

    Args:
        metadata: of the table.
        sink_id: of a stream that is left out.
    """
    return [one for one in recorded_ids(metadata) if one != sink_id and _has_read(metadata, one)]


def _has_read(metadata: Metadata, sink_id: str) -> bool:
    try:
        progress = read_property(metadata, sink_id)
    except (ValueError, KeyError, TypeError):
        return True  # a property that was damaged
    return progress is None or progress.frontier is not None


def add_stream(catalog: IcebergCatalog, name: Name, sink_id: str) -> Progress:
    """Let a further stream write to a table.

    Args:
        catalog: the catalog.
        name: of the table.
        sink_id: of the stream.

    Returns:
        The progress that it begins with: that of its last snapshot, if the table has one.

    Raises:
        StreamError: there is no such table, or the stream writes to it already.
        CommitConflict: another writer committed at the same time.
    """
    base = _load(catalog, name)
    if read_property(base.metadata, sink_id) is not None:
        raise StreamError(f"The stream {sink_id} writes to {'.'.join(name)} already.")
    begin = committed_progress(base.metadata, sink_id) or Progress(sink_id)
    version = max(begin.version, forgotten_version(base.metadata, sink_id) or 0) + 1
    begin = replace(begin, version=version, run=Progress(sink_id).run)
    catalog.commit(base, unchanged(base), (begin.as_property(),))
    return begin


def forget_stream(catalog: IcebergCatalog, name: Name, sink_id: str) -> None:
    """Remove the progress of a stream, which needs no snapshots of its source any more.

    The table remembers that there was progress: the stream does not start again by itself. It also
    keeps the keys that the stream has deleted, which late changes of other streams must not bring
    back.

    Args:
        catalog: the catalog.
        name: of the table.
        sink_id: of the stream.

    Raises:
        StreamError: there is no such table, or it has no progress of the stream.
        CommitConflict: another writer committed at the same time.
    """
    base = _load(catalog, name)
    progress = read_property(base.metadata, sink_id)
    if progress is None:
        known = ", ".join(one.sink_id for one in sinks(base.metadata)) or "none"
        raise StreamError(
            f"{'.'.join(name)} has no progress of the stream {sink_id}. It has that of: {known}."
        )
    content = {
        FORGOTTEN: int(time.time() * 1000),
        "version": progress.version,
        "watermark": progress.watermark,
        "ordered-by": progress.ordered_by,
    }
    updates: list[TableUpdate] = [
        SetPropertiesUpdate(updates={property_name(sink_id): json.dumps(content)})
    ]
    index = f"{storage.PROPERTY}{sink_id}"
    if index in (base.metadata.get("properties") or {}):
        updates.append(RemovePropertiesUpdate(removals=[index]))
    catalog.commit(base, unchanged(base), tuple(updates))


def _load(catalog: IcebergCatalog, name: Name) -> LoadedTable:
    table = catalog.load(name)
    if table is None:
        raise StreamError(f"There is no table {'.'.join(name)}.")
    return table
