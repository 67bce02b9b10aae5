"""First reads of random tables, interrupted and continued while the tables' snapshots expire."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.iceberg.source import IcebergSource
from dbt.adapters.iceberg_stream.stream.sources.source import UNKNOWN_ORDER, Frontier
from tests.integration.replica import new_name

# A name that Iceberg encodes in Parquet.
COLUMNS = "id bigint, value bigint, part string, st struct<`y.z`: bigint>"
READ = (
    "select id, value, st.`y.z` as nested, __stream.minor from v "
    "order by __stream.major, __stream.minor"
)
Row = tuple[int, int]


@dataclass
class History:
    """A table that Spark writes, and its rows in the order in which they were inserted."""

    lake: IcebergCatalog
    spark: Session
    rng: random.Random = field(default_factory=random.Random)
    version: int = 1
    rows: list[Row] = field(default_factory=list)
    name: str = field(default_factory=new_name)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        properties = f"'format-version' = '{self.version}', 'write.delete.mode' = 'merge-on-read'"
        self.run(f"create table {self.table} ({COLUMNS}) tblproperties ({properties})")

    @property
    def table(self) -> str:
        return f"lake.s.{self.name}"

    def run(self, sql: str) -> None:
        self.spark.fetch(self.spark.run(sql))

    def insert(self, count: int = 0) -> None:
        """Insert rows of different keys: the keys of other inserts have an order."""
        count = count or self.rng.randint(1, 6)
        new = [(key, next(self.numbers)) for key in self.rng.sample(range(8), count)]
        listed = ", ".join(f"({key}, {value}, '{value % 2}')" for key, value in new)
        self.run(
            f"insert into {self.table} (id, value, part, st) select /*+ coalesce(1) */ "
            f"id, value, part, named_struct('y.z', id) from values {listed} t (id, value, part)"
        )
        self.rows += new

    def delete(self) -> None:
        if self.version > 1 and self.rows:
            some = self.rng.sample(self.rows, min(2, len(self.rows)))
            values = ", ".join(str(value) for _, value in some)
            self.run(f"delete from {self.table} where value in ({values})")
            self.rows = [row for row in self.rows if row not in some]

    def compact(self) -> None:
        where = self.rng.choice(["", ", where => \"part = '1'\""])
        options = "options => map('rewrite-all', 'true')"
        self.run(f"call lake.system.rewrite_data_files(table => 's.{self.name}', {options}{where})")

    def upgrade(self) -> None:
        self.version = min(3, self.version + 1)
        self.run(
            f"alter table {self.table} set tblproperties ('format-version' = '{self.version}')"
        )

    def partition(self) -> None:
        change = self.rng.choice(["part", f"bucket({next(self.numbers) + 2}, id)"])
        if change != "part" or "part" not in self._partition_fields():
            self.run(f"alter table {self.table} add partition field {change}")

    def add_column(self) -> None:
        self.run(f"alter table {self.table} add column c{next(self.numbers)} int first")

    def comment(self) -> None:
        comment = f"comment '{next(self.numbers)}'"
        self.run(f"alter table {self.table} alter column st.`y.z` {comment}")

    def rewrite_manifests(self) -> None:
        self.run(f"call lake.system.rewrite_manifests('s.{self.name}')")

    def expire(self, keep: int = 1) -> None:
        self.run(
            f"call lake.system.expire_snapshots(table => 's.{self.name}', "
            f"older_than => timestamp '2100-01-01 00:00:00', retain_last => {keep})"
        )

    def expire_before(self, frontier: Frontier | None) -> None:
        """Expire all snapshots that are older than the one that a stream has read up to."""
        metadata = self._metadata()
        by_id = {s["snapshot-id"]: s for s in metadata["snapshots"]}
        keep, current = 1, metadata["current-snapshot-id"]
        while frontier is not None and current != frontier["snapshot-id"]:
            keep, current = keep + 1, by_id[current]["parent-snapshot-id"]
        self.expire(keep)

    def last_rows(self) -> dict[int, int]:
        return dict(self.rows)

    def _metadata(self) -> Any:
        loaded = self.lake.load(("s", self.name))
        assert loaded is not None
        return loaded.metadata

    def _partition_fields(self) -> list[str]:
        metadata = self._metadata()
        return [f["name"] for spec in metadata["partition-specs"] for f in spec["fields"]]


@dataclass
class Group:
    """What the tables of a stream have read in runs that end anywhere.

    Attributes:
        history: the source.
        keyed: of each table, whether it has keys.
        rows: of each table, in the order of the changes.
        unordered: keys of which the stream would say that it does not know the last row.
    """

    history: History
    keyed: list[bool]
    frontier: Frontier | None = None
    rows: list[list[Row]] = field(default_factory=list)
    unordered: set[int] = field(default_factory=set)
    batches: int = 0

    def __post_init__(self) -> None:
        self.rows = [[] for _ in self.keyed]

    def run(self, batch_rows: int, most: int = 1000) -> None:
        """Read batches up to the source's end, or some."""
        history = self.history
        relation = f"`lake`.`s`.`{history.name}`"
        sources = [
            IcebergSource(history.lake, ("s", history.name), relation, keyed=keyed)
            for keyed in self.keyed
        ]
        for source in sources:
            sources[0].share_reads(source)
        for _ in range(most):
            upper = sources[0].plan_batch(self.frontier, batch_rows)
            if upper is None:
                break
            for source, rows in zip(sources, self.rows, strict=True):
                rows += self._read(source, upper)
            self.frontier = json.loads(json.dumps(upper))
            self.batches += 1

    def _read(self, source: IcebergSource, upper: Frontier) -> list[Row]:
        frame = source.read(self.history.spark.spark, self.frontier, upper)
        actual = self.history.spark.rows(READ, v=frame).to_pylist()
        assert [row["nested"] for row in actual] == [row["id"] for row in actual]
        if source.keyed and source.lacks_order(self.frontier):
            counts = Counter(row["id"] for row in actual)
            last = {row["id"]: row["minor"] for row in actual}
            self.unordered |= {k for k in last if counts[k] > 1 and last[k] >= UNKNOWN_ORDER}
        return [(row["id"], row["value"]) for row in actual]

    def check(self) -> None:
        for keyed, rows in zip(self.keyed, self.rows, strict=True):
            assert Counter(rows) == Counter(self.history.rows)
            if keyed:
                last, expected = dict(rows), self.history.last_rows()
                assert {k: v for k, v in last.items() if k not in self.unordered} == {
                    k: v for k, v in expected.items() if k not in self.unordered
                }


def check_history(lake: IcebergCatalog, spark: Session, seed: int) -> None:
    rng = random.Random(seed)
    history = History(lake, spark, rng, rng.choice([1, 1, 2, 3]))
    before = [history.insert, history.insert, history.insert, history.delete, history.compact]
    before += [history.upgrade, history.partition, history.add_column, history.comment]
    history.insert()
    for _ in range(rng.randint(3, 7)):
        rng.choice([*before, history.rewrite_manifests, history.expire])()
    group = Group(history, rng.choice([[False], [True], [False, True], [True, False]]))
    meanwhile = [history.insert, history.upgrade, history.comment, history.add_column]
    meanwhile += [history.compact, history.rewrite_manifests]
    for _ in range(rng.randint(1, 3)):
        group.run(rng.randint(2, 6), rng.randint(1, 2))
        for _ in range(rng.randint(0, 1)):
            rng.choice(meanwhile)()
        if rng.random() < 0.8:
            history.expire_before(group.frontier)
    group.run(rng.randint(3, 9))
    group.check()


def test_a_table_without_files(lake: IcebergCatalog, spark: Session) -> None:
    history = History(lake, spark, version=2)
    history.insert()
    history.run(f"delete from {history.table}")
    history.rows.clear()
    group = Group(history, [True])
    group.run(3)
    group.check()
    history.insert()
    group.run(3)
    group.check()


@pytest.mark.parametrize("seed", [101, 125])
def test_random_histories(lake: IcebergCatalog, spark: Session, seed: int) -> None:
    check_history(lake, spark, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_histories(lake: IcebergCatalog, spark: Session, seed: int) -> None:
    check_history(lake, spark, seed)
