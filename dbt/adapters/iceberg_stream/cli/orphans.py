"""`iceberg-stream orphans`: list and remove files that nothing references."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    HOURS,
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
    type=HOURS,
    default=72.0,
    show_default=True,
    help="Age in hours. Must be more than any write takes: its files look like orphans.",
)
@click.option(
    "--remove",
    is_flag=True,
    help="Move the files to the folder _removed of the table, and delete those that were moved "
    "there before --keep-removed.",
)
@click.option(
    "--keep-removed",
    type=HOURS,
    default=168.0,
    show_default=True,
    help="How many hours removed files are kept.",
)
@click.option("--restore", is_flag=True, help="Move all removed files back.")
@project_dir
@profiles_dir
@target
@in_catalog
def orphans(
    table: str,
    older_than: float,
    remove: bool,
    keep_removed: float,
    restore: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """List the files in the folder of TABLE ([catalog.]schema.name) that nothing references.

    All tables and views of the profile's catalogs are read. If one cannot be read, nothing is
    removed.
    """
    from dbt.adapters.iceberg_stream.maintenance.orphans import (
        REMOVED_FOLDER,
        delete_removed,
        find_orphans,
        remove_orphans,
        restore_removed,
    )
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    if remove and restore:
        raise click.UsageError("--remove and --restore cannot be combined.")
    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog, name = find_catalog(catalogs, table, catalog_name)
        loaded = load_table(catalog, table_name(name))
        if remove or restore:
            catalog.check_write(loaded.name)
        if restore:
            moved, kept = restore_removed(loaded)
            for path in kept:
                click.echo(f"{path} stays: there is another file in its place.")
            click.echo(f"{moved} restored.")
            return
        now, all_catalogs = datetime.now(timezone.utc), catalogs.all_from(catalog)
        files = find_orphans(loaded, now - timedelta(hours=older_than), all_catalogs)
        for orphan in files:
            click.echo(f"{orphan.size:>14,}  {orphan.modified:%Y-%m-%d %H:%M:%S}  {orphan.path}")
        total = sum(orphan.size for orphan in files)
        click.echo(f"{len(files)} orphans, {total:,} bytes.")
        if remove:
            removed = remove_orphans(loaded, files)
            before = datetime.now(timezone.utc) - timedelta(hours=keep_removed)
            deleted, restored = delete_removed(loaded, before, all_catalogs)
            click.echo(f"{removed} removed. {deleted} removed earlier were deleted.")
            if restored:
                click.echo(f"{restored} moved back: a table references them again.")
            if removed and keep_removed:
                click.echo(
                    f"The removed files are in {loaded.metadata['location']}/{REMOVED_FOLDER}. "
                    f"`iceberg-stream orphans {table} --restore` brings them back. After "
                    f"{keep_removed:g} hours the next run with --remove deletes them."
                )
