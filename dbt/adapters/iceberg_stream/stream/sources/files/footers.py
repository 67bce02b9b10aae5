"""Footers of Parquet files: their columns, and whether a file is complete."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.files.landed_files import LandedFile

# Files whose columns are cached.
MAX_FOOTERS = 10_000
AT_ONCE = 16


class IncompleteFile(StreamError):
    """A Parquet file without a footer, because its writer has not finished it."""


@dataclass
class Footers:
    """Reads and caches the footers of files.

    Attributes:
        filesystem: where the files are.
    """

    filesystem: fs.FileSystem
    _columns: dict[LandedFile, str | IncompleteFile] = field(default_factory=dict, init=False)

    def columns(self, file: LandedFile) -> str:
        """Return the columns of a file, as a text that is equal for files with the same columns.

        Raises:
            IncompleteFile: the file has no footer.
            StreamError: the file cannot be read.
        """
        columns = self._columns.get(file)
        if columns is None:
            if len(self._columns) >= MAX_FOOTERS:
                self._columns.clear()
            columns = self._columns[file] = self._read(file)
        if isinstance(columns, IncompleteFile):
            raise columns
        return columns

    def incomplete_reason(self, file: LandedFile) -> str | None:
        """Return why a file has no footer; None if it is complete."""
        try:
            self.columns(file)
        except IncompleteFile as error:
            return str(error)
        return None

    def incomplete_files(self, files: Sequence[LandedFile]) -> dict[LandedFile, str]:
        """Return why files have no footer, for those that have none; reads them in parallel."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            reasons = zip(files, pool.map(self.incomplete_reason, files), strict=True)
            return {file: reason for file, reason in reasons if reason}

    def _read(self, file: LandedFile) -> str | IncompleteFile:
        try:
            with self.filesystem.open_input_file(file.path) as opened:
                schema = pq.read_schema(opened)
        except (OSError, pa.ArrowException) as error:
            # Arrow's errors about the file's bytes, in contrast to errors of the storage.
            if isinstance(error, pa.ArrowInvalid) or "deserialize thrift" in str(error):
                return IncompleteFile(
                    f"The file {file.path} is not a complete Parquet file: {error}"
                )
            raise StreamError(f"The file {file.path} cannot be read: {error}") from error
        text: str = schema.remove_metadata().to_string(show_field_metadata=False)
        return text
