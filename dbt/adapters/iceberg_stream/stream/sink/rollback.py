"""Resume a stream after its table was rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import (
    deleted_keys_files,
    forget_later_deletes,
)
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    Progress,
    committed_ms,
    committed_progress,
    read_property,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


def accept_rollback(catalog: IcebergCatalog, name: Name, sink_id: str) -> Progress:
    """Resume a stream from the table's current snapshot, after the table was rolled back.

    Args:
        catalog: the catalog.
        name: of the table.
        sink_id: of the stream.

    Returns:
        The progress that the next run continues from. Deletes of later snapshots are forgotten.

    Raises:
        StreamError: there is no such table, or it has no commit of this stream.
        CommitConflict: another writer committed at the same time.
        OSError: the storage refuses a file of deleted keys.
    """
    base = catalog.load(name)
    table = ".".join(name)
    if base is None:
        raise StreamError(f"There is no table {table}.")
    committed = committed_progress(base.metadata, sink_id)
    recorded = read_property(base.metadata, sink_id)
    if committed is None:
        raise StreamError(
            f"{table} has no snapshot that {sink_id} has written. Run the model with "
            "--full-refresh."
        )
    target = WriteTarget.of(base.metadata, base.io)
    until = committed_ms(base.metadata, sink_id) or 0
    deletes = forget_later_deletes(target, deleted_keys_files(base.metadata, sink_id), until)
    version = max(committed.version, recorded.version if recorded else 0) + 1
    accepted = replace(committed, version=version, run=Progress(sink_id).run)
    updates = deletes.as_updates(sink_id) if deletes.removed else ()
    try:
        catalog.commit(base, unchanged(base), (accepted.as_property(), *updates))
    except CommitConflict:
        _remove(base, deletes.added)
        raise
    _remove(base, deletes.removed)
    return accepted


def _remove(base: LoadedTable, locations: Iterable[str]) -> None:
    for location in locations:
        remove_quietly(base.io, location)
