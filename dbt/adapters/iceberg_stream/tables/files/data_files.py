"""A finished Parquet file as Iceberg describes it (spec, "Data File Fields")."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile, read_footer

# What rows keep when they move to another file (spec, "Row Lineage" and "Reserved Field IDs").
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
# Bytes of bounds (spec, "Binary single-value serialization").
WHOLE_NUMBERS: dict[type[iceberg.IcebergType], str] = {
    iceberg.IntegerType: "<i",
    iceberg.DateType: "<i",
    **dict.fromkeys(
        (
            iceberg.LongType,
            iceberg.TimeType,
            iceberg.TimestampType,
            iceberg.TimestamptzType,
            iceberg.TimestampNanoType,
            iceberg.TimestamptzNanoType,
        ),
        "<q",
    ),
}
COUNTS = MetricsMode(MetricModeTypes.COUNTS)
WITH_BOUNDS = (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL)
BEFORE_SURROGATES, BEHIND_SURROGATES = "\ud7ff", "\ue000"
COLUMN_METRICS = (
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)
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
        """What is told of each column; bounds of whole numbers are ours, see `_whole_numbers`."""
        return {
            key: replace(column, mode=COUNTS) if key in self._whole_numbers else column
            for key, column in self._wanted.items()
        }

    @cached_property
    def _wanted(self) -> dict[int, Any]:
        return compute_statistics_plan(self._schema, self._properties)

    @cached_property
    def _whole_numbers(self) -> dict[int, str]:
        """Columns with bounds that a file stores as they are, and how.

        PyIceberg goes by Python's values, which have no nanoseconds and end with the year 9999.
        """
        return {
            key: WHOLE_NUMBERS[type(column.iceberg_type)]
            for key, column in self._wanted.items()
            if type(column.iceberg_type) in WHOLE_NUMBERS and column.mode.type in WITH_BOUNDS
        }

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
        for told in statistics.column_aggregates.values():
            if isinstance(told.current_max, str):
                # The next code point after the last one before the surrogates is none of them.
                told.current_max = told.current_max.replace(BEFORE_SURROGATES, BEHIND_SURROGATES)
        untold = {self._ids[name] for name in _without_bounds(metadata)}
        counted = statistics.to_serialized_dict()
        exact = self._exact_bounds(metadata)
        for bounds, ours in zip(("lower_bounds", "upper_bounds"), exact, strict=True):
            both = counted[bounds] | ours
            counted[bounds] = {k: v for k, v in both.items() if k not in untold}
        if equality_ids is not None:
            # Readers leave out a delete file by its metrics, and those of other columns are not
            # of the rows that it deletes.
            for metric in COLUMN_METRICS:
                counted[metric] = {k: v for k, v in counted[metric].items() if k in equality_ids}
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

    def _exact_bounds(self, metadata: pq.FileMetaData) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Lower and upper bounds of whole numbers, from what the file stores."""
        lower: dict[int, int] = {}
        upper: dict[int, int] = {}
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                key = self._ids[column.path_in_schema]
                told = column.statistics
                if key not in self._whole_numbers or told is None or not told.has_min_max:
                    continue
                lower[key] = min(told.min_raw, lower.get(key, told.min_raw))
                upper[key] = max(told.max_raw, upper.get(key, told.max_raw))
        return self._packed(lower), self._packed(upper)

    def _packed(self, bounds: dict[int, int]) -> dict[int, bytes]:
        return {key: struct.pack(self._whole_numbers[key], each) for key, each in bounds.items()}


def describe_in_place(
    schema: Schema,
    properties: dict[str, str],
    old: DataFile,
    made: WrittenFile,
    in_order: bool = True,
) -> DataFile:
    """The descriptor of a file that takes another one's place, in its partition and, if its rows
    are still in that, its order.
    """
    order = old.sort_order_id if in_order else None
    described = Describer(schema, properties, old.spec_id).describe(
        made, None, order, old.content, old.equality_ids
    )
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
