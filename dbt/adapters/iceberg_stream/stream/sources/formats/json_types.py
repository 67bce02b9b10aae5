"""Record types of messages in JSON, which the titles of their schemas in a registry name.

The messages are decoded by the source's columns. Nothing in a message says which schema of a
`oneOf` it has, so that no record type of one can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import UNTYPED, Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_messages import (
    require_record_type,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import record_names
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer, require_kind
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    MessageSchemas,
    header_reasons,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError, Struct
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
    schema_header,
    schema_id,
    schema_id_sql,
)
from dbt.adapters.iceberg_stream.stream.sources.source import SKIPPED, OnSkip

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

NO_ID = (
    "is JSON without the id of a schema, so that its record type is unknown. Remove the source's "
    "`record` to read messages of all types"
)


def json_schemas(
    schemas: Sequence[RegisteredSchema], record: str, declared: StructType
) -> MessageSchemas:
    """Return which schemas are of a record type.

    Args:
        schemas: the schemas.
        record: the title of the record type.
        declared: the source's columns.
    """
    own, unreadable, others = list[int](), dict[int, str](), dict[int, Sequence[str]]()
    for schema in schemas:
        names = record_names(schema)
        if names is not None and record not in names:
            others[schema.id] = names
            continue
        try:
            require_kind(schema, "JSON", "format")
            require_record_type(schema, record)
            own.append(schema.id)
        except SchemaError as error:
            unreadable[schema.id] = f"has the schema {schema.id}, which {error}"
    writers = (Writer(0, tuple(own), Struct(()), Struct(())),) if own else ()
    return MessageSchemas(declared, writers, unreadable, others)


def unpack_json(
    spark: SparkSession, envelope: Envelope, schemas: MessageSchemas, messages: DataFrame
) -> DataFrame:
    """Return the rows of messages of a record type; see Envelope.unpack.

    Args:
        spark: the Spark session.
        envelope: the format of the messages.
        schemas: their schemas.
        messages: a frame with the columns of Spark's Kafka source.
    """
    framed = messages.where("value is not null")
    framed = framed.selectExpr("*", f"{schema_id_sql('value')} as id")
    is_other = f"id in ({', '.join(map(str, schemas.others))})" if schemas.others else "false"
    cases = [("id is null and startswith(value, X'7B')", literal(NO_ID)), *header_reasons(schemas)]
    reason = " ".join(f"when {condition} then {why}" for condition, why in cases)
    return envelope.unpack(
        spark,
        framed.selectExpr(
            "*",
            f"coalesce({is_other}, false) as {SKIPPED}",
            f"case {reason} end as {UNTYPED}",
        ),
    )


@dataclass(frozen=True)
class OwnMessages:
    """Picks messages of a record type without Spark.

    Attributes:
        headers: of the schemas that are of the type.
        is_other: returns whether messages with the id of another schema are skipped.
    """

    headers: frozenset[bytes]
    is_other: Callable[[int], bool]

    @classmethod
    def of(cls, schemas: MessageSchemas, is_other: Callable[[int], bool]) -> OwnMessages:
        """Return what picks the messages of schemas.

        Args:
            schemas: the schemas.
            is_other: returns whether messages with the id of another schema are skipped.
        """
        ids = (number for writer in schemas.writers for number in writer.ids)
        return cls(frozenset(map(schema_header, ids)), is_other)

    def pick(self, messages: Iterable[pa.RecordBatch], on_skip: OnSkip) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the type.

        Args:
            messages: batches with the column `value` (binary).
            on_skip: counts the messages that are skipped.

        Raises:
            ArrowFallback: a message may be bad.
        """
        for batch in messages:
            headers = pc.binary_slice(batch["value"], 0, HEADER_BYTES).dictionary_encode()
            present = [self._is_own(header) for header in headers.dictionary.to_pylist()]
            if not all(present):
                own = np.array(present)[headers.indices.to_numpy()]
                on_skip(int(len(own) - own.sum()))
                batch = batch.filter(pa.array(own))
            yield batch

    def _is_own(self, header: bytes) -> bool:
        if header in self.headers:
            return True
        number = schema_id(header)
        if number is None or not self.is_other(number):
            raise ArrowFallback
        return False
