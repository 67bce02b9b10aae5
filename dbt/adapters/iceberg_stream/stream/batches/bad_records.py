"""Bad records, which cannot be read: they stop the stream, or go to a table of their own.

Records of other types are neither rows nor bad: they are skipped, and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    REASON,
    SKIPPED,
    WHERE,
    MixedSource,
    Source,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

OBSERVATION = "stream"
# What Spark takes as a limit.
MAX_LIMIT = 2**31 - 1
SHOWN = 200
# Batches whose bad records were handled last. Only batches that are not committed yet are written
# again, and those are fewer.
HANDLED = 16


@dataclass(frozen=True)
class RecordCounts:
    """Counts of a batch's records that are no changes of rows.

    Attributes:
        bad: records that cannot be read.
        truncates: changes that delete all rows.
        skipped: records of other types than that which the stream reads.
    """

    bad: int = 0
    truncates: int = 0
    skipped: int = 0


def with_observation(
    frame: DataFrame, source: Source
) -> tuple[DataFrame, Callable[[], RecordCounts]]:
    """Count records while Spark reads a frame.

    Args:
        frame: the records of a batch.
        source: their source.

    Returns:
        The frame without bad and skipped records, and a function that returns the counts once all
        rows of the frame were read.
    """
    from pyspark.sql.connect import functions as f
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.plan import CollectMetrics

    counts = _counts(source)
    if not counts:
        return frame, RecordCounts
    metrics = [f.expr(sql).alias(name) for name, sql in counts.items()]
    # `frame.observe` would send a request first, to ask the server whether the frame is a stream.
    observation = Observation(OBSERVATION)
    observation._result = {}
    plan = CollectMetrics(frame._plan, observation, metrics)
    observed = readable(DataFrame(plan, frame._session), source)

    def get_counts() -> RecordCounts:
        values = observation.get
        if not values:
            # Spark does not observe a query that it optimizes away. All columns are selected,
            # because it refuses to return bad records without any other column.
            whole = f.max(f.length(f.to_json(f.struct("*"))))
            values = frame.agg(*metrics, whole).first().asDict()
        return _record_counts(values)

    return observed, get_counts


def with_counts(
    session: Session, frame: DataFrame, source: Source
) -> tuple[DataFrame, Callable[[], RecordCounts]]:
    """Count records in a query of its own, for a query that reads the frame several times.

    Spark may skip some of those reads, and an observation in a skipped read counts nothing.

    Args:
        session: of the engine.
        frame: the records of a batch.
        source: their source.

    Returns:
        The frame without bad and skipped records, and a function that returns the counts.
    """
    counts = _counts(source)
    if not counts:
        return frame, RecordCounts
    expressions = [f"{sql} as {name}" for name, sql in counts.items()]
    if source.has_bad:
        # All columns are read, as by `BadRecords.handle`.
        expressions.append("max(length(to_json(struct(*)))) as whole")
    sql = f"select {', '.join(expressions)} from __stream_records"
    record_counts = _record_counts(session.rows(sql, __stream_records=frame).to_pylist()[0])
    return readable(frame, source), lambda: record_counts


def readable(frame: DataFrame, source: Source) -> DataFrame:
    """Return the records that are rows: neither bad nor skipped.

    Args:
        frame: the records of a batch.
        source: their source.
    """
    if source.has_bad:
        frame = frame.where(f"{BAD} is null")
    return frame.where(f"not {SKIPPED}") if _has_skipped(source) else frame


def _has_skipped(source: Source) -> bool:
    return isinstance(source, MixedSource) and source.has_skipped


def _counts(source: Source) -> dict[str, str]:
    """Return SQL of the counts by their names."""
    counts = {
        "bad": (source.has_bad, f"count_if({BAD} is not null)"),
        "truncates": (source.has_truncates, f"count_if({CHANGE}.truncated)"),
        "skipped": (_has_skipped(source), f"count_if({SKIPPED})"),
    }
    return {name: sql for name, (is_possible, sql) in counts.items() if is_possible}


def _record_counts(values: Mapping[str, Any]) -> RecordCounts:
    return RecordCounts(**{name: int(values.get(name) or 0) for name in asdict(RecordCounts())})


@dataclass
class BadRecords:
    """Stops a stream at bad records, or writes them to a table of their own. Thread-safe.

    Attributes:
        write: writes rows to the table; None if bad records stop the stream.
        table: name of the table.
        limit: bad records that a run may have (`bad_record_limit`).
        count: bad records of this run so far.
    """

    write: Callable[[pa.Table], None] | None
    table: str
    limit: int
    count: int = 0
    # Two batches that are written at the same time would both create the table.
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    # How many bad records of a kind a batch has.
    _handled: deque[tuple[tuple[BatchRange, str], int]] = field(
        default_factory=lambda: deque(maxlen=HANDLED), init=False, repr=False
    )

    def handle_once(self, batch: tuple[BatchRange, str], handle: Callable[[], int]) -> int:
        """Handle the bad records of a batch, unless they are: a batch may be written again.

        Args:
            batch: the batch, and what is bad in it: records or files.
            handle: handles them, and returns how many were written to the table.

        Returns:
            How many were written to the table, now or before.
        """
        for handled, count in self._handled.copy():
            if handled == batch:
                return count
        count = handle()
        self._handled.append((batch, count))
        return count

    def handle(self, session: Session, frame: DataFrame) -> int:
        """Handle the bad records of a batch.

        Args:
            session: of the engine.
            frame: the records of the batch.

        Returns:
            How many were written to the table.

        Raises:
            StreamError: bad records stop the stream, or are too many; names the first of them.
        """
        reason = REASON if REASON in frame.columns else "'does not fit the source''s `columns`'"
        columns = (
            f"{WHERE} as place, make_valid_utf8({BAD}) as record, current_timestamp() as seen_at, "
        )
        columns += f"{reason} as reason"
        # Spark reads only the columns of a file that are selected, and finds errors only in them.
        sql = f"select {columns}, struct(*) as whole from __stream_records where {BAD} is not null"
        # One record more than the limit is enough to stop the stream.
        sql += f" limit {min(self.limit - self.count + 1, MAX_LIMIT)}"
        rows = session.rows(sql, __stream_records=frame).drop_columns(["whole"])
        if not rows.num_rows:
            return 0
        first = rows.slice(0, 1).to_pylist()[0]
        example = f"at {first['place']}: {first['record'][:SHOWN]} (it {first['reason']})"
        if self.write is None:
            raise StreamError(
                f"{rows.num_rows} records cannot be read, the first {example}\n"
                "Nothing of this batch was written. Correct the source's `columns`, or set "
                "`on_bad_record: dead_letters` to write bad records to a table."
            )
        return self._write(rows, example)

    def handle_files(self, reasons: Mapping[str, str]) -> int:
        """Handle files that cannot be read.

        Args:
            reasons: why each file cannot be read, by its path.

        Returns:
            How many were written to the table.

        Raises:
            StreamError: bad records stop the stream, or are too many.
        """
        if not reasons:
            return 0
        first = next(iter(reasons.values()))
        if self.write is None:
            raise StreamError(
                f"{first}\nNothing of this batch was written. Replace it by a complete file, or "
                "set `on_bad_record: dead_letters` to skip incomplete files and list them in a "
                "table."
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
        return self._write(rows, first)

    def _write(self, rows: pa.Table, example: str) -> int:
        assert self.write is not None
        with self._lock:
            self.count += rows.num_rows
            if self.count > self.limit:
                raise StreamError(
                    f"{self.count} records of this run cannot be read, more than the {self.limit} "
                    f"that `bad_record_limit` allows; the last ones are {example}\nThose before "
                    f"are in {self.table}. Correct the source's `columns`, or raise "
                    "`bad_record_limit`."
                )
            self.write(rows)
        return int(rows.num_rows)
