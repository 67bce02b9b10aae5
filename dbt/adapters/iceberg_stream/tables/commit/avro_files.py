"""Reads Avro files of which many have the same schema.

PyIceberg makes a new reader for each file. Of a manifest with a few files, that takes several times
as long as reading it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import StructProtocol
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

D = TypeVar("D", bound=StructProtocol)
SCHEMA_KEY = "avro.schema"
HEADER_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


class SameSchemaFile(AvroFile[D]):
    """An Avro file whose reader other files of the same schema use, too; readers have no state."""

    __slots__ = ("_find_reader",)

    def __init__(self, input_file: InputFile, find_reader: Callable[[str], Reader]) -> None:
        """Prepare to read a file.

        Args:
            input_file: the file.
            find_reader: returns the reader of an Avro schema, which is JSON.
        """
        super().__init__(input_file)
        self._find_reader = find_reader

    def __enter__(self) -> SameSchemaFile[D]:
        """Read the file.

        Raises:
            ValueError: it has no schema, or is no Avro file.
        """
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = HEADER_READER.read(self.decoder)
        if SCHEMA_KEY not in self.header.meta:
            raise ValueError(f"{self.input_file.location} has no Avro schema")
        self.reader = self._find_reader(self.header.meta[SCHEMA_KEY])
        return self


def iceberg_schema(avro_schema: str) -> Schema:
    """Return the Iceberg schema of an Avro file.

    Args:
        avro_schema: from the file's header, as JSON.
    """
    return AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
