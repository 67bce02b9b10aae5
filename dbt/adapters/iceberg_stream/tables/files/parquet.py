"""Parquet files that roll over at a size.

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.uploads import Uploads


@dataclass(frozen=True)
class ParquetOptions:
    """How files are written; sizes in bytes, `row_group_size` of Arrow data in memory."""

    target_size: int = 128 * 1024 * 1024
    row_group_size: int = 32 * 1024 * 1024
    codec: str = "zstd"
    codec_level: int | None = None
    page_size: int = 1024 * 1024
    dictionary_size: int = 2 * 1024 * 1024

    def arguments(self) -> dict[str, Any]:
        """The same for PyArrow; as the spec stores decimals and nested names (appendix A)."""
        return {
            "compression": self.codec,
            "compression_level": self.codec_level,
            "data_page_size": self.page_size,
            "dictionary_pagesize_limit": self.dictionary_size,
            "store_decimal_as_integer": True,
            "store_schema": False,
            "version": "2.6",
        }


@dataclass(frozen=True)
class WrittenFile:
    """A finished file: its location as the caller names it, size in bytes, and Parquet footer."""

    location: str
    size: int
    footer: bytes
    row_groups: int


@dataclass
class RollingWriter:
    """Writes row groups to one file after the other; not thread-safe.

    Attributes:
        filesystem: where to.
        schema: of the files, with field ids.
        name_file: gives the location of each new file.
        path_of: a location's path on the filesystem.
        uploads: sends files after they are finished; they are there when it has finished.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    name_file: Callable[[], str]
    path_of: Callable[[str], str]
    uploads: Uploads | None = None
    finished: list[WrittenFile] = field(default_factory=list)
    _location: str = ""
    _sink: Any = None
    _writer: pq.ParquetWriter | None = None

    def __enter__(self) -> RollingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Whatever went wrong, Ctrl-C included, leaves no file."""
        if kind is not None:
            self.abort()

    def write(self, rows: pa.Table, may_roll: bool = True) -> None:
        """Add a row group; begins a new file when this one has reached its size, if it may.

        Raises:
            OSError: the storage refuses it, or is full.
        """
        if not rows.num_rows:
            return
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        if may_roll:
            self.roll_if_full()

    @property
    def location(self) -> str:
        """Of the file that was written to last."""
        return self._location

    def roll_if_full(self) -> None:
        """Finish the open file if it has reached its size."""
        if self._sink is not None and self._sink.tell() >= self.options.target_size:
            self.close()

    def close(self) -> list[WrittenFile]:
        """Finish the open file. All files so far."""
        if self._writer is not None:
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
            metadata = self._writer.writer.metadata
            self.finished.append(
                WrittenFile(self._location, size, footer_bytes(metadata), metadata.num_row_groups)
            )
            self._writer = self._sink = None
        return self.finished

    def abort(self) -> None:
        """Remove all files, finished or not; one that cannot be removed is left."""
        locations = [file.location for file in self.finished]
        if self._sink is not None:
            locations.append(self._location)
            # Closing writes the last part: a full disk fails here once more.
            with contextlib.suppress(OSError):
                if self._writer is not None:
                    self._writer.close()
            with contextlib.suppress(OSError):
                self._sink.close()
        self._writer = self._sink = None
        self.finished = []
        for location in locations:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(self.path_of(location))

    def _open(self) -> None:
        self._location = self.name_file()
        path = self.path_of(self._location)
        if isinstance(self.filesystem, fs.LocalFileSystem):
            self.filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
        open_file = self.filesystem.open_output_stream
        if self.uploads is not None:
            open_file = partial(self.uploads.open, self.filesystem)
        self._sink = open_file(path)
        self._writer = pq.ParquetWriter(self._sink, self.schema, **self.options.arguments())


def writer_beside(
    filesystem: fs.FileSystem,
    schema: pa.Schema,
    options: ParquetOptions,
    location: str,
    path: str,
    prefix: str,
) -> RollingWriter:
    """Writes a file into the folder of another one, whose path on the filesystem is given."""
    # A name of its own each time: a task may run twice.
    name = f"{prefix}{uuid.uuid4().hex[:12]}.parquet"
    beside, there = (f"{place.rsplit('/', 1)[0]}/{name}" for place in (location, path))
    return RollingWriter(filesystem, schema, options, lambda: beside, lambda _: there)


def footer_bytes(metadata: pq.FileMetaData) -> bytes:
    """A footer on its own, to be sent and read by `read_footer`."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return sink.getvalue().to_pybytes()


def read_footer(footer: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(footer))
