"""Resume a stream after its table was rolled back."""

from __future__ import annotations

from dataclasses import replace

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    Progress,
    committed_progress,
    read_property,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged


def accept_rollback(catalog: IcebergCatalog, name: Name, sink_id: str) -> Progress:
    """Resume a stream from the table's current snapshot, after the table was rolled back.

    Args:
        catalog: the catalog.
        name: of the table.
        sink_id: of the stream.

    Returns:
        The progress that the next run continues from.

    Raises:
        StreamError: there is no such table, or it has no commit of this stream.
        CommitConflict: another writer committed at the same time.
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
    version = max(committed.version, recorded.version if recorded else 0) + 1
    accepted = replace(committed, version=version, run=Progress(sink_id).run)
    catalog.commit(base, unchanged(base), (accepted.as_property(),))
    return accepted
