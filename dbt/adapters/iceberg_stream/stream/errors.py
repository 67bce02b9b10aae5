"""Why a stream stops that its user did not stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError


class StreamError(CatalogError):
    """A stream cannot go on; the message says where it stands, and what to do."""


class Fenced(StreamError):
    """Another run of the same stream has taken over; this one must not write any more."""


class Overtaken(StreamError):
    """An older run has committed after this one has begun; this one must look again."""


class RolledBack(StreamError):
    """The table is older than the stream's progress."""


class SchemaChanged(StreamError):
    """The source's next batch has other columns; what was begun is to be committed before it.

    `upper` is the end of that batch.
    """

    def __init__(self, message: str, upper: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.upper = upper


class NotPlain(Exception):
    """Spark must look at these records."""
