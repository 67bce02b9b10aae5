"""Files and folders that other users of the machine must not read or replace."""

from __future__ import annotations

import os
import stat
from pathlib import Path

ROOT = 0


def create_private_folder(path: Path) -> None:
    """Create a folder for its owner alone; take the rights of others from an existing one.

    Args:
        path: of the folder.

    Raises:
        PermissionError: the folder belongs to another user.
        OSError: it cannot be created.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_private_folder(path)


def require_private_folder(path: Path) -> None:
    """Require that a folder is the user's own; take the rights of others from it.

    Args:
        path: of the folder.

    Raises:
        PermissionError: the folder belongs to another user.
        FileNotFoundError: there is no folder.
    """
    # Another user's link could lead to any folder of this user, whose rights would change.
    _require_owner(path, path.lstat().st_uid, os.geteuid())
    status = path.stat()
    _require_owner(path, status.st_uid, os.geteuid())
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)


def read_private(path: Path) -> str:
    """Return the text of a file that only its owner, the user, may read or write.

    Args:
        path: of the file.

    Raises:
        PermissionError: other users may read or write it, or it is a symbolic link.
        FileNotFoundError: there is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise PermissionError(f"{path} is not a regular file") from error
    with open(descriptor) as file:
        status = os.fstat(descriptor)
        _require_owner(path, status.st_uid, os.geteuid())
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{path} must be a file for its owner alone: chmod 600 {path}")
        return file.read()


def require_trusted(path: Path) -> None:
    """Require that only the user or root can have written a file or folder.

    A file of the user that others may write loses their rights.

    Args:
        path: of the file or folder, whose content will run.

    Raises:
        PermissionError: another user may have written it.
        FileNotFoundError: there is no such file.
    """
    status = path.stat()
    _require_owner(path, status.st_uid, os.geteuid(), ROOT)
    if stat.S_IMODE(status.st_mode) & 0o022:
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} can be written by other users")
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def _require_owner(path: Path, owner: int, *allowed: int) -> None:
    if owner in allowed:
        return
    import pwd

    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise PermissionError(f"{path} belongs to another user ({name})")
