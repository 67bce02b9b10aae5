"""Schemas of the messages of a batch, and the columns that take their records.

Each message is read with the schema that it was written with, and its fields go to columns that
take the fields of all schemas. Avro's own resolution to one schema would drop fields that a newer
schema lacks, and fill others with defaults in those rows only that are read late.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import parse_avro
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import union_member
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope, spelled_as
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import with_flags
from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_types import parse_json_schema
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import MessageLayout
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_types import record_type
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import (
    record_names,
    require_record_type,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import (
    AFTER,
    BEFORE,
    OPERATION,
    SOURCE,
    TABLE,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import (
    require_castable,
    require_columns,
    require_same_members,
    widened,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    SchemaError,
    Struct,
    unwrap,
)

# Names of the kinds of schemas, and the value of `format` or `encoding` that reads them.
KINDS = {
    "AVRO": ("Avro", "avro"),
    "PROTOBUF": ("Protobuf", "protobuf"),
    "JSON": ("JSON Schema", "json"),
}


@dataclass(frozen=True)
class Writer:
    """Schemas whose messages are read in the same way.

    Attributes:
        ids: of the schemas.
        record: the message's type.
        row: the type of the rows in it.
        layout: what its format needs besides to read a message.
    """

    ids: tuple[int, ...]
    record: Struct
    row: Struct
    layout: Hashable = None


@dataclass(frozen=True)
class MessageSchemas:
    """The schemas of a batch's messages, and the columns that take their records.

    Attributes:
        columns: that their records become.
        writers: schemas that can be read.
        unreadable: why messages cannot be read, by the ids of their schemas.
        others: names of record types that are skipped, by the ids of their schemas.
    """

    columns: pa.Schema
    writers: tuple[Writer, ...]
    unreadable: Mapping[int, str] = field(default_factory=dict)
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)


def message_schemas(
    schemas: Sequence[RegisteredSchema],
    envelope: Envelope,
    declared: pa.Schema | None,
    keys: Collection[int] = (),
) -> MessageSchemas:
    """Return the columns that take the records of all schemas, as far as they fit together.

    Args:
        schemas: the schemas; the columns are those of the first, and what later ones add.
        envelope: the format of the messages.
        declared: the columns, if the source's definition has them.
        keys: ids of the schemas whose messages are keys.
    """
    columns = None if declared is None else pa.struct(list(declared))
    reasons, others = dict[int, str](), dict[int, Sequence[str]]()
    rows: dict[tuple[Struct, Struct, Hashable], list[int]] = {}
    read: list[Struct] = []
    for schema in schemas:
        is_key = schema.id in keys
        wanted = envelope.key_record if is_key else envelope.record
        if wanted and (names := record_names(schema)) is not None and wanted not in names:
            others[schema.id] = names
            continue
        try:
            record, row, layout = _record(schema, envelope, is_key)
            if missing := _missing(row, envelope.required):
                raise SchemaError(
                    f"lacks the field `{missing}`, a column of the key. Set the model's "
                    "`unique_key` to fields that every schema has"
                )
            if declared is None:
                require_columns(row)
                columns = row.columns if columns is None else widened(columns, row.columns)
            else:
                assert columns is not None
                require_castable(row, columns)
                for other in read:
                    require_same_members(other.column, row.column, columns, "")
                read.append(row)
            rows.setdefault((record, row, layout), []).append(schema.id)
        except SchemaError as error:
            reasons[schema.id] = f"{unreadable(schema.id)}{error}"
    writers = tuple(Writer(tuple(ids), *types) for types, ids in rows.items())
    return MessageSchemas(pa.schema(list(columns or ())), writers, reasons, others)


def json_schemas(
    schemas: Sequence[RegisteredSchema], record: str, declared: pa.Schema
) -> MessageSchemas:
    """Return which schemas are of a record type in JSON that is read by the source's columns.

    Args:
        schemas: the schemas.
        record: the title of the record type.
        declared: the source's columns.
    """
    own, reasons, others = list[int](), dict[int, str](), dict[int, Sequence[str]]()
    for schema in schemas:
        names = record_names(schema)
        if names is not None and record not in names:
            others[schema.id] = names
            continue
        try:
            _require_kind(schema, "JSON", "format")
            require_record_type(schema, record)
            own.append(schema.id)
        except SchemaError as error:
            reasons[schema.id] = f"{unreadable(schema.id)}{error}"
    writers = (Writer(tuple(own), Struct(()), Struct(())),) if own else ()
    return MessageSchemas(declared, writers, reasons, others)


def unreadable(schema_id: int) -> str:
    """Return the begin of the reason why messages of a schema cannot be read.

    Args:
        schema_id: the schema's id.
    """
    return f"has the schema {schema_id}, which "


def _missing(row: Struct, required: Sequence[str]) -> str | None:
    return next((name for name in required if name.lower() not in row.members), None)


def _record(
    schema: RegisteredSchema, envelope: Envelope, is_key: bool
) -> tuple[Struct, Struct, Hashable]:
    """Return the types of a message and of the rows in it, and the layout of the message."""
    key = "encoding" if envelope.name == "debezium" else "format"
    _require_kind(schema, (envelope.schema_format or "").upper(), key)
    wanted = envelope.key_record if is_key else envelope.record
    record, layout = parse_record(schema, wanted, is_key, envelope.message)
    if envelope.name != "debezium":
        if schema.kind == "JSON":
            record = with_flags(record, spelled_as([n for n, _ in record.parts], envelope.required))
        return record, record, layout
    images = [record.members.get(name) for name in (BEFORE, AFTER)]
    before, after = (None if image is None else unwrap(image[1]) for image in images)
    if not isinstance(after, Struct) or before != after or OPERATION not in record.members:
        raise SchemaError(
            "is no envelope of Debezium (`before`, `after` and `op`). For rows without it, set "
            f"`format: {envelope.schema_format}`"
        )
    return (_change(record) if schema.kind == "JSON" else record), after, layout


def parse_record(
    schema: RegisteredSchema, wanted: str | None, is_key: bool, message: str | None = None
) -> tuple[Struct, Hashable]:
    """Return the type of a schema's messages, and what its format needs besides to read them.

    Args:
        schema: the schema.
        wanted: the record type that is read of several; None for the only one.
        is_key: whether its messages are keys.
        message: full name of the message of a Protobuf schema; None for the first.

    Raises:
        SchemaError: it cannot be read.
    """
    if schema.kind == "JSON":
        require_record_type(schema, wanted)
        return parse_json_schema(schema.text, schema.references), None
    if schema.kind == "PROTOBUF":
        files = compiled_files(schema.text, schema.references)
        file, pool = read_files(files)
        indexes = message_indexes(file)
        name = _message_name(list(indexes), wanted or (None if is_key else message))
        record = record_type(pool.FindMessageTypeByName(name))
        return record, MessageLayout(files, indexes[name], wanted is not None)
    member = union_member(schema, wanted, "key_record" if is_key else "record")
    texts = tuple(reference.text for reference in schema.references)
    return parse_avro(schema.text, texts, None if member is None else member.index), member


def _message_name(names: Sequence[str], message: str | None) -> str:
    """Return the name of the message to read: of the first of a schema by default."""
    if not names:
        raise SchemaError("has no message, so it has no columns")
    if message is None:
        return names[0]
    if message not in names:
        raise SchemaError(
            f"has no message `{message}`. Set the source's `message` to one of: {', '.join(names)}"
        )
    return message


def _change(record: Struct) -> Struct:
    """Return what is read of Debezium's messages in JSON; other members are not decoded."""
    fields = [field for field in record.fields if field[0] in (BEFORE, AFTER, OPERATION)]
    source = dict(record.fields).get(SOURCE)
    if isinstance(source, Struct) and source.members.get(TABLE):
        of_table = tuple(field for field in source.fields if field[0] == TABLE)
        fields.append((SOURCE, replace(source, fields=of_table)))
    return Struct(tuple(fields))


def _require_kind(schema: RegisteredSchema, kind: str, key: str) -> None:
    """Raise SchemaError if a schema is not of the format that a key of the source names."""
    if schema.kind == kind:
        return
    name, value = KINDS.get(schema.kind, (schema.kind, ""))
    advice = f"Set `{key}: {value}`" if value else "Set `format: raw`"
    raise SchemaError(f"is {name} and not {KINDS[kind][0]}. {advice}")
