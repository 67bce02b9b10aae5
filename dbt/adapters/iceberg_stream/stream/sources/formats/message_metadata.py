"""Columns that take the metadata of Kafka's messages: their keys, offsets, timestamps, headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.stream.errors import StreamError

FIELDS = ("key", "topic", "partition", "offset", "timestamp", "headers")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}


@dataclass(frozen=True)
class MetadataColumns:
    """The columns of a source that take fields of Kafka's messages.

    Attributes:
        columns: their names, and the field that each takes.
    """

    columns: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: object) -> MetadataColumns:
        """Return the columns of a source's definition.

        Args:
            value: a list of fields, or a mapping of columns to fields; None for no columns.

        Raises:
            StreamError: it is something else, or names a field twice.
        """
        pairs = _pairs(value)
        names = [name.lower() for name, _ in pairs]
        wrong = [field for _, field in pairs if field not in FIELDS]
        if value is not None and (not pairs or wrong or len(set(names)) < len(names)):
            what = f"a list of {', '.join(FIELDS)}, or a mapping of columns to them"
            raise StreamError(f"{must_be('metadata_columns', value, what)}.")
        return cls(pairs)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.columns]

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return pa.schema([(name, TYPES[field]) for name, field in self.columns])

    @property
    def fields(self) -> list[str]:
        """The fields that the columns take, each once."""
        return [field for field in FIELDS if any(field == own for _, own in self.columns)]

    def require_other_names(self, others: Sequence[str]) -> None:
        """Raise StreamError if a record has a column of the same name.

        Args:
            others: the columns of the record.
        """
        taken = {name.lower() for name in others}
        if same := [name for name in self.names if name.lower() in taken]:
            raise StreamError(
                f"The source's `metadata_columns` and its records both have `{same[0]}`. Give the "
                f"column of the metadata another name, as in `metadata_columns: "
                f"{{kafka_{same[0]}: {dict(self.columns)[same[0]]}}}`."
            )


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping):
        return tuple((str(name), str(field)) for name, field in value.items())
    if isinstance(value, list | tuple):
        return tuple((str(field), str(field)) for field in value)
    return ()
