"""Reasons for which a stream stops by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed


class StreamError(CatalogError):
    """A stream cannot continue; the message names its position and what to do."""


class Fenced(StreamError):
    """Another run of the same stream has taken over; this run must not write any more."""


class RowsMoved(ValidationFailed):
    """Another writer committed after the key index had located the rows to delete."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"Another writer committed to {table} after the rows to delete were located.", [], set()
        )


class StreamConflict(StreamError):
    """Another writer committed first; this run must read the table's state again and retry."""


class RolledBack(StreamError):
    """The table was rolled back behind the stream's progress."""


class SchemaChanged(StreamError):
    """The source's next batch has other columns; pending batches must be committed before it.

    Attributes:
        upper: the end of that batch.
    """

    def __init__(self, message: str, upper: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.upper = upper


class ArrowFallback(Exception):
    """PyArrow and Spark may read these records differently, so Spark must read them."""
