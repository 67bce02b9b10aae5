"""Images of rows before and after a change: in every format, none becomes another row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.query.key_lineage import source_key_columns
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import PLACEHOLDER, unlogged
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from tests.integration.message_ways import WAYS, Messages, Outcome, decode, spark_frame
from tests.unit.stream.sources.formats.avro_rows import encode, framed
from tests.unit.stream.sources.formats.encoded_changes import optional, record

DDL = "id bigint, doc string, raw binary, tags array<string>"
JSON = Envelope("debezium", DDL, required=("ID",))
ONE, TWO = {"id": 1, "doc": "a"}, {"id": 2, "doc": "b"}
BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
GONE = {"id": 1, "doc": PLACEHOLDER}
# The id, the doc, and whether the row is deleted.
Row = tuple[int | None, str | None, bool]
# Changes of Debezium, and their rows, or why they are bad.
CHANGES: list[tuple[dict[str, Any], list[Row] | str]] = [
    ({"op": "c", "after": ONE}, [(1, "a", False)]),
    ({"op": "u", "before": ONE, "after": {"id": 1, "doc": None}}, [(1, None, False)]),
    ({"op": "d", "before": ONE}, [(1, "a", True)]),
    ({"op": "d", "before": GONE}, [(1, PLACEHOLDER, True)]),
    ({"op": "u", "before": ONE, "after": TWO}, [(1, "a", True), (2, "b", False)]),
    ({"op": "u", "before": {"id": None}, "after": TWO}, [(2, "b", False)]),
    ({"op": "c"}, "has no row in `after`"),
    ({"op": "r", "after": None}, "has no row in `after`"),
    ({"op": "d", "after": ONE}, "has no row in `before`"),
    ({"op": "u", "before": ONE, "after": GONE}, unlogged("doc")),
    ({"op": "u", "after": {"id": 1, "tags": ["a", PLACEHOLDER]}}, unlogged("tags")),
    ({"op": "m"}, []),
    ({"op": "x", "after": ONE}, "has no `op` of Debezium"),
]
# Messages in JSON only, whose keys need not be there.
IN_JSON: list[tuple[dict[str, Any], list[Row] | str]] = [
    ({"op": "c", "after": {"id": None}}, [(None, None, False)]),
    ({"op": "c", "after": {"ID": 1}}, "lacks the key `id`"),
    ({"op": "c", "after": {}}, "lacks the key `id`"),
    ({"op": "d", "before": {"ID": 1}}, "lacks the key `id`"),
    ({"op": "u", "after": {"id": 1, "raw": BASE64}}, unlogged("raw")),
    ({"after": ONE}, "has no `op` of Debezium"),
]


def rows_of(outcomes: Sequence[Outcome]) -> list[list[Row] | str]:
    return [
        own
        if isinstance(own, str)
        else [(row["id"], row["doc"], row["deleted"]) for row in map(json.loads, own)]
        for own in outcomes
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("with_schema", [False, True])
def test_debezium_in_json(spark: Session, with_schema: bool, way: str) -> None:
    cases = [*CHANGES, *IN_JSON]
    texts = [json.dumps({"schema": {}, "payload": m} if with_schema else m) for m, _ in cases]
    # A tombstone with its schema.
    texts.append('{"schema": null, "payload": null}')
    found = decode(spark, way, JSON, [text.encode() for text in texts])
    assert rows_of(found) == [*(expected for _, expected in cases), []]


@pytest.mark.parametrize("way", WAYS)
def test_debezium_in_avro(spark: Session, way: str) -> None:
    row = record(
        "Value",
        id=optional("long"),
        doc=optional("string"),
        tags=optional({"type": "array", "items": "string"}),
    )
    change = record("Envelope", before=optional(row), after=optional("shop.Value"), op="string")
    envelope = Envelope("debezium", "", encoding="avro", required=("ID",))
    values = [framed(1, encode(change, filled(message))) for message, _ in CHANGES]
    schemas = [RegisteredSchema(1, json.dumps(change))]
    found = decode(spark, way, envelope, values, schemas)
    assert rows_of(found) == [expected for _, expected in CHANGES]


def filled(message: dict[str, Any]) -> dict[str, Any]:
    def row(image: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if image is None else {"id": None, "doc": None, "tags": None} | image

    return {"op": message["op"], **{name: row(message.get(name)) for name in ("before", "after")}}


@pytest.mark.parametrize("way", WAYS)
def test_maxwell(spark: Session, way: str) -> None:
    envelope = Envelope("maxwell", DDL, key=("id",), required=("id",))
    cases: list[tuple[dict[str, Any], list[Row] | str]] = [
        ({"type": "insert", "data": ONE}, [(1, "a", False)]),
        ({"type": "insert", "data": {"ID": 1}}, "lacks the key `id`"),
        ({"type": "delete", "data": {"doc": "a"}}, "lacks the key `id`"),
        ({"type": "insert", "data": None}, "has no row in `data`"),
        (
            {"type": "update", "data": TWO, "old": {"id": 1}},
            [(1, "b", True), (2, "b", False)],
        ),
    ]
    texts = [json.dumps({"table": "t", **message}).encode() for message, _ in cases]
    found = decode(spark, way, envelope, texts)
    assert rows_of(found) == [expected for _, expected in cases]


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
    query = "select id, __stream.deleted from m order by __stream.minor"
    source = Messages(envelope, [json.dumps(change).encode()])
    with spark_frame(spark, source) as frame:
        assert as_rows(spark.rows(query, m=frame)) == [(1, True), (after["id"], False)]
