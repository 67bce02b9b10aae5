"""Which tables this process can write in place of Spark, which may run on other machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata


@dataclass
class StorageReach:
    """Which tables this process can write as Spark would.

    Attributes:
        is_remote: whether Spark runs on a cluster.
    """

    is_remote: bool = False
    # Catalogs whose storage refused a file or was not reached, by this process or Spark's tasks.
    _unreachable: set[str] = field(default_factory=set)

    def exclude(self, catalog: str) -> None:
        """Leave a catalog's tables to Spark, after an error of the storage or of Spark's tasks.

        Args:
            catalog: the catalog's name.
        """
        self._unreachable.add(catalog)

    def includes(self, catalog: str, metadata: Metadata | None) -> bool:
        """Return whether this process can write the next version of a table.

        A cluster creates tables itself, because their owner is its user. A local path may name
        another folder on the cluster, unless the files of the current version are in it here, too.

        Args:
            catalog: the catalog's name.
            metadata: the table's; None for a new table.
        """
        if catalog in self._unreachable:
            return False
        if not self.is_remote:
            return True
        path = None if metadata is None else _manifest_list(metadata)
        if path is None:
            return False
        local = local_path(path)
        return local is None or local.exists()


def _manifest_list(metadata: Metadata) -> str | None:
    """Return the path of the current snapshot's list of manifests; None if there is none."""
    current = metadata.get("current-snapshot-id")
    snapshots: list[Mapping[str, Any]] = metadata.get("snapshots") or []
    paths = (s.get("manifest-list") for s in snapshots if s["snapshot-id"] == current)
    return next(filter(None, paths), None)
