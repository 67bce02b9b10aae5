"""Names in SQL."""

from __future__ import annotations


def quote(identifier: str) -> str:
    """An identifier in backticks, with backticks of its own doubled."""
    return f"`{identifier.replace('`', '``')}`"
