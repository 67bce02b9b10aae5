"""Staged tables: a second table of a published one's files, so that no data is copied.

Iceberg's own branches hold rows, but not another schema, partition spec or type of relation, and
Spark cannot `create or replace` on a branch. A staged table can change in every way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dbt.adapters.iceberg_stream.builds.commands import record_properties
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.catalog.catalog import GC_ENABLED, IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.copies import copy_metadata, stage_empty
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import delete_unused, write_new
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, next_location
from dbt.adapters.iceberg_stream.catalog.views import current_schema, current_version, same_view
from dbt.adapters.iceberg_stream.tables.commit import added_files as added
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX
from dbt.adapters.iceberg_stream.tables.drop import Drop, run_drops

BUILD = f"{PREFIX}build"
# Metadata files: the published table's when it was staged, and the staged table's first one.
PUBLISHED_METADATA = f"{BUILD}.published-metadata"
FIRST_METADATA = f"{BUILD}.first-metadata"
PUBLISHED_UUID = f"{BUILD}.published-uuid"
# What was published under the name when it was staged, if it replaces another kind of relation.
REPLACES = f"{BUILD}.replaces"
# That `publish` is about to drop it: the table's metadata file, or `view`.
DROPPED = f"{BUILD}.dropped"
# Property of a staged table: the snapshot that it is published as, and what it was like then.
PUBLISHED_AS = f"{BUILD}.published-as"
# Fields of table metadata that change with rows, columns or layout.
VERSIONED = (
    *("format-version", "last-sequence-number", "current-schema-id", "last-column-id"),
    *("default-spec-id", "default-sort-order-id", "location"),
)
# While two tables share files, no procedure may delete any.
PROTECTION = {GC_ENABLED: "false", "write.metadata.delete-after-commit.enabled": "false"}


@dataclass(frozen=True)
class StagedTable:
    """A staged table, as the catalog has it now.

    Attributes:
        name: namespace and identifier of the published table.
        build: name of the build.
        table: the staged table.
    """

    name: Name
    build: str
    table: LoadedTable

    @property
    def metadata(self) -> Metadata:
        """The staged table's metadata."""
        return self.table.metadata

    @property
    def properties(self) -> Mapping[str, str]:
        """The staged table's properties."""
        return self.metadata.get("properties") or {}

    @property
    def is_new(self) -> bool:
        """Whether there was no published table when it was staged."""
        return not self.properties.get(PUBLISHED_UUID)

    @property
    def is_empty(self) -> bool:
        """Whether it has no columns yet: its model has not been built."""
        return not any(schema["fields"] for schema in self.metadata["schemas"])

    @property
    def is_recreated(self) -> bool:
        """Whether a statement dropped the staged table, and created it again."""
        return FIRST_METADATA not in self.properties

    @cached_property
    def first_metadata(self) -> Metadata:
        """Metadata of the staged table when it was staged.

        Raises:
            CommitConflict: another process publishes or discards the build at the same time.
        """
        try:
            with self.table.io.new_input(self.properties[FIRST_METADATA]).open() as stream:
                metadata: Metadata = json.loads(stream.read())
        except FileNotFoundError as error:
            raise CommitConflict(
                f"{'.'.join(self.table.name)} was published or discarded at the same time"
            ) from error
        return metadata

    @property
    def first_snapshots(self) -> set[int] | None:
        """Ids of the snapshots that it began with; None if they are unknown."""
        if self.is_recreated:
            return None
        try:
            first = self.first_metadata
        except CommitConflict:
            return None
        return {snapshot["snapshot-id"] for snapshot in first.get("snapshots") or []}

    def was_staged_from(self, published: LoadedTable | None) -> bool:
        """Return whether the published table is the one that was staged, unchanged.

        Args:
            published: the published table now; None if there is none.
        """
        if published is None or self.is_new:
            return published is None and self.is_new
        if published.location == self.properties.get(PUBLISHED_METADATA):
            return True
        if published.metadata["table-uuid"] != self.properties[PUBLISHED_UUID]:
            return False
        try:
            return versions(published.metadata) == versions(self.first_metadata)
        except CommitConflict:
            return False

    def new_snapshots(self, base: Metadata) -> list[Mapping[str, Any]]:
        """Return the snapshots that only the staged table has, oldest first.

        Args:
            base: metadata of the published table when it was staged.
        """
        base_ids = {s["snapshot-id"] for s in base.get("snapshots") or []}
        snapshots = self.metadata.get("snapshots") or []
        return [s for s in snapshots if s["snapshot-id"] not in base_ids]


def versions(metadata: Metadata) -> tuple[Any, ...]:
    """Return what changes whenever rows, columns or layout of a table change.

    Args:
        metadata: table metadata.
    """
    main = (metadata.get("refs") or {}).get("main") or {}
    return (main.get("snapshot-id"), *(metadata.get(key) for key in VERSIONED))


def record(published: Metadata | None) -> str:
    """Describe what is published under a name, for `is_recorded` and `recorded_view`.

    Args:
        published: metadata of the table or view; None if there is neither.
    """
    if published is None:
        return ""
    if "versions" in published:
        current = published["current-version-id"]
        view = {
            "current-version-id": current,
            "versions": [current_version(published)],
            "schemas": [current_schema(published)],
            "properties": dict(published.get("properties") or {}),
        }
        return json.dumps({"view": view})
    return json.dumps({"table": [published.get("table-uuid"), *versions(published)]})


def recorded_view(staged: Metadata) -> Metadata | None:
    """Return the view that a staged table replaces, as it was then; None if there was none.

    Args:
        staged: metadata of the staged table.
    """
    text = (staged.get("properties") or {}).get(REPLACES)
    view: Metadata | None = json.loads(text).get("view") if text else None
    return view


def is_recorded(staged: Metadata, published: Metadata) -> bool:
    """Return whether what is published under a name is what was there at the time of staging.

    Args:
        staged: metadata of the staged table or view.
        published: metadata of a published relation of the other kind.
    """
    if "versions" in published:
        view = recorded_view(staged)
        return view is not None and same_view(view, published)
    return bool((staged.get("properties") or {}).get(REPLACES) == record(published))


def load_staged(catalog: IcebergCatalog, name: Name, build: str) -> StagedTable | None:
    """Load a staged table.

    Args:
        catalog: the catalog.
        name: namespace and identifier of the published table.
        build: name of the build.

    Returns:
        The staged table; None if the build does not have it.
    """
    table = catalog.load(staged_name(name, build))
    return None if table is None else StagedTable(name, build, table)


def stage_table(
    catalog: IcebergCatalog,
    name: Name,
    build: str,
    properties: Mapping[str, str],
    continues: bool = True,
    catalogs: Catalogs | None = None,
    records: Mapping[str, str] | None = None,
) -> bool:
    """Stage a table, unless the build has staged it from the current published table before.

    Args:
        catalog: the catalog.
        name: namespace and identifier of the published table; it may not exist.
        build: name of the build.
        properties: properties of a new table that cannot be changed later.
        continues: whether the build may have staged it before.
        catalogs: those of the profile, whose tables may reference files of an earlier staged one.
        records: of commands, which the staged table gets; by default those of an earlier one.

    Returns:
        Whether the staged table has columns: False for one that is new.

    Raises:
        CatalogError: the catalog refuses.
        OSError: the storage refuses.
    """
    published = catalog.load(name)
    view = None if published else catalog.metadata(name)
    staged = load_staged(catalog, name, build) if continues else None
    if staged is not None:
        is_current = view is None or is_recorded(staged.metadata, view)
        if is_current and not staged.is_recreated and staged.was_staged_from(published):
            return not staged.is_empty
        run_drops(catalog, plan_discards([staged]), catalogs)
        records = record_properties(staged.metadata)
    origin = published or _new_table(catalog, name, properties)
    location = next_location(origin)
    metadata = _clone(origin.metadata, location, build, published, view)
    metadata["properties"] |= records or {}
    write_new(origin.io, location, json.dumps(metadata).encode())
    try:
        catalog.register(staged_name(name, build), location)
    except CommitConflict:
        # Another process of this build was faster.
        delete_unused(origin.io, location)
        return stage_table(catalog, name, build, properties, catalogs=catalogs, records=records)
    if published is not None and not _has_all_files(catalog.load(name), published):
        catalog.unregister(staged_name(name, build))
        delete_unused(origin.io, location)
        return stage_table(catalog, name, build, properties, catalogs=catalogs, records=records)
    return published is not None


def _has_all_files(current: LoadedTable | None, staged: LoadedTable) -> bool:
    """Return whether the files of a version are still a table's, so that nobody removes them now.

    Whoever drops the table, or expires snapshots, asks after that which files others need.
    """
    if current is None or current.metadata["table-uuid"] != staged.metadata["table-uuid"]:
        return False
    ids = {s["snapshot-id"] for s in current.metadata.get("snapshots") or []}
    return all(s["snapshot-id"] in ids for s in staged.metadata.get("snapshots") or [])


def _new_table(catalog: IcebergCatalog, name: Name, properties: Mapping[str, str]) -> LoadedTable:
    """Return a table without columns, in the folder that the catalog gives the published one."""
    table = stage_empty(catalog, name, properties)
    empty = {"type": "struct", "schema-id": 0, "fields": []}
    metadata = {**table.metadata, "schemas": [empty], "current-schema-id": 0, "last-column-id": 0}
    return LoadedTable(name, metadata, "", table.io, table.table)


def _clone(
    origin: Metadata,
    location: str,
    build: str,
    published: LoadedTable | None,
    view: Metadata | None,
) -> dict[str, Any]:
    properties = {
        **(origin.get("properties") or {}),
        **PROTECTION,
        BUILD: build,
        FIRST_METADATA: location,
        PUBLISHED_METADATA: published.location if published else "",
        PUBLISHED_UUID: origin["table-uuid"] if published else "",
        REPLACES: record(view),
    }
    return copy_metadata(origin, properties)


def metadata_files(staged: StagedTable) -> list[str]:
    """List the metadata files of a staged table.

    Args:
        staged: the table.
    """
    return added.metadata_files(staged.table)


def added_files(staged: StagedTable) -> tuple[list[str], list[str]]:
    """List the files that snapshots of a staged table have added.

    Args:
        staged: the table.

    Returns:
        Manifest lists and manifests; data and delete files in the table's folder. Files from
        elsewhere, such as those of `add_files`, belong to somebody else.
    """
    base = staged.first_snapshots
    return ([], []) if base is None else added.added_files(staged.table, base)


def plan_discards(tables: Sequence[StagedTable]) -> list[Drop]:
    """Return the drops of staged tables, with the files that they did not begin with.

    Args:
        tables: the tables.
    """
    return [
        Drop(staged.table.name, staged.table, is_shared=True, base=staged.first_snapshots)
        for staged in tables
    ]


def remove_files(staged: StagedTable, paths: list[str]) -> None:
    """Remove files of a staged table that the catalog does not list any more.

    Args:
        staged: the table.
        paths: the files; those that cannot be removed are left to `iceberg-stream orphans`.
    """
    for path in paths:
        remove_quietly(staged.table.io, path)
