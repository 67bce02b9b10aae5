"""Names of record types in schemas, and the subjects that they have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import (
    named,
    record_names,
    record_of_subject,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)

ORDER, PAYMENT = ({"type": "object", "title": title} for title in ("Order", "Payment"))
UNTITLED = {"type": "object"}
FILES = (Reference("order.json", json.dumps(ORDER)), Reference("none.json", "{}"))
FILE = 'syntax = "proto3"; package shop; message A { message B {} } message C {}'


def record(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [], **more}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (record("Row"), ("Row",)),
        (record("Row", namespace="shop"), ("shop.Row",)),
        (record("a.Row", namespace="shop"), ("a.Row",)),
        ({"type": record("Row", namespace="shop")}, ("shop.Row",)),
        ([record("A"), "shop.B", "null"], ("A", "shop.B")),
        ("long", ()),
        ({"type": "array", "items": "shop.B"}, ()),
        (5, ()),
    ],
)
def test_names_of_avro(schema: Any, expected: tuple[str, ...]) -> None:
    assert record_names(RegisteredSchema(1, json.dumps(schema))) == expected


def test_names_of_other_formats() -> None:
    assert record_names(RegisteredSchema(1, FILE, "PROTOBUF")) == ("shop.A", "shop.C", "shop.A.B")
    assert record_names(RegisteredSchema(1, "message {", "PROTOBUF")) is None
    assert record_names(RegisteredSchema(1, "{")) is None
    for text, names in {'{"title": "Row"}': ("Row",), "{}": (), "true": ()}.items():
        assert record_names(RegisteredSchema(1, text, "JSON")) == names


@pytest.mark.parametrize(
    ("described", "names"),
    [
        ({"oneOf": [ORDER, PAYMENT]}, ("Order", "Payment")),
        ({"anyOf": [{"$ref": "order.json"}, {"type": "null"}]}, ("Order",)),
        ({"title": "Event", "oneOf": [ORDER]}, ("Event", "Order")),
        ({"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": PAYMENT}}, ("Payment",)),
        ({"oneOf": [ORDER, UNTITLED]}, None),
        ({"oneOf": [{"$ref": "none.json"}]}, None),
        ({"oneOf": [{"$ref": "absent.json"}]}, None),
        ({"oneOf": [{"$ref": "#/$defs/a/b"}], "$defs": {"a": 5}}, None),
        ({"oneOf": [True]}, None),
        ({"oneOf": "x"}, ()),
    ],
)
def test_names_of_unions_in_json(described: Any, names: tuple[str, ...] | None) -> None:
    assert record_names(RegisteredSchema(1, json.dumps(described), "JSON", FILES)) == names


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("shop.C", "shop.C"),
        ("u-shop.A", "shop.A"),
        ("t-value", None),
        ("v-shop.A", None),
        ("shop.D", None),
    ],
)
def test_subjects_that_are_named_after_a_type(subject: str, expected: str | None) -> None:
    schemas = [RegisteredSchema(1, "{"), RegisteredSchema(2, FILE, "PROTOBUF")]
    assert record_of_subject(subject, ["t", "u"], schemas) == expected


def test_names_in_messages() -> None:
    assert named([]) == "no record type"
    assert named(["a"]) == "the record type `a`"
    assert named("ab") == "the record types `a`, `b`"
