"""Puffin files: blobs and a footer that says where they are (Puffin specification)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.io import InputFile

from dbt.adapters.iceberg_stream.__version__ import version

MAGIC = b"PFA1"
# The size of the footer's payload, flags, and the magic number.
TRAILER = struct.Struct("<i4s4s")


def footer(blobs: Sequence[Mapping[str, object]], **properties: str) -> bytes:
    """Return the footer of a file.

    Args:
        blobs: the metadata of each blob.
        properties: of the file.
    """
    created_by = {"created-by": f"dbt-iceberg-stream {version}"}
    payload = json.dumps({"blobs": blobs, "properties": created_by | properties}).encode()
    return MAGIC + payload + TRAILER.pack(len(payload), bytes(4), MAGIC)


def read_footer(file: InputFile) -> dict[str, Any]:
    """Read the payload of a file's footer.

    Args:
        file: the file.

    Raises:
        ValueError: the footer is damaged, or compressed.
        OSError: the storage refuses the file.
    """
    size = len(file)
    with file.open() as stream:
        stream.seek(max(0, size - TRAILER.size))
        length, flags, magic = TRAILER.unpack(stream.read(TRAILER.size))
        if magic != MAGIC or flags != bytes(4) or not 0 < length <= size - TRAILER.size:
            raise ValueError(f"The footer of {file.location} is damaged or compressed.")
        stream.seek(size - TRAILER.size - length)
        payload: dict[str, Any] = json.loads(stream.read(length))
    return payload
