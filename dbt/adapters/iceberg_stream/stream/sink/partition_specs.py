"""Partition specs that a stream's files fit, checked before each commit."""

from __future__ import annotations

from pyiceberg.manifest import DataFileContent

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.tables.commit.change import Change
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_spec_ids
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id


def require_spec(metadata: Metadata, spec_id: int | None, name: str) -> None:
    """Require that a table has the partition spec of a stream's files.

    Args:
        metadata: of the table.
        spec_id: of the files.
        name: of the table, for messages.

    Raises:
        StreamError: the table has another one.
    """
    if metadata["default-spec-id"] != spec_id:
        raise StreamError(
            f"The partition spec of {name} was changed while its stream ran. "
            "Nothing of this batch was written. Start the stream again."
        )


def require_specs_of_rows(
    base: LoadedTable, change: Change, metadata: Metadata, spec_id: int | None
) -> None:
    """Require that deletes of single partitions reach all rows that other writers have added.

    Args:
        base: the table that a commit was prepared for.
        change: the commit.
        metadata: of the table now.
        spec_id: of the stream's files.

    Raises:
        StreamConflict: rows have an older partition spec.
    """
    if current_snapshot_id(metadata) == current_snapshot_id(base.metadata):
        return
    of_partitions = any(
        file.content == DataFileContent.EQUALITY_DELETES and len(file.partition)
        for file in change.new_files
    )
    if of_partitions and live_spec_ids(base.io, metadata) - {spec_id}:
        raise StreamConflict(
            f"Another writer added rows of an older partition spec to {'.'.join(base.name)}."
        )
