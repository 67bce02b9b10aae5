"""Reads the files of a folder in which an engine still works."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def file_contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below a folder, but those that are deleted meanwhile."""
    for parent, _, names in os.walk(folder):
        for file in (Path(parent, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    yield file, file.read_bytes()
