"""The partitions of a table, some of whose files may have the layout of an earlier config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata, current, field_names
from dbt.adapters.iceberg_stream.catalog.table_config import partition_terms

# Transforms whose partitions are not larger than a batch of this size.
ALIGNED_TRANSFORMS = {
    "hour": {"identity", "hour"},
    "day": {"identity", "hour", "day"},
    "month": {"identity", "hour", "day", "month"},
    "year": {"identity", "hour", "day", "month", "year"},
}


@dataclass(frozen=True)
class Partitions:
    """The partitions of a table's branch.

    Attributes:
        catalog: the table's.
        name: namespace and identifier of the table.
        branch: the branch.
    """

    catalog: IcebergCatalog
    name: Name
    branch: str | None = None

    @cached_property
    def metadata(self) -> Metadata:
        """The table's metadata."""
        return self.catalog.require_metadata(self.name, history=False)

    @property
    def is_partitioned(self) -> bool:
        """Whether new files are partitioned."""
        return bool(partition_terms(self.metadata))

    def replaced_by(self, source: str, target: str) -> list[tuple[str, str]]:
        """Return what is equal in rows of the same partition, if not all files have the layout.

        Spark's `insert overwrite` replaces only files of the current partition spec.

        Args:
            source: alias of the new rows.
            target: alias of the table.

        Returns:
            Pairs of expressions; none if the table is not partitioned, or all its files are so.
        """
        if not self._has_older_files:
            return []
        name = self.catalog.name
        return [
            (term.value_sql(source, name), term.value_sql(target, name))
            for term in partition_terms(self.metadata)
        ]

    def fields_of(self, columns: Sequence[str]) -> list[str]:
        """Return which columns have a field in the partition spec of new files.

        Args:
            columns: names of columns, as the table spells them.
        """
        return self._sources([self._spec], columns)

    def needed_by_deletes(self, columns: Sequence[str]) -> list[str]:
        """Return which columns merge-on-read needs, because they partition the table or once did.

        Iceberg for Spark deletes no row by position if the column of any partition spec is gone,
        even of one that no file has.

        Args:
            columns: names of columns, as the table spells them.
        """
        properties = self.metadata.get("properties") or {}
        modes = (properties.get(f"write.{name}.mode") for name in ("merge", "update", "delete"))
        if "merge-on-read" not in modes:
            return []
        return self._sources(self.metadata["partition-specs"], columns)

    def _sources(self, specs: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
        """Return which columns have a field in one of some partition specs."""
        names = field_names(self.metadata)
        sources = {
            names.get(field["source-id"], "").split(".")[0]
            for spec in specs
            for field in spec["fields"]
        }
        return [name for name in columns if name in sources]

    def range_is_aligned(self, column: str, batch_size: str) -> bool:
        """Return whether a microbatch is a set of whole files, whichever layout they have.

        Args:
            column: the time column.
            batch_size: `hour`, `day`, `month` or `year`.
        """
        live = self._live_specs | {self._spec["spec-id"]}
        specs = [spec for spec in self.metadata["partition-specs"] if spec["spec-id"] in live]
        return all(self._is_aligned(spec, column, batch_size) for spec in specs)

    def _is_aligned(self, spec: Mapping[str, Any], column: str, batch_size: str) -> bool:
        names = field_names(self.metadata)
        return any(
            names.get(field["source-id"], "").lower() == column.replace("`", "").lower()
            and field["transform"] in ALIGNED_TRANSFORMS[batch_size]
            for field in spec["fields"]
        )

    @property
    def _spec(self) -> Mapping[str, Any]:
        return current(self.metadata, "partition-specs")

    @property
    def _has_older_files(self) -> bool:
        return bool(self._live_specs - {self._spec["spec-id"]})

    @cached_property
    def _live_specs(self) -> set[int]:
        if len(self.metadata["partition-specs"]) == 1:
            return set()
        from dbt.adapters.iceberg_stream.tables.commit.live_files import live_spec_ids

        loaded = self.catalog.load(self.name)
        if loaded is None:
            return set()
        return live_spec_ids(loaded.io, loaded.metadata, self.branch or MAIN)
