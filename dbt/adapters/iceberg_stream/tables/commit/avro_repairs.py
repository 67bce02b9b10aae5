"""Partition values and types that PyIceberg 0.12 reads wrong from Avro, or refuses."""

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
        return _convert(self, _spelled_out(avro_schema, {}))


def _spelled_out(node: Any, named: dict[str, Any]) -> Any:
    """A schema with definitions in place of the names of types (Avro spec, "Names")."""
    if isinstance(node, str):
        return named.get(node, node)
    if isinstance(node, list):
        return [_spelled_out(each, named) for each in node]
    inside = ("type", "fields", "items", "values")
    whole = {k: _spelled_out(v, named) if k in inside else v for k, v in node.items()}
    if node.get("type") in ("record", "fixed", "enum"):
        named[node["name"]] = whole
    return whole


def repair() -> None:
    """Have all of this process's readers of manifests read such values."""
    # The fast decoder reads a double as a float: 0.1 would be written again as 0.10000000149.
    DoubleReader.read = _read_double  # type: ignore[assignment, method-assign]
    # Of two partition fields of one decimal type, Java names the type of the second only.
    AvroSchemaConversion.avro_to_iceberg = _convert_with_names  # type: ignore[method-assign]
    # What PyIceberg and Java write of partitions by nanoseconds.
    LOGICAL_FIELD_TYPE_MAPPING.setdefault(("timestamp-nanos", "long"), TimestampNanoType())
