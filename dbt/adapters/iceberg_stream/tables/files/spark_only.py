"""Decides which tables only Spark writes, because this process would write them differently."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.transforms import UnknownTransform

from dbt.adapters.iceberg_stream.tables.files.target import CODECS, WriteTarget

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


def why_spark_writes(target: WriteTarget) -> str | None:
    """Return why only Spark writes a table as its schema, layout and properties say.

    Args:
        target: the table.

    Returns:
        The reason; None if this process writes the same rows into the same partitions and order.
    """
    if len({name.lower() for name in target.schema.column_names}) < len(target.schema.column_names):
        return "names of columns differ in letter case only"
    if any(isinstance(field.transform, UnknownTransform) for field in target.spec.fields):
        return "the table has a partition transform that is not in the specification"
    if target.sort_order.fields and not target.sort_columns:
        return "the table is sorted by a transform or a nested column"
    return why_by_properties(target.properties)


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
