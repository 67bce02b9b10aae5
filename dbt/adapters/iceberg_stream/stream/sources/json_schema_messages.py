"""Decode messages in JSON behind the id of their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.envelopes import MODE, spelled_as
from dbt.adapters.iceberg_stream.stream.sources.json_schema_types import (
    JsonScalar,
    has_decimals,
    is_decimal,
    parse_json_schema,
    with_scalars,
)
from dbt.adapters.iceberg_stream.stream.sources.record_types import named, record_names
from dbt.adapters.iceberg_stream.stream.sources.schema_columns import failed_sql, value_sql
from dbt.adapters.iceberg_stream.stream.sources.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.schema_types import (
    Node,
    Scalar,
    SchemaError,
    Struct,
    read_type,
)
from dbt.adapters.iceberg_stream.stream.sources.source import BAD
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql
from dbt.adapters.iceberg_stream.stream.sources.wire_format import json_sql

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# The column with the JSON of a message.
TEXT = "json"
# What is read of Debezium's messages; other members are not decoded.
CHANGE = ("before", "after", "op", "source")
SOURCE = ("table",)
# Members of an object, as texts.
MEMBERS = "map<string, string>"
OTHER_TYPE = (
    ", whose field `{}` has a value that is not of its type. Set the source's `columns` to choose "
    "another type"
)
# SQL of a decimal, which Spark's Avro reads from its bytes behind their number.
OF_BYTES = (
    "try_cast(if(length({{x}}) between 1 and 16, from_avro(concat(unhex(lpad(hex(2 * "
    "length({{x}})), 2, '0')), {{x}}), {avro}, map('mode', 'PERMISSIVE')), null) as {kind})"
)


class JsonFormat:
    """JSON, which Spark decodes; see SchemaFormat.

    Attributes:
        record: title of the record type that is read; messages of others are skipped.
        key_record: as `record`, of keys.
        required: columns that each message must have.
        of_changes: whether the messages are Debezium's.
    """

    kind = "JSON"

    def __init__(
        self,
        record: str | None = None,
        key_record: str | None = None,
        required: Sequence[str] = (),
        of_changes: bool = False,
    ) -> None:
        self.record, self.key_record = record, key_record
        self.required, self.of_changes = required, of_changes

    def parse(self, schema: RegisteredSchema, is_key: bool) -> tuple[Struct, None]:
        require_record_type(schema, self.key_record if is_key else self.record)
        record = parse_json_schema(schema.text, schema.references)
        return (_change(record) if self.of_changes else record), None

    def decode(self, framed: DataFrame, writers: Sequence[Writer]) -> DataFrame:
        texts = framed.selectExpr("*", f"cast({json_sql('value')} as string) as {TEXT}")
        records = ((writer, with_scalars(writer.record, _as_read)) for writer in writers)
        decoded = texts.selectExpr("*", *(f"{_read(w, r)} as {w.decoded}" for w, r in records))
        numbers = [_with_numbers(w) for w in writers if has_decimals(w.record)]
        messages = decoded.selectExpr("*", *numbers).selectExpr("*", *map(_message, writers))
        return messages.selectExpr("*", *(_members(path, writers) for path in self._paths))

    def null_messages(self, writers: Sequence[Writer]) -> Sequence[bytes]:
        return ()

    def problems(self, writers: Sequence[Writer]) -> Iterator[tuple[str, str]]:
        yield f"not is_valid_utf8({TEXT})", literal("is not UTF-8")
        for writer in writers:
            for name in spelled_as([name for name, _ in writer.row.fields], self.required):
                has_key = f"array_contains(json_object_keys({TEXT}), {literal(name)})"
                yield f"{_is_of(writer)} and not {has_key}", literal(f"lacks the key `{name}`")
            for name, is_bad in _bad_fields(writer, self._paths):
                why = literal(OTHER_TYPE.format(name))
                yield f"{_is_bad(writer)} and ({is_bad})", f"concat('has the schema ', id, {why})"

    @property
    def _paths(self) -> tuple[str, ...]:
        """The members of a message with its rows; an empty text is the message itself."""
        return ("before", "after") if self.of_changes else ("",)

    def message_text(self) -> str:
        return f"make_valid_utf8({TEXT})"


def require_record_type(schema: RegisteredSchema, record: str | None) -> None:
    """Check that a schema of a record type is of no other ones, too.

    Args:
        schema: the schema, which has the record type.
        record: the title of the record type; None for any.

    Raises:
        SchemaError: it is a union of record types.
    """
    names = record_names(schema)
    if record is None or names == (record,) or json.loads(schema.text).get("title") == record:
        return
    types = named(names) if names else "types of which one has no `title`"
    raise SchemaError(
        f"is a union of {types}, and JSON does not say which one a message is of. Remove the "
        "source's `record`, and choose rows by a field in the model's query"
    )


def _change(record: Struct) -> Struct:
    """Return what is read of Debezium's messages."""
    fields = dict(_only(record, CHANGE).fields)
    if isinstance(source := fields.get("source"), Struct):
        # Without fields it would be a struct that Spark cannot read.
        fields["source"] = _only(source, SOURCE) if source.members.get("table") else None
    return Struct(tuple(fields.items()))


def _only(record: Struct, names: Collection[str]) -> Struct:
    """Return a type with some of its fields only."""
    return Struct(tuple(field for field in record.fields if field[0] in names))


def _is_of(writer: Writer) -> str:
    return f"id in ({', '.join(map(str, writer.ids))})"


def _read(writer: Writer, record: Node) -> str:
    """Return SQL of a message's fields, under names of their positions, and of BAD."""
    names, positions = record.column, read_type(record)
    assert isinstance(names, t.StructType) and isinstance(positions, t.StructType)
    columns, kind = (
        type_sql(t.StructType([*fields, t.StructField(BAD, t.StringType())]))
        for fields in (names, positions)
    )
    parsed = f"from_json({TEXT}, {literal(columns)}, {MODE})"
    return f"case when {_is_of(writer)} then cast({parsed} as {kind}) end"


def _with_numbers(writer: Writer) -> str:
    """Return SQL of a message whose decimals are no bytes: they may be numbers, all of them."""
    record = with_scalars(writer.record, _number)
    return (
        f"if({writer.decoded}.{BAD} is null, null, {_read(writer, record)}) as {_numbers(writer)}"
    )


def _numbers(writer: Writer) -> str:
    return f"n{writer.number}"


def _message(writer: Writer) -> str:
    decoded, numbers = writer.decoded, _numbers(writer)
    if not has_decimals(writer.record):
        return f"if({decoded}.{BAD} is null, {decoded}, null) as {writer.message}"
    record = with_scalars(writer.record, _number_of_bytes)
    converted = value_sql(record, decoded, record.column)
    is_bad = " or ".join(
        filter(None, (f"{decoded}.{BAD} is not null", failed_sql(record, decoded, record.column)))
    )
    of_bytes = f"if({is_bad}, null, cast({converted} as {type_sql(read_type(record))}))"
    fields = ", ".join(f"{numbers}.{name}" for name, _ in writer.record.members.values())
    is_bad = f"{numbers} is null or {numbers}.{BAD} is not null"
    of_numbers = f"if({is_bad}, null, struct({fields}))"
    return f"coalesce({of_bytes}, {of_numbers}) as {writer.message}"


def _is_bad(writer: Writer) -> str:
    return f"{_is_of(writer)} and {writer.message} is null"


def _members(path: str, writers: Sequence[Writer]) -> str:
    """Return SQL of a row's members as text, if its message cannot be decoded."""
    members = f"from_json({TEXT}, '{MEMBERS}')"
    if path:
        members = f"from_json({members}[{literal(path)}], '{MEMBERS}')"
    is_bad = " or ".join(f"({_is_bad(writer)})" for writer in writers) or "false"
    return f"if({is_bad}, {members}, null) as {_members_name(path)}"


def _members_name(path: str) -> str:
    return f"members_{path}"


def _bad_fields(writer: Writer, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of rows, and conditions of values that could not be decoded."""
    decoded = [writer.decoded, *([_numbers(writer)] if has_decimals(writer.record) else [])]
    row = with_scalars(writer.row, _number_of_bytes)
    assert isinstance(row, Struct)
    for path in paths:
        rows = [f"{one}.{writer.record.members[path][0]}" for one in decoded] if path else decoded
        yield from _undecoded(row, rows, _members_name(path))


def _undecoded(
    record: Struct, decoded: Sequence[str], members: str, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the fields of an object, as `_bad_fields` does.

    Spark makes a null of a value that is not of its type, and decodes the others.

    Args:
        record: its type, with the SQL of decimals in bytes.
        decoded: SQL of the object as it is decoded: with decimals in bytes, and as numbers.
        members: SQL of the texts of its members.
        path: of the object, with a dot behind it.
    """
    for place, node in record.members.values():
        name = record.fields[int(place.removeprefix(record.prefix))][0]
        member, values = f"{members}[{literal(name)}]", [f"{one}.{place}" for one in decoded]
        is_null = " and ".join(f"{value} is null" for value in values)
        yield f"{path}{name}", f"{is_null} and {member} is not null"
        if isinstance(node, Struct):
            parts = f"from_json({member}, '{MEMBERS}')"
            yield from _undecoded(node, values, parts, f"{path}{name}.")
        elif failed := failed_sql(node, values[0], node.column):
            yield f"{path}{name}", failed


def _as_read(node: JsonScalar) -> Scalar:
    return Scalar(node.read)


def _number(node: JsonScalar) -> Scalar:
    return Scalar(node.column if is_decimal(node) else node.read)


def _number_of_bytes(node: JsonScalar) -> Scalar:
    if not isinstance(node.column, t.DecimalType):
        return Scalar(node.read)
    precision, scale = node.column.precision, node.column.scale
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    sql = OF_BYTES.format(avro=literal(json.dumps(avro)), kind=type_sql(node.column))
    return Scalar(node.column, sql)
