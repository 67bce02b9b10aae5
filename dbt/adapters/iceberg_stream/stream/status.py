"""What a running stream says of itself, to whoever asks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.stream.sources.source import Lag


@dataclass
class StreamStatus:
    """Counts since the run began; times in seconds since the epoch.

    Attributes:
        name: the model's.
        state: starting, running, idle, stopped or failed.
        changes: rows that came from the query.
        upserts, deletes: rows that were written, and keys whose last change is a delete.
        batches, commits: how many.
        bad_records: that could not be read.
        lag: what the source has that is not written yet.
        looked, committed: when the source was asked last, and when something was committed.
    """

    name: str
    state: str = "starting"
    changes: int = 0
    upserts: int = 0
    deletes: int = 0
    batches: int = 0
    commits: int = 0
    bad_records: int = 0
    lag: Lag | None = None
    began: float = field(default_factory=time.time)
    looked: float = 0.0
    committed: float = 0.0
    snapshot_id: int | None = None

    @property
    def seconds(self) -> float:
        return time.time() - self.began

    def line(self) -> str:
        """One line for a person."""
        rate = self.changes / max(self.seconds, 0.001)
        lag = "" if self.lag is None else f", {self.lag.count:,} {self.lag.unit} behind"
        return (
            f"{self.name}: {self.state}, {self.changes:,} changes ({rate:,.0f}/s), "
            f"{self.commits:,} commits{lag}"
        )
