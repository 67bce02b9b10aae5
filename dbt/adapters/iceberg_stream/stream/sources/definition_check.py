"""Whether the keys of a source's definition hold what they are to hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = "text, as `name type, name type`"
PLAIN = ("topic", "transaction_topic", "format", "table", "table_column", "starting")
TEXTS = {name: "text" for name in (*PLAIN, "connection", "path")} | {
    "columns": COLUMNS,
    "bootstrap_servers": "text, as `host:port,host:port`",
}
FLAGS = ("transactions", "skip_changes", "changes")


def wrong_values(spec: Mapping[str, Any]) -> list[str]:
    """Faults of a definition's values, each in words."""
    wants = {}
    for name, value in spec.items():
        if value is None:
            continue
        if name in TEXTS and isinstance(value, bool | list | tuple | Mapping):
            wants[name] = TEXTS[name]
        if name in FLAGS and as_flag(value) is None:
            wants[name] = "true or false"
        if name == "topics" and not isinstance(value, list | tuple):
            wants[name] = "a list of topics"
        if name == "options" and not isinstance(value, Mapping):
            wants[name] = "names with their values"
        if name == "late_seconds" and not _is_number(value):
            wants[name] = "a number of seconds"
    return [f"`{name}: {spec[name]!r}` must be {what}" for name, what in wants.items()]


def as_flag(value: object) -> bool | None:
    """What a flag says; those of environment variables are texts. None if it says nothing."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) >= 0
    except (TypeError, ValueError):
        return False
