"""Which files dbt reads when it parses a project, and whether they have changed since."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dbt.config import Project

# In each project's own folder: dbt_project.yml, packages.yml, selectors.yml and so on.
ROOT_SUFFIXES = (".yml", ".yaml")
IGNORE_FILE = ".dbtignore"
# How the names of files begin that dbt ignores, such as an editor's backups.
TEMPORARY = (".", "#", "~")
# File systems round times of change, some to two seconds: a second edit within that time may leave
# the size and the times as they are.
TIME_RESOLUTION_NS = 2_000_000_000


@dataclass(frozen=True)
class FileState:
    """What changes when somebody changes a file.

    Attributes:
        size: in bytes.
        inode: another one after an editor has replaced the file.
        modified_ns: time of the last change of its content, which programs may set.
        changed_ns: time of the last change of its content or attributes, which they cannot set.
        digest: of the content, if its times are too recent to tell a further change.
    """

    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    digest: str | None = None

    def is_same(self, later: FileState, path: str) -> bool:
        """Return whether the file is unchanged.

        Args:
            later: its state now.
            path: of the file.
        """
        if self._times() != later._times():
            return False
        return self.digest is None or self.digest == (later.digest or _digest(path))

    def _times(self) -> tuple[int, int, int, int]:
        return self.size, self.inode, self.modified_ns, self.changed_ns


# A file that cannot be read, such as a broken symbolic link, has no state.
FileStates = Mapping[str, FileState | None]


def read_states(projects: Iterable[Project]) -> FileStates:
    """Return the states of the files that dbt parses.

    Args:
        projects: the project, and the packages that it uses.
    """
    return {path: read_state(path) for project in projects for path in _paths(project)}


def are_same(before: FileStates, now: FileStates) -> bool:
    """Return whether no file was added, changed or removed.

    Args:
        before: the states at an earlier time.
        now: the current states.
    """
    if before.keys() != now.keys():
        return False
    for path, state in before.items():
        current = now[path]
        if state is None or current is None:
            if state is not current:
                return False
        elif not state.is_same(current, path):
            return False
    return True


def _paths(project: Project) -> Iterator[str]:
    """Yield the files of a project that dbt reads; some of them twice."""
    from dbt.parser.read_files import get_file_types_for_project

    root = str(project.project_root)
    suffixes: dict[str, set[str]] = {}
    for kind in get_file_types_for_project(project).values():
        for folder in kind["paths"]:
            suffixes.setdefault(os.path.join(root, folder), set()).update(kind["extensions"])
    for folder, endings in suffixes.items():
        for parent, _, names in os.walk(folder):
            for name in names:
                if name[0] not in TEMPORARY and os.path.splitext(name)[1].lower() in endings:
                    yield os.path.join(parent, name)
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name == IGNORE_FILE or entry.name.endswith(ROOT_SUFFIXES):
                yield entry.path


def read_state(path: str) -> FileState | None:
    """Return the state of a file; None if it cannot be read.

    Args:
        path: of the file.
    """
    try:
        status = os.stat(path)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        is_recent = changed > time.time_ns() - TIME_RESOLUTION_NS
        digest = _digest(path) if is_recent else None
    except OSError:
        return None
    return FileState(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, digest)


def _digest(path: str) -> str | None:
    """Return a hash of a file's content; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
