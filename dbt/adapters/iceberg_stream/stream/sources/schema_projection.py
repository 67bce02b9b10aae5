"""Rows of an older snapshot as the table has them today: columns are known by their ids.

A column that was added since has its initial default in them (spec, "Default values").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.table_config import literal
from dbt.adapters.iceberg_stream.sql.quoting import quote

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Field = Mapping[str, Any]


def current_columns(metadata: Metadata, snapshot_id: int, types: StructType) -> list[str]:
    """Today's columns as expressions on those of a snapshot; `types` are today's for Spark."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    today = metadata["current-schema-id"]
    then = by_id.get(snapshot_id, {}).get("schema-id", today)
    fields = {schema["schema-id"]: schema["fields"] for schema in metadata["schemas"]}
    values = _values("", fields[then], fields[today], types)
    return [f"{value} as {quote(name)}" for name, value in values]


def _values(
    prefix: str, then: Sequence[Field], now: Sequence[Field], types: StructType
) -> Iterator[tuple[str, str]]:
    before = {field["id"]: field for field in then}
    for field in now:
        name, old = field["name"], before.get(field["id"])
        kind = types[name].dataType
        if old is None:
            yield name, f"cast({_default(field)} as {kind.simpleString()})"
        else:
            yield name, _value(prefix + quote(old["name"]), old["type"], field["type"], kind)


def _default(field: Field) -> str:
    default, kind = field.get("initial-default"), field["type"]
    # Of nested columns only those in them may have one.
    if default is None or not isinstance(kind, str):
        return "null"
    if kind == "binary" or kind.startswith("fixed"):
        return f"X'{default}'"
    return literal(str(default))


def _value(value: str, then: Any, now: Any, kind: Any) -> str:
    if then == now:
        return value
    if isinstance(now, str):
        return f"cast({value} as {kind.simpleString()})"
    if now["type"] == "struct":
        # Spark's own cast would take its fields by their place.
        fields = _values(f"{value}.", then["fields"], now["fields"], kind)
        parts = ", ".join(f"{part} as {quote(name)}" for name, part in fields)
        return f"if({value} is null, null, struct({parts}))"
    if now["type"] == "list":
        element = _value("x", then["element"], now["element"], kind.elementType)
        return f"transform({value}, x -> {element})"
    element = _value("x", then["value"], now["value"], kind.valueType)
    return f"transform_values({value}, (k, x) -> {element})"
