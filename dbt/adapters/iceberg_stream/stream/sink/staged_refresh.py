"""A table beside the stream's own, for a full refresh that takes several commits.

Some batches need the rows of those before, so each is committed. Readers must not see a table that
is half refreshed: the commits go to a staged table, whose files one commit of the stream's own
table takes over. Both have one folder, one schema and one layout, so no file is written again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table.update import TableUpdate

from dbt.adapters.iceberg_stream.builds.names import STREAM_REFRESH, staged_name
from dbt.adapters.iceberg_stream.builds.staged import BUILD
from dbt.adapters.iceberg_stream.catalog.catalog import GC_ENABLED, IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.copies import copy_metadata
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.storage import delete_unused, write_new
from dbt.adapters.iceberg_stream.catalog.tables import (
    NO_SNAPSHOT,
    LoadedTable,
    next_location,
    updated,
)
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import (
    DeletedKeysFile,
    deleted_keys_files,
    streams_with_deleted_keys,
)
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import replaced_schema_updates
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX
from dbt.adapters.iceberg_stream.tables.drop import Drop, remove_unreferenced, run_drops

# No procedure may delete files that the stream's own table takes over. Metadata files are its own.
PROTECTED = {GC_ENABLED: "false", "write.metadata.delete-after-commit.enabled": "true"}


@dataclass(frozen=True)
class Takeover:
    """What the stream's own table takes over from a staged one, in place of all its files.

    Rewritten files have row ids and sequence numbers of their rows in columns. So the staged table
    begins with those that its own table would assign next, and files keep what they got from it.

    Attributes:
        added: the live files, in the order of their data sequence numbers.
        next_row_id: the staged table's, beyond the ids of all its rows.
        updates: that give the table the staged one's schema.
        deleted_keys: files of deleted keys.
    """

    added: tuple[AddedFiles, ...]
    next_row_id: int
    updates: tuple[TableUpdate, ...]
    deleted_keys: tuple[DeletedKeysFile, ...]


def refresh_name(name: Name) -> Name:
    """Return the name of the staged table of a full refresh.

    Args:
        name: of the stream's own table.
    """
    return staged_name(name, STREAM_REFRESH)


def stage_refresh(
    catalog: IcebergCatalog, base: LoadedTable, updates: Sequence[TableUpdate], progress: Progress
) -> str:
    """Create the staged table, without rows; `drop_refresh` has dropped an earlier one.

    Args:
        catalog: the catalog.
        base: the stream's own table.
        updates: of its schema, when its rows are replaced.
        progress: that the staged table begins with.

    Returns:
        The UUID of the staged table.

    Raises:
        CatalogError: the catalog refuses.
        OSError: the storage refuses.
    """
    if catalog.metadata(refresh_name(base.name)) is None:
        # Servers do not find a table whose metadata file is lost, but keep its name.
        catalog.unregister(refresh_name(base.name))
    metadata = updated(base.metadata, "", updates)
    properties = {
        name: value
        for name, value in (metadata.get("properties") or {}).items()
        if not name.startswith(PREFIX)
    }
    properties |= {**PROTECTED, BUILD: STREAM_REFRESH, **progress.as_property().updates}
    empty: dict[str, Any] = {
        **copy_metadata(metadata, properties),
        **dict.fromkeys(("snapshots", "snapshot-log", "statistics", "partition-statistics"), []),
        "refs": {},
        "current-snapshot-id": NO_SNAPSHOT,
    }
    location = next_location(base)
    write_new(base.io, location, json.dumps(empty).encode())
    try:
        catalog.register(refresh_name(base.name), location)
    except CommitStateUnknown:
        raise  # the table may exist, and the next run drops it
    except CatalogError:
        delete_unused(base.io, location)
        raise
    return str(empty["table-uuid"])


def drop_refresh(catalog: IcebergCatalog, name: Name, only: str | None = None) -> None:
    """Drop the staged table, if there is one, with the files that no other table has.

    Args:
        catalog: the catalog.
        name: of the stream's own table.
        only: UUID of the staged table that is meant; None for any.

    Raises:
        CatalogError: the catalog refuses.
        StreamError: another table has the name of the staged one.
    """
    try:
        staged = catalog.load(refresh_name(name))
    except FileNotFoundError:
        # Without its metadata nobody knows its files; `iceberg-stream orphans` finds them.
        catalog.unregister(refresh_name(name))
        return
    if staged is None or only not in (None, staged.metadata["table-uuid"]):
        return
    if (staged.metadata.get("properties") or {}).get(BUILD) != STREAM_REFRESH:
        raise StreamError(
            f"{'.'.join(staged.name)} is not the staged table of a full refresh, but has its name. "
            "Rename or drop that table."
        )
    drop = Drop(staged.name, staged, is_shared=True, base=())
    run_drops(catalog, [drop], None)
    if drop.table is not None:
        # Its properties name them, and no snapshot does.
        metadata = drop.table.metadata
        streams = streams_with_deleted_keys(metadata)
        keys = [file.location for one in streams for file in deleted_keys_files(metadata, one)]
        remove_unreferenced(catalog, [(drop.table, keys)])


def read_takeover(staged: LoadedTable, own: LoadedTable, sink_id: str) -> Takeover:
    """Return what a table takes over from its staged one.

    Args:
        staged: the staged table.
        own: the stream's own table.
        sink_id: of the stream.

    Raises:
        OSError: the storage refuses a file.
    """
    data: dict[int, list[DataFile]] = defaultdict(list)
    deletes: dict[int, list[DataFile]] = defaultdict(list)
    contents = ((ManifestContent.DATA, data), (ManifestContent.DELETES, deletes))
    for content, files in contents:
        for item in live_entries(staged.io, staged.metadata, content):
            files[item.sequence_number or 0].append(item.data_file)
    # Equality deletes apply to rows of lower numbers, so the numbers keep their order.
    added = tuple(
        AddedFiles(tuple(data[number]), tuple(deletes[number]), number)
        for number in sorted({*data, *deletes})
    )
    schema, current = current_schema(staged.metadata), current_schema(own.metadata)
    is_same = schema.as_struct() == current.as_struct()
    is_same = is_same and schema.identifier_field_ids == current.identifier_field_ids
    updates = () if is_same else replaced_schema_updates(own.metadata, schema)
    next_row_id = staged.metadata.get("next-row-id", 0)
    return Takeover(added, next_row_id, updates, deleted_keys_files(staged.metadata, sink_id))
