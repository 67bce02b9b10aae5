"""`iceberg-stream report`: write a page about tables, their history, streams and health."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbt.adapters.iceberg_stream.cli.options import (
    artifacts,
    catalog_options,
    get_catalog,
    in_catalog,
    plain_errors,
    profiles_dir,
    project_dir,
    target,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog


@click.command()
@click.argument("namespaces", metavar="[NAMESPACE]...", nargs=-1)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="HTML file to write.",
)
@click.option(
    "--target-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of dbt's manifest.json.  [default: as for dbt]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    default=6.0,
    show_default=True,
    help="Seconds after which no further table is examined for advice, and none of a build read.",
)
@project_dir
@profiles_dir
@target
@in_catalog
def report(
    namespaces: tuple[str, ...],
    output: Path,
    target_path: Path | None,
    time_limit: float,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """Write a page about the tables of NAMESPACEs, or of the dbt project.

    The page is one HTML file that needs nothing else: lineage, snapshots, runs, streams, and what
    is worth doing. Without a manifest of dbt and without NAMESPACE it has all tables. Reads
    metadata only, and changes nothing.

    Exit codes: 0 if the page was written, also if it lists tables that cannot be read; 1 after an
    error.
    """
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs
    from dbt.adapters.iceberg_stream.report.gather import gather
    from dbt.adapters.iceberg_stream.report.project import read_project
    from dbt.adapters.iceberg_stream.report.render import render
    from dbt.adapters.iceberg_stream.sessions.gc_tuning import reduced_gc

    _require_writable(output)
    with reduced_gc(), plain_errors():
        project = read_project(target_path or artifacts(project_dir))
        with closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
            catalog = get_catalog(catalogs, catalog_name)
            _require_namespaces(catalog, namespaces)
            contents = gather(catalog, sorted(set(namespaces)), project, time_limit=time_limit)
        page = render(contents, catalog_options(project_dir, profiles_dir, target, catalog_name))
    _write(output, page)
    if contents.unreadable:
        click.echo(f"{len(contents.unreadable)} unreadable; the page says why.", err=True)
    click.echo(f"Wrote the report of {len(contents.tables)} tables to {output.resolve()}")


def _require_namespaces(catalog: IcebergCatalog, namespaces: tuple[str, ...]) -> None:
    missing = [name for name in namespaces if not catalog.namespace_exists(name)]
    if missing:
        raise click.ClickException(
            f"The namespace {missing[0]} does not exist. Give one or more of: "
            f"{', '.join(sorted(catalog.namespaces()))}."
        )


def _require_writable(output: Path) -> None:
    """Check, before the metadata are read, that there is a folder for the file."""
    folder = output.resolve().parent
    if not folder.is_dir():
        raise click.ClickException(f"The folder {folder} does not exist. Set another --output.")


def _write(output: Path, page: str) -> None:
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"{output} cannot be written: {error.strerror}. Set another --output."
        ) from error
