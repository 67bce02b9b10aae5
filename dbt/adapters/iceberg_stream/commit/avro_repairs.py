"""Partition values that PyIceberg's Avro reader gets wrong or refuses (PyIceberg 0.12)."""

from __future__ import annotations

import struct

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.types import TimestampNanoType
from pyiceberg.utils.schema_conversion import LOGICAL_FIELD_TYPE_MAPPING


def _read_double(_: DoubleReader, decoder: BinaryDecoder) -> float:
    value: float = struct.unpack("<d", decoder.read(8))[0]
    return value


def repair() -> None:
    """Have all of this process's readers of manifests read such values."""
    # The fast decoder reads a double as a float: 0.1 would be written again as 0.10000000149.
    DoubleReader.read = _read_double  # type: ignore[assignment, method-assign]
    # What PyIceberg and Java write of partitions by nanoseconds.
    LOGICAL_FIELD_TYPE_MAPPING.setdefault(("timestamp-nanos", "long"), TimestampNanoType())
