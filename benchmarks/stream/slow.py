"""Local files that answer as late as those of an object store."""

from __future__ import annotations

import time
from typing import Any

import pyarrow.fs as fs
from pyiceberg.io.pyarrow import PyArrowFileIO


class SlowFiles(fs.FileSystemHandler):
    """A local filesystem that sleeps before it opens, looks up or deletes a file, and counts."""

    def __init__(self, delay: float) -> None:
        self._files = fs.LocalFileSystem()
        self.delay = delay
        self.written = 0
        self.asked = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def _ask(self) -> fs.LocalFileSystem:
        self.asked += 1
        if self.delay:
            time.sleep(self.delay)
        return self._files

    def get_type_name(self) -> str:
        return "slow"

    def normalize_path(self, path: str) -> str:
        return self._files.normalize_path(path)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return self._ask().get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._ask().get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        return self._ask().open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> Any:
        return self._ask().open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.written += 1
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        return self._ask().open_output_stream(path, compression=None)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._ask().delete_file(path)

    # An object store has no folders: these cost nothing.

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        self._files.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._files.copy_file(src, dest)


class SlowFileIO(PyArrowFileIO):
    """PyIceberg's way to such files."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.files = SlowFiles(delay)
        self._slow = fs.PyFileSystem(self.files)

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return self._slow
