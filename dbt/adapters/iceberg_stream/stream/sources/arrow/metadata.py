"""Add the metadata of Kafka's messages to the rows that PyArrow decodes them to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import (
    METADATA,
    MetadataColumns,
)
from dbt.adapters.iceberg_stream.stream.sources.source import MINOR, Pick

if TYPE_CHECKING:
    from confluent_kafka import Message

OFFSET = "offset"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    OFFSET: pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}

# Decodes messages to the picked columns.
Decode = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read_metadata(messages: Sequence[Message], fields: Sequence[str]) -> dict[str, pa.Array]:
    """Return fields of messages, by the names of their columns in a batch.

    Args:
        messages: the messages.
        fields: some of FIELDS without `offset`, which all batches have.
    """
    return {column_of(name): READERS[name](messages) for name in fields}


def column_of(name: str) -> str:
    """Return the column of a batch of messages that has a field."""
    return name if name == OFFSET else f"{METADATA}.{name}"


def _timestamps(messages: Sequence[Message]) -> pa.Array:
    milliseconds = pa.array([message.timestamp()[1] for message in messages], pa.int64())
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(TYPES["timestamp"])


def _headers(messages: Sequence[Message]) -> pa.Array:
    lists: Iterable[Any] = (message.headers() for message in messages)
    # As in Spark, a message without headers has null.
    pairs = [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in lists
    ]
    return pa.array(pairs, HEADERS)


READERS: dict[str, Callable[[Sequence[Message]], pa.Array]] = {
    "key": lambda messages: pa.array([message.key() for message in messages], TYPES["key"]),
    "topic": lambda messages: pa.array([message.topic() for message in messages], TYPES["topic"]),
    "partition": lambda messages: pa.array(
        [message.partition() for message in messages], TYPES["partition"]
    ),
    "timestamp": _timestamps,
    "headers": _headers,
}


@dataclass
class ArrowMetadata:
    """Picks columns of the messages' metadata, besides those of the records.

    Attributes:
        columns: the columns that take metadata.
    """

    columns: MetadataColumns
    _picked: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def fields(self) -> list[str]:
        """The fields that batches of messages must have for the picked columns, besides offsets."""
        return [name for name in dict.fromkeys(self._picked.values()) if name != OFFSET]

    def picking(self, pick: Pick) -> Pick:
        """Return a function that picks columns of the records; `adding` adds those of the metadata.

        Args:
            pick: picks columns of both.
        """
        if not self.columns.columns:
            return pick
        own = dict(self.columns.columns)

        def pick_of_record(schema: pa.Schema) -> Mapping[str, str] | None:
            self.columns.require_other_names(schema.names)
            metadata = [pa.field(name, TYPES[taken]) for name, taken in self.columns.columns]
            columns = pick(pa.schema([*schema, *metadata]))
            if columns is None:
                return None
            self._picked = {name: own[column] for name, column in columns.items() if column in own}
            # Without a column, the decoders do not know how many rows there are.
            return {n: column for n, column in columns.items() if column not in own} or None

        return pick_of_record

    def adding(self, decode: Decode) -> Decode:
        """Return what decodes messages and adds the picked columns of their metadata.

        Args:
            decode: decodes messages, and may leave some out.
        """
        return self._decode(decode) if self._picked else decode

    def _decode(self, decode: Decode) -> Decode:
        def decoded(messages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in messages:
                # The numbers of the messages in place of their offsets tell which ones are left.
                numbers = pa.arange(0, batch.num_rows)
                place = batch.schema.get_field_index(OFFSET)
                for rows in decode([batch.set_column(place, OFFSET, numbers)]):
                    yield self._with_metadata(rows, batch)

        return decoded

    def _with_metadata(self, rows: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        picked = {MINOR: OFFSET} | {name: column_of(own) for name, own in self._picked.items()}
        of_rows = batch.select(list(set(picked.values()))).take(rows[MINOR])
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns |= {name: of_rows[column] for name, column in picked.items()}
        return pa.record_batch(columns)
