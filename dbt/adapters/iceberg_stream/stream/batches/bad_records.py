"""Bad records, which cannot be read: they stop the stream, or go to a table of their own.

Records of other types are neither rows nor bad: they are skipped, and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
    WHERE,
    BadRecord,
    Source,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

OBSERVATION = "stream"
NO_RECORD = "does not fit the source''s `columns`"
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
        The frame without bad records, and a function that returns the counts once all
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
        The frame without bad records, and a function that returns the counts.
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
    """Return the records that are rows.

    Args:
        frame: the records of a batch.
        source: their source.
    """
    if source.has_bad:
        frame = frame.where(f"{BAD} is null")
    return frame


def _counts(source: Source) -> dict[str, str]:
    """Return SQL of the counts by their names."""
    counts = {
        "bad": (source.has_bad, f"count_if({BAD} is not null)"),
        "truncates": (source.has_truncates, f"count_if({CHANGE}.truncated)"),
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
        columns = (
            f"{WHERE} as place, make_valid_utf8({BAD}) as record, current_timestamp() as seen_at, "
            f"'{NO_RECORD}' as reason"
        )
        # Spark reads only the columns of a file that are selected, and finds errors only in them.
        sql = f"select {columns}, struct(*) as whole from __stream_records where {BAD} is not null"
        # One record more than the limit is enough to stop the stream.
        sql += f" limit {min(self.limit - self.count + 1, MAX_LIMIT)}"
        rows = session.rows(sql, __stream_records=frame).drop_columns(["whole"])
        if not rows.num_rows:
            return 0
        first = rows.slice(0, 1).to_pylist()[0]
        example = _example(BadRecord(first["place"], first["record"], first["reason"]))
        if self.write is None:
            raise _stopped(rows.num_rows, example)
        return self._write(rows, example)

    def check(self, records: Sequence[BadRecord]) -> None:
        """Check that the bad records of a batch so far do not stop the stream.

        Args:
            records: the bad records, of which there is at least one.

        Raises:
            StreamError: they do; names the first of them.
        """
        if self.write is None:
            raise _stopped(len(records), _example(records[0]))
        if self.count + len(records) > self.limit:
            raise self._too_many(self.count + len(records), _example(records[0]))

    def handle_records(self, records: Sequence[BadRecord]) -> int:
        """Write the bad records of a batch to the table, after `check`.

        Args:
            records: the bad records.

        Returns:
            How many they are.

        Raises:
            StreamError: the run has too many.
        """
        if not records:
            return 0
        places, texts, reasons = zip(*records, strict=True)
        columns = {"place": places, "record": texts, "seen_at": _now(len(records))}
        return self._write(pa.table({**columns, "reason": reasons}), _example(records[0]))

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
        rows = pa.table(
            {
                "place": list(reasons),
                "record": pa.nulls(len(reasons), pa.string()),
                "seen_at": _now(len(reasons)),
                "reason": list(reasons.values()),
            }
        )
        return self._write(rows, first)

    def _write(self, rows: pa.Table, example: str) -> int:
        assert self.write is not None
        with self._lock:
            self.count += rows.num_rows
            if self.count > self.limit:
                raise self._too_many(self.count, example)
            self.write(rows)
        return int(rows.num_rows)

    def _too_many(self, count: int, example: str) -> StreamError:
        return StreamError(
            f"{count:,} records of this run cannot be read, and `bad_record_limit` allows "
            f"{self.limit:,}. The first of this batch is {example}\nThose of earlier batches are "
            f"in {self.table}. Correct the source's definition, or raise `bad_record_limit`."
        )


def _stopped(count: int, example: str) -> StreamError:
    found = f"1 record cannot be read, {example}"
    if count > 1:
        found = f"{count:,} records cannot be read, the first {example}"
    return StreamError(
        f"{found}\nNothing of this batch was written. Correct the source's definition, or set "
        "`on_bad_record: dead_letters` to write bad records to a table."
    )


def _example(record: BadRecord) -> str:
    return f"at {record.place}: {record.record[:SHOWN]} (it {record.reason})"


def _now(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(datetime.now(timezone.utc), pa.timestamp("us", "UTC")), count)
