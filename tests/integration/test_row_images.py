"""Images of rows before and after a change: in every format, none becomes another row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.key_lineage import source_key_columns
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import PLACEHOLDER, unlogged
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import SchemaMessages
from dbt.adapters.iceberg_stream.stream.sources.source import REASON
from tests.unit.stream.sources.formats.avro_rows import decoder_of, encode, framed, schemas_of
from tests.unit.stream.sources.formats.encoded_changes import optional, record

MESSAGES = "topic string, partition int, offset bigint, key binary, value binary"
DDL = "id bigint, doc string, raw binary, tags array<string>"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("doc", pa.string()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
JSON = Envelope("debezium", DDL, required=("ID",))
ONE, TWO = {"id": 1, "doc": "a"}, {"id": 2, "doc": "b"}
BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
GONE = {"id": 1, "doc": PLACEHOLDER}
Row = tuple[int | None, str | None, bool, str | None]
# A change of Debezium, and what it becomes: id, doc, whether it deletes, and why it is bad.
CHANGES: list[tuple[dict[str, Any], list[Row]]] = [
    ({"op": "c", "after": ONE}, [(1, "a", False, None)]),
    ({"op": "u", "before": ONE, "after": {"id": 1, "doc": None}}, [(1, None, False, None)]),
    ({"op": "d", "before": ONE}, [(1, "a", True, None)]),
    ({"op": "d", "before": GONE}, [(1, PLACEHOLDER, True, None)]),
    ({"op": "u", "before": ONE, "after": TWO}, [(1, "a", True, None), (2, "b", False, None)]),
    ({"op": "u", "before": {"id": None}, "after": TWO}, [(2, "b", False, None)]),
    ({"op": "c"}, [(None, None, False, "has no row in `after`")]),
    ({"op": "r", "after": None}, [(None, None, False, "has no row in `after`")]),
    ({"op": "d", "after": ONE}, [(None, None, True, "has no row in `before`")]),
    ({"op": "u", "before": ONE, "after": GONE}, [(1, PLACEHOLDER, False, unlogged("doc"))]),
    (
        {"op": "u", "after": {"id": 1, "tags": ["a", PLACEHOLDER]}},
        [(1, None, False, unlogged("tags"))],
    ),
]
# Messages in JSON only, whose keys need not be there.
IN_JSON: list[tuple[dict[str, Any], list[Row]]] = [
    ({"op": "c", "after": {"id": None}}, [(None, None, False, None)]),
    ({"op": "c", "after": {"ID": 1}}, [(None, None, False, "lacks the key `id`")]),
    ({"op": "c", "after": {}}, [(None, None, False, "lacks the key `id`")]),
    ({"op": "d", "before": {"ID": 1}}, [(None, None, True, "lacks the key `id`")]),
    ({"op": "u", "after": {"id": 1, "raw": BASE64}}, [(1, None, False, unlogged("raw"))]),
]


def rows_of(spark: Session, frame: Any) -> list[Row]:
    sql = f"select id, doc, __stream.deleted, {REASON} from m order by __stream.minor, 3 desc"
    return [(row[0], row[1], row[2], row[3]) for row in as_rows(spark.rows(sql, m=frame))]


def expected(cases: Sequence[tuple[dict[str, Any], list[Row]]]) -> list[Row]:
    return [row for _, rows in cases for row in rows]


def messages(spark: Session, values: Sequence[bytes]) -> Any:
    table = [("t", 0, offset, None, value) for offset, value in enumerate(values)]
    return spark.spark.createDataFrame(table, MESSAGES)


@pytest.mark.parametrize("with_schema", [False, True])
def test_debezium_in_json(spark: Session, with_schema: bool) -> None:
    cases = [*CHANGES, *IN_JSON]
    texts = [json.dumps({"schema": {}, "payload": m} if with_schema else m) for m, _ in cases]
    texts.append('{"schema": null, "payload": null}')
    frame = JSON.unpack(spark.spark, messages(spark, [text.encode() for text in texts]))
    assert rows_of(spark, frame) == expected(cases)


def test_debezium_in_avro(spark: Session) -> None:
    row = record(
        "Value",
        id=optional("long"),
        doc=optional("string"),
        tags=optional({"type": "array", "items": "string"}),
    )
    change = record("Envelope", before=optional(row), after=optional("shop.Value"), op="string")
    envelope = Envelope("debezium", "", encoding="avro", required=("ID",))
    values = [framed(1, encode(change, filled(message))) for message, _ in CHANGES]
    frame = SchemaMessages(envelope, schemas_of(change, envelope=envelope)).unpack(
        messages(spark, values)
    )
    assert rows_of(spark, frame) == expected(CHANGES)
    decoder = decoder_of(change, envelope=envelope)
    columns = {"id": "id", "doc": "doc"}
    for value, (_, rows) in zip(values, CHANGES, strict=True):
        batch = pa.record_batch({"value": pa.array([value]), "offset": pa.array([0], pa.int64())})
        assert_decoded(decoder.decode, [batch], columns, rows)


def test_debezium_without_spark() -> None:
    # Spark reads binary columns.
    for message, rows in [*CHANGES, *IN_JSON[:-1]]:
        value = json.dumps(message).encode()
        batch = pa.record_batch({"value": pa.array([value]), "offset": pa.array([0], pa.int64())})

        def decode(batches: Any, columns: Any) -> Any:
            return decode_debezium(batches, SCHEMA, columns, ["id"])

        assert_decoded(decode, [batch], {"id": "id", "doc": "doc"}, rows)


def assert_decoded(decode: Any, batches: Any, columns: Any, rows: Sequence[Row]) -> None:
    """What has one good row is decoded; the rest is left to Spark."""
    try:
        decoded = pa.Table.from_batches(decode(batches, columns)).to_pylist()
    except ArrowFallback:
        assert len(rows) > 1 or rows[0][3] is not None or rows[0][0] is None
    else:
        assert [(row["id"], row["doc"]) for row in decoded] == [row[:2] for row in rows]
        assert [row[3] for row in rows] == [None]


def filled(message: dict[str, Any]) -> dict[str, Any]:
    def row(image: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if image is None else {"id": None, "doc": None, "tags": None} | image

    return {"op": message["op"], **{name: row(message.get(name)) for name in ("before", "after")}}


def test_maxwell(spark: Session) -> None:
    envelope = Envelope("maxwell", DDL, key=("id",), required=("id",))
    cases: list[tuple[dict[str, Any], list[Row]]] = [
        ({"type": "insert", "data": ONE}, [(1, "a", False, None)]),
        ({"type": "insert", "data": {"ID": 1}}, [(None, None, False, "lacks the key `id`")]),
        ({"type": "delete", "data": {"doc": "a"}}, [(None, "a", True, "lacks the key `id`")]),
        ({"type": "insert", "data": None}, [(None, None, False, "has no row in `data`")]),
        (
            {"type": "update", "data": TWO, "old": {"id": 1}},
            [(1, "b", True, None), (2, "b", False, None)],
        ),
    ]
    texts = [json.dumps({"table": "t", **message}).encode() for message, _ in cases]
    frame = envelope.unpack(spark.spark, messages(spark, texts))
    assert rows_of(spark, frame) == expected(cases)


@pytest.mark.parametrize(
    ("sql", "after"),
    [
        ("select id, doc from m", {"id": None, "doc": "a"}),
        ("select coalesce(id, -1) as id, doc from m", {"id": None, "doc": "a"}),
        ("select id, lower(doc) as key from m", {"id": 1, "doc": "b"}),
        ("select id, map_values(named)[0] as key from m", {"id": 1, "named": {"k": "v"}}),
    ],
)
def test_an_update_that_changes_the_key(spark: Session, sql: str, after: dict[str, Any]) -> None:
    """The row of the old key goes, also if the new key is null or the query computes it."""
    keys = source_key_columns(sql, "m", ["id", "key"])
    envelope = Envelope(
        "debezium", f"{DDL}, named map<string, string>", required=keys.passed_on, key=keys.read
    )
    change = {"op": "u", "before": {"id": 1, "doc": "a", "named": {"k": "u"}}, "after": after}
    frame = envelope.unpack(spark.spark, messages(spark, [json.dumps(change).encode()]))
    query = f"select id, __stream.deleted, {REASON} from m order by __stream.minor, 2 desc"
    assert as_rows(spark.rows(query, m=frame)) == [(1, True, None), (after["id"], False, None)]
