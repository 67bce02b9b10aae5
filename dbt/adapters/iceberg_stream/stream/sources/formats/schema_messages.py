"""Decode messages behind the id of their schema in a registry.

Each message is read with the schema that it was written with, and its fields go to columns that
take the fields of all schemas.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_messages import AvroFormat
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import (
    DEBEZIUM,
    Envelope,
    change_sql,
    debezium_rows,
    old_and_new,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_messages import JsonFormat
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_messages import ProtobufFormat
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import named, record_names
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import image_reasons, moves
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import (
    failed_sql,
    field_values,
    require_castable,
    require_columns,
    require_same_members,
    widened,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import (
    KINDS,
    SchemaFormat,
    Writer,
    metadata_fields,
    require_kind,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Node,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_id_sql
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    REASON,
    SKIPPED,
    WHERE,
)
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

NO_HEADER = (
    "does not begin with a byte 0 and the four bytes of a schema id, as messages of a schema "
    "registry do; ids in Kafka's headers are not read"
)
NO_REGISTRY = ". If no message of the topic does, set the source's `schema_file`"
GLUE = "has the header of AWS Glue's schema registry, which is not supported"
JSON = "is JSON without the id of a schema. Set {}the source's `columns`"


@dataclass(frozen=True)
class MessageSchemas:
    """The schemas of a batch's messages, and the columns that take their records.

    Attributes:
        columns: that their records become.
        writers: schemas that can be read.
        unreadable: why messages cannot be read, by the ids of their schemas.
        others: names of record types that are skipped, by the ids of their schemas.
        key: columns that identify a row.
    """

    columns: t.StructType
    writers: tuple[Writer, ...]
    unreadable: Mapping[int, str] = field(default_factory=dict)
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)
    key: tuple[str, ...] = ()


def message_schemas(
    schemas: Sequence[RegisteredSchema],
    envelope: Envelope,
    declared: t.StructType | None,
    keys: Collection[int] = (),
) -> MessageSchemas:
    """Return the columns that take the records of all schemas, as far as they fit together.

    Args:
        schemas: the schemas; the columns are those of the first, and what later ones add.
        envelope: the format of the messages.
        declared: the columns, if the source's definition has them.
        keys: ids of the schemas whose messages are keys.
    """
    columns, reasons, others = declared, {}, {}
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
                columns = row.column if columns is None else _wider(columns, row.column)
            else:
                require_castable(row, declared)
                for other in read:
                    require_same_members(other.column, row.column, declared, "")
                read.append(row)
            rows.setdefault((record, row, layout), []).append(schema.id)
        except SchemaError as error:
            reasons[schema.id] = f"{unreadable(schema.id)}{error}"
    writers = tuple(
        Writer(number, tuple(ids), *types) for number, (types, ids) in enumerate(rows.items())
    )
    columns = columns or t.StructType([])
    key = tuple(dict.fromkeys((*envelope.required, *envelope.key)))
    return MessageSchemas(columns, writers, reasons, others, key)


def unreadable(schema_id: int) -> str:
    """Return the begin of the reason why messages of a schema cannot be read.

    Args:
        schema_id: the schema's id.
    """
    return f"has the schema {schema_id}, which "


def _wider(columns: t.StructType, other: t.StructType) -> t.StructType:
    both = widened(columns, other)
    assert isinstance(both, t.StructType)
    return both


def _missing(row: Struct, required: Sequence[str]) -> str | None:
    return next((name for name in required if name.lower() not in row.members), None)


def format_of(envelope: Envelope) -> SchemaFormat:
    """Return the format of an envelope's messages, whose schemas are in a registry."""
    if envelope.schema_format == "json":
        of_changes = envelope.name == "debezium"
        required = () if of_changes else envelope.required
        return JsonFormat(envelope.record, envelope.key_record, required, of_changes)
    if envelope.schema_format == "protobuf":
        fields = metadata_fields(envelope.metadata)
        return ProtobufFormat(envelope.message, envelope.record, envelope.key_record, fields)
    return AvroFormat(envelope.record, envelope.key_record)


def _record(
    schema: RegisteredSchema, envelope: Envelope, is_key: bool
) -> tuple[Struct, Struct, Hashable]:
    """Return the types of a message and of the rows in it, and the layout of the message."""
    message_format = format_of(envelope)
    key = "encoding" if envelope.name == "debezium" else "format"
    require_kind(schema, message_format.kind, key)
    record, layout = message_format.parse(schema, is_key)
    if envelope.name != "debezium":
        return record, record, layout
    images = [record.members.get(name) for name in ("before", "after")]
    before, after = (None if image is None else unwrap(image[1]) for image in images)
    if not isinstance(after, Struct) or before != after or "op" not in record.members:
        raise SchemaError(
            "is no envelope of Debezium (`before`, `after` and `op`). For rows without it, set "
            f"`format: {envelope.schema_format}`"
        )
    return record, after, layout


@dataclass(frozen=True)
class SchemaMessages:
    """Decodes the messages of a batch.

    Attributes:
        envelope: the format of the messages.
        schemas: their schemas.
        of_source: whether the source's definition has the schema, and no registry.
    """

    envelope: Envelope
    schemas: MessageSchemas
    of_source: bool = False

    def unpack(self, messages: DataFrame) -> DataFrame:
        """Return the rows of messages; see Envelope.unpack.

        Args:
            messages: a frame with the columns of Spark's Kafka source.
        """
        if nulls := self._format.null_messages(self.schemas.writers):
            listed = ", ".join(f"X'{message.hex()}'" for message in nulls)
            value = f"if(value in ({listed}), null, value) as value"
            messages = messages.selectExpr("* except (value)", value)
        # Without a value a message is a tombstone. Debezium's repeat the delete before them.
        if not self.envelope.reads_keys:
            messages = messages.where("value is not null")
        records = messages.selectExpr(
            "* except (value)", "coalesce(value, key) as value", "value is null as is_tombstone"
        )
        framed = records.selectExpr(
            "value",
            "is_tombstone",
            "offset",
            f"{self.envelope.where_sql} as {WHERE}",
            f"{schema_id_sql('value')} as id",
            *self.envelope.metadata.carried,
        ).selectExpr("*", f"{self._is_skipped()} as {SKIPPED}")
        decoded = self._format.decode(framed, self.schemas.writers)
        return self._debezium(decoded) if self.envelope.name == "debezium" else self._rows(decoded)

    def _is_skipped(self) -> str:
        """Return SQL: whether the id of a message is that of another record type."""
        if not self.schemas.others:
            return "false"
        is_other = f"coalesce(id in ({', '.join(map(str, self.schemas.others))}), false)"
        # Without `key_record` any key may be that of a row.
        return is_other if self.envelope.key_record else f"({is_other} and not is_tombstone)"

    @property
    def _format(self) -> SchemaFormat:
        return format_of(self.envelope)

    def _rows(self, decoded: DataFrame) -> DataFrame:
        images = [f"{writer.message} as {writer.image}" for writer in self.schemas.writers]
        rows = self._with_reason(decoded.selectExpr("*", *images))
        change = f"{change_sql('is_tombstone', 'false')} as {CHANGE}"
        return rows.selectExpr(*self._columns(), change, SKIPPED, BAD, REASON, WHERE)

    def _debezium(self, decoded: DataFrame) -> DataFrame:
        writers = self.schemas.writers
        ops, tables = [], []
        for writer in writers:
            ops.append(_path(writer, "op"))
            tables.append(_path(writer, "source", "table"))
        frame = decoded.selectExpr(
            "*",
            f"{_coalesce(ops, 'string')} as op",
            f"{_coalesce(tables, 'string')} as source_table",
        )
        conditions = [moves(self._key_pairs(writer)) for writer in writers]
        moved = " or ".join(c for c in conditions if c != "false") or "false"
        frame = frame.selectExpr("*", f"{old_and_new(moved)} as is_old")
        images, reasons = [], list(DEBEZIUM.items())
        for writer in writers:
            before, after = (_path(writer, name) for name in ("before", "after"))
            images.append(f"if(op = 'd' or is_old, {before}, {after}) as {writer.image}")
            is_own = f"id in ({', '.join(map(str, writer.ids))})"
            checks = image_reasons(writer.image, {}, self._values(writer))
            reasons += [(f"{is_own} and {condition}", why) for condition, why in checks]
        frame = self._with_reason(frame.selectExpr("*", *images), dict(reasons))
        columns = (SKIPPED, BAD, REASON)
        is_no_change = f"{BAD} is not null or {SKIPPED}"
        return debezium_rows(self.envelope, frame, self._columns(), columns, is_no_change)

    def _key_pairs(self, writer: Writer) -> Iterator[tuple[str, str]]:
        """Yield SQL of the key's columns before and after a change."""
        for name in self.envelope.key_columns([member for member, _ in writer.row.fields]):
            member, _ = writer.row.members[name.lower()]
            before, after = (f"{_path(writer, image)}.{member}" for image in ("before", "after"))
            yield before, after

    def _values(self, writer: Writer) -> Iterator[tuple[str, str, t.DataType]]:
        """Yield names, SQL and types of the values of an image that are read."""
        for wanted in self.schemas.columns.fields:
            member = writer.row.members.get(wanted.name.lower())
            node = unwrap(member[1]) if member else None
            if member and node and getattr(node, "sql", "{x}") == "{x}":
                yield wanted.name, f"{writer.image}.{member[0]}", node.column

    def _columns(self) -> list[str]:
        """Return SQL of the columns: of each message, one writer's image is not null."""
        values: dict[str, list[str]] = {f.name: [] for f in self.schemas.columns.fields}
        for writer in self.schemas.writers:
            for name, sql in field_values(writer.row, writer.image, self.schemas.columns):
                values[name].append(sql)
        types = {f.name: type_sql(f.dataType) for f in self.schemas.columns.fields}
        columns = [
            f"{_coalesce(sql, types[name])} as {quote(name)}" for name, sql in values.items()
        ]
        return columns + self.envelope.metadata.unpacked_sql(list(values))

    def _with_reason(self, frame: DataFrame, reasons: Mapping[str, str] | None = None) -> DataFrame:
        """Add BAD, the message as text, and REASON."""
        cases = [*self._reasons(), *((c, literal(why)) for c, why in (reasons or {}).items())]
        reason = " ".join(f"when {condition} then {why}" for condition, why in cases)
        whole = f"case when {SKIPPED} then null {reason} end as {REASON}"
        framed = frame.selectExpr("*", whole)
        return framed.selectExpr(
            "*", f"if({REASON} is null, null, {self._format.message_text()}) as {BAD}"
        )

    def _reasons(self) -> Iterator[tuple[str, str]]:
        """Yield conditions of bad messages, and SQL of the reasons."""
        if not self.of_source:
            advice = "" if self.envelope.schema_format == "json" else "`format: json` and "
            yield "id is null and startswith(value, X'7B')", literal(JSON.format(advice))
            advice = NO_REGISTRY if self._format.kind == "AVRO" else ""
            yield from header_reasons(self.schemas, advice)
        yield from self._format.problems(self.schemas.writers)
        name = KINDS[self._format.kind][0].removesuffix(" Schema")
        for writer in self.schemas.writers:
            is_own = f"id in ({', '.join(map(str, writer.ids))})"
            is_bad = f"{is_own} and {writer.message} is null"
            its = "'the schema of the source'" if self.of_source else "'its schema ', id"
            yield is_bad, f"concat('is not {name} of ', {its})"
            of = "'is of the schema of the source'" if self.of_source else "'has the schema ', id"
            for field_name, condition in self._failures(writer):
                why = literal(
                    f", whose field `{field_name}` has a value that its column cannot take"
                )
                yield f"{is_own} and {condition}", f"concat({of}, {why})"

    def _failures(self, writer: Writer) -> Iterator[tuple[str, str]]:
        for wanted in self.schemas.columns.fields:
            if member := writer.row.members.get(wanted.name.lower()):
                value = f"{writer.image}.{member[0]}"
                if condition := failed_sql(member[1], value, wanted.dataType):
                    yield wanted.name, condition


def header_reasons(schemas: MessageSchemas, advice: str = "") -> Iterator[tuple[str, str]]:
    """Yield conditions of messages whose headers show that they are bad, and SQL of the reasons.

    Args:
        schemas: the schemas of the messages.
        advice: what to do if messages have no header.
    """
    yield "id is null and startswith(value, X'03')", literal(GLUE)
    yield "id is null", literal(NO_HEADER + advice)
    for schema_id, why in schemas.unreadable.items():
        yield f"id = {schema_id}", literal(why)
    for schema_id, names in schemas.others.items():
        yield f"id = {schema_id}", literal(_other_key(schema_id, names))
    readable = [schema_id for writer in schemas.writers for schema_id in writer.ids]
    unknown = literal(", which the registry does not have")
    is_readable = f"id in ({', '.join(map(str, readable))})" if readable else "false"
    yield f"not {is_readable}", f"concat('has the schema id ', id, {unknown})"


def _other_key(schema_id: int, names: Sequence[str]) -> str:
    return (
        f"has no value, and a key with the schema {schema_id} of {named(names)}. Set the source's "
        "`key_record` to the record type of its keys, and others are skipped"
    )


def _path(writer: Writer, *names: str) -> str:
    """Return SQL of a field in a message; null if its schema has none."""
    sql = writer.message
    node: Node | None = writer.record
    for name in names:
        member = node.members.get(name) if isinstance(node, Struct) else None
        if member is None:
            return "null"
        sql, node = f"{sql}.{member[0]}", unwrap(member[1])
    return sql


def _coalesce(values: Sequence[str], kind: str) -> str:
    present = [v for v in values if v != "null" and not v.startswith("cast(null ")]
    if not present:
        return f"cast(null as {kind})"
    return present[0] if len(present) == 1 else f"coalesce({', '.join(present)})"
