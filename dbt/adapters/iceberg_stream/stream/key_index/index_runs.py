"""The sorted runs of a key index, which are merged by size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder
from dbt.adapters.iceberg_stream.tables.keys.codes import Keys
from dbt.adapters.iceberg_stream.tables.keys.live_entries import LiveEntries
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    Entries,
    Indices,
    Rows,
    Run,
    RunWriter,
    merge_entries,
    merge_runs,
)

# Runs of similar size that are merged into one, a power of two; runs of the next size are so many
# times as long.
MERGED_RUNS = 8
SMALLEST_RUN = 1024


class IndexRuns:
    """Sorted runs in a folder on the local disk, which goes with the object."""

    def __init__(self) -> None:
        self._folder = TemporaryFolder("keys")
        self._names = itertools.count()
        self._runs: list[Run] = []
        # Folders of runs that may have entries of pending batches.
        self._pending: set[Path] = set()

    @property
    def folder(self) -> Path:
        """Where the runs are."""
        return self._folder.path

    @property
    def rows(self) -> int:
        """How many entries there are, those of deleted rows included."""
        return sum(run.count for run in self._runs)

    def set(self, run: Run) -> None:
        """Replace all runs by one.

        Args:
            run: the run.
        """
        self._runs = [run]

    def add(self, parts: Sequence[Entries], is_pending: bool = False) -> None:
        """Write entries to a new run.

        Args:
            parts: the entries, each part in its order.
            is_pending: whether they are of a batch that is not committed yet.
        """
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            return
        writer = RunWriter(self._new_folder())
        with ExitStack() as undo:
            undo.callback(writer.abort)
            writer.append(merge_entries(parts))
            run = writer.close()
            undo.pop_all()
        self._runs.append(run)
        if is_pending:
            self._pending.add(run.folder)

    def all_committed(self) -> None:
        """Record that there are no pending batches any more."""
        self._pending.clear()

    def count_of(self, keys: Keys, by_prefix: bool) -> int:
        """Return how many entries `find` compares with keys, at least as many as it returns.

        Args:
            keys: as for `find`.
            by_prefix: as for `find`.
        """
        return sum(run.count_of(keys, by_prefix) for run in self._runs)

    def find(self, keys: Keys, by_prefix: bool = False) -> tuple[Indices, Rows]:
        """Find the entries of keys.

        Args:
            keys: sorted by code.
            by_prefix: whether they are only the first columns of the entries' keys.

        Returns:
            Positions in `keys`, and the packed place of each row that has that key.
        """
        return _find(self._runs, keys, by_prefix)

    def find_by_run(self, keys: Keys) -> Iterator[tuple[Indices, Rows]]:
        """Yield what `find` returns, one run at a time: all of it may be many times the keys.

        Args:
            keys: sorted by code.
        """
        for run in self._runs:
            yield run.find(keys)

    def find_pending(self, keys: Keys) -> tuple[Indices, Rows]:
        """Find the entries of keys in runs that may have some of pending batches.

        Args:
            keys: sorted by code.
        """
        return _find([run for run in self._runs if run.folder in self._pending], keys)

    def merge_all(self, live: LiveEntries) -> Run | None:
        """Merge all runs into one, and return it; None if no entry is left.

        Args:
            live: the entries that stay.
        """
        self._merge(list(self._runs), live)
        return self._runs[0] if self._runs else None

    def merge_similar(self, live: Callable[[], LiveEntries]) -> None:
        """Merge runs of similar size, so that their number grows with the logarithm of the rows.

        Args:
            live: returns the entries that stay; called if runs are merged.
        """
        while (runs := self._similar()) is not None:
            self._merge(runs, live())

    def _merge(self, runs: Sequence[Run], live: LiveEntries) -> None:
        merged = merge_runs(runs, self._new_folder(), lambda entries: live.has(entries.rows))
        self._runs = [run for run in self._runs if run not in runs]
        if merged.count:
            self._runs.append(merged)
        else:
            merged.remove()
        if any(run.folder in self._pending for run in runs):
            self._pending.add(merged.folder)
        for run in runs:
            run.remove()

    def _similar(self) -> list[Run] | None:
        levels: dict[int, list[Run]] = {}
        for run in self._runs:
            level = (run.count // SMALLEST_RUN).bit_length() // (MERGED_RUNS.bit_length() - 1)
            levels.setdefault(level, []).append(run)
        return next((runs for runs in levels.values() if len(runs) >= MERGED_RUNS), None)

    def _new_folder(self) -> Path:
        return self.folder / f"run-{next(self._names)}"


def _find(runs: Sequence[Run], keys: Keys, by_prefix: bool = False) -> tuple[Indices, Rows]:
    pairs = [run.find(keys, by_prefix) for run in runs]
    indices = [np.empty(0, np.int64), *(index for index, _ in pairs)]
    rows = [np.empty(0, np.uint64), *(matches for _, matches in pairs)]
    return np.concatenate(indices), np.concatenate(rows)
