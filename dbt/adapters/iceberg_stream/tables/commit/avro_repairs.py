"""Corrections of PyIceberg 0.12, which misreads some partition values and types in Avro."""

from __future__ import annotations

import struct
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.schema import Schema
from pyiceberg.types import TimestampNanoType
from pyiceberg.utils.schema_conversion import LOGICAL_FIELD_TYPE_MAPPING, AvroSchemaConversion

_convert = AvroSchemaConversion.avro_to_iceberg


def _read_double(_: DoubleReader, decoder: BinaryDecoder) -> float:
    value: float = struct.unpack("<d", decoder.read(8))[0]
    return value


def _convert_with_names(self: AvroSchemaConversion, avro_schema: dict[str, Any]) -> Schema:
    try:
        return _convert(self, avro_schema)
    except TypeError:
        return _convert(self, _without_type_names(avro_schema, {}))


def _without_type_names(node: Any, definitions: dict[str, Any]) -> Any:
    """Replace names of types by their definitions (Avro specification, "Names")."""
    if isinstance(node, str):
        return definitions.get(node, node)
    if isinstance(node, list):
        return [_without_type_names(item, definitions) for item in node]
    nested = ("type", "fields", "items", "values")
    resolved = {
        k: _without_type_names(v, definitions) if k in nested else v for k, v in node.items()
    }
    if node.get("type") in ("record", "fixed", "enum"):
        definitions[node["name"]] = resolved
    return resolved


def repair() -> None:
    """Patch PyIceberg's readers of manifests in this process."""
    # The fast decoder reads a double as a float: 0.1 would become 0.10000000149.
    DoubleReader.read = _read_double  # type: ignore[assignment, method-assign]
    # If two partition fields have the same decimal type, Java refers to it by name in the second.
    AvroSchemaConversion.avro_to_iceberg = _convert_with_names  # type: ignore[method-assign]
    # The logical type that PyIceberg and Java write for partition values in nanoseconds.
    LOGICAL_FIELD_TYPE_MAPPING.setdefault(("timestamp-nanos", "long"), TimestampNanoType())
