"""Names and texts in SQL."""

from __future__ import annotations


def quote(identifier: str) -> str:
    """Return an identifier in backticks, with its own backticks doubled."""
    return f"`{identifier.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
