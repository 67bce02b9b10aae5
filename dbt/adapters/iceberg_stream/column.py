from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from dbt.adapters.base.column import Column

from dbt.adapters.iceberg_stream.sql.quoting import quote

DECIMAL = re.compile(r"decimal\((\d+)\s*,\s*(\d+)\)")


@dataclass
class IcebergStreamColumn(Column):
    """A column with its Spark SQL type, e.g. `decimal(10,2)` or `struct<a:int>`.

    Attributes:
        path: for a field within a column, the names from the column to the field.
        is_uuid: whether its strings are UUIDs in the table.
    """

    path: tuple[str, ...] = ()
    is_uuid: bool = False

    TYPE_LABELS: ClassVar[dict[str, str]] = {
        "STRING": "string",
        "TEXT": "string",
        "VARCHAR": "string",
        "INTEGER": "int",
        "BIGINT": "bigint",
        "LONG": "bigint",
        "TIMESTAMP": "timestamp",
        "FLOAT": "float",
        "NUMERIC": "decimal(38,18)",
    }
    # Iceberg widens these in place (spec, "Schema Evolution"); anything else needs a rewrite.
    WIDENINGS: ClassVar[set[tuple[str, str]]] = {("int", "bigint"), ("float", "double")}

    @classmethod
    def translate_type(cls, dtype: str) -> str:
        return cls.TYPE_LABELS.get(dtype.upper(), dtype)

    @property
    def quoted(self) -> str:
        return ".".join(map(quote, self.path or (self.column,)))

    @property
    def data_type(self) -> str:
        return self.dtype

    def is_string(self) -> bool:
        return self.dtype.lower() in ("string", "text") or self.dtype.lower().startswith(
            ("varchar", "char")
        )

    def is_integer(self) -> bool:
        return self.dtype.lower() in ("tinyint", "smallint", "int", "integer", "bigint", "long")

    def is_float(self) -> bool:
        return self.dtype.lower() in ("float", "double")

    def is_numeric(self) -> bool:
        return self.dtype.lower().startswith("decimal")

    def string_size(self) -> int:
        # Spark's string has no length: every string column is as wide as any other.
        return 256

    def can_expand_to(self, other_column: Any) -> bool:
        """Return whether Iceberg can widen this column to the other's type without a rewrite."""
        ours, theirs = self.dtype.lower(), other_column.dtype.lower()
        if (ours, theirs) in self.WIDENINGS:
            return True
        narrow, wide = DECIMAL.fullmatch(ours), DECIMAL.fullmatch(theirs)
        return bool(
            narrow
            and wide
            and narrow.group(2) == wide.group(2)
            and int(narrow.group(1)) < int(wide.group(1))
        )

    @classmethod
    def numeric_type(cls, dtype: str, precision: Any, scale: Any) -> str:
        if precision is None or scale is None:
            return dtype
        return f"{dtype}({precision},{scale})"

    @classmethod
    def string_type(cls, size: int) -> str:
        return "string"
