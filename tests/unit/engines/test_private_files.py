"""What another user of the machine may have written is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.private_files import (
    create_private_folder,
    read_private,
    require_trusted,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
OTHER = 12345


def test_folders_are_for_their_owner(tmp_path: Path) -> None:
    create_private_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"belongs to another user .{OTHER}"):
        create_private_folder(tmp_path)


def test_only_private_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for mode in (0o604, 0o640, 0o602, 0o620):
        file.chmod(mode)
        with pytest.raises(PermissionError, match="chmod 600"):
            read_private(file)
    file.chmod(0o600)
    assert read_private(file) == "text"
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(PermissionError, match="not a regular file"):
        read_private(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


def test_code_that_others_may_write_is_closed_to_them(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_text("")
    jar.chmod(0o666)
    require_trusted(jar)
    assert jar.stat().st_mode & 0o777 == 0o644


@needs_root
def test_code_of_another_user(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_text("")
    os.chown(jar, OTHER, OTHER)
    with pytest.raises(PermissionError, match="belongs to another user"):
        require_trusted(jar)
