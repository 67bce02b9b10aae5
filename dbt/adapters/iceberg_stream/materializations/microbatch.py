"""The range of a microbatch's rows, in the type of its time column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dbt.adapters.base import Column
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote

# How a time is written for columns of a type; dbt's batches are in UTC.
FORMATS = {
    "timestamp": "timestamp '%Y-%m-%d %H:%M:%S+00:00'",
    "timestamp_ntz": "timestamp_ntz '%Y-%m-%d %H:%M:%S'",
    "date": "date '%Y-%m-%d'",
}


def batch_range_sql(
    columns: Sequence[Column], model: Mapping[str, Any], alias: str | None = None
) -> str:
    """Return the condition that a row is in the range of a batch.

    It selects the same rows in a session of any time zone, as dbt's filter of the inputs does: a
    `timestamp_ntz` and a `date` are read as UTC. Texts are compared with dbt's own text.

    Args:
        columns: of the table.
        model: the model's node, with its batch.
        alias: of the table; None for none.

    Raises:
        CompilationError: batches are shorter than a day, which the column cannot tell apart.
    """
    batch, configured = model["batch"], str(model["config"]["event_time"]).replace("`", "")
    # Spark finds the columns of this condition by the letters that the table has.
    of_columns = ((c.name, c.dtype) for c in columns if c.name.lower() == configured.lower())
    name, kind = next(of_columns, (configured, "timestamp"))
    if kind == "date" and str(model["config"].get("batch_size")) == "hour":
        raise CompilationError(
            f"{model['unique_id']} has `batch_size: hour`, but its `event_time` `{configured}` is "
            "a date. Set `batch_size: day`, or use a column that has the time of day."
        )
    start = _literal(batch["event_time_start"], kind)
    end = _literal(batch["event_time_end"], kind)
    column = f"{alias}.{quote(name)}" if alias else quote(name)
    return f"{column} >= {start} and {column} < {end}"


def _literal(time: datetime, kind: str) -> str:
    return time.strftime(FORMATS[kind]) if kind in FORMATS else literal(str(time))
