"""Watermarks in JSON, and back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.sink.watermark import as_json, from_json


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        0.5,
        "text",
        b"",
        b"\x00\xff",
        Decimal("1.50"),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime(2026, 1, 2, tzinfo=UTC),
    ],
)
def test_values_come_back(value: Any) -> None:
    assert from_json(json.loads(json.dumps(as_json(value)))) == value
