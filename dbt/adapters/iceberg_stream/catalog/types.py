"""Iceberg types as Spark SQL spells them."""

from __future__ import annotations

from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    StructType,
)

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


def spark_type(iceberg_type: IcebergType) -> str:
    """A type of the Iceberg spec ("Schemas and Data Types") in Spark SQL's words."""
    match iceberg_type:
        case DecimalType():
            return f"decimal({iceberg_type.precision},{iceberg_type.scale})"
        case FixedType():
            return "binary"
        case ListType():
            return f"array<{spark_type(iceberg_type.element_type)}>"
        case MapType():
            key, value = spark_type(iceberg_type.key_type), spark_type(iceberg_type.value_type)
            return f"map<{key},{value}>"
        case StructType():
            inner = ",".join(f"{f.name}:{spark_type(f.field_type)}" for f in iceberg_type.fields)
            return f"struct<{inner}>"
    return PRIMITIVES[str(iceberg_type)]
