"""PyIceberg's way to the files of tables, and what their storage says."""

from __future__ import annotations

import re

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from dbt.adapters.iceberg_stream.errors.spark import KEYS_REFUSED, NO_KEYS

KEY = "s3.access-key-id"


class CatalogFileIO(PyArrowFileIO):
    """With the S3 keys of the catalog or the profile; without any it looks for none elsewhere.

    Known only here, when a table is loaded: `s3.anonymous` would also disregard vended keys.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        anonymous = {} if KEY in properties else {"s3.anonymous": "true"}
        super().__init__(anonymous | properties)


class StorageError(OSError):
    """The storage has not taken a table's files: what it said, and what to do."""


def storage_error(error: OSError, io: FileIO, location: str) -> StorageError:
    """What PyArrow says of a storage, with the cure if we know one."""
    cure = ""
    anonymous = isinstance(io, CatalogFileIO) and KEY not in io.properties
    if anonymous and re.search(r"AWS Error (?!NETWORK)", str(error)):
        cure = NO_KEYS
    elif re.search(r"AWS Error (ACCESS_DENIED|INVALID_|UNRECOGNIZED|SIGNATURE)", str(error)):
        cure = KEYS_REFUSED
    return StorageError(f"The storage at {location} refuses the files: {error}\n{cure}".strip())
