"""PyIceberg's way to the files of tables."""

from __future__ import annotations

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

KEY = "s3.access-key-id"


class CatalogFileIO(PyArrowFileIO):
    """With the S3 keys of the catalog or the profile; without any it looks for none elsewhere.

    Known only here, when a table is loaded: `s3.anonymous` would also disregard vended keys.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        anonymous = {} if KEY in properties else {"s3.anonymous": "true"}
        super().__init__(anonymous | properties)
