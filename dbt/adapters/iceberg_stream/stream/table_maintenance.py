"""Keep the table of a stream fast to read and to write, between its commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import NotByRewriting

logger = AdapterLogger("Iceberg_Stream")

# Commits after which the table is looked at, and after which it may not wait any longer.
COMMITS, MOST_COMMITS = 8, 64


@dataclass
class TableMaintenance:
    """Merges small files of a stream's table within a share of the run's time.

    Attributes:
        share: of the run's time, from 0 to 1; 0 merges nothing.
    """

    share: float
    _started: float = field(default_factory=time.monotonic)
    _seconds: float = 0.0
    _commits: int = 0

    def after_commit(self, sink: Sink) -> None:
        """Merge small files if it is time; errors are logged, and end the maintenance.

        Args:
            sink: of the table.

        Raises:
            Fenced: another run has taken over.
        """
        self._commits += 1
        if not self.share or not self._is_due():
            return
        begin = time.monotonic()
        try:
            while sink.merge_small_files() and self._has_time(begin):
                pass
        except StreamError:
            raise
        except (UnsupportedFile, NotByRewriting, ColumnError, CatalogError, OSError) as error:
            self.share = 0.0
            logger.warning(
                f"Small files of {'.'.join(sink.name)} cannot be merged, and stay in this "
                f"run: {error}"
            )
        self._commits = 0
        self._seconds += time.monotonic() - begin

    def _is_due(self) -> bool:
        if self._commits < COMMITS:
            return False
        return self._commits >= MOST_COMMITS or self._has_time(time.monotonic())

    def _has_time(self, begin: float) -> bool:
        now = time.monotonic()
        return self._seconds + now - begin <= self.share * (now - self._started)
