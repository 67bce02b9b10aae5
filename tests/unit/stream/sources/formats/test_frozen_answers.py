"""Messages whose answers Spark gave when it still decoded them, and how ours may differ.

The files were written once, by Spark's functions. Each line is a topic: its definition, its schemas,
and messages as [value, answer, key], with values and keys in base64. An answer is "skipped", why the
message is bad, or what happens to rows, which are texts in JSON, with times as numbers.

`differences` has the place of each message that is read differently on purpose, with the rule and
with what is read.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from tests.unit.stream.sources.formats.decoded_messages import numbered

FILES = Path(__file__).parent / "frozen"
# Why a message is read otherwise than by Spark, and of how many messages.
RULES = {
    "json": {
        # What follows the object is part of the message.
        "text behind": 42,
        # Arrays and objects are nested in 500 levels at most.
        "levels": 23,
        # A decimal is a number in JSON, or a string with one.
        "commas": 13,
        # Times are those of ISO 8601, of the years 1 to 9999, with a day; a zone is not dropped.
        "times": 52,
        # A number in a column of strings is what was written.
        "numbers in strings": 83,
        # Of a member that is there twice, the last one counts.
        "duplicates": 2,
    },
    # What Debezium and Maxwell say of a change is not checked where it is not needed.
    "images": {"metadata": 66},
    "json_schema": {"text behind": 52},
    "avro": {
        # As for JSON, in columns of the source's definition.
        "times": 9,
        # Integers of more than 64 bits, which no writer makes.
        "varints": 26,
    },
    "protobuf": {},
}
SCALARS = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestampntz": pa.timestamp("us"),
    "binary": pa.binary(),
}


@pytest.mark.parametrize("name", RULES)
def test_answers_are_those_of_spark(name: str) -> None:
    rules = Counter[str]()
    for line in gzip.decompress((FILES / f"{name}.jsonl.gz").read_bytes()).splitlines():
        topic = json.loads(line)
        decoder = decoder_of(topic)
        assert {f.name: str(f.type) for f in decoder.row_columns} == topic["types"]
        messages = topic["messages"]
        values = [octets(message[0]) for message in messages]
        keys = [octets(*message[2:]) for message in messages]
        differences = topic.get("differences", {})
        for place, answer in enumerate(answers(decoder, values, keys)):
            rule, expected = differences.get(str(place), ("", messages[place][1]))
            assert answer == simple(expected), (topic["topic"], values[place])
            rules[rule] += 1
    assert rules - Counter({"": rules[""]}) == RULES[name]


def octets(text: str | None = None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def answers(
    decoder: MessageDecoder, values: list[bytes | None], keys: list[bytes | None]
) -> list[Any]:
    """Return what happens to the rows of each message, or that it is bad."""
    decoded = decoder.decode(values, keys)
    found: list[Any] = [[] for _ in values]
    texts = numbered(pa.Table.from_batches([decoded.rows]))
    for place, deleted, text in zip(decoded.of, decoded.deleted, texts, strict=True):
        found[place].append(["delete" if deleted else "upsert", text])
    for place in decoded.truncates:
        found[place].append(["truncate"])
    for bad in decoded.bad:
        assert not found[bad.place]
        found[bad.place] = "bad"
    return found


def simple(answer: Any) -> Any:
    if isinstance(answer, dict):
        return "bad"
    return [] if answer == "skipped" else answer


def decoder_of(topic: dict[str, Any]) -> MessageDecoder:
    settings = {n: tuple(v) if isinstance(v, list) else v for n, v in topic["envelope"].items()}
    envelope = Envelope(**settings)
    columns = schema_of(envelope.columns) if envelope.columns else None
    if not topic["schemas"]:
        assert columns is not None
        return MessageDecoder(envelope, columns)
    own = [RegisteredSchema(s["id"], s["text"], s["kind"]) for s in topic["schemas"]]
    schemas = message_schemas(own, envelope, columns, topic["key_ids"])
    return MessageDecoder(envelope, schemas.columns, schemas=schemas)


def schema_of(columns: str) -> pa.Schema:
    row = exp.DataType.build(f"struct<{columns}>", dialect="spark")
    return pa.schema(list(type_of(row)))


def type_of(kind: sqlglot.Expression) -> pa.DataType:
    name = kind.this.value.lower()
    if name == "struct":
        return pa.struct([(part.name, type_of(part.args["kind"])) for part in kind.expressions])
    if name == "array":
        return list_of(type_of(kind.expressions[0]))
    if name == "map":
        return pa.map_(*map(type_of, kind.expressions))
    if name == "decimal":
        precision, scale = [*(int(part.name) for part in kind.expressions), 10, 0][:2]
        return pa.decimal128(precision, scale)
    return SCALARS[name]
