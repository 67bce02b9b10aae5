"""A finished Parquet file as Iceberg describes it (spec, "Data File Fields")."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.files.parquet import WrittenFile, read_footer

# What rows keep when they move to another file (spec, "Row Lineage" and "Reserved Field IDs").
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
PARTITION = [f.name for f in DATA_FILE_TYPE[3].fields].index("partition")


def with_lineage(schema: Schema) -> Schema:
    """A table's columns and, behind them, what tells a row of format version 3."""
    return Schema(*schema.fields, ROW_ID, LAST_UPDATED)


class Describer:
    """Makes descriptors of files of one schema, with statistics as the properties want them."""

    def __init__(self, schema: Schema, properties: dict[str, str], spec_id: int) -> None:
        self._schema = schema
        self._properties = properties
        self._spec_id = spec_id

    @cached_property
    def _plan(self) -> dict[int, Any]:
        return compute_statistics_plan(self._schema, self._properties)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return parquet_path_to_id_mapping(self._schema)

    def describe(
        self,
        file: WrittenFile,
        partition: PartitionKey | None,
        sort_order_id: int | None = None,
        content: DataFileContent = DataFileContent.DATA,
        equality_ids: list[int] | None = None,
    ) -> DataFile:
        """The descriptor of a file, its bounds and counts read from its footer."""
        metadata = read_footer(file.footer)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=metadata,
            stats_columns=self._plan,
            parquet_column_mapping=self._ids,
        )
        untold = {self._ids[name] for name in _without_bounds(metadata)}
        counted = statistics.to_serialized_dict()
        for bounds in ("lower_bounds", "upper_bounds"):
            counted[bounds] = {k: v for k, v in counted[bounds].items() if k not in untold}
        described = DataFile.from_args(
            _table_format_version=3,
            content=content,
            file_path=file.location,
            file_format=FileFormat.PARQUET,
            partition=partition.partition if partition else Record(),
            file_size_in_bytes=file.size,
            sort_order_id=sort_order_id,
            equality_ids=equality_ids,
            key_metadata=None,
            **counted,
        )
        described.spec_id = self._spec_id
        return described


def describe_in_place(
    schema: Schema, properties: dict[str, str], old: DataFile, made: WrittenFile
) -> DataFile:
    """The descriptor of a file that takes another one's place, in its partition and its order."""
    described = Describer(schema, properties, old.spec_id).describe(made, None, old.sort_order_id)
    described[PARTITION] = old.partition if len(old.partition) else Record()
    return described


def _without_bounds(metadata: pq.FileMetaData) -> set[str]:
    """Columns of which a row group has values, but no bounds: those of the others are not all.

    Arrow leaves out bounds of over 4 KiB.
    """
    found = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            told = column.statistics
            if told is None or (
                not told.has_min_max and column.num_values > (told.null_count or 0)
            ):
                found.add(column.path_in_schema)
    return found
