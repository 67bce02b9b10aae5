"""Types of columns in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import quote

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def type_sql(kind: DataType) -> str:
    """Return a type as Spark's parser takes it.

    `simpleString` does not quote the names of fields, such as `first-name`.

    Args:
        kind: the type.
    """
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        fields = (f"{quote(field.name)}: {type_sql(field.dataType)}" for field in kind.fields)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, t.ArrayType):
        return f"array<{type_sql(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"map<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    return str(kind.simpleString())
