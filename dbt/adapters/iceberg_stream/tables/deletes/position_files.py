"""Writes the deletes of data files by position, in the form that a table's format version has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.files.data_files import PARTITION
from dbt.adapters.iceberg_stream.tables.files.deletes import write_position_deletes
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

THREADS = max(2, min(8, os.cpu_count() or 2))


def write_deletes_by_position(
    target: WriteTarget, uses_vectors: bool, name: str, deletes: Sequence[tuple[DataFile, BitMap]]
) -> dict[str, DataFile]:
    """Write a deletion vector or a position delete file for each of some data files.

    Args:
        target: the table's properties and storage.
        uses_vectors: whether the table has deletion vectors (format version 3).
        name: prefix of the files' names.
        deletes: data files, and all deleted rows of each.

    Returns:
        The descriptors of the new files, by the location of their data file.

    Raises:
        OSError: the storage refuses a file; none is left behind if it allows that.
    """
    if not deletes:
        return {}
    if uses_vectors:
        vectors = [DeletionVector(file, positions) for file, positions in deletes]
        files = write_deletion_vectors(target, name, vectors)
    else:
        files = _write_files(target, name, deletes)
    return {file.file_path: delete for (file, _), delete in zip(deletes, files, strict=True)}


def _write_files(
    target: WriteTarget, name: str, deletes: Sequence[tuple[DataFile, BitMap]]
) -> list[DataFile]:
    """Write the files in parallel: each is small, and storage requests are slow."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="position-deletes") as pool:
        futures = [
            pool.submit(_write_file, target, f"{name}-{number:05}", file, positions)
            for number, (file, positions) in enumerate(deletes)
        ]
        with ExitStack() as undo:
            undo.callback(_remove, target.io, futures)
            files = [future.result() for future in futures]
            undo.pop_all()
        return files


def _remove(io: FileIO, futures: Sequence[Future[DataFile]]) -> None:
    wait(futures)
    for future in futures:
        if future.exception() is None:
            remove_quietly(io, future.result().file_path)


def _write_file(target: WriteTarget, name: str, file: DataFile, positions: BitMap) -> DataFile:
    delete = write_position_deletes(target, name, {file.file_path: positions})
    delete[PARTITION] = file.partition
    delete.spec_id = file.spec_id
    return delete
