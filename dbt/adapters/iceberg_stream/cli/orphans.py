"""`iceberg-stream orphans`: list and remove files that no snapshot references."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    find_catalog,
    in_catalog,
    load_table,
    plain_errors,
    profiles_dir,
    project_dir,
    table_name,
    target,
)


@click.command()
@click.argument("table")
@click.option(
    "--older-than",
    type=float,
    default=72.0,
    show_default=True,
    help="Age in hours. Must be more than any write takes: its files look like orphans.",
)
@click.option("--remove", is_flag=True, help="Remove the files.")
@project_dir
@profiles_dir
@target
@in_catalog
def orphans(
    table: str,
    older_than: float,
    remove: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """List the files of TABLE ([catalog.]schema.name) that none of its snapshots references."""
    from dbt.adapters.iceberg_stream.builds.names import split_staged
    from dbt.adapters.iceberg_stream.maintenance.orphans import (
        find_orphans,
        remove_orphans,
        shares_folder,
        without_clones,
    )
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog, name = find_catalog(catalogs, table, catalog_name)
        loaded = load_table(catalog, table_name(name))
        names = [(s, n) for s in catalog.namespaces() for n, _ in catalog.relations(s)]
        others = [other for each in names if (other := catalog.load(each)) is not None]
        if remove and (nested := shares_folder(loaded, others)) is not None:
            problem = f"{'.'.join(nested.name)} has its files in the same folder."
            if (parts := split_staged(nested.name[1])) is not None:
                problem += f" Publish or discard the build `{parts[1]}` first."
            raise click.ClickException(problem)
        if remove:
            catalog.check_write(loaded.name)
        before = datetime.now(timezone.utc) - timedelta(hours=older_than)
        files = without_clones(loaded, find_orphans(loaded, before), others)
        for orphan in files:
            click.echo(f"{orphan.size:>14,}  {orphan.modified:%Y-%m-%d %H:%M:%S}  {orphan.path}")
        total = sum(orphan.size for orphan in files)
        click.echo(f"{len(files)} orphans, {total:,} bytes.")
        if remove:
            click.echo(f"{remove_orphans(loaded, files)} removed.")
