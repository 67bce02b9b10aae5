"""Values that order changes, as JSON in a snapshot's summary."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any


def as_json(value: Any) -> Any:
    """A value of Arrow's Python types; what JSON has not is named by its type."""
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return value


def from_json(value: Any) -> Any:
    """The value again."""
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if kind == "decimal":
        return Decimal(text)
    return (datetime if kind == "timestamp" else date).fromisoformat(text)
