"""What the commands of `iceberg-stream` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from dbt_common.exceptions import DbtRuntimeError

project_dir = click.option(
    "--project-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="The dbt project whose engine is meant.",
)
profiles_dir = click.option(
    "--profiles-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where profiles.yml is.  [default: as dbt finds it]",
)
PORT = click.IntRange(0, 65535)
target = click.option(
    "--target", "-t", help="The profile's target.  [default: as the profile says]"
)


def table_name(table: str) -> tuple[str, str]:
    parts = table.split(".")
    if len(parts) != 2:
        raise click.BadParameter(f"`{table}` is not of the form schema.name.")
    return parts[0], parts[1]


@contextmanager
def told_plainly() -> Iterator[None]:
    """Faults of the profile, the catalog and the storage as one message."""
    try:
        yield
    except (DbtRuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
