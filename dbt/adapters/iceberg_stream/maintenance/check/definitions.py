"""Checks types, defaults, transforms and names in a table's metadata, without reading files."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.metadata import all_fields

NAME_MAPPING = "schema.name-mapping.default"
OPERATIONS = ("append", "replace", "overwrite", "delete")
# Types that only format version 3 has, and those of them whose default must be null.
NEW_TYPES = re.compile(r"(?i)timestamp_ns|timestamptz_ns|unknown|variant|geometry.*|geography.*")
WITHOUT_DEFAULT = re.compile(r"(?i)unknown|variant|geometry.*|geography.*")
DATES = re.compile(r"(?i)date|timestamp(tz)?(_ns)?")
TIMES = re.compile(r"(?i)timestamp(tz)?(_ns)?")
# The types that a transform takes (spec, "Partition Transforms"); `void` takes all, and readers
# must ignore transforms that they do not know.
TRANSFORMS = {
    "identity": re.compile(r"(?i)(?!variant|geometry|geography).*"),
    "bucket": re.compile(
        r"(?i)int|long|decimal.*|date|time|timestamp(tz)?(_ns)?|string|uuid|fixed.*|binary"
    ),
    "truncate": re.compile(r"(?i)int|long|decimal.*|string|binary"),
    "year": DATES,
    "month": DATES,
    "day": DATES,
    "hour": TIMES,
}


def check_definitions(metadata: Metadata) -> Iterator[Finding]:
    """Check what columns, partition specs, sort orders and properties may be.

    Args:
        metadata: table metadata of the right structure.
    """
    for schema in metadata.get("schemas") or []:
        where = f"schema {schema.get('schema-id')}"
        for field in all_fields(schema):
            yield from _field(metadata["format-version"], where, field)
    yield from _transforms(metadata)
    yield from _partition_fields(metadata)
    yield from _refs(metadata)
    yield from _operations(metadata)
    yield from _name_mapping(metadata)


def _field(version: int, where: str, field: Mapping[str, Any]) -> Iterator[Finding]:
    name, kind = field["name"], field["type"]
    if version < 3 and isinstance(kind, str) and NEW_TYPES.fullmatch(kind):
        problem = f"`{name}` is {kind}, which format version {version} does not have."
        yield Finding("type-version", where, problem)
    for key in ("initial-default", "write-default"):
        value = field.get(key)
        if value is None:
            continue
        if version < 3:
            problem = f"`{name}` has an {key}, which format version {version} does not have."
        elif isinstance(kind, str) and not _is_default(kind, value):
            problem = f"The {key} {json.dumps(value)} of `{name}` is no value of its type {kind}."
        else:
            continue
        yield Finding("default-value", where, problem)


def _is_default(kind: str, value: Any) -> bool:
    """Return whether a JSON value has a type (spec, "JSON single-value serialization")."""
    kind = kind.lower()
    if WITHOUT_DEFAULT.fullmatch(kind):
        return False
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return type(value) is int and -(2**bits) <= value < 2**bits
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, str):
        return False
    try:
        return _PARSED[re.split(r"[(\[]", kind)[0]](value, kind)
    except (ValueError, InvalidOperation, KeyError):
        return False


def _decimal(value: str, kind: str) -> bool:
    precision, scale = map(int, re.findall(r"\d+", kind))
    number = Decimal(value).as_tuple()
    return -int(number.exponent) == scale and len(number.digits) <= precision


def _timestamp(value: str, kind: str) -> bool:
    # Python before 3.11 reads three or six digits of a second only.
    text = re.sub(r"\.\d+", "", value)
    zone = datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo
    return (zone is not None) == ("tz" in kind)


def _bytes(value: str, kind: str) -> bool:
    length = re.findall(r"\d+", kind)
    return (
        len(bytes.fromhex(value)) == int(length[0]) if length else bytes.fromhex(value) is not None
    )


_PARSED: dict[str, Callable[[str, str], bool]] = {
    "string": lambda value, kind: True,
    "decimal": _decimal,
    "date": lambda value, kind: bool(date.fromisoformat(value)),
    "time": lambda value, kind: time.fromisoformat(value[:15]) is not None,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "timestamp_ns": _timestamp,
    "timestamptz_ns": _timestamp,
    "uuid": lambda value, kind: bool(uuid.UUID(value)),
    "fixed": _bytes,
    "binary": _bytes,
}


def _transforms(metadata: Metadata) -> Iterator[Finding]:
    """Check that each transform takes the type of its column."""
    kinds: dict[int, Any] = {}
    schemas = metadata.get("schemas") or []
    for schema in sorted(
        schemas, key=lambda s: s.get("schema-id") == metadata["current-schema-id"]
    ):
        kinds |= {field["id"]: field["type"] for field in all_fields(schema)}
    for items, item_id in (("partition-specs", "spec-id"), ("sort-orders", "order-id")):
        for item in metadata.get(items) or []:
            for field in item["fields"]:
                kind = kinds.get(field.get("source-id"))
                transform = field["transform"]
                accepts = TRANSFORMS.get(transform.split("[")[0])
                if kind is None or accepts is None:
                    continue
                if not isinstance(kind, str) or not accepts.fullmatch(kind):
                    said = kind if isinstance(kind, str) else kind.get("type")
                    yield Finding(
                        "transform-type",
                        f"{items} {item.get(item_id)}",
                        f"`{transform}` cannot be computed of column {field['source-id']}, which "
                        f"is {said}.",
                    )


def _partition_fields(metadata: Metadata) -> Iterator[Finding]:
    for spec in metadata.get("partition-specs") or []:
        for key, noun in (("name", "name"), ("field-id", "id")):
            values = [field.get(key) for field in spec["fields"] if field.get(key) is not None]
            if twice := {value for value in values if values.count(value) > 1}:
                yield Finding(
                    "partition-fields",
                    f"partition spec {spec['spec-id']}",
                    f"Several partition fields have the {noun} {sorted(twice)[0]!r}.",
                )


def _refs(metadata: Metadata) -> Iterator[Finding]:
    kind = (metadata.get("refs") or {}).get(MAIN, {}).get("type", "branch")
    if kind.lower() != "branch":
        yield Finding("main-branch", "main", f"It is a {kind}.")
    ids = {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or []}
    log = [entry["snapshot-id"] for entry in metadata.get("snapshot-log") or []]
    if missing := [number for number in log if number not in ids]:
        yield Finding(
            "snapshot-log",
            "snapshot-log",
            f"It names the snapshot {missing[-1]}, which the table does not have.",
        )


def _operations(metadata: Metadata) -> Iterator[Finding]:
    if metadata["format-version"] == 1:
        return  # their summary is optional
    for snapshot in metadata.get("snapshots") or []:
        operation = (snapshot.get("summary") or {}).get("operation")
        if operation not in OPERATIONS:
            yield Finding(
                "snapshot-operation",
                f"snapshot {snapshot['snapshot-id']}",
                f"Its operation is {operation!r}." if operation else "It has no operation.",
            )


def _name_mapping(metadata: Metadata) -> Iterator[Finding]:
    text = (metadata.get("properties") or {}).get(NAME_MAPPING)
    if text is None:
        return
    try:
        problem = _mapping_problem(json.loads(text))
    except ValueError as error:
        problem = f"It is not JSON: {error}."
    if problem:
        yield Finding("name-mapping", NAME_MAPPING, problem)


def _mapping_problem(mapping: Any) -> str | None:
    """Return what is wrong with a name mapping (spec, "Name Mapping Serialization")."""
    if not isinstance(mapping, list):
        return "It is not a list of fields."
    seen: set[str] = set()
    for field in mapping:
        if not isinstance(field, dict) or not isinstance(field.get("names"), list):
            return "A field has no list of `names`."
        if not isinstance(field.get("field-id"), int | None):
            return f"The `field-id` of {field['names']} is no number."
        if twice := seen.intersection(field["names"]):
            return f"Two fields have the name `{min(twice)}`."
        seen.update(field["names"])
        if "fields" in field and (problem := _mapping_problem(field["fields"])):
            return problem
    return None
