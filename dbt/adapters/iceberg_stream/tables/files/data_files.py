"""Iceberg's descriptors of finished Parquet files (spec, "Data File Fields")."""

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
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.tables.files.field_ids import leaf_ids
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile, read_footer

# Columns that rows keep when they move to another file (spec, "Row Lineage", "Reserved Field IDs").
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
# struct formats of bounds (spec, "Binary single-value serialization").
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
COUNTS, NO_STATISTICS = (
    MetricsMode(mode) for mode in (MetricModeTypes.COUNTS, MetricModeTypes.NONE)
)
UNKNOWN = StatisticsCollector(-1, LongType(), NO_STATISTICS, "")
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
    """Return a schema with the row lineage columns of format version 3 appended."""
    return Schema(*schema.fields, ROW_ID, LAST_UPDATED)


class Describer:
    """Creates descriptors of files with the same schema.

    Args:
        schema: of the files.
        properties: table properties; `write.metadata.metrics.*` select the statistics.
        spec_id: the partition spec's.
    """

    def __init__(self, schema: Schema, properties: dict[str, str], spec_id: int) -> None:
        self._schema = schema
        self._properties = properties
        self._spec_id = spec_id

    @cached_property
    def _plan(self) -> dict[int, Any]:
        """Statistics of each column that PyIceberg computes; see `_whole_numbers` for others."""
        plan = dict(self._configured)
        for key, column in plan.items():
            if key in self._whole_numbers:
                plan[key] = replace(column, mode=COUNTS)
            elif isinstance(column.iceberg_type, iceberg.UUIDType):
                plan[key] = replace(column, mode=NO_STATISTICS)  # files have none
        return plan

    @cached_property
    def _configured(self) -> dict[int, Any]:
        return compute_statistics_plan(self._schema, self._properties)

    @cached_property
    def _whole_numbers(self) -> dict[int, str]:
        """struct formats of columns whose bounds are computed from the file's integers.

        PyIceberg uses Python's values, which have no nanoseconds and end with the year 9999.
        """
        return {
            key: WHOLE_NUMBERS[type(column.iceberg_type)]
            for key, column in self._configured.items()
            if type(column.iceberg_type) in WHOLE_NUMBERS and column.mode.type in WITH_BOUNDS
        }

    @cached_property
    def _floating(self) -> set[int]:
        """Ids of the `float` and `double` columns, which may hold NaN."""
        types = (iceberg.FloatType, iceberg.DoubleType)
        return {k for k, column in self._plan.items() if isinstance(column.iceberg_type, types)}

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
        """Create the descriptor of a file, with bounds and counts from its footer.

        Args:
            file: the finished file.
            partition: the file's partition; None if unpartitioned.
            sort_order_id: the table's sort order that the rows have, if any.
            content: data, position deletes or equality deletes.
            equality_ids: field ids of an equality delete file.
        """
        metadata = read_footer(file.footer)
        ids = self._ids_in(metadata)
        counted = {ids[name]: COUNTS for name in _without_text(metadata)}
        # Columns that were dropped since.
        unknown = dict.fromkeys(set(ids.values()) - set(self._plan), UNKNOWN)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=metadata,
            stats_columns={
                key: replace(column, mode=counted[key]) if key in counted else column
                for key, column in self._plan.items()
            }
            | unknown,
            parquet_column_mapping=ids,
        )
        for aggregate in statistics.column_aggregates.values():
            if isinstance(aggregate.current_max, str):
                # The code point after U+D7FF is U+E000: those between are surrogates.
                aggregate.current_max = aggregate.current_max.replace(
                    BEFORE_SURROGATES, BEHIND_SURROGATES
                )
        without_bounds = {ids[name] for name in _without_bounds(metadata)} | set(counted)
        metrics = statistics.to_serialized_dict()
        exact = self._exact_bounds(metadata, ids)
        for bounds, exact_bounds in zip(("lower_bounds", "upper_bounds"), exact, strict=True):
            merged = metrics[bounds] | exact_bounds
            metrics[bounds] = {k: v for k, v in merged.items() if k not in without_bounds}
        if equality_ids is not None:
            # Readers skip a delete file by its metrics, which must be of the key columns only.
            for metric in COLUMN_METRICS:
                metrics[metric] = {k: v for k, v in metrics[metric].items() if k in equality_ids}
            # Bounds leave out NaN. By them, readers would skip the delete of a key that is NaN.
            for bounds in ("lower_bounds", "upper_bounds"):
                metrics[bounds] = {
                    k: v for k, v in metrics[bounds].items() if k not in self._floating
                }
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
            **metrics,
        )
        described.spec_id = self._spec_id
        return described

    def _ids_in(self, metadata: pq.FileMetaData) -> dict[str, int]:
        """Return the ids of a file's columns by their paths.

        They are the file's own: a column of the same name may be another one now.
        """
        found = [
            number for field in metadata.schema.to_arrow_schema() for number in leaf_ids(field)
        ]
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        return {
            path: self._ids[path] if number is None else number
            for path, number in zip(paths, found, strict=True)
        }

    def _exact_bounds(
        self, metadata: pq.FileMetaData, ids: dict[str, int]
    ) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return lower and upper bounds of whole numbers, from the file's statistics."""
        lower: dict[int, int] = {}
        upper: dict[int, int] = {}
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                key = ids[column.path_in_schema]
                statistics = column.statistics
                if (
                    key not in self._whole_numbers
                    or statistics is None
                    or not statistics.has_min_max
                ):
                    continue
                lower[key] = min(statistics.min_raw, lower.get(key, statistics.min_raw))
                upper[key] = max(statistics.max_raw, upper.get(key, statistics.max_raw))
        return self._packed(lower), self._packed(upper)

    def _packed(self, bounds: dict[int, int]) -> dict[int, bytes]:
        return {key: struct.pack(self._whole_numbers[key], bound) for key, bound in bounds.items()}


def describe_in_place(
    schema: Schema,
    properties: dict[str, str],
    old: DataFile,
    new: WrittenFile,
    in_order: bool = True,
) -> DataFile:
    """Create the descriptor of a file that replaces another one in its partition.

    Args:
        schema: of the new file.
        properties: table properties.
        old: descriptor of the replaced file.
        new: the new file.
        in_order: whether the rows still have the old file's sort order.
    """
    order = old.sort_order_id if in_order else None
    described = Describer(schema, properties, old.spec_id).describe(
        new, None, order, old.content, old.equality_ids
    )
    described[PARTITION] = old.partition if len(old.partition) else Record()
    return described


def _without_text(metadata: pq.FileMetaData) -> set[str]:
    """Return columns of strings with a bound that is not UTF-8, which Spark stores as it is."""
    columns = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.physical_type != "BYTE_ARRAY" or column.statistics is None:
                continue
            try:
                _ = column.statistics.min, column.statistics.max
            except UnicodeDecodeError:
                columns.add(column.path_in_schema)
    return columns


def _without_bounds(metadata: pq.FileMetaData) -> set[str]:
    """Return columns of which a row group has values but no bounds, so that the file has none.

    Arrow omits bounds of more than 4 KiB.
    """
    columns = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            statistics = column.statistics
            if statistics is None or (
                not statistics.has_min_max and column.num_values > (statistics.null_count or 0)
            ):
                columns.add(column.path_in_schema)
    return columns
