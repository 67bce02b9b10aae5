"""Reads the tables of a report in parallel: their history, and within a time limit their health."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.structure import normalized
from dbt.adapters.iceberg_stream.maintenance.health import table_health
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth, stream_health
from dbt.adapters.iceberg_stream.maintenance.unreadable import UNREADABLE, why_unreadable
from dbt.adapters.iceberg_stream.report.contents import Name, Stream, Table
from dbt.adapters.iceberg_stream.report.history import Write, read_write, written_snapshots
from dbt.adapters.iceberg_stream.report.project import Node
from dbt.adapters.iceberg_stream.stream.sink.progress import read_property
from dbt.adapters.iceberg_stream.stream.sources.source import describe
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id

# Besides what the doctor expects: lists where objects should be.
ERRORS: tuple[type[Exception], ...] = (*UNREADABLE, AttributeError)
# Requests to a catalog on a server wait more than they compute.
THREADS = 8
# Snapshots of all tables whose summaries are read; of a table, at least and at most so many.
ALL_SNAPSHOTS, LEAST_SNAPSHOTS, MOST_SNAPSHOTS = 100_000, 100, 1_000
# Commits over which the throughput of a stream is measured.
THROUGHPUT_COMMITS = 20


@dataclass(frozen=True)
class _Read:
    """A table as loaded, and as the report shows it without its health."""

    loaded: LoadedTable
    table: Table


def read_tables(
    catalog: IcebergCatalog,
    names: Sequence[Name],
    nodes: Mapping[Name, Node],
    now_ms: int,
    deadline: float,
) -> tuple[list[Table], dict[str, str]]:
    """Read tables; those with many delete files and data files are examined first.

    Args:
        catalog: the profile's catalog.
        names: of the tables; one that another run has dropped is left out.
        nodes: of the project, by the name of their table.
        now_ms: the time, in milliseconds since 1970 (UTC).
        deadline: of `time.monotonic`; afterwards no further table is examined.

    Returns:
        The tables sorted by name, and the errors of the others by their name.
    """
    limit = ALL_SNAPSHOTS // max(len(names), 1)
    limit = min(max(limit, LEAST_SNAPSHOTS), MOST_SNAPSHOTS)
    with ThreadPoolExecutor(THREADS) as pool:
        first = list(pool.map(lambda name: _read(catalog, name, nodes.get(name), limit), names))
        reads = [read for read in first if isinstance(read, _Read)]
        reads.sort(key=_files, reverse=True)
        second = list(pool.map(partial(_examine, now_ms=now_ms, deadline=deadline), reads))
    results = [
        *zip(names, first, strict=True),
        *((read.table.name, result) for read, result in zip(reads, second, strict=True)),
    ]
    tables = [result for _, result in results if isinstance(result, Table)]
    errors = {".".join(name): result for name, result in results if isinstance(result, str)}
    return sorted(tables, key=lambda table: table.name), errors


def _read(catalog: IcebergCatalog, name: Name, node: Node | None, limit: int) -> _Read | str | None:
    """Load a table; return the error if it cannot be read, and None if there is none."""
    try:
        loaded = catalog.load(name)
        return None if loaded is None else _Read(loaded, _table(loaded, node, limit))
    except ERRORS as error:
        return why_unreadable(error)
    except StopIteration:
        return "Its metadata lack the current snapshot."


def _examine(read: _Read, now_ms: int, deadline: float) -> Table | str:
    """Add the health to a table, unless it is too late; return an error if it cannot be read."""
    if time.monotonic() > deadline:
        return read.table
    try:
        return replace(read.table, health=table_health(read.loaded, now_ms))
    except ERRORS as error:
        return why_unreadable(error)


def _files(read: _Read) -> tuple[int, int]:
    current = read.table.current
    if current is None:
        return 0, 0
    return current.totals.delete_files or 0, current.totals.data_files or 0


def _table(loaded: LoadedTable, node: Node | None, limit: int) -> Table:
    metadata = normalized(loaded.metadata)
    snapshots = written_snapshots(metadata)
    older = [*snapshots[1 : limit + 1], None]
    writes = [read_write(*pair) for pair in zip(snapshots[:limit], older, strict=False)]
    current_id = current_snapshot_id(metadata)
    # Older than the latest write after a rollback.
    current = next((read_write(s) for s in snapshots if s["snapshot-id"] == current_id), None)
    return Table(
        name=loaded.name,
        location=metadata["location"],
        comment=str((metadata.get("properties") or {}).get("comment") or ""),
        format_version=metadata["format-version"],
        partitioning=_partitioning(metadata),
        node=node,
        current=current,
        writes=writes,
        snapshots=len(snapshots),
        other_snapshots=len(metadata.get("snapshots") or []) - len(snapshots),
        streams=[_stream(loaded.name, metadata, one, writes) for one in stream_health(metadata)],
        health=None,
    )


def _partitioning(metadata: Metadata) -> str:
    """Return the names and transforms of the default partition spec; empty without any."""
    default = metadata["default-spec-id"]
    specs = [spec for spec in metadata["partition-specs"] if spec["spec-id"] == default]
    fields = [field for spec in specs for field in spec["fields"]]
    return ", ".join(f"{field['name']} ({field['transform']})" for field in fields)


def _stream(
    table: Name, metadata: Metadata, health: StreamHealth, writes: Sequence[Write]
) -> Stream:
    commits = [
        write
        for write in writes
        if write.sink_id == health.sink_id and write.operation != "compaction"
    ][:THROUGHPUT_COMMITS]
    return Stream(
        table=table,
        sink_id=health.sink_id,
        progress=_progress(metadata, health),
        last_progress_ms=health.last_progress_ms,
        problem=health.problem,
        commits=len(commits),
        rows_per_second=_rows_per_second(commits),
    )


def _progress(metadata: Metadata, health: StreamHealth) -> str:
    try:
        progress = read_property(metadata, health.sink_id)
        return "" if progress is None else describe(progress.frontier)
    except (ValueError, KeyError, TypeError):
        return ""  # the stream's problem says it


def _rows_per_second(commits: Sequence[Write]) -> float | None:
    """Return the rows of all commits but the first, over the time since the first."""
    if len(commits) < 2:
        return None
    seconds = (commits[0].committed_ms - commits[-1].committed_ms) / 1000
    rows = sum(one.inserted + one.updated + one.deleted for one in commits[:-1])
    return rows / seconds if seconds > 0 else None
