"""Checks the columns of schemas, their defaults, and the name mapping (spec, "Schemas")."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import NAME_MAPPING, Metadata, name_mapping
from dbt.adapters.iceberg_stream.maintenance.check.defaults import is_default
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schemas import HIGHEST_ID

HIGHEST_PRECISION = 38
SINCE_VERSION_3 = re.compile(
    r"(unknown|variant|timestamp_ns|timestamptz_ns|geometry.*|geography.*)$", re.IGNORECASE
)
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)$", re.IGNORECASE)
DEFAULTS = ("initial-default", "write-default")


def check_schema_rules(metadata: Metadata) -> Iterator[Finding]:
    """Check the columns of all schemas, and the name mapping.

    Args:
        metadata: table metadata.
    """
    version = metadata["format-version"]
    for schema in metadata.get("schemas") or []:
        where = f"schema {schema.get('schema-id')}"
        for field, path in fields_with_paths(schema):
            yield from _type(where, path, field, version)
            yield from _defaults(where, path, field, version)
        yield from _nested_identifiers(schema, where)
    yield from _name_mapping(metadata)


def fields_with_paths(
    schema: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Iterate over the fields of a schema, nested ones included, and their full names.

    Args:
        schema: a schema, or a nested type, as JSON.
    """
    pending: list[tuple[Any, str]] = [(schema, "")]
    while pending:
        node, prefix = pending.pop()
        for field in children(node):
            path = f"{prefix}{field['name']}"
            yield field, path
            pending.append((field["type"], f"{path}."))


def children(kind: Any) -> list[Mapping[str, Any]]:
    """Return the fields of a nested type: of a struct, or the element, key and value.

    Args:
        kind: a type as JSON.
    """
    if not isinstance(kind, Mapping):
        return []
    fields: list[Mapping[str, Any]] = list(kind.get("fields") or [])
    for part in ("element", "key", "value"):
        if f"{part}-id" in kind:
            fields.append(
                {
                    "id": kind[f"{part}-id"],
                    "name": part,
                    "required": kind.get(f"{part}-required", True),
                    "type": kind[part],
                }
            )
    return fields


def _type(where: str, path: str, field: Mapping[str, Any], version: int) -> Iterator[Finding]:
    if field["id"] > HIGHEST_ID:
        yield Finding(
            "reserved-id",
            where,
            f"`{path}` has the id {field['id']}; ids above {HIGHEST_ID} are reserved.",
        )
    kind = field["type"]
    if not isinstance(kind, str):
        return
    if version < 3 and SINCE_VERSION_3.match(kind):
        yield Finding(
            "type-version",
            where,
            f"`{path}` is {kind}, which format version {version} does not have.",
        )
    if kind.lower() == "unknown" and field["required"]:
        yield Finding("unknown-required", where, f"`{path}` is unknown, and required.")
    decimal = DECIMAL.match(kind)
    if decimal and int(decimal[1]) > HIGHEST_PRECISION:
        yield Finding(
            "metadata-refused", where, f"`{path}` is {kind}; the precision is at most 38."
        )


def _defaults(where: str, path: str, field: Mapping[str, Any], version: int) -> Iterator[Finding]:
    for key in DEFAULTS:
        value = field.get(key)
        if value is None:
            continue
        if version < 3:
            yield Finding(
                "default-version",
                where,
                f"`{path}` has an {key}, which format version {version} does not have.",
            )
        elif not is_default(field["type"], value):
            kind = field["type"] if isinstance(field["type"], str) else field["type"]["type"]
            yield Finding(
                "default-value", where, f"The {key} of `{path}` is {value!r}, which is no {kind}."
            )


def _nested_identifiers(schema: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Find identifier fields that are nested where they may be null, or are not primitive."""
    usable: set[int] = set()
    known: dict[int, str] = {}
    pending: list[tuple[Any, bool]] = [(schema, True)]
    while pending:
        node, inside = pending.pop()
        for field in children(node):
            known[field["id"]] = field["name"]
            allowed = inside and node.get("type", "struct") == "struct"
            if allowed and isinstance(field["type"], str):
                usable.add(field["id"])
            pending.append((field["type"], allowed and field["required"]))
    for identifier in schema.get("identifier-field-ids") or []:
        if identifier in known and identifier not in usable:
            yield Finding(
                "metadata-refused",
                where,
                f"The identifier field `{known[identifier]}` is nested in a list, a map or an "
                "optional struct, or is not primitive.",
            )


def _name_mapping(metadata: Metadata) -> Iterator[Finding]:
    text = name_mapping(metadata)
    if text is None:
        return
    try:
        problems = list(_mapping_problems(json.loads(text), ""))
    except ValueError as error:
        problems = [f"It is not JSON ({error})."]
    except RecursionError:
        problems = ["Its fields are nested too deeply."]
    for problem in problems:
        yield Finding("name-mapping", NAME_MAPPING, problem)


def _mapping_problems(mapping: Any, prefix: str) -> Iterator[str]:
    place = f"the fields of {prefix.rstrip('.')}" if prefix else "the mapping"
    if not isinstance(mapping, list) or not all(isinstance(item, Mapping) for item in mapping):
        yield f"Not a list of objects: {place}."
        return
    seen: set[str] = set()
    for item in mapping:
        names = item.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            yield f"An object without a list of `names`, in {place}."
            continue
        if twice := seen.intersection(names):
            yield f"The name `{min(twice)}` is mapped twice, in {place}."
        seen.update(names)
        field_id = item.get("field-id")
        if field_id is not None and (not isinstance(field_id, int) or isinstance(field_id, bool)):
            yield f"The field-id of {names} is {field_id!r}, in {place}."
        if item.get("fields") is not None:
            yield from _mapping_problems(item["fields"], f"{prefix}{'/'.join(names)}.")
