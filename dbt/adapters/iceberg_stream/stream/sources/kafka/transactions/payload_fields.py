"""What is read of a change's message, or of one about a transaction, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

# What identifies the table of a change in its `source`.
TABLE = ("name", "db", "schema", "table")
# The paths of what is read of a change, and of a message of the transaction topic.
CHANGE = (("op",), ("transaction", "id"), *(("source", name) for name in TABLE))
TRANSACTION = (("status",), ("id",))
# Only messages of the transaction topic have this list.
COLLECTIONS, COUNTS = "data_collections", ("data_collection", "event_count")


# Nothing that these consist of refers back to them, so that the garbage collector need not look.


class Transaction(Struct, gc=False):
    """The `transaction` of a change."""

    id: Any = None


class Origin(Struct, gc=False):
    """The `source` of a change, with what identifies its table."""

    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None


class Payload(Struct, gc=False):
    """What a message of Debezium or Maxwell says of its change, or of its transaction."""

    op: str | None = None
    transaction: Transaction | None = None
    source: Origin | None = None
    status: Any = None
    id: Any = None
    data_collections: Any = None
    commit: Any = None
    xid: Any = None


# Returns the payloads of messages; None for a bad or an empty one.
Parse = Callable[[Sequence[bytes]], Iterable[Payload | None]]


@dataclass
class ChangePayloads:
    """Makes payloads of changes, which share the `source` of their table."""

    _origins: dict[tuple[Any, ...], Origin | None] = field(default_factory=dict)

    def make(self, changes: Iterable[tuple[Any, ...]]) -> list[Payload | None]:
        """Return the payloads of changes.

        Args:
            changes: values at the paths of CHANGE, of each change.
        """
        # Protobuf may have an empty text for no transaction.
        return [
            Payload(operation, Transaction(id) if id else None, self._origin(table))
            for operation, id, *table in changes
        ]

    def _origin(self, table: list[Any]) -> Origin | None:
        key = tuple(table)
        if key not in self._origins:
            self._origins[key] = Origin(*(value or None for value in key)) if any(key) else None
        return self._origins[key]
