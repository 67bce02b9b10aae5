"""A table that everybody uses at once, for minutes: a stream, merges, appends, and maintenance.

Three readers compare what they see with what must be there. In the end the check of all files has
no finding, and after half an hour nothing has grown.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.health import table_health
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.table_maintenance import Budget, TableMaintenance
from tests.integration.stream_writer import frontier
from tests.integration.streams import SINK, Change, Truth, make_table, open_sink
from tests.integration.streams import write as write_batch
from tests.integration.tables import LATER, duckdb_connection
from tests.lost_files import missing_files

SECONDS, SLOW_SECONDS = 60, 1800
KEYS, BATCH = 5_000, 400
# Keys of the merge, whose values are always equal, and of appends, so many at once.
MERGED, APPENDED = range(1_000_000, 1_000_100), 50
MERGE_SECONDS, APPEND_SECONDS, MAINTAIN_SECONDS, COMMIT_SECONDS = 12.0, 7.0, 18.0, 2.0
# How often a user runs a statement of Spark that conflicts. The stream may win each time if the
# machine is slow; the user then comes back later.
TRIES = 5


def changes(lower: int, upper: int) -> list[Change]:
    """The changes at some offsets of the source: always the same."""
    made = []
    for offset in range(lower, upper):
        chosen = random.Random(offset)
        made.append(Change(chosen.randrange(KEYS), None if chosen.random() < 0.1 else str(offset)))
    return made


@dataclass(frozen=True)
class Shape:
    """How large the table is at a time, in seconds before everyone stops."""

    seconds_left: float
    data_files: int
    delete_files: int
    metadata_bytes: int


@dataclass
class Soak:
    """The table, and everyone who uses it.

    Attributes:
        lake: its catalog.
        name: of the table.
        spark: the session of everyone who uses Spark.
        end: when everyone stops.
        shapes: in the order of time.
        reads: how often each reader has read.
        errors: what must not happen.
    """

    lake: IcebergCatalog
    name: tuple[str, str]
    spark: Session
    end: float
    shapes: list[Shape] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, *users: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, user: Callable[[], None]) -> None:
        try:
            while time.monotonic() < self.end and not self.stopped.is_set():
                user()
        except BaseException as error:
            self.errors.append(error)
            self.stopped.set()

    def load(self) -> LoadedTable:
        table = self.lake.load(self.name)
        assert table is not None
        return table


class Stream:
    """Upserts and deletes at full speed, committed with a key index, and its own maintenance."""

    def __init__(self, soak: Soak) -> None:
        self.soak, self.budget, self.maintenance = soak, Budget(), TableMaintenance(0.2)
        self.commits = self.conflicts = 0
        self.sink = self.begin()

    def begin(self) -> Sink:
        self.pending: list[WrittenBatch] = []
        self.committed = time.monotonic()
        sink = open_sink(self.soak.lake, self.soak.name)
        sink.load_index(10_000_000, refresh=False)
        self.offset = int((sink.progress.frontier or {"offset": 0})["offset"])
        return sink

    def __call__(self) -> None:
        upper = self.offset + BATCH
        write_id, batch = write_batch(
            self.sink, changes(self.offset, upper), upper, max_keys=BATCH, keeps_keys=True
        )
        self.pending.append(self.sink.add_to_index(batch, joins=bool(self.pending)))
        self.offset = upper
        if time.monotonic() - self.committed < COMMIT_SECONDS:
            return
        try:
            self.sink.commit(write_id, self.pending)
        except StreamConflict:
            # What a stream does by itself.
            self.conflicts += 1
            self.sink = self.begin()
            return
        self.pending, self.committed = [], time.monotonic()
        self.commits += 1
        self.maintenance.after_commit(self.sink, self.budget)

    def end(self) -> None:
        self.sink.discard(self.pending)


class SparkUser:
    """Merges, appends and maintains, each at its time, and reads in between."""

    def __init__(self, soak: Soak, reader: Reader) -> None:
        self.soak, self.reader, self.table = soak, reader, ".".join(soak.name)
        self.next = {"merge": 0.0, "append": 0.0, "maintain": time.monotonic() + MAINTAIN_SECONDS}
        self.number = self.appended = self.merges = 0

    def __call__(self) -> None:
        for task, seconds in (
            ("merge", MERGE_SECONDS),
            ("append", APPEND_SECONDS),
            ("maintain", MAINTAIN_SECONDS),
        ):
            if time.monotonic() >= self.next[task]:
                getattr(self, task)()
                self.next[task] = time.monotonic() + seconds
        self.reader()
        table = self.soak.load()
        health = table_health(table)
        size = len(json.dumps(table.metadata))
        left = self.soak.end - time.monotonic()
        self.soak.shapes.append(Shape(left, health.data_files, health.delete_files, size))

    def merge(self) -> None:
        self.number += 1
        source = (
            f"select id, 'm' as part, '{self.number}' as value "
            f"from range({MERGED.start}, {MERGED.stop})"
        )
        self.merges += self.statement(
            f"merge into {self.table} t using ({source}) s on t.id = s.id "
            "when matched then update set value = s.value when not matched then insert *"
        )

    def append(self) -> None:
        first = 2_000_000 + self.appended
        self.appended += APPENDED
        rows = f"select id, 'a' as part, 'appended' from range({first}, {first + APPENDED})"
        self.statement(f"insert into {self.table} {rows}")

    def maintain(self) -> None:
        call = "call lake.system"
        options = "map('partial-progress.enabled', 'true', 'delete-file-threshold', '1')"
        self.statement(f"{call}.rewrite_data_files(table => '{self.table}', options => {options})")
        self.statement(f"{call}.rewrite_manifests('{self.table}')")
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 20))
        self.statement(
            f"{call}.expire_snapshots(table => '{self.table}', "
            f"older_than => timestamp '{moment} UTC', retain_last => 20)"
        )

    def statement(self, sql: str) -> bool:
        """Run a statement; returns whether it won against the stream."""
        for _ in range(TRIES):
            try:
                self.soak.spark.fetch(self.soak.spark.run(sql))
                return True
            except StatementError as error:
                if not error.is_conflict:
                    raise
        return False


class Reader:
    """Compares what it reads with the truth at that snapshot."""

    def __init__(self, soak: Soak, name: str, read: Callable[[LoadedTable], pa.Table]) -> None:
        self.soak, self.name, self.read = soak, name, read
        self.truth, self.offset = Truth(), 0

    def __call__(self) -> None:
        table = self.soak.load()
        if not table.metadata.get("snapshots"):
            return
        reached = frontier(dict(table.metadata), SINK)
        rows = self.read(table).to_pylist()
        offset = int((reached or {"offset": 0})["offset"])
        if offset < self.offset:
            self.truth, self.offset = Truth(), 0
        self.truth.apply(changes(self.offset, offset))
        self.offset = offset
        streamed = sorted((r["id"], r["part"], r["value"]) for r in rows if r["id"] < KEYS)
        assert streamed == self.truth.sorted(), f"{self.name} at {table.location}"
        merged = [row["value"] for row in rows if row["id"] in MERGED]
        assert len(merged) in (0, len(MERGED))
        assert len(set(merged)) <= 1
        appended = sum(row["part"] == "a" and row["id"] >= 2_000_000 for row in rows)
        assert appended % APPENDED == 0
        self.soak.reads[self.name] += 1


def by_duckdb(table: LoadedTable) -> pa.Table:
    path = re.sub("^file:/+", "/", table.location)
    query = f"select * from iceberg_scan('{path}')"
    return duckdb_connection().cursor().execute(query).to_arrow_table()


def soak(lake: IcebergCatalog, spark: Session, seconds: float) -> None:
    name = ("s", f"soak{uuid.uuid4().hex[:8]}")
    make_table(lake, 3, name=name)
    # A serializable merge of Spark conflicts with each commit of the stream meanwhile.
    table_name = ".".join(name)
    spark.run(
        f"alter table {table_name} set tblproperties ('write.merge.isolation-level' = 'snapshot')"
    )
    used = Soak(lake, name, spark, time.monotonic() + seconds)

    def by_pyiceberg(table: LoadedTable) -> pa.Table:
        snapshot_id = table.metadata.get("current-snapshot-id")
        return lake.pyiceberg.load_table(name).scan(snapshot_id=snapshot_id).to_arrow()

    def by_spark(table: LoadedTable) -> pa.Table:
        snapshot_id = table.metadata.get("current-snapshot-id")
        return spark.rows(f"select * from {'.'.join(name)} version as of {snapshot_id}")

    stream = Stream(used)
    user = SparkUser(used, Reader(used, "spark", by_spark))
    readers = [Reader(used, "duckdb", by_duckdb), Reader(used, "pyiceberg", by_pyiceberg)]
    used.run(stream, user, *readers)
    stream.end()
    if used.errors:
        raise used.errors[0]
    assert min(used.reads[each] for each in ("spark", "duckdb", "pyiceberg")) >= 3
    assert stream.commits > seconds / 5
    assert user.merges >= 1
    findings = check_table(used.load(), data=True).findings
    assert [finding for finding in findings if finding.severity != "note"] == []
    assert missing_files(used.load()) == []
    if seconds >= SLOW_SECONDS:
        require_flat(used.shapes, seconds)
    if not stream.conflicts:
        # Iceberg's SQL catalog leaves the metadata file of a commit that conflicts.
        orphans = [orphan.path for orphan in unreferenced_files(used.load(), LATER)]
        assert [path for path in orphans if not path.endswith(".metadata.json")] == []


def require_flat(shapes: list[Shape], seconds: float) -> None:
    """The later half of the time has no more files than the earlier one, give or take.

    Files grow in number until they are merged, again and again: the peaks are compared. In
    seconds there may be none.
    """
    earlier = [shape for shape in shapes if shape.seconds_left / seconds > 0.5]
    later = [shape for shape in shapes if shape.seconds_left / seconds <= 0.5]
    for attribute, allowed in (
        ("data_files", 16),
        ("delete_files", 16),
        ("metadata_bytes", 100_000),
    ):
        peak = _peak(getattr(shape, attribute) for shape in later)
        assert peak <= 1.2 * _peak(getattr(shape, attribute) for shape in earlier) + allowed


def _peak(values: Iterable[int]) -> float:
    """What all but a tenth of the values do not exceed."""
    return statistics.quantiles(values, n=10)[-1]


@pytest.mark.slow
def test_minutes(lake: IcebergCatalog, spark: Session) -> None:
    soak(lake, spark, SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(2 * SLOW_SECONDS)
def test_half_an_hour(lake: IcebergCatalog, spark: Session) -> None:
    soak(lake, spark, SLOW_SECONDS)
