"""Reads rows of data files, row group by row group, with the names and types of a schema."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.files import FileRows
from dbt.adapters.iceberg_stream.diff.version import TableVersion
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.projection import project
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# Row groups that are read at once: memory holds all of them.
THREADS = max(2, min(4, os.cpu_count() or 2))
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _RowGroup:
    """Rows of a row group; `rows` are positions in it, None for all."""

    item: FileRows
    footer: pq.FileMetaData
    number: int
    rows: np.ndarray[Any, np.dtype[np.int64]] | None


class RowReader:
    """Reads rows of one version.

    Args:
        version: the version.
        schema: the columns.

    Attributes:
        bytes: size of the column chunks that were read, compressed.
    """

    def __init__(self, version: TableVersion, schema: Schema) -> None:
        self._metadata = version.table.metadata
        self._target = WriteTarget.of(version.table.metadata, version.table.io)
        self._filesystem = self._target.filesystem()
        self._schema = file_schema(schema)
        self._ids = {field.field_id for field in schema.fields}
        self.bytes = 0

    def read(self, files: Iterable[FileRows]) -> Iterator[pa.Table]:
        """Read rows, in the order of the files.

        Args:
            files: the rows.

        Yields:
            The rows of a row group; columns are named by their place in the schema.

        Raises:
            DiffError: a file cannot be read here.
            OSError: a file is damaged, or the storage refuses it; the message names it.
        """
        with ThreadPoolExecutor(THREADS, thread_name_prefix="diff") as pool:
            footers = _ahead(pool, self._footer, files)
            groups = (group for item, footer in footers for group in _groups(item, footer))
            for rows, size in _ahead(pool, self._read, groups):
                self.bytes += size
                yield rows

    def _footer(self, item: FileRows) -> tuple[FileRows, pq.FileMetaData]:
        location = item.file.file_path
        try:
            with (
                self._filesystem.open_input_file(self._target.path_of(location)) as opened,
                pq.ParquetFile(opened) as parquet,
            ):
                return item, parquet.metadata
        except pa.ArrowException as error:
            raise OSError(f"{location}: {error}") from error

    def _read(self, group: _RowGroup) -> tuple[pa.Table, int]:
        location = group.item.file.file_path
        try:
            with (
                self._filesystem.open_input_file(self._target.path_of(location)) as opened,
                pq.ParquetFile(opened, metadata=group.footer) as parquet,
            ):
                return self._project(parquet, group)
        except ColumnError as error:
            raise DiffError(f"{location} cannot be read: {error}") from error
        except pa.ArrowException as error:
            raise OSError(f"{location}: {error}") from error

    def _project(self, parquet: pq.ParquetFile, group: _RowGroup) -> tuple[pa.Table, int]:
        fields = parquet.schema_arrow
        if any(field_id(field) is None for field in fields):
            raise DiffError(
                f"{group.item.file.file_path} has no field ids, so its columns are not known. "
                "Rewrite the table's files: iceberg-stream maintain TABLE --only compact "
                "--option rewrite-all=true"
            )
        names = [field.name for field in fields if field_id(field) in self._ids]
        # Without a column, PyArrow does not return the number of rows.
        columns = names or [fields[0].name]
        rows = parquet.read_row_group(group.number, columns=columns)
        if group.rows is not None:
            rows = rows.take(pa.array(group.rows))
        projected = project(rows, self._target.schema_in(group.item.file, self._schema))
        table = projected.rename_columns([str(n) for n in range(projected.num_columns)])
        return table, _size(group, set(columns))


def _groups(item: FileRows, footer: pq.FileMetaData) -> Iterator[_RowGroup]:
    begin = 0
    for number in range(footer.num_row_groups):
        count = footer.row_group(number).num_rows
        rows = item.rows & BitMap(range(begin, begin + count))
        if len(rows) == count:
            yield _RowGroup(item, footer, number, None)
        elif rows:
            yield _RowGroup(item, footer, number, np.asarray(rows.to_array(), np.int64) - begin)
        begin += count


def _size(group: _RowGroup, names: set[str]) -> int:
    chunks = group.footer.row_group(group.number)
    columns = (chunks.column(index) for index in range(chunks.num_columns))
    return sum(
        chunk.total_compressed_size
        for chunk in columns
        if chunk.path_in_schema.split(".")[0] in names
    )


def _ahead(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield results in order, with a few of them computed in advance."""
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > THREADS:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
