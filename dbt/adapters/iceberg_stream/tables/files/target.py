"""The settings for files written to a table, read from its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.utils.properties import property_as_int

from dbt.adapters.iceberg_stream.catalog.client_properties import location_provider
from dbt.adapters.iceberg_stream.catalog.locations import split_location
from dbt.adapters.iceberg_stream.catalog.metadata import current
from dbt.adapters.iceberg_stream.catalog.storage import arrow_io, require_location
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions
from dbt.adapters.iceberg_stream.tables.files.projection import (
    Constants,
    encoded_constant,
    with_constants,
)
from dbt.adapters.iceberg_stream.tables.files.spark_only import CODECS

MIB = 1024 * 1024
TARGET_SIZE = "write.target-file-size-bytes"
# The default (article on the write contract, "Writing the Files").
DEFAULT_TARGET_SIZE = 128 * MIB
MAX_ROW_GROUP = 32 * MIB


@dataclass(frozen=True)
class WriteTarget:
    """A table as its writers see it.

    Attributes:
        schema: current schema.
        spec: default partition spec.
        sort_order: default sort order.
        properties: table properties.
        location: the table's folder.
        io: the table's FileIO.
        specs: all partition specs, as JSON.
    """

    schema: Schema
    spec: PartitionSpec
    sort_order: SortOrder
    properties: Mapping[str, str]
    location: str
    io: FileIO
    specs: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any], io: FileIO) -> WriteTarget:
        """Read the settings from table metadata.

        Args:
            metadata: table metadata as JSON.
            io: the table's FileIO.
        """
        return cls(
            schema=Schema.model_validate(current(metadata, "schemas")),
            spec=PartitionSpec.model_validate(current(metadata, "partition-specs")),
            sort_order=SortOrder.model_validate(current(metadata, "sort-orders")),
            properties=metadata.get("properties") or {},
            location=metadata["location"],
            io=io,
            specs=metadata["partition-specs"],
        )

    @cached_property
    def file_schema(self) -> pa.Schema:
        """Arrow schema of the data files; raises ColumnError if PyArrow cannot write a column."""
        return file_schema(self.schema)

    def schema_in(self, file: DataFile | None, schema: pa.Schema) -> pa.Schema:
        """Return columns as a reader needs them for a file: see `constants`.

        Args:
            file: the data file; None for one that we have written.
            schema: the columns, with field ids.
        """
        return schema if file is None else with_constants(schema, self.constants(file))

    def constants(self, file: DataFile) -> Constants:
        """Return values of columns that a file may lack, because they partition it.

        Files of Hive's layout lack them (spec, "Column Projection").

        Args:
            file: a data file, or a delete file of its partition.
        """
        places = self._identities.get(file.spec_id, ())
        return [(number, self._encoded(number, file.partition[at])) for number, at in places]

    @cached_property
    def _identities(self) -> dict[int, list[tuple[int, int]]]:
        """Columns that partition files by their values, and their places in a spec, by spec."""
        return {
            spec["spec-id"]: [
                (field["source-id"], place)
                for place, field in enumerate(spec["fields"])
                if field["transform"] == "identity"
                and self.schema.find_column_name(field["source-id"]) is not None
            ]
            for spec in self.specs
        }

    @cached_property
    def _constants(self) -> dict[tuple[int, str], bytes]:
        return {}

    def _encoded(self, number: int, value: Any) -> bytes:
        key = number, repr(value)
        if key not in self._constants:
            column = file_schema(Schema(self.schema.find_field(number))).field(0)
            self._constants[key] = encoded_constant(value, column.type)
        return self._constants[key]

    @cached_property
    def options(self) -> ParquetOptions:
        """How files are written, from the table's properties."""
        properties = dict(self.properties)
        target = target_size(properties)
        group = property_as_int(properties, "write.parquet.row-group-size-bytes", MAX_ROW_GROUP)
        codec = properties.get("write.parquet.compression-codec", "zstd").lower()
        return ParquetOptions(
            target_size=target,
            row_group_size=min(target, group or MAX_ROW_GROUP, MAX_ROW_GROUP),
            codec=CODECS.get(codec, codec),
            codec_level=property_as_int(properties, "write.parquet.compression-level", None),
            page_size=property_as_int(properties, "write.parquet.page-size-bytes", MIB) or MIB,
            dictionary_size=property_as_int(properties, "write.parquet.dict-size-bytes", 2 * MIB)
            or 2 * MIB,
        )

    @cached_property
    def sort_columns(self) -> list[tuple[str, str, str]]:
        """Column, direction and null placement of each sort field.

        Empty if a field is sorted by a transform or is nested.
        """
        columns = []
        for item in self.sort_order.fields:
            name = self.schema.find_column_name(item.source_id)
            if name is None or str(item.transform) != "identity" or "." in name:
                return []
            direction = "ascending" if item.direction == SortDirection.ASC else "descending"
            nulls = "at_start" if item.null_order == NullOrder.NULLS_FIRST else "at_end"
            columns.append((name, direction, nulls))
        return columns

    @cached_property
    def locations(self) -> Any:
        """PyIceberg's location provider."""
        return location_provider(self.location, self.properties)

    def filesystem(self) -> fs.FileSystem:
        """Return PyArrow's filesystem of the table's storage, with the table's credentials."""
        scheme, netloc, _ = split_location(self.location)
        return arrow_io(self.io).fs_by_scheme(scheme, netloc)

    def path_of(self, location: str) -> str:
        """Return a location's path on `filesystem`; raises OutOfReach outside the warehouse."""
        return require_location(self.io.properties, location)


def target_size(properties: Mapping[str, str]) -> int:
    """Return the size in bytes that data files should have.

    Args:
        properties: of the table.
    """
    return property_as_int(dict(properties), TARGET_SIZE, None) or DEFAULT_TARGET_SIZE
