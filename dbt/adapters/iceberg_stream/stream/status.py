"""Count what a stream does, for logs and metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.stream.sources.source import Lag


@dataclass
class StreamStatus:
    """The status of one table of a stream; times in seconds since the epoch.

    Attributes:
        name: name of the model, or of the table of a route.
        state: starting, running, idle, stopped, failed or restarting.
        changes: rows that the query returned.
        upserts: rows that were written.
        deletes: keys whose last change in a batch is a delete.
        batches: batches that were written.
        commits: snapshots that were committed.
        bad_records: records that could not be read.
        skipped_records: records of other types than that which the stream reads.
        lag: data of the source that is not written yet; None before the first measurement.
        started: start of the run.
        polled: last poll of the source; 0 before the first.
        committed: last commit; 0 before the first.
        snapshot_id: the snapshot of the last commit.
        delete_files: delete files of the table after the last commit; None if unknown.
    """

    name: str
    state: str = "starting"
    changes: int = 0
    upserts: int = 0
    deletes: int = 0
    batches: int = 0
    commits: int = 0
    bad_records: int = 0
    skipped_records: int = 0
    lag: Lag | None = None
    started: float = field(default_factory=time.time)
    polled: float = 0.0
    committed: float = 0.0
    snapshot_id: int | None = None
    delete_files: int | None = None

    @property
    def seconds(self) -> float:
        """Return the run's duration so far."""
        return time.time() - self.started

    @property
    def changes_per_second(self) -> float:
        """Return the changes of the run over its duration."""
        return self.changes / max(self.seconds, 0.001)

    def line(self) -> str:
        """Return the status as one line of a log."""
        lag = "" if self.lag is None else f", {self.lag.count:,} {self.lag.unit} behind"
        return (
            f"{self.name}: {self.state}, {self.changes:,} changes "
            f"({self.changes_per_second:,.0f}/s), {self.commits:,} commits{lag}"
        )
