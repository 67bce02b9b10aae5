"""Errors without secrets: what their messages are made of may come from anywhere."""

from __future__ import annotations

from typing import Any

from dbt.adapters.iceberg_stream.errors.redaction import without_secrets


class RedactedError(Exception):
    """Mixin of errors whose message users see; it comes before other base classes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        shown = tuple(without_secrets(a) if isinstance(a, str) else a for a in args)
        super().__init__(*shown, **named)
        # `__new__` has kept the original, which `repr` shows.
        self.args = shown
