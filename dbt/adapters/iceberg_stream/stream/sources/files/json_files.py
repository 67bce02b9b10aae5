"""Read files of JSON lines: each line is a record, or a list of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.files.landed_files import LandedFile
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource, majors
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import REFUSED, with_strings
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.values import TIME_ZONE, Values
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MAJOR,
    MINOR,
    BadRecord,
    Frontier,
    Records,
    RecordSource,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session

BLOCK_BYTES = 2 * 1024 * 1024


def are_lines(options: Mapping[str, str]) -> bool:
    """Return whether each line of a file is a record or a list of records.

    Args:
        options: of Spark's reader; with any other one, Spark has to read the files.
    """
    return all(
        name.lower() == "multiline" and value.lower() == "false" for name, value in options.items()
    )


@dataclass
class JsonFilesSource(FilesSource, RecordSource):
    """A folder with files of JSON lines; see FilesSource. A value that is required may be null."""

    @property
    def has_bad(self) -> bool:
        return False

    @property
    def _envelope(self) -> Envelope:
        return Envelope("json", str(self.columns), required=self.required)

    def arrow_schema(self, session: Session, lower: Frontier | None, upper: Frontier) -> pa.Schema:
        return self._envelope.declared(session.spark)

    def decode(
        self, session: Session, lower: Frontier | None, upper: Frontier
    ) -> Iterator[Records]:
        columns, values = self._envelope.declared(session.spark), Values(session.setting(TIME_ZONE))
        decoder = MessageDecoder(self._envelope, columns, values)
        files = self.batch(lower, upper)
        for file, major in zip(files, majors(files), strict=True):
            minor = 0
            for line, lines in self._lines(file):
                bodies, numbers = _records(lines, line)
                yield _decoded(
                    decoder, bodies, f"{self.path_of(file)}, line ", numbers, major, minor
                )
                minor += len(bodies)

    def _lines(self, file: LandedFile) -> Iterator[tuple[int, list[bytes]]]:
        """Yield lines of a file, and the number of the first of them."""
        number, rest = 1, b""
        try:
            with self.filesystem.open_input_stream(file.path) as stream:
                while block := stream.read(BLOCK_BYTES):
                    lines = (rest + block).split(b"\n")
                    rest = lines.pop()
                    if lines:
                        yield number, lines
                    number += len(lines)
        except (OSError, pa.ArrowException) as error:
            raise StreamError(f"The file {file.path} cannot be read: {error}") from error
        if rest:
            yield number, [rest]


def _records(lines: list[bytes], first: int) -> tuple[list[bytes], list[int]]:
    """Return the records in lines that are not blank, and the number of the line of each."""
    bodies, numbers = list[bytes](), list[int]()
    for number, line in enumerate(lines, first):
        body = line.strip()
        if not body:
            continue
        several = _items(body) if body.startswith(b"[") else [body]
        bodies += several
        numbers += [number] * len(several)
    return bodies, numbers


def _items(line: bytes) -> list[bytes]:
    """Return the records of a list; the line itself if it is none."""
    for text in (line, with_strings(line)):
        with suppress(*REFUSED):
            return list(map(bytes, msgspec.json.decode(text, type=list[msgspec.Raw])))
    return [line]


def _decoded(
    decoder: MessageDecoder,
    bodies: list[bytes],
    place: str,
    numbers: list[int],
    major: int,
    minor: int,
) -> Records:
    decoded = decoder.decode(bodies)
    columns = dict(zip(decoded.rows.schema.names, decoded.rows.columns, strict=True))
    columns[MAJOR] = pa.repeat(pa.scalar(major, pa.int64()), len(decoded.of))
    columns[MINOR] = pa.array(decoded.of + minor)
    bad = [BadRecord(f"{place}{numbers[own.place]}", own.record, own.reason) for own in decoded.bad]
    return Records(pa.record_batch(columns), bad)
