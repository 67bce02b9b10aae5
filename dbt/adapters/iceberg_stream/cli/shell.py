"""`iceberg-stream shell`: dbt's commands in one process, without its start each time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    artifacts,
    profiles_dir,
    target,
)

PROJECT_FILE = "dbt_project.yml"


@click.command()
@click.option(
    "--command",
    "-c",
    "lines",
    multiple=True,
    metavar="LINE",
    help="Run this line and end, with the exit code of the last one; may be repeated.",
)
@click.option(
    "--project-dir",
    envvar=["DBT_ENGINE_PROJECT_DIR", "DBT_PROJECT_DIR"],
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the dbt project.  [default: as for dbt]",
)
@profiles_dir
@target
@click.pass_context
def shell(
    context: click.Context,
    lines: tuple[str, ...],
    project_dir: Path | None,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Run dbt's commands without the start of dbt, which each `dbt` process repeats.

    On a terminal it shows a prompt; otherwise it runs the lines of its standard input.
    """
    # No imports of dbt, which take seconds: the prompt comes first.
    from dbt.adapters.iceberg_stream.sessions.gc_tuning import reduced_gc
    from dbt.adapters.iceberg_stream.shell.commands import Commands
    from dbt.adapters.iceberg_stream.shell.names import NameReader
    from dbt.adapters.iceberg_stream.shell.shell import Shell

    folder = _find_project(project_dir)
    _set_defaults(PROJECT_DIR=project_dir, PROFILES_DIR=profiles_dir, TARGET=target)
    running = Shell(Commands(), _other_commands(context))
    with reduced_gc():
        if lines:
            sys.exit(running.run_lines(lines))
        if not sys.stdin.isatty():
            sys.exit(running.run_lines(sys.stdin))
        from dbt.adapters.iceberg_stream.shell.prompt import run_prompt

        names = NameReader(lambda: artifacts(folder) / "manifest.json")
        sys.exit(run_prompt(running, names))


def _find_project(project_dir: Path | None) -> Path:
    """Return the folder of the project, which dbt also finds from folders within it.

    Raises:
        click.ClickException: there is no project.
    """
    here = Path.cwd()
    for folder in (here, *here.parents) if project_dir is None else (project_dir,):
        if (folder / PROJECT_FILE).exists():
            return folder
    where = f"{here} and the folders above it" if project_dir is None else project_dir
    raise click.ClickException(
        f"There is no {PROJECT_FILE} in {where}. Start the shell in a dbt project, or give its "
        "folder with --project-dir."
    )


def _set_defaults(**options: Path | str | None) -> None:
    """Let the shell's own options be those of each command that has no other."""
    for name, value in options.items():
        if value is not None:
            text = str(value.absolute()) if isinstance(value, Path) else value
            # dbt reads both names, and prefers the longer one.
            os.environ[f"DBT_{name}"] = os.environ[f"DBT_ENGINE_{name}"] = text


def _other_commands(context: click.Context) -> set[str]:
    """Return the names of the other commands of `iceberg-stream`."""
    parent = context.parent and context.parent.command
    return set(parent.commands) - {"shell"} if isinstance(parent, click.Group) else set()
