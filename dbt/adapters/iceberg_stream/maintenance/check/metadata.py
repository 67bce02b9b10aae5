"""Checks a table's metadata (spec, "Table Metadata Fields"), without reading files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding

# Iceberg's parser accepts log entries that are out of order by this much.
CLOCK_SKEW_MS = 60_000


def check_metadata(metadata: Metadata) -> Iterator[Finding]:
    """Check ids, references, sequence numbers and logs against each other.

    Args:
        metadata: table metadata.
    """
    yield from _current_items(metadata)
    yield from _field_ids(metadata)
    yield from _sources(metadata)
    yield from _refs(metadata)
    yield from _snapshots(metadata)
    yield from _logs(metadata)


def _current_items(metadata: Metadata) -> Iterator[Finding]:
    for code, items, item_id, current in (
        ("current-schema-missing", "schemas", "schema-id", "current-schema-id"),
        ("default-missing", "partition-specs", "spec-id", "default-spec-id"),
        ("default-missing", "sort-orders", "order-id", "default-sort-order-id"),
    ):
        all_ids = [item.get(item_id) or 0 for item in metadata.get(items) or []]
        ids = set(all_ids)
        if len(ids) < len(all_ids):
            yield Finding("metadata-refused", items, f"Two of the {items} have the same id.")
        if metadata.get(current) not in ids:
            yield Finding(
                code, current, f"{current} is {metadata.get(current)}; {items} has {sorted(ids)}."
            )


def _field_ids(metadata: Metadata) -> Iterator[Finding]:
    highest = 0
    for schema in metadata.get("schemas") or []:
        where = f"schema {schema.get('schema-id')}"
        ids = [field["id"] for field in all_fields(schema)]
        highest = max([highest, *ids])
        if twice := {i for i in ids if ids.count(i) > 1}:
            yield Finding("field-ids", where, f"Several fields have the id {min(twice)}.")
        yield from _identifiers(schema, where)
        names = [field["name"] for field in schema["fields"]]
        if twice := {name for name in names if names.count(name) > 1}:
            problem = f"Several columns have the name `{min(twice)}`."
            yield Finding("metadata-refused", where, problem)
    if highest > metadata.get("last-column-id", highest):
        yield Finding(
            "field-ids",
            "last-column-id",
            f"last-column-id is {metadata['last-column-id']}, but a field has the id {highest}: "
            "the next new column would get an id that is in use.",
        )
    fields = [f for spec in metadata.get("partition-specs") or [] for f in spec["fields"]]
    top = max((f.get("field-id", 0) for f in fields), default=0)
    if top > (metadata.get("last-partition-id") or top):
        yield Finding(
            "field-ids",
            "last-partition-id",
            f"last-partition-id is {metadata['last-partition-id']}, but a partition field has the "
            f"id {top}.",
        )


def _identifiers(schema: Mapping[str, Any], where: str) -> Iterator[Finding]:
    fields = {field["id"]: field for field in all_fields(schema)}
    for identifier in schema.get("identifier-field-ids") or []:
        field = fields.get(identifier)
        if field is None:
            problem = f"Identifier field {identifier} is not a column."
        elif not field.get("required") or field["type"] in ("float", "double"):
            problem = f"Identifier field `{field['name']}` is optional, or a floating-point number."
        else:
            continue
        yield Finding("metadata-refused", where, problem)


def all_fields(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Iterate over the fields of a schema, nested ones included.

    Args:
        schema: as JSON.

    Yields:
        Fields with `id`, `name`, `required` and `type`.
    """
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        for field in node.get("fields") or []:
            yield field
            pending.append(field["type"])
        for part in ("element", "key", "value"):
            if f"{part}-id" in node:
                yield {
                    "id": node[f"{part}-id"],
                    "name": part,
                    "required": node.get(f"{part}-required", True),
                    "type": node[part],
                }
                pending.append(node[part])


def _sources(metadata: Metadata) -> Iterator[Finding]:
    """Check that the current schema has the columns of the default spec and sort order."""
    schema = _by_id(metadata.get("schemas"), "schema-id", metadata.get("current-schema-id"))
    if schema is None:
        return
    ids = {field["id"] for field in all_fields(schema)}
    for items, item_id, current, noun in (
        ("partition-specs", "spec-id", "default-spec-id", "partition field"),
        ("sort-orders", "order-id", "default-sort-order-id", "sort field"),
    ):
        default = _by_id(metadata.get(items), item_id, metadata.get(current))
        for field in (default or {}).get("fields") or []:
            sources = field.get("source-ids") or [field.get("source-id")]
            if field.get("transform") != "void" and not ids.issuperset(sources):
                yield Finding(
                    "metadata-refused",
                    current,
                    f"The {noun} `{field.get('name', field.get('transform'))}` uses the column "
                    f"id {sources[0]}, which the current schema does not have.",
                )


def _refs(metadata: Metadata) -> Iterator[Finding]:
    ids = {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or []}
    refs = metadata.get("refs") or {}
    for name, ref in refs.items():
        if ref["snapshot-id"] not in ids:
            yield Finding(
                "ref-snapshot-missing",
                f"{ref.get('type', 'ref')} {name}",
                f"It refers to the snapshot {ref['snapshot-id']}, which the table does not have.",
            )
    main, current = refs.get(MAIN), metadata.get("current-snapshot-id")
    if current in (None, NO_SNAPSHOT):
        if main is not None:
            yield Finding(
                "current-snapshot-missing",
                "current-snapshot-id",
                f"The table has no current snapshot, but main references {main['snapshot-id']}.",
            )
        return
    if current not in ids:
        yield Finding(
            "current-snapshot-missing",
            "current-snapshot-id",
            f"The table does not have the current snapshot {current}.",
        )
    if main is not None and main["snapshot-id"] != current:
        yield Finding(
            "metadata-refused",
            "branch main",
            f"main references {main['snapshot-id']}, but the current snapshot is {current}.",
        )


def _snapshots(metadata: Metadata) -> Iterator[Finding]:
    version, last = metadata["format-version"], metadata.get("last-sequence-number", 0)
    if version == 1 and last:
        yield Finding(
            "snapshot-sequence-number",
            "last-sequence-number",
            f"last-sequence-number is {last} in a table of format version 1, which has none.",
        )
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    if len(snapshots) < len(metadata.get("snapshots") or []):
        yield Finding("metadata-refused", "snapshots", "Two snapshots have the same id.")
    schemas = {schema.get("schema-id") or 0 for schema in metadata.get("schemas") or []}
    for snapshot in snapshots.values():
        where = f"snapshot {snapshot['snapshot-id']}"
        number = snapshot.get("sequence-number", 0)
        if number > (0 if version == 1 else last):
            yield Finding(
                "snapshot-sequence-number",
                where,
                f"Its sequence number is {number}; the last one of the table is "
                f"{0 if version == 1 else last}.",
            )
        if snapshot.get("schema-id") is not None and snapshot["schema-id"] not in schemas:
            yield Finding(
                "snapshot-schema-missing",
                where,
                f"Its schema {snapshot['schema-id']} is not among the table's schemas.",
            )
        parent = snapshots.get(snapshot.get("parent-snapshot-id", NO_SNAPSHOT))
        if version > 1 and parent is not None and 0 < number <= parent.get("sequence-number", 0):
            yield Finding(
                "snapshot-order",
                where,
                f"Its sequence number {number} is not above {parent['sequence-number']}, that of "
                f"its parent {parent['snapshot-id']}.",
            )
    yield from _row_ids(metadata, snapshots.values())


def _row_ids(metadata: Metadata, snapshots: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Check that the row ids of snapshots do not overlap (spec, "Row Lineage")."""
    if metadata["format-version"] < 3:
        return
    end = 0
    with_ids = [s for s in snapshots if s.get("first-row-id") is not None]
    for snapshot in sorted(with_ids, key=lambda s: (s["first-row-id"], s.get("added-rows") or 0)):
        where = f"snapshot {snapshot['snapshot-id']}"
        first, added = snapshot["first-row-id"], snapshot.get("added-rows")
        if added is None or added < 0:
            yield Finding("metadata-refused", where, "It has a first-row-id without added-rows.")
            continue
        if added and first < end:
            yield Finding(
                "row-ids", where, f"Its row ids begin at {first}; those before it end at {end}."
            )
        end = max(end, first + added)
    if end > metadata.get("next-row-id", 0):
        yield Finding(
            "row-ids",
            "next-row-id",
            f"next-row-id is {metadata.get('next-row-id', 0)}; ids up to {end} are in use.",
        )


def _logs(metadata: Metadata) -> Iterator[Finding]:
    for log in ("snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in metadata.get(log) or []]
        times.append(metadata["last-updated-ms"])
        for before, after in zip(times, times[1:], strict=False):
            if before - after > CLOCK_SKEW_MS:
                yield Finding(
                    "metadata-refused", log, f"An entry at {before} is followed by one at {after}."
                )
                break


def _by_id(items: Any, key: str, identifier: Any) -> Mapping[str, Any] | None:
    return next((item for item in items or [] if item.get(key) == identifier), None)
