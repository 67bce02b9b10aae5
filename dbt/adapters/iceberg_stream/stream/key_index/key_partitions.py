"""The partitions that the keys of a table decide."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_values
from dbt.adapters.iceberg_stream.tables.merge.candidates import fields_of_keys
from dbt.adapters.iceberg_stream.tables.merge.plan import partitioned_as_date

# The id of a partition spec, and the values of those of its fields that keys decide.
KeyPartition = tuple[int, tuple[object, ...]]


class KeyPartitions:
    """Tells in which partitions rows of some keys may be, for each partition spec.

    Args:
        metadata: of the table.
        keys: names of the key columns.
    """

    def __init__(self, metadata: Metadata, keys: Sequence[str]) -> None:
        self._schema = current_schema(metadata)
        self._fields = {
            spec["spec-id"]: fields
            for spec in metadata["partition-specs"]
            if (fields := fields_of_keys(metadata, spec["spec-id"], keys)[1])
            and not partitioned_as_date(metadata)
        }
        self._default = metadata["default-spec-id"]

    @property
    def are_decided(self) -> bool:
        """Return whether keys decide anything of the partitions of new files."""
        return self._default in self._fields

    def of_rows(self, keys: pa.Table) -> set[KeyPartition]:
        """Return the partitions that rows with some keys may be in.

        Args:
            keys: the key columns, with the types that data files have.
        """
        found: set[KeyPartition] = set()
        for spec_id, fields in self._fields.items():
            values = [partition_values(keys, field, self._schema) for _, field in fields]
            names = [str(number) for number in range(len(values))]
            distinct = pa.table(values, names).group_by(names).aggregate([])
            columns = [distinct[name].to_pylist() for name in names]
            found.update((spec_id, each) for each in zip(*columns, strict=True))
        return found

    def of_file(self, file: DataFile) -> KeyPartition | None:
        """Return the partition of a data file; None if it may have rows of any key.

        Args:
            file: its descriptor.
        """
        if (fields := self._fields.get(file.spec_id)) is None:
            return None
        return file.spec_id, tuple(file.partition[position] for position, _ in fields)
