"""Tables that streams write, read by Flink: equality deletes, many data sequence numbers in one
commit, position deletes and deletion vectors.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from tests.integration.flink import run_flink
from tests.integration.streams import SINK, Change, Truth, commit, make_table

# Flink and its jars are 0.9 GB, fetched on first use.
pytestmark = pytest.mark.slow
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)
OLD_SOURCE = {"table.exec.iceberg.use-flip27-source": "false"}


@dataclass(frozen=True)
class Table:
    """How a table is written, and with which settings Flink reads it."""

    version: int
    spec: PartitionSpec = field(default_factory=PartitionSpec)
    keys: tuple[str, ...] = ("id",)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_part(self) -> bool:
        return bool(self.spec.fields)


TABLES = {
    "plain2": Table(2),
    "plain3": Table(3),
    # The partition is a part of the key: deletes are of partitions.
    "keyed2": Table(2, BY_PART, ("id", "part")),
    "keyed3": Table(3, BY_PART, ("id", "part")),
    # Rows move to other partitions: deletes are of all partitions, which Flink's newer source cannot
    # send to its tasks ("Invalid partition spec id from content file").
    "moving2": Table(2, BY_PART, settings=OLD_SOURCE),
    "moving3": Table(3, BY_PART, settings=OLD_SOURCE),
}


@pytest.fixture(scope="module")
def truths(lake: IcebergCatalog) -> dict[str, Truth]:
    """What each table must hold: chunks of seven changes, with their places remembered or not."""
    return {name: write_table(lake, name, table) for name, table in TABLES.items()}


def write_table(lake: IcebergCatalog, name: str, table: Table) -> Truth:
    chosen, truth = random.Random(name), Truth()
    make_table(lake, table.version, table.spec, ("s", name))
    sink = Sink(lake, ("s", name), Progress(SINK), table.keys)
    sink.claim()
    for number in range(6):
        changes = [a_change(chosen, f"{number}.{n}", "part" in table.keys) for n in range(40)]
        max_keys = 1000 if number % 2 else 0
        commit(sink, changes, number, rows=7, max_keys=max_keys, partitioned=table.by_part)
        truth.apply(changes)
    return truth


def a_change(chosen: random.Random, value: str, stays: bool) -> Change:
    key = chosen.choice([None, *range(12)])
    part = "ab"[(key or 0) % 2] if stays else chosen.choice("ab")
    return Change(key, None if chosen.random() < 0.25 else value, part)


@pytest.fixture(scope="module")
def read(lake: IcebergCatalog, truths: dict[str, Truth]) -> dict[str, list[list[object]]]:
    """The rows of all tables as Flink reads them."""
    return run_flink(lake, {name: TABLES[name].settings for name in truths})


@pytest.mark.parametrize("name", TABLES)
def test_flink_reads_the_truth(
    truths: dict[str, Truth], read: dict[str, list[list[object]]], name: str
) -> None:
    actual = sorted((tuple(row) for row in read[name]), key=lambda r: (r[0] is not None, r[0]))
    assert actual == truths[name].sorted()


def test_the_tables_have_all_kinds_of_deletes(
    lake: IcebergCatalog, truths: dict[str, Truth]
) -> None:
    for name, table in TABLES.items():
        base = lake.load(("s", name))
        assert base is not None
        summary = base.metadata["snapshots"][-1]["summary"]
        assert int(summary["total-equality-deletes"]) > 0
        assert int(summary["total-position-deletes"]) > 0
        assert base.metadata["last-sequence-number"] > len(base.metadata["snapshots"])
        assert base.metadata["format-version"] == table.version
