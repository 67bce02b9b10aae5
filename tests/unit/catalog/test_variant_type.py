"""PyIceberg reads and writes schemas with variants, wherever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.tables import as_json
from dbt.adapters.iceberg_stream.catalog.variant_type import VariantType

FIELD = {"id": 2, "name": "x", "type": "variant", "required": False}
LIST = {"type": "list", "element-id": 2, "element": "variant", "element-required": False}
MAP = {
    "type": "map",
    "key-id": 2,
    "key": "string",
    "value-id": 3,
    "value": "variant",
    "value-required": False,
}


@pytest.mark.parametrize("kind", ["variant", {"type": "struct", "fields": [FIELD]}, LIST, MAP])
def test_schemas_with_variants(kind: Any) -> None:
    column = {"id": 1, "name": "v", "type": kind, "required": False}
    text = {"type": "struct", "schema-id": 0, "fields": [column]}
    schema = Schema.model_validate(text)
    assert "variant" in str(schema)
    assert json.loads(json.dumps(as_json(schema)))["fields"] == [column]
    assert Schema.model_validate(as_json(schema)) == schema


def test_variants_need_version_3() -> None:
    assert VariantType().minimum_format_version() == 3
