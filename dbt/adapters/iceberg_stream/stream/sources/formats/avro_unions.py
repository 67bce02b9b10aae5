"""Unions as the schemas of messages in Avro: several record types in a topic, of which one is read.

Before the record of such a message is its index: the number of its type in the union.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import (
    avro_members,
    avro_names,
    named,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError


@dataclass(frozen=True)
class UnionMember:
    """The record of a union that is read.

    Attributes:
        index: its index.
        null_index: the index of null, which is a message without a value; None without null.
        other_indexes: of the types whose messages are skipped.
    """

    index: int
    null_index: int | None = None
    other_indexes: tuple[int, ...] = ()


def record_indexes(schema: RegisteredSchema) -> dict[str, int] | None:
    """Return the indexes of the records of a union by their full names.

    Args:
        schema: the schema.

    Returns:
        The indexes; None if the schema is no union.

    Raises:
        SchemaError: it is not JSON.
    """
    members = _members(schema)
    if members is None:
        return None
    return {
        name: index for index, member in enumerate(members) for name in list(avro_names(member))[:1]
    }


def _members(schema: RegisteredSchema) -> Sequence[Any] | None:
    """Return the types of a union; None if the schema is none."""
    try:
        return avro_members(json.loads(schema.text))
    except json.JSONDecodeError as error:
        raise SchemaError(f"is no Avro schema ({error!r})") from error


def union_member(schema: RegisteredSchema, record: str | None, key: str) -> UnionMember | None:
    """Return which record is read of a schema that is a union.

    Args:
        schema: the schema.
        record: full name of the record in the union whose messages are read, while others are
            skipped; None to read the only one.
        key: the source's key that names the record.

    Returns:
        The record; None if the schema is no union.

    Raises:
        SchemaError: the union has no record, or several and none is named.
    """
    members, records = _members(schema), record_indexes(schema)
    if members is None or records is None:
        return None
    if record is None and len(records) > 1:
        raise SchemaError(
            f"is a union of {named(records)}. Set the source's `{key}` to the one to read, and "
            "others are skipped"
        )
    if not records:
        raise SchemaError(
            "is a union without a record, so it has no columns. Set the source's `format: raw` to "
            "read its messages as bytes"
        )
    index = next(iter(records.values())) if record is None else records[record]
    null_index = members.index("null") if "null" in members else None
    others = () if record is None else range(len(members))
    return UnionMember(index, null_index, tuple(n for n in others if n not in (index, null_index)))
