"""Readers of several tables while builds are published."""

from __future__ import annotations

import random
import threading

import pyarrow as pa

from dbt.adapters.iceberg_stream.builds.build import get_build
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import Publication, publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

BUILD = "nightly"
MARTS = ("customers", "orders", "revenue")


def read_while_publishing(lake: IcebergCatalog) -> tuple[list[str], list[int]]:
    """Publish 20 builds of three tables while two readers load these in any order.

    Returns:
        What readers saw of builds that were published in parts, and the times of the builds.
    """
    ended, problems = threading.Event(), list[str]()
    reads: list[int] = []

    def read_marts(seed: int) -> None:
        choose = random.Random(seed)
        while not ended.is_set():
            order = choose.sample(MARTS, len(MARTS))
            versions = [version(lake, name) for name in order]
            reads.append(len(set(versions)))
            if versions != sorted(versions):
                problems.append(f"{order} are at the builds {versions}")

    publish_marts(lake, 0)
    readers = [threading.Thread(target=read_marts, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    try:
        times = [publish_marts(lake, number).timestamp_ms for number in range(1, 21)]
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert len(reads) > 20
    return problems, times


def assert_one_time(lake: IcebergCatalog, times: list[int]) -> None:
    """At the time of a build, all tables are at this build."""
    for number, time in enumerate(times, 1):
        assert {at(lake, name, time) for name in MARTS} == {number}


def publish_marts(lake: IcebergCatalog, number: int, namespace: str = "s") -> Publication:
    """Publish three tables, each with one row: the number of the build."""
    for name in MARTS:
        stage_table(lake, (namespace, name), BUILD, {})
        rows = pa.table({"id": pa.array([number], pa.int64())})
        ingest(lake, staged_name((namespace, name), BUILD), rows.to_reader(), Mode.REPLACE)
    return publish(lake, BUILD, get_build(lake, BUILD).relations.items())


def version(lake: IcebergCatalog, name: str) -> int:
    """The build that wrote the current snapshot, counted by sequence numbers."""
    table = lake.load(("s", name))
    assert table is not None
    return int(table.metadata["last-sequence-number"]) - 1


def at(lake: IcebergCatalog, name: str, time: int) -> int:
    """The build that readers find at a time."""
    table = lake.table(("s", name))
    log = [entry for entry in table.history() if entry.timestamp_ms <= time]
    snapshot = table.snapshot_by_id(log[-1].snapshot_id)
    assert snapshot is not None
    return int(snapshot.sequence_number or 0) - 1
