"""Tables with something of everything, to be checked."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.integration.streams import Change, commit, make_table, open_sink

BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


def fill(lake: IcebergCatalog, version: int, partitioned: bool = False) -> None:
    """Three commits of a stream, with equality deletes, position deletes or vectors."""
    make_table(lake, version, BY_PART if partitioned else PartitionSpec())
    sink = open_sink(lake)
    some = [Change(key, f"v{key}", "ab"[key % 2]) for key in range(6)]
    commit(sink, some, 6, partitioned=partitioned) if partitioned else commit(sink, some, 6)
    if partitioned:
        return
    again = [Change(key % 2, f"w{key}") for key in range(6)]
    commit(sink, again, 12, rows=3, max_keys=100)
    commit(sink, [Change(5, None), Change(7, "new")], 14)
