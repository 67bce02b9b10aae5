"""The fields of messages that payloads in Avro and Protobuf have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# What identifies the table of a change in its `source`.
TABLE = ("name", "db", "schema", "table")
# The paths of what is read of a change, and of a message of the transaction topic.
CHANGE = (("op",), ("transaction", "id"), *(("source", name) for name in TABLE))
TRANSACTION = (("status",), ("id",))
# Only messages of the transaction topic have this list.
COLLECTIONS, COUNTS = "data_collections", ("data_collection", "event_count")


@dataclass
class ChangePayloads:
    """Makes payloads of changes, which share the `source` of their table."""

    _sources: dict[tuple[Any, ...], dict[str, Any] | None] = field(default_factory=dict)

    def make(self, changes: Iterable[tuple[Any, ...]]) -> list[dict[str, Any] | None]:
        """Return the payloads of changes.

        Args:
            changes: values at the paths of CHANGE, of each change.
        """
        return [
            {
                "op": operation,
                # Protobuf may have an empty text for no transaction.
                "transaction": {"id": transaction} if transaction else None,
                "source": self._source(table),
            }
            for operation, transaction, *table in changes
        ]

    def _source(self, table: list[Any]) -> dict[str, Any] | None:
        key = tuple(table)
        if key not in self._sources:
            source = {name: value for name, value in zip(TABLE, key, strict=True) if value}
            self._sources[key] = source or None
        return self._sources[key]
