"""Checks partition specs and sort orders against the columns (spec, "Partitioning", "Sorting")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schema_rules import children

MOMENTS = {"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"}
WHOLE = {"int", "long", "decimal"}
SOURCES: Mapping[str, set[str]] = {
    "bucket": WHOLE | MOMENTS | {"date", "time", "string", "uuid", "fixed", "binary"},
    "truncate": WHOLE | {"string", "binary"},
    "year": MOMENTS | {"date"},
    "month": MOMENTS | {"date"},
    "day": MOMENTS | {"date"},
    "hour": MOMENTS,
}
NOT_IDENTITY = {"geometry", "geography", "variant"}
TRANSFORM = re.compile(r"(identity|void|year|month|day|hour|(?:bucket|truncate)\[(\d+)\])$")
UNSORTED = 0


def check_layout_rules(metadata: Metadata) -> Iterator[Finding]:
    """Check partition specs and sort orders.

    Sources are checked for the default ones only: an older one may have columns that were dropped
    or replaced by others of the same name.

    Args:
        metadata: table metadata.
    """
    specs = metadata.get("partition-specs") or []
    for spec in specs:
        yield from _partition_names(spec)
    if metadata["format-version"] > 1:
        yield from _partition_ids(specs)
    for order in metadata.get("sort-orders") or []:
        if order["order-id"] == UNSORTED and order["fields"]:
            yield Finding(
                "sort-order-zero",
                "sort order 0",
                "It has fields; the id 0 is reserved for the unsorted order.",
            )
    columns = _columns(metadata)
    for items, key, current, noun in (
        (specs, "spec-id", "default-spec-id", "partition spec"),
        (metadata.get("sort-orders") or [], "order-id", "default-sort-order-id", "sort order"),
    ):
        for item in items:
            if item[key] == metadata.get(current):
                yield from _sources(f"{noun} {item[key]}", item["fields"], columns)


def _partition_names(spec: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"partition spec {spec['spec-id']}"
    for key, noun in (("name", "name"), ("field-id", "id")):
        values = [field[key] for field in spec["fields"] if key in field]
        if twice := [value for value in values if values.count(value) > 1]:
            yield Finding(
                "partition-fields", where, f"Two partition fields have the {noun} {twice[0]!r}."
            )


def _partition_ids(specs: list[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find ids that two specs use for different partition fields."""
    meaning: dict[int, tuple[Any, str]] = {}
    for spec in specs:
        for field in spec["fields"]:
            if "field-id" not in field or field["transform"] == "void":
                continue
            own = (field.get("source-ids") or [field.get("source-id")], field["transform"])
            if meaning.setdefault(field["field-id"], own) != own:
                yield Finding(
                    "partition-fields",
                    f"partition spec {spec['spec-id']}",
                    f"The partition field id {field['field-id']} of `{field['name']}` is that of "
                    "another field in another spec.",
                )


def _columns(metadata: Metadata) -> dict[int, tuple[Any, bool]]:
    """Return the type of each current column, and whether it is outside lists and maps."""
    current = metadata.get("current-schema-id", 0)
    columns: dict[int, tuple[Any, bool]] = {}
    pending: list[tuple[Any, bool]] = [
        (schema, True)
        for schema in metadata.get("schemas") or []
        if (schema.get("schema-id") or 0) == current
    ]
    while pending:
        node, outside = pending.pop()
        for field in children(node):
            allowed = outside and node.get("type", "struct") == "struct"
            columns[field["id"]] = field["type"], allowed
            pending.append((field["type"], allowed))
    return columns


def _sources(
    where: str, fields: list[Mapping[str, Any]], columns: Mapping[int, tuple[Any, bool]]
) -> Iterator[Finding]:
    for field in fields:
        transform = field["transform"]
        parsed = TRANSFORM.match(transform)
        if parsed is None or parsed[2] == "0":
            yield Finding(
                "transform-unknown",
                where,
                f"It uses the transform `{transform}`, which is unknown.",
            )
            continue
        for source in field.get("source-ids") or [field.get("source-id")]:
            kind, outside = columns.get(source, (None, True))
            if kind is not None and not (outside and _accepts(transform, kind)):
                shown = kind if isinstance(kind, str) else kind["type"]
                place = "" if outside else ", in a list or map"
                yield Finding(
                    "transform-source",
                    where,
                    f"`{transform}` is applied to column {source}, which is {shown}{place}.",
                )


def _accepts(transform: str, kind: Any) -> bool:
    if transform == "void":
        return True
    if not isinstance(kind, str):
        return False
    name = re.split(r"[\[(]", kind.lower())[0].strip()
    accepted = SOURCES.get(transform.split("[")[0])
    return name not in NOT_IDENTITY if accepted is None else name in accepted
