"""Gathers the contents of a report from the metadata of tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.advice import Thresholds, advise
from dbt.adapters.iceberg_stream.maintenance.check.structure import normalized
from dbt.adapters.iceberg_stream.maintenance.health import table_health
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth, stream_health
from dbt.adapters.iceberg_stream.maintenance.unreadable import UNREADABLE, why_unreadable
from dbt.adapters.iceberg_stream.report.contents import Contents, Name, Stream, Table
from dbt.adapters.iceberg_stream.report.history import Write, read_write, written_snapshots
from dbt.adapters.iceberg_stream.report.project import Node, Project
from dbt.adapters.iceberg_stream.report.runs import list_runs
from dbt.adapters.iceberg_stream.stream.sink.progress import read_property
from dbt.adapters.iceberg_stream.stream.sources.source import describe
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id

# Requests to a catalog on a server wait more than they compute.
THREADS = 8
# Older snapshots of a table are counted, not read.
MAX_SNAPSHOTS = 1_000
# Advice reads the manifests of all files: of more, it would take longer than the rest.
MAX_FILES = 100_000
# Commits over which the throughput of a stream is measured.
THROUGHPUT_COMMITS = 20


def gather(
    catalog: IcebergCatalog,
    namespaces: Sequence[str] = (),
    project: Project | None = None,
    now_ms: int | None = None,
) -> Contents:
    """Read what a report shows; reads metadata only, and changes nothing.

    A table or namespace that cannot be read is listed with its error, and the others are read.

    Args:
        catalog: the profile's catalog.
        namespaces: whose tables to report; by default those of the project's nodes, and without a
            project those of the whole catalog.
        project: the dbt project; None to report tables without lineage.
        now_ms: the time, in milliseconds since 1970 (UTC); None for the clock's.

    Raises:
        CatalogError: the catalog does not list its namespaces, or none of them.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    names, unreadable = _list_tables(catalog, namespaces, project)
    by_table = {} if project is None else project.by_table
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda name: _read(catalog, name, by_table.get(name), now), names))
    tables = []
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Table):
            tables.append(result)
        elif result is not None:  # another run may have dropped it
            unreadable[".".join(name)] = result
    healths = [table.health for table in tables if table.health is not None]
    return Contents(
        catalog=catalog.name,
        namespaces=namespaces,
        project=project,
        nodes={} if project is None else _nodes(project, namespaces, set(names)),
        tables=tables,
        unreadable=unreadable,
        advice=advise(healths, Thresholds(), now),
        runs=list_runs(tables, {} if project is None else project.seconds),
        generated_ms=now,
    )


def _list_tables(
    catalog: IcebergCatalog, namespaces: Sequence[str], project: Project | None
) -> tuple[list[Name], dict[str, str]]:
    """Return the names of the report's tables, and the errors of namespaces by their name."""
    nodes = [] if project is None or namespaces else list(project.nodes.values())
    listed = namespaces or {node.table[0] for node in nodes} or catalog.namespaces()
    names: list[Name] = []
    errors: dict[str, CatalogError] = {}
    for namespace in sorted(listed):
        try:
            relations = catalog.relations(namespace)
        except CatalogError as error:
            errors[namespace] = error
            continue
        names += [(namespace, table) for table, kind in relations if kind == "table"]
    if errors and len(errors) == len(listed):
        raise next(iter(errors.values()))
    if nodes:
        names = _of_project(names, nodes)
    return sorted(names), {name: why_unreadable(error) for name, error in errors.items()}


def _of_project(names: Iterable[Name], nodes: Iterable[Node]) -> list[Name]:
    """Return the tables of a project's nodes, those of a stream's routes among them."""
    own = {node.table for node in nodes}
    streams = [node.table for node in nodes if node.kind == "stream"]
    return [
        (namespace, table)
        for namespace, table in names
        if (namespace, table) in own
        or any(namespace == s and table.startswith(f"{stream}__") for s, stream in streams)
    ]


def _nodes(project: Project, namespaces: Sequence[str], tables: set[Name]) -> dict[str, Node]:
    """Return the nodes to draw: with namespaces, those of their tables and what these read."""
    if not namespaces:
        return dict(project.nodes)
    drawn = {key for key, node in project.nodes.items() if node.table in tables}
    drawn |= {parent for key in drawn for parent in project.nodes[key].parents}
    return {key: node for key, node in project.nodes.items() if key in drawn}


def _read(catalog: IcebergCatalog, name: Name, node: Node | None, now: int) -> Table | str | None:
    """Return a table, the error that makes it unreadable, or None if there is none."""
    try:
        loaded = catalog.load(name)
        return None if loaded is None else _table(loaded, node, now)
    except UNREADABLE as error:
        return why_unreadable(error)
    except StopIteration:
        return "Its metadata lack the current snapshot."


def _table(loaded: LoadedTable, node: Node | None, now: int) -> Table:
    metadata = normalized(loaded.metadata)
    snapshots = written_snapshots(metadata)
    writes = [read_write(snapshot) for snapshot in snapshots[:MAX_SNAPSHOTS]]
    current_id = current_snapshot_id(metadata)
    # Older than the latest write after a rollback.
    current = next((read_write(s) for s in snapshots if s["snapshot-id"] == current_id), None)
    health = None if _files(current) > MAX_FILES else table_health(loaded, now)
    streams = stream_health(metadata) if health is None else health.streams
    return Table(
        name=loaded.name,
        location=metadata["location"],
        comment=(metadata.get("properties") or {}).get("comment") or "",
        format_version=metadata["format-version"],
        partitioning=_partitioning(metadata),
        node=node,
        current=current,
        writes=writes,
        snapshots=len(snapshots),
        other_snapshots=len(metadata.get("snapshots") or []) - len(snapshots),
        streams=[_stream(loaded.name, metadata, stream, writes) for stream in streams],
        health=health,
    )


def _files(current: Write | None) -> int:
    if current is None:
        return 0
    return (current.totals.data_files or 0) + (current.totals.delete_files or 0)


def _partitioning(metadata: Metadata) -> str:
    """Return the names and transforms of the default partition spec; empty without any."""
    default = metadata["default-spec-id"]
    specs = [spec for spec in metadata["partition-specs"] if spec["spec-id"] == default]
    fields = [field for spec in specs for field in spec["fields"]]
    return ", ".join(f"{field['name']} ({field['transform']})" for field in fields)


def _stream(table: Name, metadata: Metadata, health: StreamHealth, writes: list[Write]) -> Stream:
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
