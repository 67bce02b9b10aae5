"""What the commits of one run changed in a table, added up."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome


@dataclass
class TableChange:
    """The sum of a run's commits to one table; sizes in bytes.

    Attributes:
        rows_before: rows before the first commit; None if unknown.
        rows_after: rows after the last commit; None if unknown.
        rows_inserted: rows that were added.
        rows_updated: rows that a merge counted as updated.
        rows_removed: rows that are gone, those of a replaced table included.
        bytes_written: size of the new files.
        commits: how many commits.
        is_rebuilt: whether a commit replaced all rows.
        is_warned: whether the table lost more rows than `warn_row_drop` of its model allows.
        snapshot_id: of the last commit; None without one.
        branch: that got the last commit; None for main.
    """

    rows_before: int | None = None
    rows_after: int | None = None
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_removed: int = 0
    bytes_written: int = 0
    commits: int = 0
    is_rebuilt: bool = False
    is_warned: bool = False
    snapshot_id: int | None = None
    branch: str | None = None
    _first_ms: int = 0
    _last_ms: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add a commit; those of parallel batches may arrive in any order.

        Args:
            outcome: the commit's.
        """
        if not self.commits or outcome.timestamp_ms < self._first_ms:
            self.rows_before, self._first_ms = outcome.rows_before, outcome.timestamp_ms
        if not self.commits or outcome.timestamp_ms >= self._last_ms:
            self.rows_after, self._last_ms = outcome.rows_after, outcome.timestamp_ms
            self.snapshot_id, self.branch = outcome.snapshot_id, outcome.branch
        self.rows_inserted += outcome.rows_inserted
        self.rows_updated += outcome.rows_updated
        self.rows_removed += outcome.rows_removed
        self.bytes_written += outcome.bytes_written
        self.commits += 1
        self.is_rebuilt = self.is_rebuilt or outcome.replaced_all

    @property
    def rows_changed(self) -> int:
        """How many rows were added, updated or removed."""
        return self.rows_inserted + self.rows_updated + self.rows_removed

    @property
    def share_changed(self) -> float | None:
        """The updated and removed rows as a share of the rows before; None if unknown or none."""
        if not self.rows_before:
            return None
        return min((self.rows_updated + self.rows_removed) / self.rows_before, 1.0)

    def has_lost_more_than(self, share: float) -> bool:
        """Return whether the table has lost more than a share of its rows; False if unknown.

        Args:
            share: of the rows before; exactly as it is written, for 0.3 is less as a float.
        """
        if self.rows_before is None or self.rows_after is None:
            return False
        return self.rows_before - self.rows_after > Decimal(str(share)) * self.rows_before

    @property
    def share_lost(self) -> float:
        """By what share the table has fewer rows than before; 0 if it has not, or if unknown."""
        if not self.rows_before or self.rows_after is None:
            return 0.0
        return max(1 - self.rows_after / self.rows_before, 0.0)
