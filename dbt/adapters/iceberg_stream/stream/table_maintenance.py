"""Keep the table of a stream fast to read and to write, between its commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.compaction.small_files import BYTES_AT_ONCE
from dbt.adapters.iceberg_stream.tables.deletes.conversion import NotConvertible
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting

logger = Logger()

# Commits after which the table is looked at, and after which it may not wait any longer.
COMMITS, MOST_COMMITS = 8, 64
# By default, where the rows have keys. Elsewhere a later stream may need the order of the rows.
COMPACTION_SHARE = 0.2
# Of narrow rows, on one core: read, written again and indexed.
BYTES_PER_SECOND = 5_000_000
# Of number keys, on two cores: 8 million are looked up, 1.4 million if most of them are deleted.
ROWS_PER_SECOND = 2_000_000


@dataclass
class Budget:
    """The time that a stream spends on all its tables between commits.

    Attributes:
        started: when the stream began, in seconds of the monotonic clock.
        spent: seconds spent so far.
    """

    started: float = field(default_factory=time.monotonic)
    spent: float = 0.0

    def left(self, share: float) -> float:
        """Return the seconds of a share of the time since the beginning that are not spent.

        Args:
            share: from 0 to 1.
        """
        return share * (time.monotonic() - self.started) - self.spent

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of a block as spent."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent += time.monotonic() - begin


@dataclass
class TableMaintenance:
    """Converts equality deletes and compacts files, within a share of the stream's time.

    Attributes:
        share: of the time, from 0 to 1; None for the default.
        converts_deletes: whether equality deletes are converted if there is no key index.
    """

    share: float | None = None
    converts_deletes: bool = False
    # Since the table was looked at, since files were merged, and since deleted rows were sought.
    _commits: int = 0
    _unmerged: int = 0
    _unrewritten: int = 0
    # Rows that a conversion would have read when the table was looked at, which were too many.
    _rows: int = 0

    def after_commit(self, sink: Sink, budget: Budget) -> None:
        """Convert equality deletes and merge small files if it is time.

        If that is not possible, a warning says so, and the stream goes on.

        Args:
            sink: of the table.
            budget: of the stream.

        Raises:
            Fenced: another run has taken over.
        """
        share = self._share(sink)
        self._commits += 1
        self._unmerged += 1
        self._unrewritten += 1
        if not share or self._commits < COMMITS:
            return
        try:
            # Small files that equality deletes apply to are not merged.
            if not self._converts(sink) or self._convert(sink, budget, share):
                self._merge(sink, budget, share)
        except StreamError:
            raise
        except (NotConvertible, UnsupportedFile, NotByRewriting, ColumnError) as error:
            self.share = 0.0
            _warn(sink, error, "in this run")
        except (CatalogError, OSError) as error:
            # A storage or a catalog that is away comes back.
            self._commits = -MOST_COMMITS
            _warn(sink, error, "for some time")

    def _convert(self, sink: Sink, budget: Budget, share: float) -> bool:
        """Convert equality deletes; return whether there are none left.

        A conversion reads the keys of the whole table, so it waits until the time for that has been
        saved up: the larger the table, the rarer. The other half of the time is for small files.
        """
        most_rows = int(budget.left(share) / 2 * ROWS_PER_SECOND)
        # To look at the table takes time, too.
        if most_rows <= self._rows:
            return False
        self._commits = 0
        with budget.spending():
            self._rows = sink.maintenance.convert_equality_deletes(most_rows)
        return not self._rows

    def _merge(self, sink: Sink, budget: Budget, share: float) -> None:
        # Files may have been too large for the time that was left.
        is_late = self._unmerged >= MOST_COMMITS
        most_bytes = BYTES_AT_ONCE if is_late else _bytes(budget.left(share))
        if not most_bytes:
            return
        self._commits = 0
        self._unmerged = 0 if is_late else self._unmerged
        while most_bytes:
            with budget.spending():
                if not sink.maintenance.merge_small_files(most_bytes):
                    break
            self._unmerged = 0
            most_bytes = _bytes(budget.left(share))
        self._rewrite(sink, budget, share)

    def _rewrite(self, sink: Sink, budget: Budget, share: float) -> None:
        """Write files with many deleted rows again: seldom, because to look for them takes time."""
        # Half of the time stays for small files.
        most_bytes = _bytes(budget.left(share) / 2)
        if most_bytes and self._unrewritten >= MOST_COMMITS:
            self._unrewritten = 0
            with budget.spending():
                sink.maintenance.rewrite_deleted_rows(most_bytes)

    def _converts(self, sink: Sink) -> bool:
        return self.converts_deletes and sink.index is None

    def _share(self, sink: Sink) -> float:
        if self.share is not None:
            return self.share
        return COMPACTION_SHARE if sink.index is not None or self.converts_deletes else 0.0


def _bytes(seconds: float) -> int:
    """Return the bytes that can be merged in some time."""
    return int(min(max(seconds * BYTES_PER_SECOND, 0.0), BYTES_AT_ONCE))


def _warn(sink: Sink, error: Exception, how_long: str) -> None:
    name = ".".join(sink.name)
    logger.warning(
        f"Small files and equality deletes of {name} stay as they are {how_long}: {reason(error)}"
    )
