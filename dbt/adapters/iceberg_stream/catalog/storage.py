"""PyIceberg's access to the files of tables, and errors of their storage."""

from __future__ import annotations

import re

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from dbt.adapters.iceberg_stream.errors.spark import CREDENTIALS_REFUSED, NO_CREDENTIALS

ACCESS_KEY_ID = "s3.access-key-id"


class CatalogFileIO(PyArrowFileIO):
    """Reads files with the storage credentials of the catalog or the profile, or anonymously.

    Without credentials it does not search the environment for some. That can be decided only
    here, when a table is loaded: `s3.anonymous` in the catalog's properties would also disregard
    vended credentials.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        anonymous = {} if ACCESS_KEY_ID in properties else {"s3.anonymous": "true"}
        super().__init__(anonymous | properties)


class StorageError(OSError):
    """The storage refused a table's files: its error, and what to do."""


def storage_error(error: OSError, io: FileIO, location: str) -> StorageError:
    """Convert PyArrow's error of a storage to one that says what to do.

    Args:
        error: PyArrow's error.
        io: the table's FileIO.
        location: of the file or folder, for the message.
    """
    advice = ""
    anonymous = isinstance(io, CatalogFileIO) and ACCESS_KEY_ID not in io.properties
    if anonymous and re.search(r"AWS Error (?!NETWORK)", str(error)):
        advice = NO_CREDENTIALS
    elif re.search(r"AWS Error (ACCESS_DENIED|INVALID_|UNRECOGNIZED|SIGNATURE)", str(error)):
        advice = CREDENTIALS_REFUSED
    return StorageError(f"The storage at {location} refuses the files: {error}\n{advice}".strip())
