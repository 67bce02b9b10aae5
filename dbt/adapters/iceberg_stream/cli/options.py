"""Options and helpers that the commands of `iceberg-stream` share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable

MOST_HOURS = 24 * 365 * 100


class Hours(click.FloatRange):
    """A number of hours of at most a century."""

    name = "hours"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            BadParameter: it is not a number, or out of the range.
        """
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail("nan is not a number of hours.", param, ctx)
        return number


HOURS = Hours(min=0, max=MOST_HOURS)
project_dir = click.option(
    "--project-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder of the dbt project.",
)
profiles_dir = click.option(
    "--profiles-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of profiles.yml.  [default: as for dbt]",
)
in_catalog = click.option(
    "--catalog",
    "catalog_name",
    metavar="NAME",
    help="Catalog of the profile, for tables without one in their name.  [default: the profile's "
    "own]",
)
PORT = click.IntRange(0, 65535)
target = click.option(
    "--target", "-t", help="Target of the profile.  [default: `target` of the profile]"
)


def get_catalog(catalogs: Catalogs, name: str | None) -> IcebergCatalog:
    """Return a catalog of the profile; its own without a name.

    Args:
        catalogs: the profile's catalogs.
        name: of the catalog.

    Raises:
        click.ClickException: the profile has no such catalog.
    """
    catalog = catalogs.find_catalog(name)
    if catalog is None:
        raise click.ClickException(
            f"The profile has no catalog `{name}`. It has {', '.join(catalogs.names)}. Correct the "
            "name, or define the catalog in the profile's `catalogs`: commands do not read "
            "catalogs.yml."
        )
    return catalog


def find_catalog(
    catalogs: Catalogs, name: str, catalog_name: str | None
) -> tuple[IcebergCatalog, str]:
    """Return the catalog of a table or namespace, and its name within the catalog.

    Args:
        catalogs: the profile's catalogs.
        name: `schema.name`, `catalog.schema.name`, or a namespace.
        catalog_name: the option `--catalog`.

    Raises:
        click.ClickException: the profile has no such catalog, or the name and the option are of
            different catalogs.
    """
    catalog = get_catalog(catalogs, catalog_name)
    first, _, rest = name.partition(".")
    if "." not in rest or name in catalog.namespaces():
        return catalog, name
    named = get_catalog(catalogs, first)
    if catalog_name is not None and named is not catalog:
        raise click.ClickException(
            f"`{name}` is in the catalog `{first}`, and `--catalog` is `{catalog_name}`. Give one "
            "of them."
        )
    return named, rest


def table_name(table: str) -> tuple[str, str]:
    """Split `schema.name`.

    Raises:
        click.BadParameter: the text has another form.
    """
    parts = table.split(".")
    if len(parts) != 2:
        raise click.BadParameter(
            f"`{table}` must have the form schema.name or catalog.schema.name."
        )
    return parts[0], parts[1]


def table_names(catalog: IcebergCatalog, name: str) -> list[tuple[str, str]]:
    """Return the table of a name, or the names of all tables of a namespace, sorted.

    Tables that a build has staged are left out.

    Args:
        catalog: the profile's catalog.
        name: `schema.name`, or a namespace.

    Raises:
        click.ClickException: there is no such namespace.
    """
    from dbt.adapters.iceberg_stream.builds.names import published_tables

    namespaces = catalog.namespaces()
    if "." in name and name not in namespaces:
        return [table_name(name)]
    if name not in namespaces:
        raise click.ClickException(
            f"The namespace {name} does not exist. Give a table as schema.name, or one of: "
            f"{', '.join(sorted(namespaces))}."
        )
    return published_tables(name, catalog.relations(name))


def load_table(catalog: IcebergCatalog, name: tuple[str, str]) -> LoadedTable:
    """Load a table's current metadata.

    Args:
        catalog: the profile's catalog.
        name: schema and name of the table.

    Raises:
        click.ClickException: there is no such table.
    """
    table = catalog.load(name)
    if table is None:
        raise click.ClickException(
            f"There is no table {'.'.join(name)} in the catalog `{catalog.name}`. Check the name "
            "(schema.name), `--catalog`, and `--target`, which selects the profile's own catalog."
        )
    return table


def catalog_options(
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None = None,
) -> tuple[str, ...]:
    """Return the options that a printed command needs to find the same catalog.

    Args:
        project_dir: the option `--project-dir`.
        profiles_dir: the option `--profiles-dir`.
        target: the option `--target`.
        catalog_name: the option `--catalog`, or the catalog of the tables' names.
    """
    catalog = () if catalog_name is None else ("--catalog", catalog_name)
    project = () if project_dir == Path() else ("--project-dir", str(project_dir))
    profiles = () if profiles_dir is None else ("--profiles-dir", str(profiles_dir))
    return (*project, *profiles, *(() if target is None else ("--target", target)), *catalog)


def artifacts(project_dir: Path) -> Path:
    """Return the folder in which dbt writes the artifacts of a project.

    Args:
        project_dir: folder of the project.

    Raises:
        DbtRuntimeError: the folder has no dbt project.
    """
    if configured := os.environ.get("DBT_TARGET_PATH"):
        return project_dir / configured
    from dbt.config.project import load_raw_project

    return project_dir / (load_raw_project(str(project_dir)).get("target-path") or "target")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert errors of the profile, catalog, storage and engine to messages without traceback.

    Raises:
        click.ClickException: the block raised such an error.
    """
    try:
        yield
    except (DbtRuntimeError, EngineError, OSError) as error:
        raise click.ClickException(without_secrets(str(error))) from error
