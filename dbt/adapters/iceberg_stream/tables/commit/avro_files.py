"""Reads and writes Avro files of which many have the same schema.

PyIceberg makes a new reader for each file. Of a manifest with a few files, that takes several times
as long as reading it. To encode a manifest's entry takes many times as long as to copy its bytes.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader, StructReader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.avro.writer import StructWriter, Writer
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import StructProtocol
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

D = TypeVar("D", bound=StructProtocol)
SCHEMA_KEY = "avro.schema"
HEADER_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause Python's garbage collection while many entries are read.

    It would scan all of them again and again, which doubles the time. Entries have no cycles.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class SameSchemaFile(AvroFile[D]):
    """An Avro file whose reader other files of the same schema use, too; readers have no state.

    PyIceberg's decoder does not notice the end of its bytes: of a file that was cut off, it reads
    the memory behind them, which may still have the rest.
    """

    __slots__ = ("_find_reader", "_least_size", "_size")

    def __init__(
        self, input_file: InputFile, find_reader: Callable[[str], Reader], least_size: int = 0
    ) -> None:
        """Prepare to read a file.

        Args:
            input_file: the file.
            find_reader: returns the reader of an Avro schema, which is JSON.
            least_size: bytes that the file has at least.
        """
        super().__init__(input_file)
        self._find_reader = find_reader
        self._least_size = least_size

    def __enter__(self) -> SameSchemaFile[D]:
        """Read the file.

        Raises:
            ValueError: it has no schema, is no Avro file, or is too short.
        """
        with self.input_file.open() as stream:
            content = stream.read()
        self.decoder, self._size = new_decoder(content), len(content)
        self.header = HEADER_READER.read(self.decoder)
        if self._size < max(self._least_size, self.decoder.tell()):
            raise self._damaged()
        if SCHEMA_KEY not in self.header.meta:
            raise ValueError(f"{self.input_file.location} has no Avro schema")
        self.reader = self._find_reader(self.header.meta[SCHEMA_KEY])
        return self

    def with_bytes(self, position: int) -> Iterator[tuple[D, bytes]]:
        """Iterate over the records, each with the bytes of one of its fields.

        Args:
            position: of the field in the records.

        Raises:
            ValueError: the file is damaged.
        """
        assert isinstance(self.reader, StructReader)
        make, readers = self.reader.create_struct, self.reader.field_readers
        nothing = [None] * (1 + max(place for place, _ in readers if place is not None))
        for count, content in self._blocks():
            decoder = new_decoder(content)
            for _ in range(count):
                record: Any = make(*nothing)
                field = b""
                for place, reader in readers:
                    begin = decoder.tell()
                    value = reader.read(decoder)
                    if place is not None:
                        record[place] = value
                    if place == position:
                        field = content[begin : decoder.tell()]
                yield record, field
            if decoder.tell() != len(content):
                raise self._damaged()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over the blocks: how many records each has, and its content."""
        codec = self.header.compression_codec()
        while True:
            try:
                count = self.decoder.read_int()
            except EOFError:
                return
            length = self.decoder.read_int()
            if not 0 <= length <= self._size - self.decoder.tell() - SYNC_SIZE:
                raise self._damaged()
            content = self.decoder.read(length)
            yield count, content if codec is None else codec.decompress(content)
            if self.decoder.read(SYNC_SIZE) != self.header.sync:
                raise self._damaged()

    def _damaged(self) -> ValueError:
        return ValueError(f"{self.input_file.location} is damaged")


class CopyWriter(Writer):
    """Writes records of a file's schema, of which one field may be bytes of another such file.

    Args:
        writer: of the records; the field is the last one.
        stored: returns the bytes of a record's field; None if it has to be encoded.
    """

    def __init__(self, writer: Writer, stored: Callable[[Any], bytes | None]) -> None:
        assert isinstance(writer, StructWriter)
        self._writer, self._stored = writer, stored
        *self._others, _ = writer.field_writers

    def write(self, encoder: BinaryEncoder, val: Any) -> None:
        """Write a record."""
        content = self._stored(val)
        if content is None:
            self._writer.write(encoder, val)
            return
        for place, writer in self._others:
            writer.write(encoder, None if place is None else val[place])
        encoder.write(content)


def avro_schema(schema: Schema, name: str) -> str:
    """Return the Avro schema of a file that PyIceberg writes, as JSON.

    Args:
        schema: of the file.
        name: of its records.
    """
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))


def iceberg_schema(avro_schema: str) -> Schema:
    """Return the Iceberg schema of an Avro file.

    Args:
        avro_schema: from the file's header, as JSON.
    """
    return AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
