"""Decides which tables only Spark writes, because this process would write them differently."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current, field_names

# Codecs of Parquet, by Iceberg's name, and PyArrow's name for them.
CODECS = {"uncompressed": "none", "gzip": "gzip", "zstd": "zstd", "snappy": "snappy", "lz4": "lz4"}
# Partition transforms (spec, "Partition Transforms").
TRANSFORM = re.compile(r"identity|year|month|day|hour|void|(bucket|truncate)\[\d+\]")
PARQUET, CODEC = "write.parquet.", "write.parquet.compression-codec"
# Options of Parquet files that `WriteTarget` reads; others, such as Bloom filters, it does not.
PARQUET_OPTIONS = {
    CODEC,
    "write.parquet.compression-level",
    "write.parquet.row-group-size-bytes",
    "write.parquet.page-size-bytes",
    "write.parquet.dict-size-bytes",
}
OTHER_OPTIONS = ("write.location-provider.impl", "write.spark.accept-any-schema", "encryption.")


def why_spark_writes(metadata: Metadata) -> str | None:
    """Return why only Spark writes a table as its schema, layout and properties say.

    Args:
        metadata: of the table.

    Returns:
        The reason; None if this process writes the same rows into the same partitions and order.
    """
    columns = field_names(metadata)
    if len({name.lower() for name in columns.values()}) < len(columns):
        return "names of columns differ in letter case only"
    spec, order = current(metadata, "partition-specs"), current(metadata, "sort-orders")
    if not all(TRANSFORM.fullmatch(field["transform"]) for field in spec["fields"]):
        return "the table has a partition transform that is not in the specification"
    for item in order["fields"]:
        if item["transform"] != "identity" or "." in columns.get(item["source-id"], "."):
            return "the table is sorted by a transform or a nested column"
    return why_by_properties(metadata.get("properties") or {})


def why_by_properties(properties: Mapping[str, str]) -> str | None:
    """Return why only Spark writes files as a table's properties say; None if this process does.

    Args:
        properties: of the table.
    """
    if (kind := properties.get("write.format.default", "parquet").lower()) != "parquet":
        return f"the table's files are {kind}"
    if (codec := properties.get(CODEC, "zstd").lower()) not in CODECS:
        return f"the table's files are compressed with {codec}"
    for name in properties:
        is_unread = name.startswith(PARQUET) and name not in PARQUET_OPTIONS
        if is_unread or name.startswith(OTHER_OPTIONS):
            return f"the table has the property {name}"
    return None
