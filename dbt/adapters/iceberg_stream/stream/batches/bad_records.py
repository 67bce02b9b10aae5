"""Records that cannot be read: they stop the stream, or go to a table of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, CHANGE, REASON, WHERE

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

SEEN = "stream"
SHOWN = 200


@dataclass(frozen=True)
class Seen:
    """What a batch's records were, beside changes of rows."""

    bad: int
    truncates: int


def observed(
    frame: DataFrame, has_bad: bool, has_truncates: bool
) -> tuple[DataFrame, Callable[[], Seen]]:
    """The frame without bad records, and what tells of them once all rows were taken."""
    from pyspark.sql.connect import functions as f
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.plan import CollectMetrics

    counts = _counts(has_bad, has_truncates)
    if not counts:
        return frame, lambda: Seen(0, 0)
    metrics = [f.expr(sql).alias(name) for name, sql in counts.items()]
    # `frame.observe` would have the server look at the frame first, to see if it is a stream.
    observation = Observation(SEEN)
    observation._result = {}
    plan = CollectMetrics(frame._plan, observation, metrics)
    watched: DataFrame = DataFrame(plan, frame._session)
    if has_bad:
        watched = watched.where(f"{BAD} is null")

    def seen() -> Seen:
        found = observation.get
        if not found:
            # Where Spark finds that nothing is left to do, it does not observe either. All columns
            # are asked for, because it refuses to look for bad records without any other.
            whole = f.max(f.length(f.to_json(f.struct("*"))))
            found = frame.agg(*metrics, whole).first().asDict()
        return _seen(found)

    return watched, seen


def counted(
    session: Session, frame: DataFrame, has_bad: bool, has_truncates: bool
) -> tuple[DataFrame, Callable[[], Seen]]:
    """The same for a query that reads the frame several times.

    Spark may leave some of the reads out, and then it tells what those have observed: nothing.
    """
    counts = _counts(has_bad, has_truncates)
    if not counts:
        return frame, lambda: Seen(0, 0)
    listed = [f"{sql} as {name}" for name, sql in counts.items()]
    if has_bad:
        # All columns are read, as by `BadRecords.take`.
        listed.append("max(length(to_json(struct(*)))) as whole")
    sql = f"select {', '.join(listed)} from __stream_records"
    seen = _seen(session.rows(sql, __stream_records=frame).to_pylist()[0])
    return (frame.where(f"{BAD} is null") if has_bad else frame), lambda: seen


def _counts(has_bad: bool, has_truncates: bool) -> dict[str, str]:
    """What there is to count."""
    counts = {"bad": f"count_if({BAD} is not null)"} if has_bad else {}
    return counts | ({"truncates": f"count_if({CHANGE}.truncated)"} if has_truncates else {})


def _seen(counted: Mapping[str, Any]) -> Seen:
    return Seen(int(counted.get("bad") or 0), int(counted.get("truncates") or 0))


@dataclass
class BadRecords:
    """Takes the bad records of a stream.

    Attributes:
        keep: writes them to a table; None where they stop the stream.
        table: its name.
        limit: how many a run may have.
    """

    keep: Callable[[pa.Table], None] | None
    table: str
    limit: int
    count: int = 0

    def take(self, session: Session, frame: DataFrame) -> int:
        """Keep the bad records of a batch: how many.

        Raises:
            StreamError: they are to stop the stream, or are too many; names the first of them.
        """
        reason = REASON if REASON in frame.columns else "'does not fit the source''s `columns`'"
        columns = (
            f"{WHERE} as place, make_valid_utf8({BAD}) as record, current_timestamp() as seen_at, "
        )
        columns += f"{reason} as reason"
        # Of a file Spark reads only the columns that are asked for, and finds the faults in those.
        sql = f"select {columns}, struct(*) as whole from __stream_records where {BAD} is not null"
        # One too many is enough to stop.
        sql += f" limit {self.limit - self.count + 1}"
        rows = session.rows(sql, __stream_records=frame).drop_columns(["whole"])
        first = rows.slice(0, 1).to_pylist()[0]
        example = f"at {first['place']}: {first['record'][:SHOWN]} (it {first['reason']})"
        if self.keep is None:
            raise StreamError(
                f"{rows.num_rows} records cannot be read, the first {example}\n"
                "Nothing of this batch was written. Mend the columns, or let such records go to a "
                "table: on_bad_record: dead_letters."
            )
        return self._keep(rows, example)

    def take_files(self, reasons: Mapping[str, str]) -> int:
        """Keep the places of files that cannot be read, and why: how many.

        Raises:
            StreamError: they are to stop the stream, or are too many.
        """
        if not reasons:
            return 0
        first = next(iter(reasons.values()))
        if self.keep is None:
            raise StreamError(
                f"{first}\nNothing of this batch was written. Put a whole file in its place, or "
                "have such files listed in a table and left out: on_bad_record: dead_letters."
            )
        now = datetime.now(timezone.utc)
        rows = pa.table(
            {
                "place": list(reasons),
                "record": pa.nulls(len(reasons), pa.string()),
                "seen_at": pa.array([now] * len(reasons), pa.timestamp("us", "UTC")),
                "reason": list(reasons.values()),
            }
        )
        return self._keep(rows, first)

    def _keep(self, rows: pa.Table, example: str) -> int:
        assert self.keep is not None
        self.count += rows.num_rows
        if self.count > self.limit:
            raise StreamError(
                f"{self.count} records of this run cannot be read, more than the {self.limit} that "
                f"`bad_record_limit` allows; the last ones are {example}\nThose before are in "
                f"{self.table}."
            )
        self.keep(rows)
        return int(rows.num_rows)
