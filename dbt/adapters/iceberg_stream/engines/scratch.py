"""The folders of temporary files of the servers of a home."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.private_files import read_private
from dbt.adapters.iceberg_stream.engines.settings import Process

FOLDER = "tmp"
NAME = re.compile("[0-9a-f]{8}")
LOG_SETTINGS = "log4j2.properties"
# The symbolic link to the folder of the sockets.
SOCKETS = "sockets"
# The supervisor writes it.
SUPERVISOR = "supervisor.json"


def supervisors(home: Path) -> Iterator[tuple[Path, Process | None]]:
    """Yield the folder of each server of a home, and its supervisor.

    A supervisor withdraws the record of its server before it has ended, and may train a successor.

    Args:
        home: folder of the engine's state.

    Yields:
        The folder, and the process; None if it ended before it could say who it is.
    """
    for folder in (home / FOLDER).glob("*"):
        if not NAME.fullmatch(folder.name) or not (folder / LOG_SETTINGS).exists():
            continue  # not ours
        try:
            yield folder, Process(**json.loads(read_private(folder / SUPERVISOR)))
        except (OSError, ValueError, TypeError):
            yield folder, None


def sweep(home: Path) -> None:
    """Remove the folders of servers that were killed.

    Args:
        home: folder of the engine's state.
    """
    for folder, supervisor in supervisors(home):
        if supervisor is None or not supervisor.alive():
            with contextlib.suppress(OSError):
                shutil.rmtree((folder / SOCKETS).readlink(), ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
