"""Footers of Parquet files: their columns, and whether a file is whole."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.landed_files import LandedFile

# Files whose footers are remembered.
REMEMBERED = 10_000
AT_ONCE = 16


class TornFile(StreamError):
    """A Parquet file without a footer: its writer has not come to the end."""


@dataclass
class Footers:
    """Reads each file's footer once."""

    filesystem: fs.FileSystem
    _columns: dict[LandedFile, str | TornFile] = field(default_factory=dict, init=False)

    def columns(self, file: LandedFile) -> str:
        """The columns of a file, as a text that files of the same columns share.

        Raises:
            TornFile: it has no footer.
            StreamError: it cannot be read.
        """
        columns = self._columns.get(file)
        if columns is None:
            if len(self._columns) >= REMEMBERED:
                self._columns.clear()
            columns = self._columns[file] = self._read(file)
        if isinstance(columns, TornFile):
            raise columns
        return columns

    def torn(self, file: LandedFile) -> str | None:
        """Why a file has no footer; None if it is whole."""
        try:
            self.columns(file)
        except TornFile as error:
            return str(error)
        return None

    def all_torn(self, files: Sequence[LandedFile]) -> dict[LandedFile, str]:
        """Those of the files that have no footer, and why; all are read side by side."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            reasons = zip(files, pool.map(self.torn, files), strict=True)
            return {file: reason for file, reason in reasons if reason}

    def _read(self, file: LandedFile) -> str | TornFile:
        try:
            with self.filesystem.open_input_file(file.path) as opened:
                schema = pq.read_schema(opened)
        except (OSError, pa.ArrowException) as error:
            # What is no system's error is Arrow's own, about the bytes.
            if isinstance(error, pa.ArrowInvalid) or "deserialize thrift" in str(error):
                return TornFile(f"The file {file.path} is no whole Parquet file: {error}")
            raise StreamError(f"The file {file.path} cannot be read: {error}") from error
        text: str = schema.remove_metadata().to_string(show_field_metadata=False)
        return text
