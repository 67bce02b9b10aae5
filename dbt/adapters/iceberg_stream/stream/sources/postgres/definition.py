"""Open the table of Postgres that a model's `stream(…)` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.postgres.database import Database
from dbt.adapters.iceberg_stream.stream.sources.postgres.source import PostgresSource

PUBLICATION = "dbt"


def postgres_source(
    spec: Mapping[str, Any],
    connections: Mapping[str, Mapping[str, Any]],
    consumer: str,
    keys: Sequence[str] = (),
) -> PostgresSource:
    """Return the source of a definition of type `postgres`.

    Args:
        spec: the definition.
        connections: options of libpq by the connections' names in the profile.
        consumer: identifies the stream.
        keys: columns of the table that the stream's table identifies rows by.

    Raises:
        StreamError: the definition has errors.
    """
    name = str(spec.get("connection") or "")
    if name not in connections:
        raise StreamError(
            f"The profile has no connection `{name}` under `postgres`, where it has: "
            f"{', '.join(connections) or 'none'}. Add it there, or correct `connection` in the "
            "source."
        )
    if not spec.get("table"):
        raise StreamError("A stream from Postgres needs `table`, as `schema.table`.")
    schema, _, table = str(spec["table"]).rpartition(".")
    options = {str(option): str(value) for option, value in connections[name].items()}
    publication = str(spec.get("publication") or PUBLICATION)
    database = Database(options, schema or "public", table, publication, consumer)
    return PostgresSource(database, keys)
