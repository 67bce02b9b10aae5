"""Iceberg types as Spark SQL spells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "string": "string",
    "binary": "binary",
    # Spark has neither time nor uuid: Iceberg's Spark catalog shows both as strings.
    "time": "string",
    "uuid": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "unknown": "void",
    "variant": "variant",
}
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def spark_type(iceberg_type: str | Mapping[str, Any]) -> str:
    """Convert an Iceberg type to Spark SQL's.

    Args:
        iceberg_type: as table metadata has it (spec, "Appendix C: JSON Serialization").
    """
    if isinstance(iceberg_type, str):
        if match := DECIMAL.fullmatch(iceberg_type):
            return f"decimal({match[1]},{match[2]})"
        return "binary" if iceberg_type.startswith("fixed[") else PRIMITIVES[iceberg_type]
    if iceberg_type["type"] == "list":
        return f"array<{spark_type(iceberg_type['element'])}>"
    if iceberg_type["type"] == "map":
        return f"map<{spark_type(iceberg_type['key'])},{spark_type(iceberg_type['value'])}>"
    inner = ",".join(f"{f['name']}:{spark_type(f['type'])}" for f in iceberg_type["fields"])
    return f"struct<{inner}>"
