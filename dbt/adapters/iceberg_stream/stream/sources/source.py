"""What a stream reads: a source whose changes can be named by ranges, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

Frontier = Mapping[str, Any]
# The one column that a source adds: a struct of major and minor (bigint, the change's place in its
# source), deleted and truncated (boolean).
CHANGE = "__stream"
# Columns that a source may add to those of a record: what could not be read, where it stands, why.
BAD, WHERE, REASON = "__bad", "__where", "__reason"
# A change's place in its source, where a record is read without Spark.
MAJOR, MINOR = "__major", "__minor"
# The minor of rows of one major whose order is not known.
UNKNOWN_ORDER = 1 << 62
# Of the source's columns the one that each of the table's is; None if they are more than picked.
Pick = Callable[[Sequence[str]], Mapping[str, str] | None]


@dataclass(frozen=True)
class Lag:
    """What is not read yet: rows where the source knows, else files or snapshots."""

    count: int
    unit: str


def describe(frontier: Frontier | None) -> str:
    """A frontier for messages: of files not their names, which nobody reads."""
    if frontier is None:
        return "the beginning"
    if "settled" not in frontier:
        return json.dumps(frontier)
    times = [*map(int, frontier.get("read") or {}), *(frontier.get("names") or {}).values()]
    newest = frontier.get("last") or max([frontier["settled"], *times])
    last = datetime.fromtimestamp(newest / 1000, timezone.utc)
    return f"files of up to {last.isoformat(' ', 'milliseconds')}"


class Source(Protocol):
    """A source of changes.

    A frontier says up to where the source was read, and is JSON. A batch is what lies between two
    of them, `[lower, upper)`, and can be read again as long as the source keeps it.
    """

    @property
    def ordered(self) -> bool:
        """Whether rows of a batch come in the order of the changes of each key."""

    @property
    def has_bad(self) -> bool:
        """Whether there may be records that cannot be read."""

    @property
    def has_truncates(self) -> bool:
        """Whether there may be changes that delete all rows."""

    @property
    def of_rows(self) -> bool:
        """Whether changes are of a table's rows, and not events that name a row."""

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        """The columns of a batch, or of the one that comes after a frontier, without rows."""

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        """What tells the columns of a batch, or of `empty`, where the source may change them."""

    def present(self, lower: Frontier | None) -> Frontier | None:
        """The end of all that the source has now; None if there is nothing new."""

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        """The end of the next batch of about so many rows; None if there is nothing new.

        Nothing beyond `until` is in it, which is what `present` gave before. With `whole` it is
        the end of a batch, to which all comes then.

        Raises:
            StreamError: the source does not have what comes after the frontier.
        """

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        """Whether there are changes from the one frontier to the other."""

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """The batch, with the column `__stream`, and `__bad` and `__where` where `has_bad`."""

    def lag(self, frontier: Frontier | None) -> Lag:
        """What has come since."""


@runtime_checkable
class ArrowSource(Protocol):
    """A source whose records can be read here, where Spark would make the same of them."""

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        """What is picked of a batch, MAJOR and MINOR, in the order of the changes.

        None if Spark has to read the batch.

        Raises:
            ArrowFallback: the same, seen while the rows are taken.
        """


@runtime_checkable
class UnorderedSource(Protocol):
    """A source that may not know in which order some of its rows came."""

    def lacks_order(self, lower: Frontier | None) -> bool:
        """Whether rows of the batch that was read from there have UNKNOWN_ORDER."""


@runtime_checkable
class PartitionedSource(Protocol):
    """A source of several parts, each of which has an order of its own."""

    def partitions(self, upper: Frontier) -> int:
        """How many parts a batch is read from."""


@runtime_checkable
class FileSource(Protocol):
    """A source of files, of which some may be of no use."""

    def unreadable(self, lower: Frontier | None, upper: Frontier) -> Mapping[str, str]:
        """Files of a batch that `read` leaves out, and why."""


@runtime_checkable
class LosableSource(Protocol):
    """A source that others may take something away from while it is read."""

    def require(self, lower: Frontier | None, upper: Frontier) -> None:
        """Raise StreamError if something of the batch is not there any more."""
