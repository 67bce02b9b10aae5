"""`iceberg-stream`: what dbt's own commands cannot say."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.engines import embedded

HOME = ".iceberg_stream"

project_dir = click.option(
    "--project-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="The dbt project whose engine is meant.",
)
engine_home = click.option(
    "--engine-home",
    type=click.Path(path_type=Path),
    default=HOME,
    show_default=True,
    help="The profile's `engine_home`, where it is set.",
)


@click.group()
def main() -> None:
    """Look after the engine that dbt-iceberg-stream runs for a project."""


@main.command()
@project_dir
@engine_home
def stop(project_dir: Path, engine_home: Path) -> None:
    """Stop the engine of a project."""
    stopped = embedded.stop(project_dir / engine_home)
    click.echo("The engine has stopped." if stopped else "No engine is running here.")


@main.command()
@project_dir
@engine_home
def status(project_dir: Path, engine_home: Path) -> None:
    """Tell whether the engine of a project is running, and who uses it."""
    engine = embedded.status(project_dir / engine_home)
    if engine is None:
        click.echo("No engine is running here.")
        return
    clients = ", ".join(str(pid) for pid in engine.clients) or "none"
    click.echo(
        f"The engine is {'ready' if engine.ready else 'starting'}.\n"
        f"  up for    {time.time() - engine.started:.0f} s\n"
        f"  port      {engine.port}\n"
        f"  process   {engine.jvm.pid}\n"
        f"  versions  Spark {engine.spark}, Java {engine.java}\n"
        f"  settings  {engine.settings}\n"
        f"  clients   {clients}"
    )
