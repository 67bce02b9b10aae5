"""The modules of this package that Spark's tasks need, by what they do there.

Workers have nothing of this package: the modules are sent to them by value.
"""

from __future__ import annotations

from dbt.adapters.iceberg_stream.tables.files import (
    casting,
    field_ids,
    parquet,
    projection,
    reader,
    uploads,
)

READS_FILES = (casting, field_ids, projection, reader)
WRITES_FILES = (parquet, uploads)
