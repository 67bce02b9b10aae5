"""Keep the table of a stream fast to read and to write, between its commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import NotByRewriting

logger = AdapterLogger("Iceberg_Stream")

# Commits after which the table is looked at, and after which it may not wait any longer.
COMMITS, MOST_COMMITS = 8, 64
# By default, where keys are indexed. Elsewhere a later stream may need the order of the rows.
COMPACTION_SHARE = 0.2


@dataclass
class Budget:
    """The time that a stream spends on all its tables between commits.

    Attributes:
        started: when the stream began, in seconds of the monotonic clock.
        spent: seconds spent so far.
    """

    started: float = field(default_factory=time.monotonic)
    spent: float = 0.0

    def allows(self, share: float, seconds: float = 0.0) -> bool:
        """Return whether a share of the time since the beginning is not used up.

        Args:
            share: from 0 to 1.
            seconds: spent since `spent` was counted.
        """
        return self.spent + seconds <= share * (time.monotonic() - self.started)


@dataclass
class TableMaintenance:
    """Merges small files of a stream's table within a share of the stream's time.

    Attributes:
        share: of the time, from 0 to 1; None for the default.
    """

    share: float | None = None
    _commits: int = 0

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
        is_late = self._commits >= MOST_COMMITS
        if not share or not (is_late or self._commits >= COMMITS and budget.allows(share)):
            return
        self._commits = 0
        begin = time.monotonic()
        try:
            while sink.merge_small_files() and budget.allows(share, time.monotonic() - begin):
                pass
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


def _warn(sink: Sink, error: Exception, how_long: str) -> None:
    reason = error.msg if isinstance(error, DbtRuntimeError) else error
    name = ".".join(sink.name)
    logger.warning(f"Small files of {name} cannot be merged, and stay {how_long}: {reason}")
