"""The builds of a catalog, listed from the names of their staged relations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import split_staged, staged_name
from dbt.adapters.iceberg_stream.builds.publish import PARALLEL
from dbt.adapters.iceberg_stream.builds.staged import (
    BUILD,
    LAST_RUN,
    StagedTable,
    discard_table,
    load_staged,
)
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name


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
    """What is known of a build from its staged tables.

    Attributes:
        last_change: when a table was last staged or changed (UTC); None without tables.
        last_run: the last command: `invocation_id`, `at`, `failed` (names of nodes); None if no
            command has ended.
    """

    last_change: datetime | None
    last_run: Mapping[str, Any] | None

    @property
    def failed(self) -> list[str]:
        """The nodes that failed or were skipped in the last command."""
        return list((self.last_run or {}).get("failed") or [])


def list_builds(catalog: IcebergCatalog, namespaces: Iterable[str] | None = None) -> list[Build]:
    """List the builds that are not published, by name.

    Args:
        catalog: the catalog.
        namespaces: where to look; all by default.
    """
    builds: dict[str, Build] = {}
    chosen = list(catalog.namespaces() if namespaces is None else namespaces)
    with ThreadPoolExecutor(PARALLEL) as pool:
        for namespace, relations in zip(chosen, pool.map(catalog.relations, chosen), strict=True):
            for identifier, kind in relations:
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


def build_status(tables: Iterable[StagedTable]) -> BuildStatus:
    """Return what the staged tables of a build say of it.

    Args:
        tables: the tables.
    """
    tables = list(tables)
    times = [staged.metadata["last-updated-ms"] for staged in tables]
    runs = [json.loads(p) for t in tables if (p := t.properties.get(LAST_RUN)) is not None]
    last_change = datetime.fromtimestamp(max(times) / 1000, tz=timezone.utc) if times else None
    return BuildStatus(last_change, max(runs, key=lambda run: run["at"], default=None))


def record_run(catalog: IcebergCatalog, staged: StagedTable, run: Mapping[str, Any]) -> None:
    """Record the result of a command with a staged table, for `publish` by another process.

    Args:
        catalog: the catalog.
        staged: any staged table of the build.
        run: see `BuildStatus.last_run`.
    """
    update = SetPropertiesUpdate(updates={LAST_RUN: json.dumps(run)})
    catalog.commit(staged.table, (), (update,))


def discard(catalog: IcebergCatalog, build: Build) -> None:
    """Drop all staged relations of a build, with the files that only they have.

    Args:
        catalog: the catalog.
        build: the build.

    Raises:
        CatalogError: the catalog refuses.
    """
    tables = {staged.name: staged for staged in build_tables(catalog, build)}

    def drop(relation: tuple[Name, str]) -> None:
        name, kind = relation
        if kind == "view":
            catalog.drop(staged_name(name, build.name))
        elif (staged := tables.get(name)) is not None:
            _drop_unfilled(catalog, staged)
            discard_table(catalog, staged)

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(drop, build.relations.items()))


def _drop_unfilled(catalog: IcebergCatalog, staged: StagedTable) -> None:
    """Drop a new table that an interrupted `publish` has created, but not filled."""
    if not staged.is_new:
        return
    published = catalog.load(staged.name)
    if published is None:
        return
    if (published.metadata.get("properties") or {}).get(BUILD) == staged.build:
        catalog.unregister(staged.name)


def discard_abandoned(
    catalog: IcebergCatalog, namespaces: Iterable[str], age: timedelta
) -> list[str]:
    """Discard the builds whose tables have not changed for some time.

    Args:
        catalog: the catalog.
        namespaces: where to look.
        age: how long.

    Returns:
        The names of the discarded builds.
    """
    abandoned = []
    for build in list_builds(catalog, namespaces):
        last_change = build_status(build_tables(catalog, build)).last_change
        if last_change is not None and datetime.now(timezone.utc) - last_change > age:
            discard(catalog, build)
            abandoned.append(build.name)
    return abandoned
