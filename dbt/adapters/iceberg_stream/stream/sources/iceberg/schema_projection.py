"""Project rows of an older snapshot to the table's current schema, by field ids.

A column that was added since has its initial default. Iceberg spec, "Default values":
https://iceberg.apache.org/spec/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Field = Mapping[str, Any]


def current_columns(metadata: Metadata, snapshot_id: int, types: StructType) -> list[str]:
    """Return the current schema's columns as SQL expressions on the columns of a snapshot.

    Args:
        metadata: of the table.
        snapshot_id: the snapshot whose rows are read.
        types: Spark's types of the current schema.
    """
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    current = metadata["current-schema-id"]
    schema_id = by_id.get(snapshot_id, {}).get("schema-id", current)
    fields = {schema["schema-id"]: schema["fields"] for schema in metadata["schemas"]}
    values = _values("", fields[schema_id], fields[current], types)
    return [f"{value} as {quote(name)}" for name, value in values]


def _values(
    prefix: str, snapshot_fields: Sequence[Field], fields: Sequence[Field], types: StructType
) -> Iterator[tuple[str, str]]:
    by_id = {field["id"]: field for field in snapshot_fields}
    for field in fields:
        name, old = field["name"], by_id.get(field["id"])
        kind = types[name].dataType
        if old is None:
            yield name, f"cast({_default(field)} as {type_sql(kind)})"
        else:
            yield name, _value(prefix + quote(old["name"]), old["type"], field["type"], kind)


def _default(field: Field) -> str:
    default, kind = field.get("initial-default"), field["type"]
    # Structs, lists and maps have no default of their own; their nested fields may have one.
    if default is None or not isinstance(kind, str):
        return "null"
    if kind == "binary" or kind.startswith("fixed"):
        return f"X'{default}'"
    return literal(str(default))


def _value(value: str, old: Any, new: Any, kind: Any) -> str:
    if old == new:
        return value
    if isinstance(new, str):
        return f"cast({value} as {type_sql(kind)})"
    if new["type"] == "struct":
        # Spark's own cast of structs matches fields by position instead of id.
        fields = _values(f"{value}.", old["fields"], new["fields"], kind)
        parts = ", ".join(f"{part} as {quote(name)}" for name, part in fields)
        return f"if({value} is null, null, struct({parts}))"
    if new["type"] == "list":
        element = _value("x", old["element"], new["element"], kind.elementType)
        return f"transform({value}, x -> {element})"
    element = _value("x", old["value"], new["value"], kind.valueType)
    return f"transform_values({value}, (k, x) -> {element})"
