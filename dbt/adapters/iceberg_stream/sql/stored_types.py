"""Types of Spark SQL as Iceberg stores them."""

from __future__ import annotations

import re

# In the type of a column; not the name of a field in it.
SMALL_INTEGER = re.compile(r"(?<![^<:,])(?:tinyint|smallint)(?![^>,])")


def stored_type(kind: str) -> str:
    """Return the type of Spark SQL that a table's column has for a query's.

    Iceberg has no smaller integers than `int` (spec, "Primitive Types").

    Args:
        kind: the type of the query's column.
    """
    return SMALL_INTEGER.sub("int", kind)
