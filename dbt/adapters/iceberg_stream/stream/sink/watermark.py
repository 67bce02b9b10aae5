"""Watermarks: `sequence_by` values as JSON, for a snapshot's summary."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any


def as_json(value: Any) -> Any:
    """Return a value as JSON; types that JSON lacks become `{type: text}`.

    Args:
        value: of Arrow's Python types.
    """
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    return value


def from_json(value: Any) -> Any:
    """Return the value that `as_json` has converted.

    Args:
        value: the result of `as_json`.
    """
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if kind == "decimal":
        return Decimal(text)
    if kind == "binary":
        return bytes.fromhex(text)
    return (datetime if kind == "timestamp" else date).fromisoformat(text)
