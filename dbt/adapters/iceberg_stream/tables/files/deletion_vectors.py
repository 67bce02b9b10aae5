"""Writes and reads deletion vectors (spec, "Deletion Vectors"; Puffin, "deletion-vector-v1")."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.tables.files import puffin_footer
from dbt.adapters.iceberg_stream.tables.files.deletes import REFERENCED_DATA_FILE
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

BLOB = b"\xd1\xd3\x39\x64"
# Behind each blob; readers find blobs by their offsets.
GAP = b"\0"
ROW_POSITION_FIELD = 2147483645
FILE_SIZE = [f.name for f in DATA_FILE_TYPE[3].fields].index("file_size_in_bytes")
CONTENT_OFFSET, CONTENT_SIZE = REFERENCED_DATA_FILE + 1, REFERENCED_DATA_FILE + 2


@dataclass(frozen=True)
class DeletionVector:
    """All deleted rows of one data file.

    Attributes:
        data_file: the data file.
        positions: positions of deleted rows, from 0, those of an older vector included.
    """

    data_file: DataFile
    positions: Sequence[int] | BitMap


def write_deletion_vectors(
    target: WriteTarget, name: str, vectors: Iterable[DeletionVector]
) -> list[DataFile]:
    """Write one Puffin file with the vectors of several data files.

    A data file has at most one vector, so the same commit must remove an older one.

    Args:
        target: the table.
        name: of the file, without extension.
        vectors: one vector per data file.

    Returns:
        The descriptor of each vector, in their order.
    """
    location = str(target.locations.new_data_location(f"{name}.puffin"))
    encoded = [(vector.data_file, *_blob(vector.positions)) for vector in vectors]
    content, blobs = bytearray(puffin_footer.MAGIC), []
    files: dict[str, DataFile] = {}
    # Shortest first, and apart from each other: DuckDB 1.5.5 caches what it has read of a file, and
    # otherwise returns the beginning of the blob before instead of the one that it asked for.
    for file, blob, count in sorted(encoded, key=lambda item: len(item[1])):
        blobs.append(_blob_metadata(len(content), len(blob), file.file_path, count))
        files[file.file_path] = _described(location, file, len(content), len(blob), count)
        content += blob + GAP
    content += puffin_footer.footer(blobs)
    with target.io.new_output(location).create() as stream:
        stream.write(bytes(content))
    for described in files.values():
        described[FILE_SIZE] = len(content)
    return [files[file.file_path] for file, _, _ in encoded]


def read_deletion_vector(io: FileIO, file: DataFile) -> list[int]:
    """Read the positions of a deletion vector, ascending.

    Args:
        io: the table's FileIO.
        file: the vector's descriptor.

    Raises:
        ValueError: the vector is damaged.
    """
    bitmaps = _read_bitmaps(io, file)
    return [(high << 32) | low for high, bitmap in bitmaps for low in bitmap]


def read_deletion_bitmap(io: FileIO, file: DataFile) -> BitMap:
    """Read the positions of a deletion vector, all of them below 2**32.

    Args:
        io: the table's FileIO.
        file: the vector's descriptor.

    Raises:
        ValueError: the vector is damaged, or has larger positions.
    """
    positions = BitMap()
    for high, bitmap in _read_bitmaps(io, file):
        if high:
            raise ValueError(f"The deletion vector of {file.file_path} has positions over 32 bits.")
        positions = bitmap
    return positions


def _read_bitmaps(io: FileIO, file: DataFile) -> Iterator[tuple[int, BitMap]]:
    """Yield the 32-bit bitmaps of a vector, with the high bits of their positions."""
    begin, size = file[CONTENT_OFFSET], file[CONTENT_SIZE]
    with io.new_input(file.file_path).open() as stream:
        stream.seek(begin)
        blob = stream.read(size)
    vector = blob[4:-4]
    if vector[:4] != BLOB or zlib.crc32(vector) != struct.unpack(">I", blob[-4:])[0]:
        raise ValueError(f"The deletion vector at {begin} of {file.file_path} is damaged.")
    (count,), remaining = struct.unpack_from("<q", vector, 4), vector[12:]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", remaining)
        bitmap = BitMap.deserialize(remaining[4:])
        yield high, bitmap
        remaining = remaining[4 + len(bitmap.serialize()) :]


def _blob(positions: Sequence[int] | BitMap) -> tuple[bytes, int]:
    """Return a vector's blob and cardinality.

    The blob has the length, a magic number, a 64-bit Roaring bitmap as 32-bit bitmaps by their
    high bits, and a checksum.
    """
    bitmaps = _bitmaps(positions)
    vector = BLOB + struct.pack("<q", len(bitmaps))
    for high, bitmap in bitmaps.items():
        bitmap.run_optimize()
        vector += struct.pack("<I", high) + bitmap.serialize()
    framed = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    return framed, sum(map(len, bitmaps.values()))


def _bitmaps(positions: Sequence[int] | BitMap) -> dict[int, BitMap]:
    """Return the low 32 bits of positions, by their high bits."""
    if isinstance(positions, BitMap):
        return {0: positions.copy()} if positions else {}
    by_high: dict[int, list[int]] = {}
    for position in positions:
        by_high.setdefault(position >> 32, []).append(position & 0xFFFFFFFF)
    return {high: BitMap(low) for high, low in sorted(by_high.items())}


def _blob_metadata(offset: int, length: int, path: str, count: int) -> Mapping[str, object]:
    return {
        "type": "deletion-vector-v1",
        "fields": [ROW_POSITION_FIELD],
        # Inherited from the manifest entry.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": offset,
        "length": length,
        "properties": {"referenced-data-file": path, "cardinality": str(count)},
    }


def _described(location: str, data: DataFile, offset: int, length: int, count: int) -> DataFile:
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PUFFIN,
        partition=data.partition if len(data.partition) else Record(),
        record_count=count,
        file_size_in_bytes=0,
        referenced_data_file=data.file_path,
        content_offset=offset,
        content_size_in_bytes=length,
    )
    file.spec_id = data.spec_id
    return file
