"""What a message is: a record, or what a database says of a row that has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.table_config import literal
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, CHANGE, REASON, WHERE

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructField

FORMATS = ("json", "debezium", "maxwell", "raw")
RAW = "key, value, topic, partition, offset, timestamp, headers"
# Of texts of columns.
_fields: dict[str, list[StructField]] = {}
MODE = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{BAD}')"


@dataclass(frozen=True)
class Envelope:
    """How the value of a message becomes columns.

    Attributes:
        name: `json`, a record; `debezium` or `maxwell`, a row before and after a change; `raw`,
            the message itself.
        columns: of the record, as Spark's DDL.
        table: of those that a Maxwell or Debezium topic holds; all of them if it is not given.
        table_column: of the rows, which takes the name of their table; none if it is not given.
        tombstone_deletes: whether a JSON message without value deletes the row of its key.
        key: columns that tell a row; a Maxwell update that changes them deletes the row of before.
        of_topics: whether messages come from several, so that their place is told with the topic.
        required: columns that a JSON record must have, if only as null: a key that is absent is
            a mistake.
    """

    name: str
    columns: str
    table: str | None = None
    table_column: str | None = None
    tombstone_deletes: bool = False
    key: tuple[str, ...] = ()
    of_topics: bool = False
    required: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise StreamError(f"{must_be_one_of('format', self.name, FORMATS)}.")
        if self.table_column and self.name not in ("debezium", "maxwell"):
            raise StreamError("`table_column` is for the formats debezium and maxwell.")
        if not self.columns and self.name != "raw":
            raise StreamError(f"The format {self.name} needs `columns`, as `name type, name type`.")

    def unpack(self, spark: SparkSession, messages: DataFrame) -> DataFrame:
        """Columns of the record, `__stream`, `__bad` and `__where` of Kafka's messages."""
        if self.name == "raw":
            change = _change("false", "false")
            return messages.selectExpr(*RAW.split(", "), f"{change} as {CHANGE}")
        where = f"concat(topic, ', ', {WHERE_TEXT})" if self.of_topics else WHERE_TEXT
        text = messages.selectExpr(
            "cast(key as string) as k",
            "cast(value as string) as v",
            "offset",
            f"{where} as {WHERE}",
        )
        unpack = {"json": self._json, "debezium": self._debezium, "maxwell": self._maxwell}
        return unpack[self.name](spark, text)

    @property
    def has_only_records(self) -> bool:
        """Whether a message with a value is a record, and nothing else is a change."""
        return self.name == "json" and not self.tombstone_deletes

    def fields(self, spark: SparkSession) -> list[StructField]:
        """Columns of the record; the server, which is asked what the text means, is asked once."""
        if self.columns not in _fields:
            _fields[self.columns] = spark.createDataFrame([], self.columns).schema.fields
        return _fields[self.columns]

    def _names(self, spark: SparkSession) -> list[str]:
        return [field.name for field in self.fields(spark)]

    def _json(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        parsed = self._parse(text, f"{self.columns}, {BAD} string", "coalesce(v, k)")
        if not self.tombstone_deletes:
            parsed = parsed.where("v is not null")
        row = [f"r.{quote(name)} as {quote(name)}" for name in self._names(spark)]
        # An empty text or `null` is no record, and Spark does not call it corrupt.
        reasons = {f"r is null or r.{BAD} is not null": NO_RECORD}
        for name in self.required_columns(self._names(spark)):
            there = f"array_contains(json_object_keys(coalesce(v, k)), {literal(name)})"
            reasons[f"not {there}"] = f"lacks the key `{name}`"
        change = f"{_change('v is null', 'false')} as {CHANGE}"
        return parsed.selectExpr(*row, change, *bad_columns("coalesce(v, k)", reasons), WHERE)

    def required_columns(self, names: Sequence[str]) -> list[str]:
        """Columns that a record must have, as it spells them."""
        return spelled_as(names, self.required)

    def _debezium(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        """Debezium's JSON, with its schema or without; a tombstone repeats the delete before it."""
        row = f"struct<{self._ddl_of_struct(spark)}>"
        body = (
            f"before {row}, after {row}, op string, ts_ms bigint, "
            "source struct<`table`: string, lsn: bigint, pos: bigint>"
        )
        schema = f"{body}, payload struct<{_as_struct(body)}>, {BAD} string"
        parsed = self._parse(text.where("v is not null"), schema, "v")
        parsed = parsed.selectExpr("*", "coalesce(r.payload.op, r.op) as op")
        parsed = parsed.selectExpr(
            "*",
            "coalesce(r.payload.before, r.before) as old",
            "coalesce(r.payload.after, r.after) as new",
            "coalesce(r.payload.source.`table`, r.source.`table`) as source_table",
        )
        if self.table:
            parsed = parsed.where(f"source_table = {literal(self.table)} or r.{BAD} is not null")
        names = [quote(name) for name in self._names(spark)]
        columns = [f"if(op = 'd', old.{name}, new.{name}) as {name}" for name in names]
        columns += self._table_name("source_table")
        change = _change("op = 'd'", "op = 't'")
        kinds = "'c', 'r', 'u', 'd', 't', 'm'"
        reasons = {
            f"r.{BAD} is not null": NO_RECORD,
            f"op is null or op not in ({kinds})": "has no `op` that Debezium knows",
        }
        told = parsed.where(f"coalesce(op, '') <> 'm' or r.{BAD} is not null")
        return told.selectExpr(*columns, f"{change} as {CHANGE}", *bad_columns("v", reasons), WHERE)

    def _maxwell(self, spark: SparkSession, text: DataFrame) -> DataFrame:
        """Maxwell's JSON; an update that changes the key deletes the row of the old one."""
        struct = self._ddl_of_struct(spark)
        schema = f"`type` string, `table` string, data struct<{struct}>, old string, {BAD} string"
        parsed = self._parse(text.where("v is not null"), schema, "v")
        kinds = "'insert', 'update', 'delete', 'bootstrap-insert'"
        told = parsed.where(f"r.`type` in ({kinds}) or r.{BAD} is not null or r.`type` is null")
        if self.table:
            told = told.where(f"r.`table` = {literal(self.table)} or r.{BAD} is not null")
        names = self._names(spark)
        # What an update has changed is in `old`, by its name.
        moved = {
            name: f"array_contains(json_object_keys(r.old), {literal(name)})"
            for name in self._keys(names)
        }
        moves = (
            f"coalesce(r.`type` = 'update' and ({' or '.join(moved.values()) or 'false'}), false)"
        )
        told = told.selectExpr(
            "*",
            f"from_json(r.old, 'struct<{struct}>') as old",
            f"explode(if({moves}, array(true, false), array(false))) as was",
        )
        columns = [
            f"if(was and {moved.get(name, 'false')}, old.{quote(name)}, r.data.{quote(name)}) "
            f"as {quote(name)}"
            for name in names
        ]
        columns += self._table_name("r.`table`")
        change = _change("was or r.`type` = 'delete'", "false", "2 * offset + if(was, 0, 1)")
        reasons = {f"r.{BAD} is not null": NO_RECORD, "r.`type` is null": "has no `type`"}
        return told.selectExpr(*columns, f"{change} as {CHANGE}", *bad_columns("v", reasons), WHERE)

    def _table_name(self, place: str) -> list[str]:
        return [f"{place} as {quote(self.table_column)}"] if self.table_column else []

    def _keys(self, names: list[str]) -> list[str]:
        """The key's columns as the message has them."""
        known = {name.lower(): name for name in names}
        if lacking := [name for name in self.key if name.lower() not in known]:
            raise StreamError(
                f"The key {', '.join(lacking)} is not among the columns of the Maxwell source: say "
                "in its `key` which of them tell a row, so that an update of those deletes the row "
                "of before."
            )
        return [known[name.lower()] for name in self.key]

    def _parse(self, text: DataFrame, schema: str, value: str) -> DataFrame:
        return text.selectExpr("*", f"from_json({value}, {literal(schema)}, {MODE}) as r")

    def _ddl_of_struct(self, spark: SparkSession) -> str:
        fields = self.fields(spark)
        return ", ".join(f"{quote(f.name)}: {f.dataType.simpleString()}" for f in fields)


NO_RECORD = "does not fit the source's `columns`"
WHERE_TEXT = "concat('partition ', partition, ', offset ', offset)"


def _change(deleted: str, truncated: str, minor: str = "offset") -> str:
    return (
        f"named_struct('major', 0L, 'minor', {minor}, "
        f"'deleted', {deleted}, 'truncated', {truncated})"
    )


def bad_columns(value: str, reasons: Mapping[str, str]) -> tuple[str, str]:
    """The text of a message that is no good, and why; reasons by their conditions."""
    # What is no UTF-8 would be another text after Spark has read it, and no text for Arrow.
    all_reasons = {f"not is_valid_utf8({value})": "is not UTF-8", **reasons}
    cases = [f"when {condition} then {literal(why)}" for condition, why in all_reasons.items()]
    reason = f"case {' '.join(cases)} end"
    text = f"make_valid_utf8(coalesce({value}, ''))"
    return f"if({reason} is null, null, {text}) as {BAD}", f"{reason} as {REASON}"


def spelled_as(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Those of the names that are wanted, however that spells them."""
    chosen = {name.lower() for name in wanted}
    return [name for name in names if name.lower() in chosen]


def _as_struct(ddl: str) -> str:
    """`a int, b struct<…>` as the inside of a struct type."""
    parts, depth, current = [], 0, ""
    for character in ddl:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    parts.append(current.strip())
    return ", ".join(": ".join(part.split(" ", 1)) for part in parts)


def envelope(
    spec: dict[str, Any], keys: Sequence[str] = (), required: Sequence[str] = ()
) -> Envelope:
    """What a source's definition says of its messages; `keys` tell a row of the model's table.

    `required` are columns that records must have.
    """
    own = spec.get("key")
    key = [own] if isinstance(own, str) else list(own or keys)
    return Envelope(
        name=str(spec.get("format") or "json"),
        columns=str(spec.get("columns") or ""),
        table=spec.get("table"),
        table_column=spec.get("table_column"),
        tombstone_deletes=spec.get("tombstones") == "delete",
        key=tuple(key) if keys else (),
        required=tuple(required),
    )
