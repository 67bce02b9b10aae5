"""Envelopes of messages: how the value of a message becomes columns and a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import (
    MODE,
    parseable_sql,
    unreadable_reasons,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import MetadataColumns
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import (
    has_members,
    image_reasons,
    member_names,
    missing_keys,
    moves,
    values_of,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import json_sql
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
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructField

FORMATS = ("json", "avro", "protobuf", "debezium", "maxwell", "raw")
# Formats whose messages have the id of a schema in a registry.
SCHEMA_FORMATS = ("avro", "protobuf")
# Column of messages in JSON with the reason why their record type is unknown or cannot be read.
UNTYPED = "__untyped"
ENCODINGS = ("json", *SCHEMA_FORMATS)
RAW = "key, value, topic, partition, offset, timestamp, headers"
# Fields by the DDL of `columns`: the server parses it, and is asked once.
_fields: dict[str, list[StructField]] = {}


@dataclass(frozen=True)
class Envelope:
    """How the value of a message becomes columns.

    Attributes:
        name: `json`, `avro` or `protobuf`, a record; `debezium` or `maxwell`, a row before and
            after a change; `raw`, the message itself.
        columns: of the record, as Spark's DDL; empty if schemas in a registry have them.
        table: the table of a Debezium or Maxwell topic whose changes are read; None for all.
        table_column: column that takes the name of a row's table; None for no such column.
        tombstone_deletes: whether a record without value deletes the row of its key.
        key: columns that identify a row; an update of them deletes the old row.
        has_own_key: whether the source's definition has the key, and not the model's query.
        of_topics: whether messages come from several topics, so that positions name the topic.
        required: columns that a record must have; the value may be null.
        encoding: `json`, `avro` or `protobuf`, of Debezium's messages.
        message: full name of the Protobuf message that is read; None for the first of a schema.
        record: full name of the record type that is read, of several in a topic; None for all.
        key_record: full name of the record type of the messages' keys; None for any.
        metadata: columns that take other parts of a message than its value.
    """

    name: str
    columns: str
    table: str | None = None
    table_column: str | None = None
    tombstone_deletes: bool = False
    key: tuple[str, ...] = ()
    of_topics: bool = False
    required: tuple[str, ...] = ()
    encoding: str = "json"
    message: str | None = None
    record: str | None = None
    key_record: str | None = None
    metadata: MetadataColumns = MetadataColumns()
    has_own_key: bool = False

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise StreamError(f"{must_be_one_of('format', self.name, FORMATS)}.")
        if self.table_column and self.name not in ("debezium", "maxwell"):
            raise StreamError(
                f"`table_column` cannot be used with `format: {self.name}`. Remove it, or set "
                "`format` to debezium or maxwell."
            )
        if self.encoding not in ENCODINGS:
            raise StreamError(f"{must_be_one_of('encoding', self.encoding, ENCODINGS)}.")
        if self.encoding != "json" and self.name not in (self.encoding, "debezium"):
            raise StreamError(
                f"`encoding: {self.encoding}` is of Debezium's messages. For records, set "
                f"`format: {self.encoding}`."
            )
        if self.message and self.schema_format != "protobuf":
            raise StreamError(
                "`message` is of messages in Protobuf: set `format: protobuf`, or `encoding: "
                "protobuf` with `format: debezium`, or remove it."
            )
        if self.message and self.record:
            raise StreamError(
                "The source has `message` and `record`. Remove one of them: with `record` messages "
                "of other types are skipped, with `message` they are bad records."
            )
        if self.of_json_record and self.tombstone_deletes:
            raise StreamError(
                "With `format: json` and `columns`, `record` cannot be used with `tombstones: "
                "delete`: a message without a value has no record type. Remove one of them."
            )
        if self.metadata.columns and self.name == "raw":
            raise StreamError(
                f"`format: raw` has all columns of the metadata already: {RAW}. Remove "
                "`metadata_columns`."
            )
        if not self.columns and self.name != "raw" and not self.schema_format:
            raise StreamError(f"The format {self.name} needs `columns`, as `name type, name type`.")

    @property
    def schema_format(self) -> str | None:
        """The format of values with the id of a schema in a registry; None for other values.

        Of JSON, a schema is needed only if the source has no `columns`.
        """
        if own := schema_format(self.name, self.encoding):
            return own
        return "json" if self.name in ("json", "debezium") and not self.columns else None

    @property
    def reads_schemas(self) -> bool:
        """Whether the registry has what decodes a message, or JSON's record type."""
        return self.schema_format is not None or self.of_json_record

    @property
    def of_json_record(self) -> bool:
        """Whether messages are JSON with `columns`, of which one record type is read."""
        return self.name == "json" and self.record is not None and bool(self.columns)

    @property
    def reads_keys(self) -> bool:
        """Return whether the key of a record without value is read by a schema of a registry."""
        return self.name == self.schema_format and self.tombstone_deletes

    @property
    def where_sql(self) -> str:
        """SQL of the position of a message."""
        return f"concat(topic, ', ', {WHERE_TEXT})" if self.of_topics else WHERE_TEXT

    def unpack(self, spark: SparkSession, messages: DataFrame) -> DataFrame:
        """Decode Kafka's messages.

        Args:
            spark: the Spark session.
            messages: a frame with the columns of Spark's Kafka source and METADATA, if columns
                take it; of a record type in JSON also with SKIPPED and UNTYPED.

        Returns:
            A frame with the record's columns, `__stream`, and unless the format is raw BAD,
            REASON and WHERE; of a record type in JSON also with SKIPPED.
        """
        if self.name == "raw":
            change = change_sql("false", "false")
            return messages.selectExpr(*RAW.split(", "), f"{change} as {CHANGE}")
        text = messages.selectExpr(
            f"cast({json_sql('key')} as string) as k",
            f"cast({json_sql('value')} as string) as v",
            "offset",
            f"{self.where_sql} as {WHERE}",
            *((SKIPPED, UNTYPED) if self.of_json_record else ()),
            *self.metadata.carried,
        )
        unpack = {"json": self._json, "debezium": self._debezium, "maxwell": self._maxwell}
        return unpack[self.name](spark, text)

    @property
    def has_only_records(self) -> bool:
        """Return whether each message is a record, except those without a value."""
        return self.name in ENCODINGS and not self.tombstone_deletes

    @property
    def has_only_rows(self) -> bool:
        """Return whether each message is Debezium's, and its rows have no other columns."""
        return self.name == "debezium" and self.table is None and self.table_column is None

    def fields(self, spark: SparkSession) -> list[StructField]:
        """Return Spark's fields of the record's columns.

        Args:
            spark: the Spark session, whose server parses `columns`.
        """
        if self.columns not in _fields:
            _fields[self.columns] = spark.createDataFrame([], self.columns).schema.fields
        return _fields[self.columns]

    def _names(self, spark: SparkSession) -> list[str]:
        return [field.name for field in self.fields(spark)]

    def _json(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        schema = f"{self.columns}, {BAD} string"
        parsed = self._parse(text, schema, "coalesce(v, k)")
        if not self.tombstone_deletes:
            parsed = parsed.where("v is not null")
        names = self._names(spark)
        row = [f"r.{quote(name)} as {quote(name)}" for name in names]
        row += self.metadata.unpacked_sql(names)
        # Spark does not report an empty text or `null` as corrupt.
        is_unreadable = f"r is null or r.{BAD} is not null"
        reasons = unreadable_reasons("coalesce(v, k)", schema, is_unreadable)
        keys = values_of("r", self.required_columns(names))
        reasons |= dict(missing_keys("true", has_members(member_names("coalesce(v, k)"), keys)))
        change = f"{change_sql('v is null', 'false')} as {CHANGE}"
        if not self.of_json_record:
            return parsed.selectExpr(*row, change, *bad_columns("coalesce(v, k)", reasons), WHERE)
        first = f"when {SKIPPED} then null when {UNTYPED} is not null then {UNTYPED}"
        bad = bad_columns("coalesce(v, k)", reasons, first)
        return parsed.selectExpr(*row, change, *bad, WHERE, SKIPPED)

    def required_columns(self, names: Sequence[str]) -> list[str]:
        """Return the required columns, spelled as the record spells them.

        Args:
            names: columns of the record.
        """
        return spelled_as(names, self.required)

    def key_columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the key that the record has, spelled as it spells them.

        Args:
            names: columns of the record.
        """
        return spelled_as(names, dict.fromkeys((*self.required, *self.key)))

    def _debezium(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        """Decode Debezium's JSON, with its schema or without.

        Tombstones are ignored, because they repeat the delete before them.
        """
        row = f"struct<{self._ddl_of_struct(spark)}>"
        source = "struct<`table`: string, lsn: bigint, pos: bigint>"
        body = {"before": row, "after": row, "op": "string", "ts_ms": "bigint", "source": source}
        payload = ", ".join(f"{name}: {kind}" for name, kind in body.items())
        columns = {**body, "payload": f"struct<{payload}>", BAD: "string"}
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        parsed = self._parse(text.where("v is not null"), schema, "v", exact=True)
        parsed = parsed.selectExpr("*", "coalesce(r.payload.op, r.op) as op")
        parsed = parsed.selectExpr(
            "*",
            "coalesce(r.payload.before, r.before) as old",
            "coalesce(r.payload.after, r.after) as new",
            "coalesce(r.payload.source.`table`, r.source.`table`) as source_table",
        )
        # A tombstone with the schema of its payload.
        parsed = parsed.where(f"op is not null or v not like '%\"payload\"%' or not ({NO_PAYLOAD})")
        names = self._names(spark)
        keys = self.required_columns(names)
        moved = moves((f"old.{n}", f"new.{n}") for n in map(quote, self.key_columns(names)))
        parsed = parsed.selectExpr("*", f"{old_and_new(moved)} as is_old")
        parsed = parsed.selectExpr("*", "if(op = 'd' or is_old, old, new) as image")
        values = [f"image.{n} as {n}" for n in map(quote, names)]
        values += self.metadata.unpacked_sql(names)
        of_row = [(f.name, f"new.{quote(f.name)}", f.dataType) for f in self.fields(spark)]
        has_keys = has_members(IMAGE_MEMBERS, values_of("image", keys))
        is_unreadable = f"r is null or r.{BAD} is not null"
        reasons = unreadable_reasons("v", schema, is_unreadable, exact=True) | DEBEZIUM
        reasons |= dict(image_reasons("image", has_keys, of_row))
        bad = bad_columns("v", reasons)
        return debezium_rows(self, parsed, values, bad, is_unreadable)

    def _maxwell(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        """Decode Maxwell's JSON; an update that changes the key deletes the row of the old key."""
        struct = self._ddl_of_struct(spark)
        schema = f"`type` string, `table` string, data struct<{struct}>, old string, {BAD} string"
        parsed = self._parse(text.where("v is not null"), schema, "v")
        kinds = "'insert', 'update', 'delete', 'bootstrap-insert'"
        changes = parsed.where(f"r.`type` in ({kinds}) or r.{BAD} is not null or r.`type` is null")
        if self.table:
            changes = changes.where(f"r.`table` = {literal(self.table)} or r.{BAD} is not null")
        names = self._names(spark)
        # `old` has the previous values of the columns that an update has changed.
        key_changes = {
            name: f"array_contains({member_names('r.old')}, {literal(name)})"
            for name in self._keys(names)
        }
        changes_key = " or ".join(key_changes.values()) or "false"
        moves = f"coalesce(r.`type` = 'update' and ({changes_key}), false)"
        old = f"struct<{struct}, {BAD}: string>"
        # An update of the key becomes two changes, the first of which deletes the old row.
        changes = changes.selectExpr(
            "*",
            f"from_json({parseable_sql('r.old', old)}, {literal(old)}, {MODE}) as old",
            f"explode(if({moves}, array(true, false), array(false))) as is_old",
        )
        columns = [
            f"if(is_old and {key_changes.get(name, 'false')}, old.{quote(name)}, "
            f"r.data.{quote(name)}) as {quote(name)}"
            for name in names
        ]
        columns += self.table_name("r.`table`") + self.metadata.unpacked_sql(names)
        change = change_sql(
            "is_old or r.`type` = 'delete'", "false", "2 * offset + if(is_old, 0, 1)"
        )
        reasons = unreadable_reasons("v", schema, f"r.{BAD} is not null")
        is_unreadable = f"{moves} and (old is null or old.{BAD} is not null)"
        reasons |= unreadable_reasons("r.old", old, is_unreadable)
        reasons["r.`type` is null"] = "has no `type`"
        reasons["r.data is null"] = "has no row in `data`"
        keys = values_of("r.data", self.required_columns(names))
        members = member_names("v", "data")
        reasons |= dict(missing_keys("true", has_members(members, keys)))
        bad = bad_columns("v", reasons)
        return changes.selectExpr(*columns, f"{change} as {CHANGE}", *bad, WHERE)

    def table_name(self, expression: str) -> list[str]:
        """Return SQL of the column with the name of a row's table, if there is one."""
        return [f"{expression} as {quote(self.table_column)}"] if self.table_column else []

    def _keys(self, names: list[str]) -> list[str]:
        """Return the key's columns, spelled as in the message."""
        by_lower = {name.lower(): name for name in names}
        missing = [name for name in self.key if name.lower() not in by_lower]
        # A query may compute a part of the key from other columns, such as those of a joined table.
        if missing and (self.has_own_key or len(missing) == len(self.key)):
            raise StreamError(
                f"The key {', '.join(missing)} is not among the columns of the Maxwell source. Set "
                "the source's `key` to the columns that identify a row, so that an update of them "
                "deletes the old row."
            )
        return [by_lower[name.lower()] for name in self.key if name not in missing]

    def _parse(self, text: DataFrame, schema: str, value: str, exact: bool = False) -> DataFrame:
        parseable = parseable_sql(value, schema, exact)
        return text.selectExpr("*", f"from_json({parseable}, {literal(schema)}, {MODE}) as r")

    def _ddl_of_struct(self, spark: SparkSession) -> str:
        fields = self.fields(spark)
        return ", ".join(f"{quote(f.name)}: {type_sql(f.dataType)}" for f in fields)


# The members of the row in Debezium's message, which may have its schema with it.
IMAGE_MEMBERS = "if(op = 'd', {}, {})".format(
    *(
        f"coalesce({member_names('v', 'payload', image)}, {member_names('v', image)})"
        for image in ("before", "after")
    )
)
NO_PAYLOAD = (
    "coalesce(array_contains(json_object_keys(v), 'payload'), false) "
    "and get_json_object(v, '$.payload') is null"
)
WHERE_TEXT = "concat('partition ', partition, ', offset ', offset)"


# Why a message is none of Debezium, by SQL conditions on its `op`.
DEBEZIUM = {
    "op is null or op not in ('c', 'r', 'u', 'd', 't', 'm')": "has no `op` of Debezium",
}


def old_and_new(moved: str) -> str:
    """Return SQL of one value for each change in a message: whether it deletes the old row.

    Args:
        moved: SQL condition: the message is an update of the key.
    """
    if moved == "false":
        return "false"
    return f"explode(if({moved}, array(true, false), array(false)))"


def schema_format(*names: object) -> str | None:
    """Return the first of formats whose messages have the id of a schema in a registry, if any."""
    return next((str(name) for name in names if name in SCHEMA_FORMATS), None)


def change_sql(deleted: str, truncated: str, minor: str = "offset") -> str:
    """Return SQL of `__stream`.

    Args:
        deleted: SQL condition: the change deletes the row.
        truncated: SQL condition: it deletes all rows.
        minor: SQL of the change's position.
    """
    return (
        f"named_struct('major', 0L, 'minor', {minor}, "
        f"'deleted', {deleted}, 'truncated', {truncated})"
    )


def debezium_rows(
    envelope: Envelope,
    messages: DataFrame,
    columns: Sequence[str],
    bad: Sequence[str],
    is_bad: str = f"{BAD} is not null",
) -> DataFrame:
    """Return the changes of decoded messages of Debezium.

    Args:
        envelope: of the messages.
        messages: a frame with the columns `op`, `source_table`, `offset` and WHERE, and with
            `is_old`: whether the change deletes the row of the key before an update.
        columns: SQL of the row's columns.
        bad: SQL of the columns BAD and REASON, and of SKIPPED if there is one.
        is_bad: SQL condition: the message cannot be read, or is skipped.
    """
    if envelope.table:
        table = literal(envelope.table)
        messages = messages.where(f"source_table = {table} or {is_bad}")
    # `m` is a message that the source's log contains, and no change of a row.
    changes = messages.where(f"coalesce(op, '') <> 'm' or {is_bad}")
    change = change_sql("op = 'd' or is_old", "op = 't'")
    rows = [*columns, *envelope.table_name("source_table")]
    return changes.selectExpr(*rows, f"{change} as {CHANGE}", *bad, WHERE)


def bad_columns(value: str, reasons: Mapping[str, str], first: str = "") -> tuple[str, str]:
    """Return SQL of the columns BAD and REASON.

    Args:
        value: SQL of the message's text.
        reasons: why a message is bad, by the SQL conditions.
        first: SQL of cases that come before them.
    """
    # Spark changes text that is not UTF-8, and Arrow refuses it.
    all_reasons = {f"not is_valid_utf8({value})": "is not UTF-8", **reasons}
    cases = [f"when {condition} then {literal(why)}" for condition, why in all_reasons.items()]
    reason = f"case {' '.join([first, *cases])} end"
    text = f"make_valid_utf8(coalesce({value}, ''))"
    return f"if({reason} is null, null, {text}) as {BAD}", f"{reason} as {REASON}"


def spelled_as(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Return those names that are equal to wanted ones but for their case."""
    lower = {name.lower() for name in wanted}
    return [name for name in names if name.lower() in lower]


def envelope(
    spec: dict[str, Any], keys: Sequence[str] = (), required: Sequence[str] = ()
) -> Envelope:
    """Return the envelope of a source's definition.

    Args:
        spec: the definition.
        keys: columns that identify a row of the model's table; the default of `key`.
        required: columns that records must have.

    Raises:
        StreamError: the format is unknown, or lacks keys of the definition.
    """
    own = spec.get("key")
    key = [own] if isinstance(own, str) else list(own or keys)
    metadata = MetadataColumns.of(spec.get("metadata_columns"))
    of_metadata = {name.lower() for name in metadata.names}
    return Envelope(
        name=str(spec.get("format") or "json"),
        columns=str(spec.get("columns") or ""),
        table=spec.get("table"),
        table_column=spec.get("table_column"),
        tombstone_deletes=spec.get("tombstones") == "delete",
        key=tuple(key) if keys else (),
        has_own_key=bool(own),
        required=tuple(name for name in required if name.lower() not in of_metadata),
        encoding=str(spec.get("encoding") or "json"),
        message=spec.get("message"),
        record=spec.get("record"),
        key_record=spec.get("key_record"),
        metadata=metadata,
    )
