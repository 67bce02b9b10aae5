"""Sources of streams: their changes are read in ranges, and can be read again.

A *frontier* is a position in a source, like an offset in Spark's Structured Streaming: all changes
before it are read. It is a JSON object whose keys depend on the source (offsets of Kafka's
partitions, names of files, or a snapshot id), and it is stored in the table that the stream writes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

Frontier = Mapping[str, Any]
# The column that every source adds: a struct of major and minor (bigint, the change's position in
# the source), deleted and truncated (boolean).
# All names begin so, and not like columns that records have, such as `__deleted` of Debezium.
CHANGE = "__stream"
# SQL of a change without an order.
NO_CHANGE = "named_struct('major', 0L, 'minor', 0L, 'deleted', false, 'truncated', false)"
# Columns that Spark's readers of files add to a record: its text if it is bad, and its position.
BAD, WHERE = "__stream_bad", "__stream_where"
# All columns that say what a record is.
RECORD_COLUMNS = (BAD, WHERE)
# Columns of a change's position in the source, if this process reads the records.
MAJOR, MINOR = "__stream_major", "__stream_minor"
# Columns that this process may add: whether the change deletes the row, or all rows. Without them,
# none does.
ROW_DELETED, TRUNCATED = "__stream_row_deleted", "__stream_row_truncated"
HIDDEN = (MAJOR, MINOR, ROW_DELETED, TRUNCATED)
# The minor of rows of one major whose order is not known.
UNKNOWN_ORDER = 1 << 62
# Returns the source's columns that are needed, given all columns that PyArrow can read; None if
# Spark has to read whole rows.
Pick = Callable[[pa.Schema], Collection[str] | None]


@dataclass(frozen=True)
class Lag:
    """What a source has that is not read yet.

    Attributes:
        count: how many units.
        unit: rows if the source can count them, else files or snapshots.
    """

    count: int
    unit: str


def describe(frontier: Frontier | None) -> str:
    """Return a frontier as text for messages; for files, their time instead of their names.

    Args:
        frontier: of any source; None for the source's beginning.
    """
    if frontier is None:
        return "the beginning"
    if "settled" not in frontier:
        return json.dumps(frontier)
    times = [*map(int, frontier.get("read") or {}), *(frontier.get("names") or {}).values()]
    newest = frontier.get("last") or max([frontier["settled"], *times])
    last = datetime.fromtimestamp(newest / 1000, timezone.utc)
    return f"files of up to {last.isoformat(' ', 'milliseconds')}"


class Source(ABC):
    """A source of changes, which Spark reads; see RecordSource for others.

    A batch is the changes between two frontiers, `[lower, upper)`. It can be read again as long as
    the source retains its changes. A lower frontier of None is the source's beginning. Whatever a
    batch is read with, such as the ids of schemas, is in its frontiers.

    Sources override what their kind needs: most need little more than the abstract methods.
    """

    @property
    def ordered(self) -> bool:
        """Whether rows of a batch come in the order of the changes of each key."""
        return True

    @property
    def has_bad(self) -> bool:
        """Whether `read` returns BAD and WHERE."""
        return False

    @property
    def has_truncates(self) -> bool:
        """Whether there may be changes that delete all rows."""
        return False

    @property
    def of_rows(self) -> bool:
        """Whether the changes are of a table's rows, and not events that name a row."""
        return False

    @property
    def idle_seconds(self) -> float:
        """After how many seconds without changes progress is recorded."""
        return 3600.0

    @abstractmethod
    def present(self, lower: Frontier | None) -> Frontier | None:
        """Return the end of all that the source has now.

        Args:
            lower: the frontier up to which the source was read.

        Returns:
            The frontier; None if nothing is after `lower`.
        """

    @abstractmethod
    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        """Return the end of the next batch.

        Args:
            lower: the frontier that the batch begins at.
            rows: about how many rows the batch has.
            until: a frontier that the batch must not exceed, from `present`.
            whole: whether `until` is the end of a batch that other tables have committed, so that
                transactions up to it are complete.

        Returns:
            The frontier; None if there is nothing new.

        Raises:
            StreamError: the source does not retain what is after `lower`.
        """

    @abstractmethod
    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        """Return whether there are changes between two frontiers.

        Args:
            lower: a frontier.
            other: a frontier that may be later.
        """

    @abstractmethod
    def lag(self, frontier: Frontier | None) -> Lag:
        """Return how much the source has after a frontier.

        Args:
            frontier: the frontier up to which the source was read.
        """

    @abstractmethod
    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        """Return a frame with the columns of a batch and without rows.

        Args:
            spark: the Spark session.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at; None for the next batch.
        """

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """Return the rows of a batch; not of a RecordSource.

        Args:
            spark: the Spark session.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.

        Returns:
            A frame with the column `__stream`, and with BAD and WHERE if `has_bad`.
        """
        raise NotImplementedError

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        """Return an id of the columns of a batch; empty if the source's columns never change.

        Args:
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at; None for the next batch.
        """
        return ""

    def pin(self, lower: Frontier | None, upper: Frontier) -> Frontier:
        """Return a frontier that this source can be read up to, although another has planned it.

        Args:
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at, of a source of the same identity.
        """
        return upper

    def committed(self, frontier: Frontier) -> None:  # noqa: B027
        """Let the source forget what is before a frontier, which the table has.

        Args:
            frontier: the end of the last batch that is committed.
        """

    def registered_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row, as far as the source knows them.

        Raises:
            StreamError: the source deletes rows, and does not know which.
        """
        return ()

    def share_reads(self, other: Source) -> None:  # noqa: B027
        """Plan batches that another table of the stream can read, too, with what this one keeps.

        Args:
            other: the source, whose batches this one plans.
        """

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a batch that PyArrow reads as Spark would.

        Args:
            session: of the engine.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.
            pick: selects the columns.

        Returns:
            The picked columns, MAJOR and MINOR, in the order of the changes; None if Spark has to
            read the batch.

        Raises:
            ArrowFallback: Spark has to read the batch; raised while the rows are read.
        """
        return None

    def unreadable(self, lower: Frontier | None, upper: Frontier) -> Mapping[str, str]:
        """Return why `read` leaves out files of a batch, by their path.

        Args:
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.
        """
        return {}

    def lacks_order(self, lower: Frontier | None) -> bool:
        """Return whether rows of a batch have UNKNOWN_ORDER; call it after `read`.

        Args:
            lower: the frontier that the batch begins at.
        """
        return False

    def partitions(self, upper: Frontier) -> int:
        """Return how many partitions, of which each has its own order, a batch is read from.

        Args:
            upper: the frontier that the batch ends at.
        """
        return 1

    def require(self, lower: Frontier | None, upper: Frontier) -> None:  # noqa: B027
        """Check that the source still has the changes of a batch, which could not be read.

        Args:
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.

        Raises:
            StreamError: changes of the batch were removed from the source.
        """

    def close(self) -> None:  # noqa: B027
        """Close the connections that are kept between batches; no batch is being read."""


class BadRecord(NamedTuple):
    """A record that cannot be read.

    Attributes:
        place: its position, for people.
        record: the record as text.
        reason: why it cannot be read; it follows `it `.
    """

    place: str
    record: str
    reason: str


@dataclass(frozen=True)
class Records:
    """Some records of a batch.

    Attributes:
        rows: the rows in them, in the order of the changes: the source's columns, MAJOR and MINOR,
            and maybe ROW_DELETED and TRUNCATED.
        bad: records that cannot be read.
        skipped: how many records are of other types.
    """

    rows: pa.RecordBatch
    bad: Sequence[BadRecord] = ()
    skipped: int = 0


class RecordSource(Source):
    """A source whose records this process decodes."""

    @abstractmethod
    def arrow_schema(self, session: Session, lower: Frontier | None, upper: Frontier) -> pa.Schema:
        """Return the columns of a batch.

        Args:
            session: of the engine.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.
        """

    @abstractmethod
    def decode(
        self, session: Session, lower: Frontier | None, upper: Frontier
    ) -> Iterator[Records]:
        """Yield the records of a batch.

        Args:
            session: of the engine.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.

        Raises:
            StreamError: the source does not have them any more, or refuses.
        """


def empty_frame(spark: SparkSession, columns: pa.Schema) -> DataFrame:
    """Return a frame with columns, and CHANGE, and without rows.

    Args:
        spark: the Spark session.
        columns: the columns.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = spark.createDataFrame([], from_arrow_schema(columns, prefer_timestamp_ntz=True))
    return frame.selectExpr("*", f"{NO_CHANGE} as {CHANGE}")
