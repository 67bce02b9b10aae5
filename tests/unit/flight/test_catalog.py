"""Patterns of metadata commands."""

from __future__ import annotations

import time

import pytest

from dbt.adapters.iceberg_stream.flight.catalog import _matching

NAMES = ["orders", "order_items", "a.b", "a%b", "Orders"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("", NAMES),
        ("%", NAMES),
        ("order%", ["orders", "order_items"]),
        ("orders", ["orders"]),
        ("a_b", ["a.b", "a%b"]),
        ("a.b", ["a.b"]),
        ("none", []),
    ],
)
def test_patterns(pattern: str, matched: list[str]) -> None:
    assert _matching(NAMES, pattern) == matched


def test_a_pattern_takes_no_time() -> None:
    began = time.monotonic()
    assert _matching(["a" * 60], "%a" * 25 + "%b") == []
    assert time.monotonic() - began < 1
