"""Keep the table of a stream fast to read and to write, between its commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.compaction.small_files import BYTES_AT_ONCE
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import NotByRewriting

logger = AdapterLogger("Iceberg_Stream")

# Commits after which the table is looked at, and after which it may not wait any longer.
COMMITS, MOST_COMMITS = 8, 64
# By default, where keys are indexed. Elsewhere a later stream may need the order of the rows.
COMPACTION_SHARE = 0.2
# Of narrow rows, on one core: read, written again and indexed.
BYTES_PER_SECOND = 5_000_000


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


@dataclass
class TableMaintenance:
    """Merges small files of a stream's table within a share of the stream's time.

    Attributes:
        share: of the time, from 0 to 1; None for the default.
    """

    share: float | None = None
    # Since the table was looked at, and since files were merged.
    _commits: int = 0
    _unmerged: int = 0

    def after_commit(self, sink: Sink, budget: Budget) -> None:
        """Merge small files if it is time.

        If files cannot be merged, a warning says so, and the stream goes on.

        Args:
            sink: of the table.
            budget: of the stream.

        Raises:
            Fenced: another run has taken over.
        """
        share = self._share(sink)
        self._commits += 1
        self._unmerged += 1
        if not share or self._commits < COMMITS:
            return
        # Files may have been too large for the time that was left.
        is_late = self._unmerged >= MOST_COMMITS
        most_bytes = BYTES_AT_ONCE if is_late else _bytes(budget.left(share))
        if not most_bytes:
            return
        self._commits = 0
        self._unmerged = 0 if is_late else self._unmerged
        begin = time.monotonic()
        try:
            while sink.merge_small_files(most_bytes):
                self._unmerged = 0
                spent = time.monotonic() - begin
                if not (most_bytes := _bytes(budget.left(share) - spent)):
                    break
        except StreamError:
            raise
        except (UnsupportedFile, NotByRewriting, ColumnError) as error:
            self.share = 0.0
            _warn(sink, error, "in this run")
        except (CatalogError, OSError) as error:
            # A storage or a catalog that is away comes back.
            self._commits = -MOST_COMMITS
            _warn(sink, error, "for some time")
        finally:
            budget.spent += time.monotonic() - begin

    def _share(self, sink: Sink) -> float:
        if self.share is not None:
            return self.share
        return 0.0 if sink.index is None else COMPACTION_SHARE


def _bytes(seconds: float) -> int:
    """Return the bytes that can be merged in some time."""
    return int(min(max(seconds * BYTES_PER_SECOND, 0.0), BYTES_AT_ONCE))


def _warn(sink: Sink, error: Exception, how_long: str) -> None:
    name = ".".join(sink.name)
    logger.warning(f"Small files of {name} cannot be merged, and stay {how_long}: {reason(error)}")
