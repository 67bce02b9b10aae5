"""`iceberg-stream orphans`: files that no snapshot of a table has."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    profiles_dir,
    project_dir,
    table_name,
    target,
    told_plainly,
)


@click.command()
@click.argument("table")
@click.option(
    "--older-than",
    type=float,
    default=72.0,
    show_default=True,
    help="Hours. A file of a write that is under way is no orphan, but looks like one.",
)
@click.option("--remove", is_flag=True, help="Remove the files.")
@project_dir
@profiles_dir
@target
def orphans(
    table: str,
    older_than: float,
    remove: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """List the files of TABLE (schema.name) that belong to no snapshot of it."""
    from dbt.adapters.iceberg_stream.maintenance.orphans import (
        find_orphans,
        remove_orphans,
        shares_folder,
    )
    from dbt.adapters.iceberg_stream.profile.project import open_catalog

    with told_plainly(), closing(open_catalog(project_dir, profiles_dir, target)) as catalog:
        loaded = catalog.load(table_name(table))
        if loaded is None:
            raise click.ClickException(f"There is no table {table}.")
        names = [(s, n) for s in catalog.namespaces() for n, _ in catalog.relations(s) if remove]
        others = (each for name in names if (each := catalog.load(name)) is not None)
        if (other := shares_folder(loaded, others)) is not None:
            raise click.ClickException(f"{'.'.join(other.name)} has its files in the same folder.")
        if remove:
            catalog.check_write(loaded.name)
        before = datetime.now(timezone.utc) - timedelta(hours=older_than)
        found = find_orphans(loaded, before)
        for orphan in found:
            click.echo(f"{orphan.size:>14,}  {orphan.modified:%Y-%m-%d %H:%M:%S}  {orphan.path}")
        total = sum(orphan.size for orphan in found)
        click.echo(f"{len(found)} orphans, {total:,} bytes.")
        if remove:
            click.echo(f"{remove_orphans(loaded, found)} removed.")
