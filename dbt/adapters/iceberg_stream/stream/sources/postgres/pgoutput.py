"""Read the messages of `pgoutput`, the plugin of Postgres that decodes its log.

"Logical Replication Message Formats" in Postgres' manual, protocol version 1. Values are strings,
as Postgres writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

# A value of a row; UNCHANGED if the message leaves a large one out that an update has not changed.
Column = bytes | None
UNCHANGED = b"\0"
OF_KEY, OF_OLD_ROW, OF_NEW_ROW = b"KON"


class Change(NamedTuple):
    """A change of one row, or of all.

    Attributes:
        major: place of the transaction's commit in the log.
        minor: place of the change in its transaction.
        kind: `I`, `U`, `D`, or `T` for a truncate.
        transaction: id of its transaction, of 32 bits.
        old: the row before, or only its key, by names of columns; None if it is not said.
        new: the row after it; None if there is none.
    """

    major: int
    minor: int
    kind: str
    transaction: int = 0
    old: dict[str, Column] | None = None
    new: dict[str, Column] | None = None


@dataclass
class PgOutput:
    """Reads messages of one table; those of others are left out.

    Attributes:
        schema: of the table.
        table: its name.
    """

    schema: str
    table: str
    _columns: dict[int, Sequence[str]] = field(default_factory=dict)

    def changes(self, messages: Iterable[bytes], after: int) -> Iterator[Change]:
        """Yield the changes of the table.

        Args:
            messages: of whole transactions.
            after: the end of the last transaction that is left out, in the log.
        """
        major, transaction, numbers = 0, 0, count()
        for message in messages:
            kind = chr(message[0])
            if kind == "B":
                major, _, transaction = struct.unpack_from("!QQI", message, 1)
                numbers = count()
            elif kind == "R":
                self._read_relation(message)
            elif kind in "IUDT" and major >= after:
                for change in self._read(kind, message):
                    yield change._replace(major=major, minor=next(numbers), transaction=transaction)

    def _read_relation(self, message: bytes) -> None:
        (number,) = struct.unpack_from("!I", message, 1)
        schema, name, rest = message[5:].split(b"\0", 2)
        self._columns.pop(number, None)
        if ((schema or b"pg_catalog").decode(), name.decode()) != (self.schema, self.table):
            return
        (length,) = struct.unpack_from("!H", rest, 1)
        names, rest = [], rest[3:]
        for _ in range(length):
            name, rest = rest[1:].split(b"\0", 1)
            names.append(name.decode())
            rest = rest[8:]
        self._columns[number] = names

    def _read(self, kind: str, message: bytes) -> Iterator[Change]:
        if kind == "T":
            (length,) = struct.unpack_from("!I", message, 1)
            numbers = struct.unpack_from(f"!{length}I", message, 6)
            if not self._columns.keys().isdisjoint(numbers):
                yield Change(0, 0, kind)
            return
        (number,) = struct.unpack_from("!I", message, 1)
        if (names := self._columns.get(number)) is None:
            return
        rows, place = dict[int, dict[str, Column]](), 5
        while place < len(message):
            rows[message[place]], place = _row(message, place + 1, names)
        old = rows.get(OF_KEY, rows.get(OF_OLD_ROW))
        new = rows.get(OF_NEW_ROW)
        if new and old:
            # A null in a key is a column that is not of it.
            new = {n: old[n] or v if v is UNCHANGED else v for n, v in new.items()}
            if OF_OLD_ROW in rows:
                new = {n: None if v is UNCHANGED else v for n, v in new.items()}
        if OF_KEY in rows:
            old = {name: value for name, value in rows[OF_KEY].items() if value is not None}
        yield Change(0, 0, kind, old=old, new=new)


def _row(message: bytes, place: int, names: Sequence[str]) -> tuple[dict[str, Column], int]:
    """Return a row and the place behind it."""
    place += 2
    row = dict[str, Column]()
    for name in names:
        kind, place = message[place : place + 1], place + 1
        row[name] = None if kind == b"n" else UNCHANGED
        if kind == b"t":
            end = place + 4 + struct.unpack_from("!I", message, place)[0]
            row[name], place = message[place + 4 : end], end
    return row, place
