"""A table of Postgres and the replication slots for it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.postgres.pgoutput import Column

if TYPE_CHECKING:
    from psycopg import Connection

Row = dict[str, Column]
DESCRIBE = """
select a.attname, format_type(a.atttypid, a.atttypmod),
  array_position(i.indkey::int2[], a.attnum), c.oid::int8, c.relreplident::text,
  c.relkind::text, c.relpersistence = 'u', has_any_column_privilege(c.oid, 'select'),
  exists (select from pg_publication_tables p
          where p.pubname = %s and p.schemaname = n.nspname and p.tablename = c.relname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
  and a.attgenerated = ''
order by a.attnum
"""
PEEK = """pg_logical_slot_peek_binary_changes(
  %s, '0/0'::pg_lsn + %s::numeric, %s, 'proto_version', '1', 'publication_names', %s)"""
# The end of a transaction, from the message of its commit: 67 is `C`.
COMMITS = f"""
select count(*), array_agg(substring(data from 11 for 8)) filter (where get_byte(data, 0) = 67)
from {PEEK}
"""
SLOTS = "select slot_name, confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
CREATE_SLOT = "select lsn - '0/0'::pg_lsn from pg_create_logical_replication_slot(%s, 'pgoutput')"
# Seconds to wait until other transactions are visible.
VISIBLE_SECONDS = 300
# Seconds to wait for a slot that another thread reads from.
SLOT_SECONDS = 120
T = TypeVar("T")
# So that values have one form, whatever the database's own settings are, and all rows are read or
# none.
SETTINGS = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c extra_float_digits=1 "
    "-c bytea_output=hex -c row_security=off -c lock_timeout=300s"
)
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Table:
    """What a table is like now.

    Attributes:
        oid: identifies it; a table that takes its name has another.
        columns: Postgres' types of the columns, by name.
        key: the columns of the primary key, in its order.
        is_full: whether the log has all columns of a deleted row.
        is_partitioned: whether its rows are those of partitions.
    """

    oid: int
    columns: dict[str, str]
    key: tuple[str, ...]
    is_full: bool
    is_partitioned: bool


@dataclass(frozen=True)
class Database:
    """A table of a database, read through connections of its own.

    Attributes:
        options: of the connections, by libpq's names.
        schema: of the table.
        name: of the table.
        publication: that has the table.
        consumer: identifies the stream that reads it, and thereby its slots.
    """

    options: Mapping[str, str] = field(repr=False)
    schema: str
    name: str
    publication: str
    consumer: str

    @property
    def table(self) -> str:
        """The table's name for people."""
        return f"{self.schema}.{self.name}"

    @contextmanager
    def connect(self) -> Iterator[Connection[Any]]:
        """Open a connection, in a transaction.

        Raises:
            StreamError: Postgres refuses.
        """
        try:
            import psycopg
        except ImportError as error:
            raise StreamError(
                'A stream from Postgres needs psycopg: pip install "dbt-iceberg-stream[postgres]".'
            ) from error
        try:
            with psycopg.connect(**self._parameters()) as connection:
                yield connection
        except psycopg.errors.ObjectInUse as error:
            raise SlotInUse(f"{self.table} cannot be read from Postgres: {_said(error)}") from error
        except psycopg.Error as error:
            why = f"{self.table} cannot be read from Postgres: {_said(error)}"
            lost = (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState)
            if isinstance(error, lost) and "slot" in str(error):
                why += (
                    " Without its replication slot, the changes since the last run are lost. Run "
                    "the model with --full-refresh, which reads the whole table."
                )
            raise StreamError(why) from error

    def _parameters(self) -> dict[str, Any]:
        host = self.options.get("host", "")
        is_local = host in LOCAL or host.startswith("/")
        secure = {} if is_local else {"sslmode": "verify-full", "sslrootcert": "system"}
        # No password of another program's file, and values in one form.
        own = {"passfile": os.devnull, "client_encoding": "UTF8", "application_name": "dbt"}
        return {**secure, **self.options, **own, "options": SETTINGS}

    def describe(self) -> Table:
        """Return what the table is like.

        Raises:
            StreamError: there is none, it has no primary key, or the publication lacks it.
        """
        with self.connect() as connection:
            names = (self.publication, self.schema, self.name)
            found = connection.execute(DESCRIBE, names).fetchall()
        if not found:
            raise StreamError(f"Postgres has no table {self.table} that this user may see.")
        *_, oid, identity, kind, is_unlogged, may_read, is_published = found[0]
        key = sorted((place, name) for name, _, place, *_ in found if place is not None)
        via_root = " with (publish_via_partition_root = true)" if kind == "p" else ""
        faults = {
            "is neither a table nor partitioned": kind not in "rp",
            "is unlogged: its changes are not in the log": is_unlogged,
            f"cannot be read by this user. Run: grant select on {self.table} to its name": (
                not may_read
            ),
            "has no primary key, which a stream from it needs": not key,
            "has another replica identity than its primary key. Run: alter table "
            f"{self.table} replica identity default": identity not in "df",
            f"is not in the publication {self.publication}. Run: create publication "
            f"{self.publication} for table {self.table}{via_root}; or, if there is one, alter it": (
                not is_published
            ),
        }
        if fault := next((text for text, is_fault in faults.items() if is_fault), None):
            raise StreamError(f"{self.table} {fault}.")
        columns = {name: kind_of for name, kind_of, *_ in found}
        names = tuple(name for _, name in key)
        return Table(oid, columns, names, identity == "f", kind == "p")

    def end_of_log(self) -> int:
        """Return the place up to which transactions are in the log for sure."""
        with self.connect() as connection:
            return _end_of_log(connection)

    @property
    def _prefix(self) -> str:
        return f"dbt_{hashlib.sha256(self.consumer.encode()).hexdigest()[:16]}_"

    def _slots(self, connection: Connection[Any]) -> dict[int, int]:
        """Return how far the stream's slots are, by their numbers."""
        found = connection.execute(f"{SLOTS} where starts_with(slot_name, %s)", [self._prefix])
        length = len(self._prefix)
        return {int(name[length:]): int(lsn) for name, lsn in found.fetchall()}

    def _drop(self, connection: Connection[Any], numbers: Sequence[int]) -> None:
        for number in numbers:
            connection.execute("select pg_drop_replication_slot(%s)", [f"{self._prefix}{number}"])

    def create_slot(self) -> tuple[str, int]:
        """Create a slot, beside the one that the stream's table may have; return where it begins.

        Raises:
            StreamError: Postgres refuses.
        """
        with self.connect() as connection:
            connection.autocommit = True
            numbers = sorted(self._slots(connection))
            # The others are of full refreshes that have failed.
            self._drop(connection, numbers[1:])
            # The log only grows, so that later slots have larger numbers.
            name = f"{self._prefix}{_end_of_log(connection)}"
            begin = connection.execute(CREATE_SLOT, [name]).fetchall()
            with ExitStack() as undo:
                undo.callback(connection.execute, "select pg_drop_replication_slot(%s)", [name])
                # What the slot does not return has to be visible to those who read the rows.
                [(newest,)] = connection.execute("select pg_current_xact_id()::text").fetchall()
                self._wait(connection, lambda least, *_: least >= int(newest))
                undo.pop_all()
            return name, int(begin[0][0])

    def wait_until_visible(self, transactions: Collection[int]) -> None:
        """Wait until queries see what transactions have changed.

        The log has a commit before others see it, for example until a standby has it, too.

        Args:
            transactions: ids of 32 bits of transactions that the log has.

        Raises:
            StreamError: they are not visible after `VISIBLE_SECONDS`.
        """

        def are_visible(least: int, end: int, running: Collection[int]) -> bool:
            # The shorter way round the numbers, of which those of the log have the last 32 bits.
            ages = ((number - end + 2**31) % 2**32 - 2**31 for number in transactions)
            return all(age < 0 and end + age not in running for age in ages)

        with self.connect() as connection:
            connection.autocommit = True
            self._wait(connection, are_visible)

    def _wait(
        self, connection: Connection[Any], is_true: Callable[[int, int, Collection[int]], bool]
    ) -> None:
        """Wait until a condition is true of a new snapshot of the database.

        Args:
            connection: in autocommit.
            is_true: gets the first transaction that is running, the one after the last that has
                ended, and those in between that are running.
        """
        end = time.monotonic() + VISIBLE_SECONDS
        while True:
            [(snapshot,)] = connection.execute("select pg_current_snapshot()::text").fetchall()
            first, last, running = str(snapshot).split(":")
            if is_true(int(first), int(last), set(map(int, filter(None, running.split(","))))):
                return
            if time.monotonic() > end:
                raise StreamError(
                    f"{self.table} cannot be read: for {VISIBLE_SECONDS} seconds, a transaction of "
                    "the database has not ended, or waits for a standby (pg_stat_activity). "
                    "Nothing was written. Retry when it has ended."
                )
            time.sleep(0.05)

    def drop_slots_except(self, slot: str) -> None:
        """Drop the stream's slots but one, which full refreshes have left."""
        with self.connect() as connection:
            numbers = self._slots(connection)
            self._drop(connection, [n for n in numbers if f"{self._prefix}{n}" != slot])

    def advance_slot(self, slot: str, lsn: int) -> None:
        """Let Postgres forget the log before a place, and drop older slots of the stream."""

        def advance(connection: Connection[Any]) -> None:
            number, slots = int(slot.removeprefix(self._prefix)), self._slots(connection)
            self._drop(connection, [other for other in slots if other < number])
            if lsn > slots.get(number, lsn):
                sql = "select pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)"
                connection.execute(sql, [slot, lsn])

        self._when_free(advance)

    def commit_after(self, slot: str, begin: int, end: int, changes: int) -> int | None:
        """Return the end of a transaction in the log; None if there is none.

        Args:
            slot: reads the log.
            begin: the end of the last transaction that was read.
            end: where the log is read to.
            changes: about how many changes to read.

        Raises:
            StreamError: the log does not have all changes any more.
        """

        def commits(connection: Connection[Any]) -> tuple[int, list[int]]:
            if self._slots(connection).get(int(slot.removeprefix(self._prefix)), begin) > begin:
                raise StreamError(
                    f"The replication slot {slot} for {self.table} was advanced by somebody else, "
                    "so changes are lost. Run the model with --full-refresh."
                )
            found = connection.execute(COMMITS, [slot, end, changes, self.publication]).fetchall()
            ends = [int.from_bytes(place, "big") for place in found[0][1] or ()]
            return int(found[0][0]), [place for place in ends if place > begin]

        while True:
            count, ends = self._when_free(commits)
            if ends or count < changes:
                return ends[-1] if ends else None
            # The slot has only changes that were read, and are not committed yet.
            changes *= 2

    def messages(self, slot: str, end: int, size: int) -> Iterator[bytes]:
        """Yield the log's messages up to a place.

        Args:
            slot: reads the log.
            end: the end of the last transaction.
            size: messages that are fetched together.

        Raises:
            StreamError: Postgres refuses.
        """
        with ExitStack() as stack:

            def first(connection: Connection[Any]) -> Iterator[tuple[bytes]]:
                cursor = stack.enter_context(connection.cursor("messages"))
                cursor.itersize = size
                parameters = [slot, end, None, self.publication]
                cursor.execute(f"select data from {PEEK}", parameters, binary=True)
                # With the first message, Postgres reads all of them from the slot, and frees it.
                found = cursor.fetchmany(1)
                return chain(found, cursor)

            for (message,) in self._when_free(first, stack):
                yield message

    def key_after(self, table: Table, after: Sequence[str] | None, rows: int) -> list[str] | None:
        """Return the key of the last one of the next rows, in the order of keys.

        Args:
            table: what the table is like.
            after: the key that they come after; None for the first ones.
            rows: their number.

        Returns:
            The key as strings; None if there are not as many rows.
        """
        names = ", ".join(map(_quoted, table.key))
        texts = ", ".join(map(_text, table.key))
        where, values = self._between(table, after, None)
        sql = f"select {texts} from {_from(self, table)} {where} order by {names} limit 1 offset %s"
        with self.connect() as connection:
            found = connection.execute(sql, [*values, max(rows, 1) - 1]).fetchall()
        return list(found[0]) if found else None

    def rows(
        self,
        table: Table,
        columns: Iterable[str],
        after: Sequence[str] | None,
        last: Sequence[str] | None,
        size: int,
    ) -> Iterator[Row]:
        """Yield rows that the table has now.

        Args:
            table: what the table is like.
            columns: to read; those that have been dropped are null.
            after: the key that they come after; None for the first ones.
            last: the last key; None for no limit.
            size: rows that are fetched together.
        """
        names = [name for name in columns if name in table.columns]
        where, values = self._between(table, after, last)
        sql = f"select {', '.join(map(_text, names))} from {_from(self, table)} {where}"
        with self.connect() as connection, connection.cursor("rows") as cursor:
            cursor.itersize = size
            for row in cursor.execute(sql, values):
                yield dict(zip(names, map(_encoded, row), strict=True))

    def rows_of(
        self, table: Table, keys: Sequence[tuple[Column, ...]]
    ) -> dict[tuple[Column, ...], Row]:
        """Return the rows that the table has of some keys now."""
        names = list(table.columns)
        arrays = [f"%s::text[]::{_type(table, name)}[]" for name in table.key]
        on = " and ".join(f"k{n} = t.{_quoted(name)}" for n, name in enumerate(table.key))
        listed = ", ".join(f"k{n}" for n in range(len(table.key)))
        sql = (
            f"select {', '.join(map(_text, names))} from {_from(self, table)} "
            f"join unnest({', '.join(arrays)}) as k({listed}) on {on}"
        )
        values = [
            [None if v is None else v.decode() for v in part] for part in zip(*keys, strict=True)
        ]
        with self.connect() as connection:
            found = [
                dict(zip(names, map(_encoded, row), strict=True))
                for row in connection.execute(sql, values)
            ]
        return {tuple(row[name] for name in table.key): row for row in found}

    def _between(
        self, table: Table, after: Sequence[str] | None, last: Sequence[str] | None
    ) -> tuple[str, list[str]]:
        """Return the condition of rows whose key is after one, and not after another."""
        names = ", ".join(map(_quoted, table.key))
        key = ", ".join(f"%s::text::{_type(table, name)}" for name in table.key)
        bounds = [
            (sign, value) for sign, value in ((">", after), ("<=", last)) if value is not None
        ]
        conditions = " and ".join(f"({names}) {sign} ({key})" for sign, _ in bounds)
        return f"where {conditions}" if bounds else "", [part for _, v in bounds for part in v]

    def _when_free(self, run: Callable[[Connection[Any]], T], stack: ExitStack | None = None) -> T:
        """Run what needs a slot, when no other thread reads from it.

        Args:
            run: gets a connection.
            stack: keeps the connection open; None to close it.
        """
        end = time.monotonic() + SLOT_SECONDS
        while True:
            try:
                with ExitStack() as own:
                    result = run(own.enter_context(self.connect()))
                    if stack is not None:
                        stack.push(own.pop_all())
                    return result
            except SlotInUse:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


class SlotInUse(StreamError):
    """Another connection reads from a slot."""


def _end_of_log(connection: Connection[Any]) -> int:
    sql = "select pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
    return int(connection.execute(sql).fetchall()[0][0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _text(name: str) -> str:
    """Return SQL of a column as the log has it, which a cast to text may not be."""
    column = f"t.{_quoted(name)}"
    return f"case when {column} is distinct from null then format('%%s', {column}) end"


def _from(database: Database, table: Table) -> str:
    """Return the table for a query. The log has the changes of its partitions, but not of heirs."""
    only = "" if table.is_partitioned else "only "
    return f"{only}{_quoted(database.schema)}.{_quoted(database.name)} t"


def _type(table: Table, name: str) -> str:
    return table.columns[name].replace("%", "%%")


def _encoded(value: str | None) -> Column:
    return None if value is None else value.encode()


def _said(error: Exception) -> str:
    """Return what Postgres says, in one line."""
    return " ".join(str(error).split()).rstrip(".") + "."
