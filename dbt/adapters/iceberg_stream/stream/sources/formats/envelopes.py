"""Envelopes of messages: how the value of a message becomes columns and a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import MetadataColumns

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

FORMATS = ("json", "avro", "protobuf", "debezium", "maxwell", "raw")
# Formats whose messages have the id of a schema in a registry.
SCHEMA_FORMATS = ("avro", "protobuf")
ENCODINGS = ("json", *SCHEMA_FORMATS)
# Columns of messages that are not decoded.
RAW = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
# Columns by the DDL of `columns`: the server parses it, and is asked once.
_declared: dict[str, pa.Schema] = {}


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
                f"`format: raw` has all columns of the metadata already: {', '.join(RAW)}. Remove "
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
    def has_images(self) -> bool:
        """Whether messages have a row before and after a change."""
        return self.name in ("debezium", "maxwell")

    def declared(self, spark: SparkSession) -> pa.Schema:
        """Return the record's columns as the source's definition has them.

        Args:
            spark: the Spark session, whose server parses `columns`.

        Raises:
            StreamError: a column has a type that messages have no values of.
        """
        if self.columns not in _declared:
            from pyspark.errors import PySparkTypeError
            from pyspark.sql.pandas.types import to_arrow_schema

            columns = spark.createDataFrame([], self.columns).schema
            try:
                _declared[self.columns] = to_arrow_schema(columns)
            except PySparkTypeError as error:
                raise StreamError(
                    f"The `columns` of the source have a type that no message has: {error}. "
                    "Declare the column as another type, or as string."
                ) from error
        return _declared[self.columns]

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

    def maxwell_key(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the key, spelled as a record spells them.

        Args:
            names: columns of the record.

        Raises:
            StreamError: the record does not have them.
        """
        lower = {name.lower() for name in names}
        missing = [name for name in self.key if name.lower() not in lower]
        # A query may compute a part of the key from other columns, such as those of a joined table.
        if missing and (self.has_own_key or len(missing) == len(self.key)):
            raise StreamError(
                f"The key {', '.join(missing)} is not among the columns of the Maxwell source. Set "
                "the source's `key` to the columns that identify a row, so that an update of them "
                "deletes the old row."
            )
        return spelled_as(names, self.key)


def schema_format(*names: object) -> str | None:
    """Return the first of formats whose messages have the id of a schema in a registry, if any."""
    return next((str(name) for name in names if name in SCHEMA_FORMATS), None)


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
