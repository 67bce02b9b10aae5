"""Read a table of Postgres: its rows, then the changes of them from the database's log.

The log is read through SQL, by a logical replication slot that is advanced when the changes are in
the tables, and not before: until then they can be read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.values import TIME_ZONE, Values
from dbt.adapters.iceberg_stream.stream.sources.postgres.database import Database, Table
from dbt.adapters.iceberg_stream.stream.sources.postgres.pgoutput import UNCHANGED, Change, PgOutput
from dbt.adapters.iceberg_stream.stream.sources.postgres.rows import arrow_schema, records
from dbt.adapters.iceberg_stream.stream.sources.source import (
    Frontier,
    Lag,
    Records,
    RecordSource,
    empty_frame,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

# Changes that are decoded together.
TOGETHER = 10_000
# Bytes of the log that have no changes of the table, after which the slot is advanced all the same.
QUIET_BYTES = 16 * 1024 * 1024
# Seconds between records of progress without changes, without which the slot is not advanced.
IDLE_SECONDS = 30.0
logger = Logger()


@dataclass
class PostgresSource(RecordSource):
    """A table of Postgres.

    A frontier has the `oid` of the table, the name of the `slot`, the place `lsn` in the log up to
    which transactions are read, and the types of the `columns`. While the rows are read that the
    table had before, it also has the key `after` which they are read. What has changed meanwhile is
    read again from the log.

    Attributes:
        database: has the table.
        keys: columns of the table that the stream's table identifies rows by.
    """

    database: Database
    keys: Sequence[str] = ()
    _begun: tuple[str, int] | None = field(default=None, init=False)

    @property
    def of_rows(self) -> bool:
        return True

    @property
    def idle_seconds(self) -> float:
        return IDLE_SECONDS

    @property
    def has_truncates(self) -> bool:
        return True

    def registered_key(self) -> tuple[str, ...]:
        return self._table().key

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        return json.dumps(self._table().columns if upper is None else upper["columns"])

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        columns = self._table().columns if upper is None else upper["columns"]
        return empty_frame(spark, arrow_schema(columns))

    def arrow_schema(self, session: Session, lower: Frontier | None, upper: Frontier) -> pa.Schema:
        return arrow_schema(upper["columns"])

    def present(self, lower: Frontier | None) -> Frontier | None:
        self._require_same(lower)
        if lower is None:
            return self._frontier(self._begin()[0], self.database.end_of_log())
        self.database.drop_slots_except(lower["slot"])
        end = self.database.end_of_log()
        return (
            self._frontier(lower["slot"], end) if "after" in lower or end > lower["lsn"] else None
        )

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        if whole:
            raise StreamError(
                f"{self.database.table} cannot be read up to where other tables of the group are: "
                "its log does not go back to the beginning. Rebuild the group with --full-refresh."
            )
        self._require_same(lower)
        if lower is None or "after" in lower:
            slot, lsn = self._begin() if lower is None else (lower["slot"], lower["lsn"])
            key = self.database.key_after(self._table(), (lower or {}).get("after"), rows)
            return self._frontier(slot, lsn, key)
        slot, begin = lower["slot"], lower["lsn"]
        end = self.database.end_of_log() if until is None else until["lsn"]
        if (commit := self.database.commit_after(slot, begin, end, rows)) is not None:
            return self._frontier(slot, commit)
        return self._frontier(slot, end) if end - begin > QUIET_BYTES else None

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        return "after" in lower or lower["lsn"] < other["lsn"]

    def lag(self, frontier: Frontier | None) -> Lag:
        begin = 0 if frontier is None else frontier["lsn"]
        return Lag(max(0, self.database.end_of_log() - begin), "bytes of the log")

    def committed(self, frontier: Frontier) -> None:
        if "after" in frontier:
            return
        try:
            self.database.advance_slot(frontier["slot"], frontier["lsn"])
        except StreamError as error:
            # The changes are in the table; the next commit advances the slot.
            logger.debug(str(error))

    def decode(
        self, session: Session, lower: Frontier | None, upper: Frontier
    ) -> Iterator[Records]:
        values, columns = Values(session.setting(TIME_ZONE)), upper["columns"]
        with closing(self._changes(lower, upper)) as changes:
            while part := list(islice(changes, TOGETHER)):
                self._fill(part)
                yield records(part, columns, values)

    def _changes(self, lower: Frontier | None, upper: Frontier) -> Generator[Change, None, None]:
        database, table = self.database, self._table()
        if lower is None or "after" in lower:
            begin, end = (lower or {}).get("after"), upper.get("after")
            rows = database.rows(table, upper["columns"], begin, end, TOGETHER)
            for number, row in enumerate(rows):
                yield Change(0, number, "I", new=row)
            return
        own = {key.lower() for key in table.key}
        missing = [key for key in self.keys if key.lower() not in own]
        if missing and not table.is_full:
            raise StreamError(
                f"Deletes of {database.table} have only its primary key, and not "
                f"{', '.join(missing)}. Set `unique_key` to {', '.join(table.key)}, or run: alter "
                f"table {database.table} replica identity full; and then the model with "
                "--full-refresh."
            )
        output = PgOutput(database.schema, database.name)
        messages = database.messages(upper["slot"], upper["lsn"], TOGETHER)
        names = {key.lower() for key in self.keys or table.key}
        for change in output.changes(messages, lower["lsn"]):
            if change.old is not None and not names <= {name.lower() for name in change.old}:
                raise StreamError(
                    f"The log has a delete or a new key of a row of {database.table}, without "
                    f"{', '.join(sorted(names))}: it was written before the table had `replica "
                    "identity full`. Run the model with --full-refresh."
                )
            yield change._replace(old=None) if _keeps_key(change, names) else change

    def _fill(self, changes: list[Change]) -> None:
        """Fetch large values that updates leave out: what the table has of them now.

        Their next change is later in the log.
        """
        table = self._table()
        lacking = [change for change in changes if UNCHANGED in (change.new or {}).values()]
        if not lacking:
            return
        keys = [tuple((change.new or {}).get(name) for name in table.key) for change in lacking]
        self.database.wait_until_visible({change.transaction for change in lacking})
        rows = self.database.rows_of(table, keys)
        for change, key in zip(lacking, keys, strict=True):
            now, new = rows.get(key, {}), change.new or {}
            new |= {name: now.get(name) for name, value in new.items() if value == UNCHANGED}

    def _begin(self) -> tuple[str, int]:
        """Return a new slot, and the place in the log that it begins at."""
        if self._begun is None:
            self._begun = self.database.create_slot()
        return self._begun

    def _frontier(self, slot: str, lsn: int, after: Sequence[str] | None = None) -> Frontier:
        table = self._table()
        frontier = {"oid": table.oid, "slot": slot, "lsn": lsn, "columns": table.columns}
        return frontier if after is None else {**frontier, "after": list(after)}

    def _require_same(self, frontier: Frontier | None) -> None:
        """Raise StreamError if the table is another one than that of a frontier."""
        oid = self._table().oid
        if frontier is not None and frontier["oid"] != oid:
            raise StreamError(
                f"{self.database.table} is another table than the one that the stream has read: it "
                "was dropped and created again. Run the model with --full-refresh."
            )

    def _table(self) -> Table:
        return self.database.describe()


def _keeps_key(change: Change, key: Collection[str]) -> bool:
    """Return whether a change updates a row whose key stays."""
    old, new = change.old, change.new
    if old is None or new is None:
        return False
    return all(new.get(name) == value for name, value in old.items() if name.lower() in key)
