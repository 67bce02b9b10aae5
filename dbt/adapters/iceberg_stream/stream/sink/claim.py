"""Take a table over for a run of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.update import AddPartitionSpecUpdate, SetPropertiesUpdate, TableUpdate

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.descriptors import unpartitioned
from dbt.adapters.iceberg_stream.stream.sink.known_streams import other_streams, require_known
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    Progress,
    read_property,
    recover,
    restart_progress,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged
from dbt.adapters.iceberg_stream.stream.sink.widened_keys import rewrite_widened_deletes
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import numbered
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    evolution_updates,
    requirements,
)


def claimed_progress(metadata: Metadata, progress: Progress, refresh: bool, name: str) -> Progress:
    """Return the progress of a table that a run begins with.

    Args:
        metadata: of the table.
        progress: of the run, which has its id.
        refresh: whether the run replaces all rows, instead of continuing from the progress.
        name: of the table, for messages.

    Raises:
        RolledBack: the table was rolled back behind what the stream has committed.
        StreamError: only other streams have written to the table.
    """
    if not refresh:
        require_known(metadata, progress.sink_id, name)
    before = (restart_progress if refresh else recover)(metadata, progress.sink_id)
    if before is None:
        # The staged table may be of an earlier table of this name.
        return replace(progress, may_be_staged=True)
    recorded = read_property(metadata, progress.sink_id)
    must_refresh = refresh and before.frontier is None and bool(other_streams(metadata, ""))
    claimed = replace(before.next_run(), run=progress.run)
    may_be_staged = refresh or recorded is None or recorded.may_be_staged
    return replace(claimed, must_refresh=must_refresh, may_be_staged=may_be_staged)


def require_deletes(metadata: Metadata, name: str) -> None:
    """Require that a table can delete rows by key.

    Args:
        metadata: of the table.
        name: of the table, for messages.

    Raises:
        StreamError: the table has format version 1.
    """
    if not numbered(metadata):
        raise StreamError(
            f"{name} has format version 1, which cannot delete rows by key. Set "
            "`format_version: 2` in the stream model, or remove its `unique_key`."
        )


def commit_claim(
    catalog: IcebergCatalog,
    base: LoadedTable,
    progress: Progress,
    schema: pa.Schema | None,
    properties: Mapping[str, str],
) -> None:
    """Commit that a run has taken a table over, so that older runs cannot commit any more.

    Args:
        catalog: the catalog.
        base: the table, as it was read.
        progress: that the run begins with.
        schema: of the rows to come; the table's schema is evolved to take them. None leaves the
            table's schema as it is.
        properties: of the snapshot, if a wider key column needs one.

    Raises:
        ColumnError: the table's schema cannot be evolved to the rows'.
        CommitConflict: another writer committed first.
    """
    updates = (progress.as_property(), *_unpartitioned_spec(base.metadata))
    if not (base.metadata.get("properties") or {}).keys() & TABLE_DEFAULTS.keys():
        # Tables of older versions lack the defaults that many commits of a stream need.
        updates += (SetPropertiesUpdate(updates=dict(TABLE_DEFAULTS)),)
    if schema is not None:
        updates += evolution_updates(base.metadata, schema, ".".join(base.name))
    deletes = rewrite_widened_deletes(base, updates, properties)
    if deletes is None:
        required = (*unchanged(base), *requirements(base.metadata, updates))
        catalog.commit(base, required, updates)
    else:
        Committer(catalog, base.name, deletes, base, updates).commit_once()


def _unpartitioned_spec(metadata: Metadata) -> tuple[TableUpdate, ...]:
    if unpartitioned(metadata) is not None:
        return ()
    number = 1 + max(spec["spec-id"] for spec in metadata["partition-specs"])
    return (AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=number)),)
