"""What a build would change: published and staged versions of its relations."""

from __future__ import annotations

from dataclasses import replace

from dbt.adapters.iceberg_stream.builds.build import Build, build_tables
from dbt.adapters.iceberg_stream.builds.names import staged_name, with_published_names
from dbt.adapters.iceberg_stream.builds.staged import StagedTable
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.catalog.views import view_query
from dbt.adapters.iceberg_stream.diff.version import TableVersion
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

# What a build does with a view whose published relation is a table, which is dropped then.
REPLACES_TABLE = "replaces a table"


def table_versions(
    catalog: IcebergCatalog, build: Build
) -> list[tuple[TableVersion, TableVersion]]:
    """Return the published and the staged version of each table of a build, by name.

    Args:
        catalog: the catalog.
        build: the build. Tables whose model failed before it had rows are left out.
    """
    tables = sorted(build_tables(catalog, build), key=lambda staged: staged.name)
    return [staged_versions(catalog, staged) for staged in tables if not staged.is_empty]


def staged_versions(
    catalog: IcebergCatalog, staged: StagedTable
) -> tuple[TableVersion, TableVersion]:
    """Return the published and the staged version of a table.

    Args:
        catalog: the catalog.
        staged: the staged table, which has columns.
    """
    ref = f"build {staged.build}"
    table = replace(staged.table, name=staged.name)
    published = catalog.load(staged.name)
    if published is None:
        before = TableVersion(_without_rows(table), None)
        return before, TableVersion(table, parent_snapshot(table.metadata, MAIN), ref)
    if not staged.is_new:
        # The staged table shares the published one's files and field ids.
        uuid = published.metadata["table-uuid"]
        table = replace(table, metadata={**table.metadata, "table-uuid": uuid})
    before = TableVersion(published, parent_snapshot(published.metadata, MAIN), "published")
    return before, TableVersion(table, parent_snapshot(table.metadata, MAIN), ref)


def _without_rows(table: LoadedTable) -> LoadedTable:
    return replace(table, metadata={**table.metadata, "refs": {}, "current-snapshot-id": -1})


def view_changes(catalog: IcebergCatalog, build: Build) -> dict[Name, str]:
    """Return what a build does with each of its views, as `view_change` does.

    Args:
        catalog: the catalog.
        build: the build.
    """
    views = sorted(name for name, kind in build.relations.items() if kind == "view")
    return {name: view_change(catalog, build.name, name) for name in views}


def view_change(catalog: IcebergCatalog, build: str, name: Name) -> str:
    """Return what a build does with a view: `new`, `changed`, `unchanged` or `replaces a table`.

    Args:
        catalog: the catalog.
        build: name of the build.
        name: the view's published name.
    """
    staged, published = catalog.metadata(staged_name(name, build)), catalog.metadata(name)
    if published is None:
        return "new"
    if "versions" not in published:
        return REPLACES_TABLE
    if staged is None:
        return "unchanged"
    query = with_published_names(view_query(staged), build)
    return "unchanged" if query == view_query(published) else "changed"
