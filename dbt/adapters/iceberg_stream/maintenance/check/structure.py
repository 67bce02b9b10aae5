"""Checks the structure of a table's metadata: its keys and their JSON types.

The rules are those of Iceberg's own parser, which differ from the specification ("Appendix C: JSON
serialization") in places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding

NEWEST_VERSION = 4
INT = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
LONG = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **{key.replace("_", "-"): kind for key, kind in optional.items()}}
    return {"type": "object", "required": list(required), "properties": properties}


def _nullable(kind: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [kind, NULL]}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _log(entry: Mapping[str, Any]) -> dict[str, Any]:
    return _list(_object({"timestamp-ms": LONG, **entry}))


PRIMITIVE = (
    "boolean|int|long|float|double|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns"
    r"|string|uuid|binary|unknown|variant|geometry.*|geography.*"
    r"|decimal\(\s*\d+\s*,\s*\d+\s*\)|fixed\[\s*\d+\s*\]"
)
TYPE = {"$ref": "#/$defs/type"}
FIELD = _object({"id": INT, "name": TEXT, "type": TYPE, "required": BOOLEAN}, doc=TEXT)
DEFINITIONS = {
    "type": {
        "anyOf": [
            TEXT | {"pattern": f"^(?i:{PRIMITIVE})$"},
            _object({"type": {"const": "struct"}, "fields": _list(FIELD)}),
            _object(
                {"type": {"const": "list"}, "element-id": INT, "element": TYPE}
                | {"element-required": BOOLEAN}
            ),
            _object(
                {"type": {"const": "map"}, "key-id": INT, "key": TYPE, "value-id": INT}
                | {"value": TYPE, "value-required": BOOLEAN}
            ),
        ]
    }
}
SCHEMA = _object(
    {"type": {"const": "struct"}, "fields": _list(FIELD)},
    schema_id=_nullable(INT),
    identifier_field_ids=_nullable(_list(INT)),
)
SOURCES = {"anyOf": [{"required": ["source-id"]}, {"required": ["source-ids"]}]}
SPEC = _object(
    {
        "spec-id": INT,
        "fields": _list(
            _object({"name": TEXT, "transform": TEXT}, source_id=INT, field_id=INT) | SOURCES
        ),
    }
)
ORDER = _object(
    {
        "order-id": INT,
        "fields": _list(
            _object(
                {
                    "transform": TEXT,
                    "direction": TEXT | {"pattern": "^(?i:asc|desc)$"},
                    "null-order": {"enum": ["nulls-first", "nulls-last"]},
                },
                source_id=INT,
            )
            | SOURCES
        ),
    }
)
SNAPSHOT = _object(
    {"snapshot-id": LONG, "timestamp-ms": LONG},
    sequence_number=LONG,
    parent_snapshot_id=LONG,
    summary=TEXTS,
    schema_id=_nullable(INT),
    first_row_id=_nullable(LONG),
    added_rows=_nullable(LONG),
    manifest_list=TEXT,
) | {"anyOf": [{"required": ["manifest-list"]}, {"required": ["manifests"]}]}
REF = _object(
    {"snapshot-id": LONG, "type": TEXT | {"pattern": "^(?i:branch|tag)$"}},
    min_snapshots_to_keep=INT | {"minimum": 1},
    max_snapshot_age_ms=LONG | {"minimum": 1},
    max_ref_age_ms=LONG | {"minimum": 1},
)
FILE = _object({"snapshot-id": LONG, "statistics-path": TEXT, "file-size-in-bytes": LONG})
BLOB = _object(
    {"type": TEXT, "snapshot-id": LONG, "sequence-number": LONG, "fields": _list(INT)},
    properties=TEXTS,
)
STATISTICS = _object(
    {**FILE["properties"], "file-footer-size-in-bytes": LONG, "blob-metadata": _list(BLOB)}
)
TABLE = _object(
    {
        "format-version": {"type": "integer", "minimum": 1, "maximum": NEWEST_VERSION},
        "location": TEXT,
        "last-column-id": INT,
        "last-updated-ms": LONG,
    },
    table_uuid=_nullable(TEXT),
    properties=TEXTS,
    current_schema_id=INT,
    default_spec_id=INT,
    default_sort_order_id=INT,
    last_partition_id=_nullable(INT),
    current_snapshot_id=_nullable(LONG),
    refs={"type": "object", "additionalProperties": REF},
    snapshots=_list(SNAPSHOT),
    snapshot_log=_log({"snapshot-id": LONG}),
    metadata_log=_log({"metadata-file": TEXT}),
    statistics=_list(STATISTICS),
    partition_statistics=_list(FILE),
    schemas=_list(SCHEMA),
    partition_specs=_list(SPEC),
    sort_orders=_list(ORDER),
) | {"$defs": DEFINITIONS}
SINCE_VERSION_2 = _object(
    {
        "table-uuid": TEXT,
        "last-sequence-number": LONG,
        "schemas": {"type": "array"},
        "current-schema-id": INT,
        "partition-specs": {"type": "array"},
        "default-spec-id": INT,
        "last-partition-id": INT,
        "sort-orders": {"type": "array"},
        "default-sort-order-id": INT,
    }
)
SINCE_VERSION_3 = _object({"next-row-id": LONG})


def normalized(metadata: Metadata) -> Metadata:
    """Return metadata with the lists that later checks read.

    Writers of format version 1 may write one schema and one partition spec instead of lists. A log
    that is not a list is ignored.

    Args:
        metadata: table metadata.
    """
    metadata = {
        key: value
        for key, value in metadata.items()
        if key not in ("snapshot-log", "metadata-log") or isinstance(value, list)
    }
    if metadata.get("format-version") != 1:
        return metadata
    lists: dict[str, Any] = {}
    if "schemas" not in metadata and isinstance(schema := metadata.get("schema"), Mapping):
        lists |= {"schemas": [schema], "current-schema-id": schema.get("schema-id", 0)}
    if "partition-specs" not in metadata and isinstance(
        fields := metadata.get("partition-spec"), list
    ):
        lists |= {"partition-specs": [{"spec-id": 0, "fields": fields}], "default-spec-id": 0}
    if "sort-orders" not in metadata:
        unsorted = {"order-id": 0, "fields": []}
        lists |= {"sort-orders": [unsorted], "default-sort-order-id": 0}
    return {**metadata, **lists}


def check_structure(metadata: Metadata) -> Iterator[Finding]:
    """Find missing keys and values of the wrong type, with which Iceberg cannot read the table.

    Args:
        metadata: table metadata.
    """
    version = metadata.get("format-version")
    shapes = [TABLE]
    if isinstance(version, int):
        shapes += [SINCE_VERSION_2] * (version > 1) + [SINCE_VERSION_3] * (version > 2)
    for shape in shapes:
        for error in Draft202012Validator(shape).iter_errors(metadata):
            where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.path)
            yield Finding(
                "metadata-refused", where.lstrip(".") or "metadata", _short(error.message)
            )


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:200]}…"
