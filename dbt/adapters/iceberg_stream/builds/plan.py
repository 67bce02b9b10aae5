"""What publishing a build commits, and what other writers have changed meanwhile."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table.update import AssertCreate, AssertTableUUID, SetPropertiesUpdate

from dbt.adapters.iceberg_stream.builds.comparison import (
    appended_files,
    foreign_change,
    is_unchanged,
    same_layout,
    shares_ids,
)
from dbt.adapters.iceberg_stream.builds.replaced import (
    is_unfilled,
)
from dbt.adapters.iceberg_stream.builds.staged import (
    BUILD,
    PUBLISHED_AS,
    StagedTable,
    versions,
)
from dbt.adapters.iceberg_stream.builds.updates import (
    COLLECTIONS,
    STAGED_SNAPSHOT,
    own_properties,
    property_updates,
    requirements,
    updates_between,
    without_snapshots,
)
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer, Prepared
from dbt.adapters.iceberg_stream.tables.drop import NESSIE

# Tables that are loaded or dropped at the same time.
PARALLEL = 8


@dataclass
class Plan:
    """One attempt to publish the tables of a build.

    Attributes:
        commits: those of tables that exist.
        snapshots: as which snapshots tables are published, by name.
        unchanged: tables that the build did not change.
        new: staged tables whose published ones must be created.
        conflicts: tables that others have changed, and what they did.
        behind: appends that others have come before, of which the build's other models know
            nothing, and what the others did.
        rebased: what commits these appends.
        earlier: tables that an earlier attempt has published.
        marks: staged tables, and the snapshots that they are published as.
    """

    commits: list[TableCommit] = field(default_factory=list)
    snapshots: dict[Name, int] = field(default_factory=dict)
    unchanged: list[Name] = field(default_factory=list)
    new: list[StagedTable] = field(default_factory=list)
    conflicts: list[tuple[Name, str]] = field(default_factory=list)
    behind: list[tuple[Name, str]] = field(default_factory=list)
    rebased: list[Committer] = field(default_factory=list)
    earlier: set[Name] = field(default_factory=set)
    marks: list[tuple[StagedTable, int]] = field(default_factory=list)


def make_plan(
    catalog: IcebergCatalog, build: str, tables: Sequence[StagedTable]
) -> tuple[Plan, int]:
    """Plan an attempt to publish staged tables.

    Args:
        catalog: the catalog, as the user who publishes.
        build: name of the build.
        tables: its staged tables.

    Returns:
        The plan, and the time of its snapshots in milliseconds since 1970 (UTC).

    Raises:
        CatalogError, OSError: a table cannot be read.
    """
    plan = Plan()
    with ThreadPoolExecutor(PARALLEL) as pool:
        published = list(pool.map(lambda staged: catalog.load(staged.name), tables))
    times = [table.metadata["last-updated-ms"] for table in published if table is not None]
    # Snapshots must not be older than their table's last change.
    now = max(int(time.time() * 1000), *times) if times else int(time.time() * 1000)
    for staged, table in zip(tables, published, strict=True):
        _plan_table(plan, catalog, build, staged, table, now)
        if staged.name in plan.snapshots and staged.name not in plan.earlier:
            plan.marks.append((staged, plan.snapshots[staged.name]))
    return plan, now


def _plan_table(
    plan: Plan,
    catalog: IcebergCatalog,
    build: str,
    staged: StagedTable,
    published: LoadedTable | None,
    now: int,
) -> None:
    name, current = staged.name, staged.metadata.get("current-snapshot-id")
    if published is not None:
        snapshot = _marked(staged)
        if snapshot is None:
            snapshot = _published_snapshot(published.metadata, staged)
        if snapshot is not None:
            plan.snapshots[name] = snapshot
            plan.earlier.add(name)
            return
    if staged.is_new:
        # Marked with the build: an interrupted attempt has created the table without rows.
        if published is None or is_unfilled(build, published.metadata):
            plan.new.append(staged)
            plan.snapshots[name] = current or 0
        else:
            plan.conflicts.append((name, "was created by another writer"))
        return
    if published is None:
        plan.conflicts.append((name, "was dropped"))
    elif staged.was_staged_from(published) and not shares_ids(staged, published):
        base = _base(staged, published)
        updates = updates_between(base, staged.metadata, build, now)
        if not updates:
            plan.unchanged.append(name)
            return
        plan.commits.append(TableCommit(published, requirements(published.metadata), updates))
        plan.snapshots[name] = current or 0
    elif is_unchanged(staged):
        plan.unchanged.append(name)
    elif (files := appended_files(staged)) is not None and same_layout(staged, published):
        plan.behind.append((name, foreign_change(staged, published)))
        _plan_append(plan, catalog, build, staged, published, files)
    else:
        plan.conflicts.append((name, foreign_change(staged, published)))


def creation(catalog: IcebergCatalog, staged: StagedTable, build: str, now: int) -> TableCommit:
    """Return the commit that gives a new table its snapshots.

    Args:
        catalog: the catalog.
        staged: the staged table.
        build: name of the build.
        now: time of the snapshots.

    Raises:
        CatalogError: the catalog refuses.
    """
    published = catalog.load(staged.name)
    if published is None:
        origin = without_snapshots(staged.metadata)
        table = LoadedTable(staged.name, origin, "", staged.table.io, staged.table.table)
        published = catalog.stage_version(staged.name, table)
    metadata = published.metadata
    built = {**staged.metadata, "schemas": metadata["schemas"]}
    updates = updates_between(metadata, built, build, now)
    assertions = requirements(metadata) if published.exists else (AssertCreate(),)
    return TableCommit(published, assertions, updates)


def mark(staged: StagedTable, snapshot: int) -> TableCommit:
    """Return the commit that marks a staged table as published.

    It is part of the transaction that publishes it. So that fails if the staged table is dropped
    before, with whose files `discard` may end, and a later attempt knows what is published, even
    if it has no snapshot or its snapshot was expired.

    Args:
        staged: the staged table.
        snapshot: the snapshot that it is published as.
    """
    text = json.dumps({"snapshot": snapshot, "state": state_of(staged)})
    assertion = AssertTableUUID(uuid=staged.metadata["table-uuid"])
    update = SetPropertiesUpdate(updates={PUBLISHED_AS: text})
    return TableCommit(staged.table, (assertion,), (update,))


def is_same(one: StagedTable, other: StagedTable) -> bool:
    """Return whether two staged tables are versions of one: it was not dropped in between."""
    return bool(one.metadata["table-uuid"] == other.metadata["table-uuid"])


def state_of(staged: StagedTable) -> str:
    """Return a digest of what a staged table has: rows, columns, layout, properties and refs."""
    metadata = staged.metadata
    # Nessie's properties name each of its commits, also that of the mark.
    properties = {k: v for k, v in own_properties(metadata).items() if not k.startswith(NESSIE)}
    state = [versions(metadata), properties, metadata.get("refs") or {}]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _marked(staged: StagedTable) -> int | None:
    """Return as which snapshot a staged table was published, unless it changed since."""
    mark = json.loads(staged.properties.get(PUBLISHED_AS, "{}"))
    return int(mark["snapshot"]) if mark.get("state") == state_of(staged) else None


def _published_snapshot(metadata: Metadata, staged: StagedTable) -> int | None:
    """Return the snapshot that an earlier attempt has published, if any."""
    current = staged.metadata.get("current-snapshot-id")
    if current is None or not staged.new_snapshots(staged.first_metadata):
        return None
    for snapshot in reversed(metadata.get("snapshots") or []):
        summary = snapshot.get("summary") or {}
        if summary.get(STAGED_SNAPSHOT) == str(current):
            return int(snapshot["snapshot-id"])
    return None


def _base(staged: StagedTable, published: LoadedTable) -> Metadata:
    """Return the published table's metadata, with what it had when it was staged.

    What other writers have changed since stays: properties, tags, branches, and what they removed,
    such as expired snapshots, whose files are gone.
    """
    first, now = staged.first_metadata, published.metadata.get("properties") or {}
    properties = {k: v for k, v in (first.get("properties") or {}).items() if k in now}
    items = {
        key: [*(first.get(key) or []), *(published.metadata.get(key) or [])] for key in COLLECTIONS
    }
    refs = first.get("refs") or {}
    return {**published.metadata, **items, "properties": properties, "refs": refs}


def _plan_append(
    plan: Plan,
    catalog: IcebergCatalog,
    build: str,
    staged: StagedTable,
    published: LoadedTable,
    files: Sequence[DataFile],
) -> None:
    """Append the build's files to the rows that other writers committed since."""
    snapshot = staged.metadata["snapshots"][-1]
    kept = {k: v for k, v in snapshot["summary"].items() if k.startswith("iceberg-stream.")}
    kept |= {BUILD: build, STAGED_SNAPSHOT: str(snapshot["snapshot-id"])}
    updates = property_updates(staged.first_metadata, staged.metadata)
    committer = Committer(catalog, staged.name, append(*files, properties=kept), published, updates)
    prepared = committer.prepare()
    assert isinstance(prepared, Prepared), "the first attempt cannot have been committed"
    plan.commits.append(prepared.commit)
    plan.snapshots[staged.name] = prepared.result.snapshot.snapshot_id
    plan.rebased.append(committer)
