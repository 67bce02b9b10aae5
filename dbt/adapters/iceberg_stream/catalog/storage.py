"""PyIceberg's access to the files of tables, and errors of their storage."""

from __future__ import annotations

import re

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from dbt.adapters.iceberg_stream.catalog.locations import (
    is_cut_by_others,
    local_path,
    split_location,
)
from dbt.adapters.iceberg_stream.errors.spark import CREDENTIALS_REFUSED, NO_CREDENTIALS

ACCESS_KEY_ID = "s3.access-key-id"
# The storage refused the credentials, as PyArrow words its answers.
REFUSED = r"AWS Error (ACCESS_DENIED|INVALID_|UNRECOGNIZED|SIGNATURE|\w+ \(HTTP status 40[13]\))"
# Any answer of the storage: the errors of an unknown host or a timeout are not among them.
ANSWERED = r"AWS Error (?!NETWORK)"


class LocationFileIO(PyArrowFileIO):
    """Reads and writes files whose paths may have `#` and `?`, as Iceberg's Java library does."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, authority and path of a location.

        Args:
            location: of a file.
            properties: not used.
        """
        return split_location(location)

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write.

        Args:
            location: of the file.

        Raises:
            OSError: other programs would take the location for another one.
        """
        if is_cut_by_others(location):
            raise OSError(
                f"The location {location} has a `#` or `?`, at which Iceberg's clients of object "
                "stores cut it: all files of the table would be one object. Rename the table, or "
                "choose another folder."
            )
        return super().new_output(location)


class CatalogFileIO(LocationFileIO):
    """Reads files with the storage credentials of the catalog or the profile, or anonymously.

    Without credentials it does not search the environment for some. That can be decided only
    here, when a table is loaded: `s3.anonymous` in the catalog's properties would also disregard
    vended credentials.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        anonymous = {} if ACCESS_KEY_ID in properties else {"s3.anonymous": "true"}
        super().__init__(anonymous | properties)


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
    if (path := local_path(location)) is None:
        with io.new_output(location).create() as stream:
            stream.write(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)


class StorageError(OSError):
    """The files of a table cannot be written or read: the storage's error, and what to do."""


def storage_advice(error: OSError, io: FileIO | None) -> str:
    """Return what a user can do about PyArrow's error of a storage; empty if nothing is known.

    Args:
        error: PyArrow's error.
        io: the table's FileIO; None if the table was not loaded.
    """
    anonymous = isinstance(io, CatalogFileIO) and ACCESS_KEY_ID not in io.properties
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
