"""Writes Parquet files that roll over at a target size.

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.uploads import Uploads

# Rows by which is decided whether the values of a column repeat: so many slices, of so many rows.
SLICES, SLICE_ROWS = 16, 256


@dataclass(frozen=True)
class ParquetOptions:
    """How files are written; sizes in bytes.

    Attributes:
        target_size: of a file.
        row_group_size: of a row group as Arrow data in memory.
        codec: compression codec.
        codec_level: compression level; None for the codec's default.
        page_size: of a data page.
        dictionary_size: of a column's dictionary.
        dictionary_columns: columns that have dictionaries; None for those whose values repeat.
    """

    target_size: int = 128 * 1024 * 1024
    row_group_size: int = 32 * 1024 * 1024
    codec: str = "zstd"
    codec_level: int | None = None
    page_size: int = 1024 * 1024
    dictionary_size: int = 2 * 1024 * 1024
    dictionary_columns: tuple[str, ...] | None = None

    def arguments(self, rows: pa.Table) -> dict[str, Any]:
        """Return PyArrow's arguments, which follow the specification (spec, "Appendix A").

        Args:
            rows: the first row group.
        """
        columns = self.dictionary_columns
        return {
            "compression": self.codec,
            "compression_level": self.codec_level,
            "data_page_size": self.page_size,
            "dictionary_pagesize_limit": self.dictionary_size,
            "use_dictionary": [*(repeating_columns(rows) if columns is None else columns)],
            "store_decimal_as_integer": True,
            "store_schema": False,
            "write_statistics": [*_columns_with_statistics(rows.schema)],
            "version": "2.6",
        }


@dataclass(frozen=True)
class WrittenFile:
    """A finished file.

    Attributes:
        location: as the table's metadata have it.
        size: in bytes.
        footer: the Parquet footer; see `read_footer`.
        row_groups: number of row groups.
    """

    location: str
    size: int
    footer: bytes
    row_groups: int


@dataclass
class RollingWriter:
    """Writes row groups to one file after the other; not thread-safe.

    Attributes:
        filesystem: of the files.
        schema: of the files, with field ids.
        options: how files are written.
        name_file: returns the location of each new file.
        path_of: returns a location's path on the filesystem.
        uploads: uploads files in the background, if set; they exist after `Uploads.finish`.
        finished: the finished files.
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
        """Remove all files after an error, Ctrl-C included."""
        if kind is not None:
            self.abort()

    def write(self, rows: pa.Table, may_roll: bool = True) -> None:
        """Write a row group.

        Args:
            rows: the row group.
            may_roll: finish the file if it has reached the target size.

        Raises:
            OSError: the storage refuses the file, or is full.
        """
        if not rows.num_rows:
            return
        if self._writer is None:
            self._open(rows)
        assert self._writer is not None
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        if may_roll:
            self.roll_if_full()

    @property
    def location(self) -> str:
        """Location of the current or last file."""
        return self._location

    def roll_if_full(self) -> None:
        """Finish the open file if it has reached the target size."""
        if self._sink is not None and self._sink.tell() >= self.options.target_size:
            self.close()

    def close(self) -> list[WrittenFile]:
        """Finish the open file.

        Returns:
            All finished files.
        """
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
        """Remove all files, finished or not, as far as the storage allows."""
        locations = [file.location for file in self.finished]
        if self._sink is not None:
            locations.append(self._location)
            # Closing writes the last part, which fails again on a full disk.
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

    def _open(self, rows: pa.Table) -> None:
        self._location = self.name_file()
        path = self.path_of(self._location)
        if isinstance(self.filesystem, fs.LocalFileSystem):
            self.filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
        open_file = self.filesystem.open_output_stream
        if self.uploads is not None:
            open_file = partial(self.uploads.open, self.filesystem)
        self._sink = open_file(path)
        self._writer = pq.ParquetWriter(self._sink, self.schema, **self.options.arguments(rows))


def _columns_with_statistics(schema: pa.Schema) -> Iterator[str]:
    """Yield the paths of the columns that have statistics, and bounds in manifests: no UUIDs.

    Iceberg Java (1.12) compares UUIDs in another order than the specification's, and so Spark would
    skip files and row groups that have the rows.
    """
    for column in schema:
        for path, kind in _leaves(column):
            if kind != pa.uuid():
                yield path


def repeating_columns(rows: pa.Table) -> Iterator[str]:
    """Yield the paths of the columns that are written with a dictionary.

    Dictionaries of unique values make files larger, and take longer to write than the values. What
    is nested always has dictionaries.

    Args:
        rows: of a file.
    """
    count = rows.num_rows
    step = max(SLICE_ROWS, count // SLICES)
    slices = [rows.slice(begin, SLICE_ROWS) for begin in range(0, count, step)]
    sample = pa.concat_tables(slices) if slices else rows
    for name, column in zip(rows.column_names, sample.columns, strict=True):
        if pa.types.is_nested(column.type):
            yield from (path for path, _ in _leaves(rows.schema.field(name)))
        elif _repeats(column, count / max(1, sample.num_rows)):
            yield name


def _repeats(sample: pa.ChunkedArray, factor: float) -> bool:
    """Return whether a column probably has each value twice or more.

    The sample has one of `factor` rows.
    """
    values = sample.drop_null()
    if isinstance(values.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type.storage_type)
    repeats = len(values) - pc.count_distinct(values).as_py()
    # Of n values, a sample of s has about s * s / 2n that are there already.
    return bool(len(values) <= max(2.0, factor) * repeats)


def _leaves(field: pa.Field, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the paths of a field's columns in files, as PyArrow names them, and their types."""
    kind, path = field.type, prefix + field.name
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(kind.field(index), f"{path}.")
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pa.types.is_nested(kind):
        yield from _leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path, kind


def writer_beside(
    filesystem: fs.FileSystem,
    schema: pa.Schema,
    options: ParquetOptions,
    location: str,
    path: str,
    prefix: str,
) -> RollingWriter:
    """Return a writer of one file in the folder of another one.

    Args:
        filesystem: of the files.
        schema: of the new file.
        options: how the file is written.
        location: of the other file.
        path: the other file's path on the filesystem.
        prefix: of the new file's name.
    """
    # The name is unique because a task may run twice.
    name = f"{prefix}{uuid.uuid4().hex[:12]}.parquet"
    new_location, new_path = (f"{file.rsplit('/', 1)[0]}/{name}" for file in (location, path))
    return RollingWriter(filesystem, schema, options, lambda: new_location, lambda _: new_path)


def footer_bytes(metadata: pq.FileMetaData) -> bytes:
    """Serialize a footer; `read_footer` reads it."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return sink.getvalue().to_pybytes()


def read_footer(footer: bytes) -> pq.FileMetaData:
    """Parse a footer that `footer_bytes` serialized."""
    return pq.read_metadata(pa.BufferReader(footer))
