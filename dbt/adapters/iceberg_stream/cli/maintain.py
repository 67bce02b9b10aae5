"""`iceberg-stream maintain`: convert deletes, compact tables, expire snapshots."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import click

from dbt.adapters.iceberg_stream.cli.options import (
    HOURS,
    find_catalog,
    in_catalog,
    plain_errors,
    profiles_dir,
    project_dir,
    table_names,
    target,
)
from dbt.adapters.iceberg_stream.maintenance.settings import (
    DEFAULT_STEPS,
    REMOVE_ORPHANS,
    STEP_NAMES,
    MaintenanceSettings,
    in_order,
)

if TYPE_CHECKING:
    from dbt.adapters.contracts.connection import AdapterRequiredConfig

    from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
    from dbt.adapters.iceberg_stream.maintenance.health import TableHealth
    from dbt.adapters.iceberg_stream.maintenance.maintain import StepReport

FAILED = 1
STEP_WIDTH = max(map(len, STEP_NAMES)) + 1


@click.command()
@click.argument("name", metavar="TABLE|NAMESPACE")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(STEP_NAMES),
    help=f"Step to run; repeatable.  [default: {', '.join(DEFAULT_STEPS)}]",
)
@click.option(
    "--all",
    "every_step",
    is_flag=True,
    help="Run all steps, including expire_snapshots, which removes old snapshots.",
)
@click.option(
    "--sort",
    default="",
    help="Sort rows while compacting, e.g. 'day desc, id' or 'zorder(region, day)'.  "
    "[default: the table's sort order]",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of rewrite_data_files, e.g. rewrite-all=true; repeatable.",
)
@click.option(
    "--remove-orphans", is_flag=True, help=f"Let the step {REMOVE_ORPHANS} remove the files."
)
@click.option(
    "--orphans-older-than",
    type=HOURS,
    default=72.0,
    show_default=True,
    help="Age of orphans in hours. Must be more than any write takes.",
)
@click.option(
    "--keep-removed",
    type=HOURS,
    default=168.0,
    show_default=True,
    help="How many hours removed orphans are kept in the folder _removed of the table.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@project_dir
@profiles_dir
@target
@in_catalog
def maintain(
    name: str,
    only: tuple[str, ...],
    every_step: bool,
    sort: str,
    options: tuple[str, ...],
    remove_orphans: bool,
    orphans_older_than: float,
    keep_removed: float,
    dry_run: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """Maintain TABLE ([catalog.]schema.name), or all tables of NAMESPACE.

    Runs the steps that pay, in a fixed order; each is a commit of its own, so you can stop the
    command and run it again. The default steps keep all rows and all snapshots.

    Exit codes: 0, or 1 if a step failed on a table; the other tables are maintained nevertheless.
    """
    from dbt.adapters.iceberg_stream.maintenance import maintain as maintenance

    if every_step and only:
        raise click.UsageError("--all and --only cannot be combined.")
    settings = MaintenanceSettings(
        _steps(only, every_step, remove_orphans),
        sort,
        dict(_parse_option(option) for option in options),
        remove_orphans,
        timedelta(hours=orphans_older_than),
        timedelta(hours=keep_removed),
    )
    failed = False
    with plain_errors(), _connections(project_dir, profiles_dir, target) as connections:
        catalog, name = find_catalog(connections.resources.catalogs, name, catalog_name)
        context = connections.maintenance_context(catalog.name)
        for table in table_names(context.catalog, name):
            click.echo(".".join(table))
            for report in maintenance.maintain(context, table, settings, dry_run):
                _print(report)
                failed = failed or report.failed
    if failed:
        raise SystemExit(FAILED)


def _steps(only: tuple[str, ...], every_step: bool, remove_orphans: bool) -> tuple[str, ...]:
    steps = STEP_NAMES if every_step else only or DEFAULT_STEPS
    return in_order([*steps, *([REMOVE_ORPHANS] if remove_orphans else [])])


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"`{text}` must have the form NAME=VALUE.")
    return name.strip(), value.strip()


@contextmanager
def _connections(
    project_dir: Path, profiles_dir: Path | None, target: str | None
) -> Iterator[IcebergStreamConnectionManager]:
    """Open the connections of a profile, as dbt does, but without a dbt command.

    Spark starts with the first statement. Ctrl-C cancels the statement that runs.
    """
    from dbt.adapters.contracts.connection import ConnectionState

    from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
    from dbt.adapters.iceberg_stream.profile.project import load_credentials

    credentials = load_credentials(project_dir, profiles_dir, target)
    profile = SimpleNamespace(credentials=credentials, project_root=str(project_dir.resolve()))
    connections = IcebergStreamConnectionManager(
        cast("AdapterRequiredConfig", profile), multiprocessing.get_context("spawn")
    )
    connections.set_connection_name("maintain")
    try:
        yield connections
    except KeyboardInterrupt:
        connection = connections.get_if_exists()
        if connection is not None and connection.state == ConnectionState.OPEN:
            connection.handle.session.interrupt()
        raise
    finally:
        connections.cleanup_all()


def _print(report: StepReport) -> None:
    label = f"  {report.step:<{STEP_WIDTH}}" if report.step else "  "
    if report.after is None or report.before is None:
        text = report.text.replace("\n", f"\n{'':{len(label)}}")
        click.echo(f"{label}{report.status.value}: {text}")
        return
    click.echo(f"{label}{report.text} ({report.seconds:.1f} s)")
    before, after = _figures(report.before), _figures(report.after)
    for what in before:
        if before[what] != after[what]:
            click.echo(f"{'':{len(label)}}{what:<20} {before[what]:>14} -> {after[what]}")


def _figures(health: TableHealth) -> dict[str, str]:
    from dbt.adapters.iceberg_stream.maintenance.steps.step import seconds_text

    return {
        "data files": f"{health.data_files:,}",
        "delete files": f"{health.delete_files:,}",
        "bytes of data": f"{health.data_bytes:,}",
        "manifests": f"{health.manifests:,}",
        "snapshots": f"{health.snapshots:,}",
        "estimated full scan": seconds_text(health.cost.seconds),
    }
