"""Options and helpers that the commands of `iceberg-stream` share."""

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
    help="Folder of the dbt project.",
)
profiles_dir = click.option(
    "--profiles-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of profiles.yml.  [default: as for dbt]",
)
PORT = click.IntRange(0, 65535)
target = click.option(
    "--target", "-t", help="Target of the profile.  [default: `target` of the profile]"
)


def table_name(table: str) -> tuple[str, str]:
    """Split `schema.name`.

    Raises:
        click.BadParameter: the text has another form.
    """
    parts = table.split(".")
    if len(parts) != 2:
        raise click.BadParameter(f"`{table}` must have the form schema.name.")
    return parts[0], parts[1]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert errors of the profile, the catalog and the storage to messages without traceback.

    Raises:
        click.ClickException: the block raised such an error.
    """
    try:
        yield
    except (DbtRuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
