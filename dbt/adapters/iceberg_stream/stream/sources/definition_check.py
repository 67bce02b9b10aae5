"""Checks of the values in a source's definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be

COLUMNS = "text, as `name type, name type`"
NAMES = ("topic", "transaction_topic", "format", "table", "table_column", "starting")
REGISTRY = ("encoding", "schema_registry", "subject", "message", "record", "key_record")
PATHS = ("path", "schema_file")
TEXTS = {name: "text" for name in (*NAMES, *REGISTRY, *PATHS, "connection", "publication")} | {
    "columns": COLUMNS,
    "bootstrap_servers": "text, as `host:port,host:port`",
}
FLAGS = ("transactions", "skip_changes", "changes")


def definition_errors(spec: Mapping[str, Any]) -> list[str]:
    """Return a message for each value of a definition that has the wrong type."""
    expected = {}
    for name, value in spec.items():
        if value is None:
            continue
        if name in TEXTS and isinstance(value, bool | list | tuple | Mapping):
            expected[name] = TEXTS[name]
        if name in FLAGS and as_flag(value) is None:
            expected[name] = "true or false"
        if name == "topics" and not isinstance(value, list | tuple):
            expected[name] = "a list of topics"
        if name == "options" and not isinstance(value, Mapping):
            expected[name] = "a mapping of names to values"
        if name == "late_seconds" and not _is_number(value):
            expected[name] = "a number of seconds"
    return [must_be(name, spec[name], what) for name, what in expected.items()]


def as_flag(value: object) -> bool | None:
    """Return a flag as a boolean; None if it is none.

    Flags of environment variables are texts.
    """
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) >= 0
    except (TypeError, ValueError):
        return False
