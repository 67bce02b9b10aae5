"""Whether the time range of a microbatch is a set of whole partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table

# Transforms whose partitions are not larger than a batch of this size.
ALIGNED_TRANSFORMS = {
    "hour": {"hour"},
    "day": {"hour", "day"},
    "month": {"hour", "day", "month"},
    "year": {"hour", "day", "month", "year"},
}


def range_is_aligned(table: Table, column: str, batch_size: str) -> bool:
    """Return whether a microbatch is a set of whole partitions.

    Args:
        table: the table.
        column: the time column.
        batch_size: `hour`, `day`, `month` or `year`.
    """
    schema = table.schema()
    return any(
        (schema.find_column_name(field.source_id) or "").lower() == column.lower()
        and (
            str(field.transform) in ALIGNED_TRANSFORMS[batch_size]
            or str(field.transform) == "identity"
        )
        for field in table.spec().fields
    )
