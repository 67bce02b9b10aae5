"""Reads the builds of a report that are not published, from metadata alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dbt.adapters.iceberg_stream.builds.build import Build, build_status
from dbt.adapters.iceberg_stream.builds.names import node_titles, staged_name
from dbt.adapters.iceberg_stream.builds.staged import (
    PUBLISHED_METADATA,
    StagedTable,
    load_staged,
)
from dbt.adapters.iceberg_stream.builds.versions import staged_versions, view_change
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, keeps_rows, snapshots
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.diff.schemas import schema_changes
from dbt.adapters.iceberg_stream.diff.version import TableVersion
from dbt.adapters.iceberg_stream.maintenance.unreadable import why_unreadable
from dbt.adapters.iceberg_stream.report.contents import Name, StagedBuild, StagedChange
from dbt.adapters.iceberg_stream.report.tables import ERRORS, THREADS
from dbt.adapters.iceberg_stream.tables.commit.outcome import count_rows, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange

TOO_LATE = "Not read within the time limit."
# A staged relation with what happens to the published one, an error, or None if it is gone.
_Result = tuple[Metadata, StagedChange | str] | str | None


def read_builds(
    catalog: IcebergCatalog, builds: Sequence[Build], deadline: float
) -> list[StagedBuild]:
    """Read what builds would change.

    Args:
        catalog: the profile's catalog.
        builds: those that are not published.
        deadline: of `time.monotonic`; afterwards no further table or view is read.

    Returns:
        The builds, the last changed one first.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        read = [_read(catalog, build, deadline, pool) for build in builds]
    return sorted(read, key=lambda build: (-(build.last_change_ms or 0), build.name))


def _read(
    catalog: IcebergCatalog, build: Build, deadline: float, pool: ThreadPoolExecutor
) -> StagedBuild:
    relations = sorted(build.relations.items())
    read = partial(_read_relation, catalog, build.name, deadline)
    results = list(zip(relations, pool.map(read, relations), strict=True))
    unreadable = {".".join(name): one for (name, _), one in results if isinstance(one, str)}
    pairs = [one for _, one in results if isinstance(one, tuple)]
    try:
        status = build_status(metadata for metadata, _ in pairs)
    except ERRORS as error:
        status = None
        unreadable[f"the commands of {build.name}"] = why_unreadable(error)
    return StagedBuild(
        name=build.name,
        last_change_ms=None if status is None else int(status.last_change.timestamp() * 1000),
        has_ended=status is not None and status.has_ended,
        failed=[] if status is None else node_titles(status.failed),
        tables=[one for _, one in pairs if isinstance(one, StagedChange)],
        views=[
            (name, one[1])
            for (name, _), one in results
            if isinstance(one, tuple) and isinstance(one[1], str)
        ],
        unreadable=unreadable,
    )


def _read_relation(
    catalog: IcebergCatalog, build: str, deadline: float, relation: tuple[Name, str]
) -> _Result:
    name, kind = relation
    if time.monotonic() > deadline:
        return TOO_LATE
    try:
        if kind == "view":
            view = catalog.metadata(staged_name(name, build))
            return None if view is None else (view, view_change(catalog, build, name))
        staged = load_staged(catalog, name, build)
        return None if staged is None else (staged.metadata, _change(catalog, staged))
    except ERRORS as error:
        return why_unreadable(error)


def _change(catalog: IcebergCatalog, staged: StagedTable) -> StagedChange:
    """Compare a staged table with the published one, and add up the build's own snapshots."""
    if staged.is_empty:
        return StagedChange(staged.name, "not built")
    before, after = staged_versions(catalog, staged)
    published = before.table if before.ref else None
    rows = _rows(staged, {} if published is None else _base(staged, published))
    schema = schema_changes(before, after)
    kind = "changed" if rows.commits or schema else "unchanged"
    if published is None:
        kind = "new" if catalog.metadata(staged.name) is None else "replaces a view"
    return StagedChange(
        table=staged.name,
        kind=kind,
        schema=schema,
        rows_before=None if published is None else _count(before),
        rows_after=_count(after),
        inserted=rows.rows_inserted,
        updated=rows.rows_updated,
        removed=rows.rows_removed,
        is_outdated=not staged.is_recreated and not staged.was_staged_from(published),
    )


def _base(staged: StagedTable, published: LoadedTable) -> Metadata:
    """Return metadata with the snapshots that the published table had when it was staged."""
    if published.location == staged.properties.get(PUBLISHED_METADATA) or staged.is_recreated:
        return published.metadata
    return staged.first_metadata


def _rows(staged: StagedTable, base: Metadata) -> TableChange:
    """Add up the snapshots of a build since it replaced all rows, if it did.

    Those that change no row are left out.
    """
    own = [s["snapshot-id"] for s in staged.new_snapshots(base) if not keeps_rows(s)]
    listed = {snapshot.snapshot_id: snapshot for snapshot in snapshots(staged.metadata)}
    change, before = TableChange(), None
    for number in own:
        snapshot = listed[number]
        outcome = read_outcome(snapshot, listed.get(snapshot.previous_id or 0))
        before = before if change.commits else outcome.rows_before
        if outcome.replaced_all and before is not None:
            # What the build wrote before this is gone, too.
            change = TableChange(rows_removed=before - outcome.rows_removed)
        change.add(outcome)
    return change


def _count(version: TableVersion) -> int | None:
    return 0 if version.snapshot is None else count_rows(version.snapshot.get("summary") or {})
