"""The builds of a catalog, listed from the names of their staged relations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.builds.commands import (
    CommandRecord,
    command_records,
    has_ended,
    record_properties,
    unresolved,
)
from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import split_staged, staged_name
from dbt.adapters.iceberg_stream.builds.plan import PARALLEL
from dbt.adapters.iceberg_stream.builds.replaced import put_back, restore
from dbt.adapters.iceberg_stream.builds.staged import (
    StagedTable,
    load_staged,
    plan_discards,
)
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.views import last_change_ms
from dbt.adapters.iceberg_stream.tables.drop import remove_files


@dataclass(frozen=True)
class Build:
    """A build that is not published.

    Attributes:
        name: its name.
        relations: published names and kinds (`table` or `view`) of its relations.
    """

    name: str
    relations: dict[Name, str]


@dataclass(frozen=True)
class BuildStatus:
    """The state of a build, read from its staged relations.

    Attributes:
        last_change: when a relation was last staged or changed (UTC).
        failed: unique ids of the nodes that failed or were skipped in a command of the build, and
            have not succeeded since.
        has_ended: whether all commands have ended; False if one still runs, or was interrupted
            and no other one has run its nodes.
        planned: unique ids of the nodes that such a command has not run, as far as it is known.
    """

    last_change: datetime
    failed: list[str]
    has_ended: bool
    planned: list[str]


def list_builds(catalog: IcebergCatalog, namespaces: Iterable[str] | None = None) -> list[Build]:
    """List the builds that are not published, by name.

    Args:
        catalog: the catalog.
        namespaces: where to look; all by default.
    """
    chosen = list(catalog.namespaces() if namespaces is None else namespaces)
    with ThreadPoolExecutor(PARALLEL) as pool:
        relations = dict(zip(chosen, pool.map(catalog.relations, chosen), strict=True))
    return group_builds(relations)


def group_builds(relations: Mapping[str, Iterable[tuple[str, str]]]) -> list[Build]:
    """Return the builds that have staged relations, by name.

    Args:
        relations: identifiers and kinds (`table` or `view`) that the catalog lists, by namespace.
    """
    builds: dict[str, Build] = {}
    for namespace, listed in relations.items():
        for identifier, kind in listed:
            if (parts := split_staged(identifier)) is not None:
                build = builds.setdefault(parts[1], Build(parts[1], {}))
                build.relations[namespace, parts[0]] = kind
    return [builds[name] for name in sorted(builds)]


def get_build(catalog: IcebergCatalog, name: str) -> Build:
    """Return a build.

    Args:
        catalog: the catalog.
        name: name of the build.

    Raises:
        BuildError: there is no such build.
    """
    builds = {build.name: build for build in list_builds(catalog)}
    if name not in builds:
        others = ", ".join(builds) or "none"
        raise BuildError(
            f"There is no build `{name}` in the catalog `{catalog.name}`: it was published or "
            f"discarded, or never staged anything. Builds that are not published: {others}."
        )
    return builds[name]


def build_tables(catalog: IcebergCatalog, build: Build) -> list[StagedTable]:
    """Load the staged tables of a build.

    Args:
        catalog: the catalog.
        build: the build.
    """
    names = [name for name, kind in build.relations.items() if kind == "table"]
    with ThreadPoolExecutor(PARALLEL) as pool:
        loaded = pool.map(lambda name: load_staged(catalog, name, build.name), names)
        return [staged for staged in loaded if staged is not None]


def load_status(catalog: IcebergCatalog, build: Build) -> BuildStatus:
    """Load the state of a build.

    Args:
        catalog: the catalog.
        build: the build.

    Raises:
        BuildError: the build was published or discarded meanwhile.
    """
    names = [staged_name(name, build.name) for name in build.relations]
    with ThreadPoolExecutor(PARALLEL) as pool:
        status = build_status(m for m in pool.map(catalog.metadata, names) if m is not None)
    if status is None:
        raise BuildError(
            f"The build `{build.name}` was published or discarded meanwhile. "
            "`iceberg-stream builds` lists those that are left."
        )
    return status


def build_status(relations: Iterable[Metadata]) -> BuildStatus | None:
    """Return the state of a build; None if it has no relations.

    Args:
        relations: metadata of its staged tables and views.
    """
    relations = list(relations)
    if not relations:
        return None
    records = command_records(relations)
    failed, planned = unresolved(records)
    change = datetime.fromtimestamp(max(map(last_change_ms, relations)) / 1000, tz=timezone.utc)
    return BuildStatus(change, failed, has_ended(records, planned), planned)


def load_records(catalog: IcebergCatalog, build: Build) -> list[CommandRecord]:
    """Load the records of a build's commands, oldest first.

    Args:
        catalog: the catalog.
        build: the build.
    """
    names = [staged_name(name, build.name) for name in build.relations]
    with ThreadPoolExecutor(PARALLEL) as pool:
        return command_records(m for m in pool.map(catalog.metadata, names) if m is not None)


def store_record(
    catalog: IcebergCatalog, build: str, name: Name, kind: str, record: CommandRecord
) -> None:
    """Record the state of a command with a staged relation, for `publish` by another process.

    Args:
        catalog: the catalog.
        build: name of the build.
        name: published name of any relation of the build.
        kind: `table` or `view`.
        record: of the command.

    Raises:
        CatalogError: the catalog refuses.
    """
    properties = record.as_property()
    if kind == "table":
        if (staged := load_staged(catalog, name, build)) is not None:
            catalog.commit(staged.table, (), (SetPropertiesUpdate(updates=properties),))
    elif catalog.metadata(staged_name(name, build)) is not None:
        # Not another version: `publish` may be publishing this one.
        catalog.set_view_properties(staged_name(name, build), properties)


def discard(catalog: IcebergCatalog, build: Build, catalogs: Catalogs | None = None) -> None:
    """Drop all staged relations of a build, with the files that only they have.

    Those that have records of its commands are dropped last, so that `publish` refuses what
    an interrupted `discard` leaves. `publish` at the same time publishes all or nothing: it cannot
    commit once a staged table is dropped, and what it has committed before keeps its files.

    Args:
        catalog: the catalog.
        build: the build.
        catalogs: those of the profile, whose other tables may reference files of the build; only
            `catalog` by default.

    Raises:
        CatalogError: the catalog refuses.
    """
    tables = {staged.name: staged for staged in build_tables(catalog, build)}
    recorded = {name for name, staged in tables.items() if record_properties(staged.metadata)}
    drops = dict(zip(tables, plan_discards(list(tables.values())), strict=True))

    def drop(relation: tuple[Name, str]) -> None:
        name, kind = relation
        if kind == "view":
            if (view := catalog.metadata(staged_name(name, build.name))) is not None:
                put_back(catalog, name, view)
            catalog.unregister(staged_name(name, build.name))
        elif (staged := tables.get(name)) is not None:
            # Once before, too: only the staged table says what is missing if this process ends.
            if staged.is_new:
                restore(catalog, staged, staged.metadata)
            drops[name].unregister(catalog)
            if (dropped := drops[name].table) is not None:
                restore(catalog, staged, dropped.metadata)

    items = build.relations.items()
    try:
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(drop, [item for item in items if item[0] not in recorded]))
            list(pool.map(drop, [item for item in items if item[0] in recorded]))
    finally:
        remove_files(catalog, list(drops.values()), catalogs)


def discard_in(catalog: IcebergCatalog, namespace: str, catalogs: Catalogs | None = None) -> None:
    """Discard the builds that have relations in a namespace, with those in others.

    Args:
        catalog: the catalog.
        namespace: the namespace.
        catalogs: as for `discard`.

    Raises:
        CatalogError: the catalog refuses.
    """
    for build in list_builds(catalog):
        if any(name[0] == namespace for name in build.relations):
            discard(catalog, build, catalogs)


def discard_abandoned(
    catalog: IcebergCatalog,
    namespaces: Iterable[str],
    age: timedelta,
    catalogs: Catalogs | None = None,
) -> list[str]:
    """Discard the builds whose relations have not changed for some time.

    A build is discarded whole: with its relations in other namespaces.

    Args:
        catalog: the catalog.
        namespaces: only builds that have relations in one of these.
        age: how long.
        catalogs: as for `discard`.

    Returns:
        The names of the discarded builds.
    """
    abandoned, chosen = [], set(namespaces)
    for build in list_builds(catalog):
        if chosen.isdisjoint(name[0] for name in build.relations):
            continue
        try:
            status = load_status(catalog, build)
        except BuildError:
            continue  # another process published or discarded it
        if datetime.now(timezone.utc) - status.last_change > age:
            discard(catalog, build, catalogs)
            abandoned.append(build.name)
    return abandoned
