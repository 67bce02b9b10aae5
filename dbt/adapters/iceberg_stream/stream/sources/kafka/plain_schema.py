"""The schema of messages in Avro that have no id of one: a file of the project has it.

Apart from that they are read as those of a schema registry are, behind the header of an id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import named
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
    schema_header,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, Frontier, OnSkip

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from dbt.adapters.iceberg_stream.stream.sources.arrow.records import RecordDecoder
    from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas

# The id in the headers that messages get here.
ID = 0
HEADER = schema_header(ID)


@dataclass(frozen=True)
class PlainSchema:
    """The schema of all messages of a source; it has the methods of TopicSchemas.

    Attributes:
        envelope: the format of the messages.
        path: of the file with the schema.
        text: the schema.
    """

    envelope: Envelope
    path: str
    text: str

    def check(self, topics: FollowedTopics) -> None:
        """Check nothing: several topics may have messages of one schema."""

    def learn(self, ids: Iterable[int]) -> None:
        """Learn nothing: messages have no ids."""

    def pin(self, topics: Sequence[str], lower: Frontier | None, upper: Frontier) -> Frontier:
        """Return the frontier: it has no ids of schemas."""
        return upper

    def columns_of(self, topics: Sequence[str], pinned: Frontier) -> str:
        """Return the columns of the schema as text."""
        return self._schemas(None).columns.simpleString()

    def unpack(
        self,
        spark: SparkSession,
        envelope: Envelope,
        messages: DataFrame,
        topics: Sequence[str],
        pinned: Frontier,
        sample: Callable[[], Iterable[int]],
    ) -> DataFrame:
        """Decode messages; see TopicSchemas.unpack.

        Raises:
            StreamError: the schema cannot be read.
        """
        from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
            SchemaMessages,
        )

        header = f"concat(X'{HEADER.hex()}', value) as value"
        schemas = self._schemas(self._declared(spark))
        rows = SchemaMessages(envelope, schemas, of_source=True).unpack(
            messages.selectExpr("* except (value)", header)
        )
        bad = f"substring({BAD}, {2 * HEADER_BYTES + 1}) as {BAD}"
        return rows.selectExpr(f"* except ({BAD})", bad)

    def decoder(
        self, spark: SparkSession, topics: Sequence[str], pinned: Frontier, zone: str | None = None
    ) -> PlainDecoder | None:
        """Return what decodes messages without Spark; see TopicSchemas.decoder.

        Raises:
            StreamError: the schema cannot be read.
        """
        from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder

        decoder = avro_decoder(self._schemas(self._declared(spark)))
        return None if decoder is None else PlainDecoder(decoder)

    def _declared(self, spark: SparkSession) -> StructType | None:
        from pyspark.sql.types import StructType

        return StructType(self.envelope.fields(spark)) if self.envelope.columns else None

    def _schemas(self, declared: StructType | None) -> MessageSchemas:
        from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
            message_schemas,
            unreadable,
        )

        schemas = message_schemas([RegisteredSchema(ID, self.text)], self.envelope, declared)
        if why := schemas.unreadable.get(ID):
            raise StreamError(
                f"The schema in {self.path} cannot be used: it {why.removeprefix(unreadable(ID))}."
            )
        if names := schemas.others.get(ID):
            raise StreamError(
                f"The schema in {self.path} is of {named(names)}, and the source's `record` is "
                f"`{self.envelope.record}`. Correct or remove `record`."
            )
        return schemas


@dataclass(frozen=True)
class PlainDecoder:
    """Decodes messages that have no id of a schema; see RecordDecoder.

    Attributes:
        decoder: decodes them behind a header.
    """

    decoder: RecordDecoder

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow."""
        return self.decoder.schema

    def decode(
        self,
        messages: Iterable[pa.RecordBatch],
        columns: Mapping[str, str],
        on_skip: OnSkip = lambda count: None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode messages to columns; see RecordDecoder.decode."""
        return self.decoder.decode(map(_with_headers, messages), columns, on_skip)


def _with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    header, no_separator = pa.scalar(HEADER, pa.binary()), pa.scalar(b"", pa.binary())
    values = pc.binary_join_element_wise(header, batch["value"], no_separator)
    return batch.set_column(batch.schema.get_field_index("value"), "value", values)
