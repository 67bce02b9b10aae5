"""Which ranges of a column are whole partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table

# Transforms that cut time at least as finely as a batch of this size.
FINE_ENOUGH = {
    "hour": {"hour"},
    "day": {"hour", "day"},
    "month": {"hour", "day", "month"},
    "year": {"hour", "day", "month", "year"},
}


def range_is_aligned(table: Table, column: str, batch_size: str) -> bool:
    """Whether a batch of `batch_size` of a time column is a set of whole partitions."""
    schema = table.schema()
    return any(
        (schema.find_column_name(field.source_id) or "").lower() == column.lower()
        and (str(field.transform) in FINE_ENOUGH[batch_size] or str(field.transform) == "identity")
        for field in table.spec().fields
    )
