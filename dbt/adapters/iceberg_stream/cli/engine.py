"""`iceberg-stream stop` and `status`: manage the engine of a project."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    plain_errors,
    profiles_dir,
    project_dir,
    target,
)
from dbt.adapters.iceberg_stream.engines import embedded

# The folder of the engine's state outside dbt projects.
HOME = ".iceberg_stream"

engine_home = click.option(
    "--engine-home",
    type=click.Path(path_type=Path),
    help="Folder of the engine's state.  [default: `engine_home` of the profile]",
)


@click.command()
@project_dir
@profiles_dir
@target
@engine_home
def stop(
    project_dir: Path, profiles_dir: Path | None, target: str | None, engine_home: Path | None
) -> None:
    """Stop the engine of a project."""
    with plain_errors():
        stopped = embedded.stop(_home(project_dir, profiles_dir, target, engine_home))
    click.echo("The engine has stopped." if stopped else "No engine is running here.")


@click.command()
@project_dir
@profiles_dir
@target
@engine_home
def status(
    project_dir: Path, profiles_dir: Path | None, target: str | None, engine_home: Path | None
) -> None:
    """Show whether the engine of a project is running, and which processes use it."""
    with plain_errors():
        engine = embedded.status(_home(project_dir, profiles_dir, target, engine_home))
    if engine is None:
        click.echo("No engine is running here.")
        return
    clients = ", ".join(str(pid) for pid in engine.clients) or "none"
    click.echo(
        f"The engine is {'ready' if engine.ready else 'starting'}.\n"
        f"  up for    {time.time() - engine.started:.0f} s\n"
        f"  socket    {engine.socket}\n"
        f"  process   {engine.jvm.pid}\n"
        f"  versions  Spark {engine.spark}, Java {engine.java}\n"
        f"  settings  {engine.settings}\n"
        f"  clients   {clients}"
    )


def _home(
    project_dir: Path, profiles_dir: Path | None, target: str | None, engine_home: Path | None
) -> Path:
    """Return the folder of the engine's state."""
    from dbt.adapters.iceberg_stream.profile.project import load_credentials

    if engine_home is not None:
        return project_dir / engine_home
    if not (project_dir / "dbt_project.yml").exists():
        return project_dir / HOME
    with plain_errors():
        return load_credentials(project_dir, profiles_dir, target).engine_path(project_dir)
