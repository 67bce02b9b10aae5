"""Processes a write's files in threads of this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.files.reader import OldFile
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite

WORKERS = max(1, min(4, os.cpu_count() or 1))
# Processes a write's files, here or in Spark's tasks, and yields the results in any order.
Runner = Callable[[FileRewrite, Sequence[OldFile]], Iterator[FileChange]]


def in_threads(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
    """Process a write's files in this process, in threads.

    Args:
        rewrite: the write.
        files: the files.

    Yields:
        The files' results.
    """
    _use_jemalloc()
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="rewrite") as pool:
        running = deque((file, pool.submit(rewrite.run, file)) for file in files)
        try:
            while running:
                yield running[0][1].result()
                running.popleft()
        finally:
            # After an error, remove the files of results that were not yielded.
            uncanceled = [(file, future) for file, future in running if not future.cancel()]
            for file, future in uncanceled:
                if future.exception() is None:
                    rewrite.remove(file, future.result())


def _use_jemalloc() -> None:
    """Let PyArrow allocate with jemalloc, where it has it.

    With its default, mimalloc, threads that read and write large columns spend half of their time
    on new pages of memory.
    """
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
