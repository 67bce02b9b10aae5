"""The schema of messages in Avro that have no id of one: a file of the project has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import named
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
    from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import MessageSchemas
    from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values

# The id of the schema, which no message has.
ID = 0


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

    def pin(self, topics: Sequence[str], lower: Frontier | None, upper: Frontier) -> Frontier:
        """Return the frontier: it has no ids of schemas."""
        return upper

    def columns(
        self, topics: Sequence[str], pinned: Frontier, declared: pa.Schema | None
    ) -> pa.Schema:
        """Return the columns of the schema.

        Raises:
            StreamError: the schema cannot be read.
        """
        return self._schemas(declared).columns

    def decoder(
        self, topics: Sequence[str], pinned: Frontier, declared: pa.Schema | None, values: Values
    ) -> MessageDecoder:
        """Return what decodes messages; see TopicSchemas.decoder.

        Raises:
            StreamError: the schema cannot be read.
        """
        from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
            MessageDecoder,
        )

        schemas = self._schemas(declared)
        return MessageDecoder(self.envelope, schemas.columns, values, schemas, of_source=True)

    def without_columns(
        self, topics: Sequence[str], pinned: Frontier, sample: Callable[[], Iterable[int]]
    ) -> StreamError:
        """Return the error for a schema without columns."""
        return StreamError(f"The schema in {self.path} has no columns.")

    def _schemas(self, declared: pa.Schema | None) -> MessageSchemas:
        from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
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
