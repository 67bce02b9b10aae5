"""PyIceberg's access to the files of tables, and errors of their storage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as fs
from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from dbt.adapters.iceberg_stream.catalog.locations import (
    is_cut_by_others,
    local_path,
    split_location,
)
from dbt.adapters.iceberg_stream.catalog.reach import require_reach
from dbt.adapters.iceberg_stream.catalog.settings import AMBIENT, FILE_IO
from dbt.adapters.iceberg_stream.errors.redacted import RedactedError
from dbt.adapters.iceberg_stream.errors.spark import CREDENTIALS_REFUSED, NO_CREDENTIALS

ACCESS_KEY_IDS = ("s3.access-key-id", "client.access-key-id")
ROLES = ("s3.role-arn", "client.role-arn")
# Storages that PyIceberg reads with fsspec, which knows the environment's credentials.
FSSPEC_SCHEMES = ("abfs", "abfss", "wasb", "wasbs", "hf")
AZURE_CREDENTIALS = ("adls.account-key", "adls.sas-token", "adls.client-secret")
# The storage refused the credentials, as PyArrow words its answers.
REFUSED = r"AWS Error (ACCESS_DENIED|INVALID_|UNRECOGNIZED|SIGNATURE|\w+ \(HTTP status 40[13]\))"
# Any answer of the storage: the errors of an unknown host or a timeout are not among them.
ANSWERED = r"AWS Error (?!NETWORK)"


class StorageError(RedactedError, OSError):
    """The files of a table cannot be written or read: the storage's error, and what to do."""


class WithinReach(FileIO):
    """Mixin of a FileIO that refuses files out of the catalog's reach (`reach.py`)."""

    def new_input(self, location: str) -> Any:
        """Return a file to read; raises OutOfReach outside the warehouse."""
        require_location(self.properties, location)
        return super().new_input(location)  # type: ignore[safe-super]

    def new_output(self, location: str) -> Any:
        """Return a file to write; raises OSError where others would find another one."""
        require_location(self.properties, location)
        if is_cut_by_others(location):
            raise OSError(
                f"The location {location} has a `#` or `?`, at which Iceberg's clients of object "
                "stores cut it: all files of the table would be one object. Rename the table, or "
                "choose another folder."
            )
        return super().new_output(location)  # type: ignore[safe-super]

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file; raises OutOfReach outside the warehouse."""
        path = location if isinstance(location, str) else location.location
        require_location(self.properties, path)
        super().delete(location)  # type: ignore[safe-super]


class CatalogFileIO(WithinReach, PyArrowFileIO):
    """Reads files with the storage credentials of the catalog or the profile, or anonymously.

    Without credentials it does not search the environment for some, unless the profile has
    `ambient_credentials`. That can be decided only here, when a table is loaded: `s3.anonymous` in
    the catalog's properties would also disregard vended credentials.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties if AMBIENT in properties else _without_ambient(properties))

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, authority and path of a location, which may have `#` and `?`.

        Args:
            location: of a file.
            properties: not used.
        """
        return split_location(location)

    def _initialize_gcs_fs(self) -> fs.FileSystem:
        if AMBIENT in self.properties or self.properties.get("gcs.oauth2.token"):
            return super()._initialize_gcs_fs()
        host = urlsplit(self.properties.get("gcs.service.host", ""))
        endpoint = {"scheme": host.scheme, "endpoint_override": host.netloc} if host.netloc else {}
        return fs.GcsFileSystem(anonymous=True, **endpoint)

    def _initialize_azure_fs(self) -> fs.FileSystem:
        if AMBIENT not in self.properties and not _any(self.properties, AZURE_CREDENTIALS):
            raise StorageError(NO_CREDENTIALS)
        return super()._initialize_azure_fs()


def write_new(io: FileIO, location: str, content: bytes) -> None:
    """Write a file that must not exist, such as a metadata file.

    Args:
        io: the table's FileIO.
        location: of the file.
        content: of the file.

    Raises:
        FileExistsError: there is such a file, which stays as it is.
        OSError: the storage refuses the file.
    """
    require_location(io.properties, location)
    if (path := local_path(location)) is None:
        with io.new_output(location).create() as stream:
            stream.write(content)
        return
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb")
        except FileNotFoundError:
            continue  # another process has removed the empty folder
        with file:
            file.write(content)
        return


def delete_unused(io: FileIO, location: str) -> None:
    """Delete a metadata file to which no catalog points, unless another process has done so.

    Args:
        io: the table's FileIO.
        location: of the file.

    Raises:
        OSError: the storage refuses.
    """
    # Whoever drops a table or view meanwhile removes all files of its folder.
    with suppress(FileNotFoundError):
        io.delete(location)


def _any(properties: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(properties.get(name) for name in names)


def _without_ambient(properties: Properties) -> Properties:
    """Return properties with which PyArrow does not search for S3 credentials."""
    if _any(properties, ACCESS_KEY_IDS):
        return properties
    # A role would be assumed with the machine's credentials.
    kept = {k: v for k, v in properties.items() if k not in (*ACCESS_KEY_IDS, *ROLES)}
    return kept | {"s3.anonymous": "true"}


def require_location(properties: Mapping[str, Any], location: str) -> str:
    """Return a location's path on PyArrow's filesystem, if files of the catalog may be there.

    Args:
        properties: of the table's FileIO.
        location: the file's or folder's.

    Raises:
        OutOfReach: it is outside the warehouse.
    """
    scheme, _, path = split_location(location)
    require_reach(properties, scheme, path)
    return str(path)


def catalog_io(properties: Properties, location: str) -> FileIO:
    """Return the FileIO of a table.

    Args:
        properties: of the catalog, and what it vends for the table; never the table's own.
        location: of the table's metadata file or folder.
    """
    if properties.get("py-io-impl", FILE_IO) != FILE_IO:
        return load_file_io(properties, location)  # the profile's own choice
    if AMBIENT in properties and split_location(location)[0] in FSSPEC_SCHEMES:
        from pyiceberg.io.fsspec import FsspecFileIO

        kind = type("CatalogFsspecFileIO", (WithinReach, FsspecFileIO), {})
        return kind(properties)
    return CatalogFileIO(properties)


def arrow_io(io: FileIO) -> PyArrowFileIO:
    """Return PyArrow's access to the files of a FileIO, with its credentials.

    Args:
        io: the table's FileIO.
    """
    return io if isinstance(io, PyArrowFileIO) else CatalogFileIO(io.properties)


def storage_advice(error: OSError, io: FileIO | None) -> str:
    """Return what a user can do about PyArrow's error of a storage; empty if nothing is known.

    Args:
        error: PyArrow's error.
        io: the table's FileIO; None if the table was not loaded.
    """
    anonymous = isinstance(io, CatalogFileIO) and not _any(io.properties, ACCESS_KEY_IDS)
    if anonymous and re.search(ANSWERED, str(error)):
        return NO_CREDENTIALS
    return CREDENTIALS_REFUSED if re.search(REFUSED, str(error)) else ""


def storage_error(error: OSError, io: FileIO, location: str) -> StorageError:
    """Convert PyArrow's error of a storage to one that says what to do.

    Args:
        error: PyArrow's error.
        io: the table's FileIO.
        location: location of the file or folder, for the message.
    """
    if advice := storage_advice(error, io):
        return StorageError(f"The storage at {location} refuses the files: {error}\n{advice}")
    return StorageError(f"The files at {location} cannot be written or read: {error}")
