"""Decode messages in JSON behind the id of their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import spelled_as
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import (
    MODE,
    parseable_sql,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_types import (
    JsonScalar,
    has_decimals,
    is_decimal,
    parse_json_schema,
    with_scalars,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import named, record_names
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import (
    has_members,
    member_names,
    missing_keys,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import failed_sql, value_sql
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Node,
    Scalar,
    SchemaError,
    Struct,
    read_type,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import json_sql
from dbt.adapters.iceberg_stream.stream.sources.source import BAD
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# The column with the JSON of a message.
TEXT = "json"
# What is read of Debezium's messages; other members are not decoded.
CHANGE = ("before", "after", "op", "source")
SOURCE = ("table",)
# Members of an object, as texts.
MEMBERS = "map<string, string>"
# The column with the name of a field whose value is not of its type.
FIELD = "bad_field"
OTHER_TYPE = (
    "` has a value that is not of its type. Set the source's `columns` to choose another type"
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
        cases = [f"when {_is_bad(w)} then {self._bad_field(w)}" for w in writers]
        field = f"case {' '.join(cases)} end" if cases else "cast(null as string)"
        return messages.selectExpr("*", f"{field} as {FIELD}")

    def null_messages(self, writers: Sequence[Writer]) -> Sequence[bytes]:
        return ()

    def problems(self, writers: Sequence[Writer]) -> Iterator[tuple[str, str]]:
        yield f"not is_valid_utf8({TEXT})", literal("is not UTF-8")
        for writer in writers:
            names = spelled_as([name for name, _ in writer.row.fields], self.required)
            members = writer.row.members
            values = {name: f"{writer.message}.{members[name.lower()][0]}" for name in names}
            has_keys = has_members(member_names(TEXT), values)
            is_read = f"{_is_of(writer)} and {writer.message} is not null"
            for condition, why in missing_keys(is_read, has_keys):
                yield condition, literal(why)
        parts = ("'has the schema '", "id", literal(", whose field `"), FIELD, literal(OTHER_TYPE))
        yield f"{FIELD} is not null", f"concat({', '.join(parts)})"

    def _bad_field(self, writer: Writer) -> str:
        """Return SQL of the first field of a row that could not be decoded."""
        if not self.of_changes:
            return _undecoded(writer, TEXT, "")
        members, places = f"from_json({TEXT}, '{MEMBERS}')", writer.record.members
        rows = (
            _undecoded(writer, f"{members}[{literal(image)}]", f".{places[image][0]}")
            for image in ("after", "before")
        )
        return f"coalesce({', '.join(rows)})"

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
    parsed = f"from_json({parseable_sql(TEXT, columns, exact=True)}, {literal(columns)}, {MODE})"
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


def _undecoded(writer: Writer, text: str, path: str) -> str:
    """Return SQL of the first field of a row that could not be decoded; null if there is none.

    Spark makes a null of a value that is not of its type, and decodes the others.

    Args:
        writer: the schema of the message.
        text: SQL of the row's JSON.
        path: of the row in the message as it is decoded.
    """
    decoded = [_fields(f"{writer.decoded}{path}", writer.row, _as_read, not path)]
    if has_decimals(writer.record):
        row = with_scalars(writer.row, _number_of_bytes)
        numbers = _fields(f"{_numbers(writer)}{path}", writer.row, _number, not path)
        decoded = [value_sql(row, f"{writer.decoded}{path}", row.column), numbers]
    names = f"array({', '.join(literal(name) for name, node in writer.row.fields if node)})"
    present = f"map_filter(from_json({text}, '{MEMBERS}'), (k, v) -> v is not null)"
    missing = f"array_intersect(map_keys({present}), {names})"
    for fields in decoded:
        keys = f"map_keys(from_json(to_json({fields}), '{MEMBERS}'))"
        missing = f"array_except({missing}, coalesce({keys}, array()))"
    return f"get({missing}, 0)"


def _fields(
    decoded: str, record: Struct, scalar: Callable[[JsonScalar], Scalar], with_bad: bool
) -> str:
    """Return SQL of an object with the names of its fields."""
    kind = with_scalars(record, scalar).column
    assert isinstance(kind, t.StructType)
    fields = [*kind.fields, *([t.StructField(BAD, t.StringType())] if with_bad else [])]
    return f"cast({decoded} as {type_sql(t.StructType(fields))})"


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
