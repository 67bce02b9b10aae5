"""What a stream makes of its changes, against a plain model of each option; read by Spark."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import Rewriter, in_threads
from dbt.adapters.iceberg_stream.stream.batches.runners import Runner, in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream

VIEW = "stream_source"
DDL = "id bigint, a string, b bigint, at bigint, op string"
COLUMNS = ("id", "a", "b", "at")
SCHEMA = pa.schema({"id": pa.int64(), "a": pa.string(), "b": pa.int64(), "at": pa.int64()})
Row = dict[str, Any]


@dataclass
class Bed:
    """A table, a folder of changes and the stream between them."""

    lake: IcebergCatalog
    spark: Session
    folder: Path
    runner: Runner
    options: dict[str, Any]
    extra: str = ""
    layout: str = ""
    partition: str = ""
    rewriter: Rewriter = in_threads
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    files: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.spark.run(
            f"create table s.{self.name} (id bigint, a string, b bigint, at bigint{self.extra}) "
            f"using iceberg {self.layout}"
        )

    def land(self, changes: list[Row]) -> None:
        self.files += 1
        text = "".join(json.dumps(change) + "\n" for change in changes)
        (self.folder / f"{self.files:05}.json").write_text(text)

    def drain(self) -> StreamStatus:
        options = StreamOptions(f"sink.{self.name}", ("id",), **self.options)
        spec = {"type": "files", "path": str(self.folder), "columns": DDL}
        change_sql = get_change_sql(f"select * from {VIEW}", VIEW)
        query = StreamQuery(
            change_sql, VIEW, f"s.{self.name}", COLUMNS, options, partition=self.partition
        )
        writer = BatchWriter(
            source=open_source(
                SourceDefinition(("s", "x"), "s.x", spec), self.lake, self.folder, {}
            ),
            query=query,
            sink=Sink(self.lake, ("s", self.name), Progress(options.sink_id), query.keys),
            options=options,
            runner=self.runner,
            bad_records=BadRecords(None, "", 0),
            schema=SCHEMA,
            rewriter=self.rewriter,
        )
        table = TableStream(writer, StreamStatus(self.name))
        Stream(lambda: self.spark, [table], window=2).drain()
        return table.status

    def rows(self, columns: str = "id, a, b, at", order: str = "id nulls first") -> list[Any]:
        sql = f"select {columns} from s.{self.name} order by {order}"
        return as_rows(self.spark.query(sql))


MakeBed = Callable[..., Bed]


@pytest.fixture(params=["process", "tasks"])
def bed(
    request: pytest.FixtureRequest, lake: IcebergCatalog, spark: Session, tmp_path: Path
) -> MakeBed:
    runner = in_process if request.param == "process" else in_tasks

    def make(**options: Any) -> Bed:
        layout = {name: options.pop(name, "") for name in ("extra", "layout", "partition")}
        return Bed(lake, spark, tmp_path / "landing", runner, options, **layout)

    return make


def test_two_queries_at_once_read_their_own_views(spark: Session) -> None:
    """Spark gives the views of a session one name space, and two batches are read at once."""

    def asked(number: int) -> set[int]:
        frame = spark.spark.range(number, number + 1)
        rows = spark.rows("select id from a_view where id >= 0", a_view=frame)
        return set(rows["id"].to_pylist())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(asked, range(60))) == [{number} for number in range(60)]


def test_a_text_that_names_a_view(spark: Session) -> None:
    sql = "select 'a_view' as said /* it's a_view */ from a_view where id >= 0 -- a_view"
    assert spark.rows(sql, a_view=spark.spark.range(1)).to_pylist() == [{"said": "a_view"}]


def random_changes(seed: int, count: int, keys: int = 8) -> list[Row]:
    """Changes in the order they were made; the value of `at` tells it."""
    chosen = random.Random(seed)
    return [
        {
            "id": chosen.choice([None, *range(keys)]),
            "a": chosen.choice([None, "x", "y"]),
            "b": chosen.choice([None, number]),
            "at": number,
            "op": chosen.choice("uuud"),
        }
        for number in range(count)
    ]


def last_of_each(changes: list[Row]) -> list[tuple[Any, ...]]:
    last: dict[Any, Row] = {}
    for change in sorted(changes, key=lambda change: change["at"]):
        last[change["id"]] = change
    rows = [tuple(c[name] for name in COLUMNS) for c in last.values() if c["op"] != "d"]
    return sorted(rows, key=lambda row: (row[0] is not None, row[0]))


def shuffled(changes: list[Row], seed: int) -> list[Row]:
    return random.Random(seed).sample(changes, len(changes))


@pytest.mark.parametrize("version", [2, 3])
def test_in_the_order_of_the_source(bed: MakeBed, version: int) -> None:
    layout = f"tblproperties ('format-version' = '{version}')"
    made = bed(deletes="op = 'd'", layout=layout)
    changes = random_changes(1, 60)
    for begin in range(0, 60, 20):
        made.land(changes[begin : begin + 10])
        made.land(changes[begin + 10 : begin + 20])
        made.drain()
        assert made.rows() == last_of_each(changes[: begin + 20])


def test_a_filter_on_the_sequence_leaves_deleted_rows_deleted(bed: MakeBed) -> None:
    """Readers skip delete files by their metrics: those must be of the deleted rows."""
    made = bed(sequence_by=("at",), deletes="op = 'd'")
    for at in range(3):
        made.land([{"id": 1, "a": "x", "b": at, "at": at, "op": "u"}])
        made.drain()
    found = [
        as_rows(made.spark.query(f"select b from s.{made.name} where at = {at}")) for at in range(3)
    ]
    assert found == [[], [], [(2,)]]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_by_position(bed: MakeBed, version: int) -> None:
    layout = f"partitioned by (a) tblproperties ('format-version' = '{version}')"
    made = bed(
        deletes="op = 'd'",
        delete_encoding="position",
        layout=layout,
        partition="named_struct('f0', `a`)",
    )
    changes = random_changes(7, 60)
    for begin in range(0, 60, 15):
        made.land(changes[begin : begin + 15])
        made.drain()
        assert made.rows() == last_of_each(changes[: begin + 15])
    contents = f"select distinct content from s.{made.name}.all_delete_files"
    assert as_rows(made.spark.query(contents)) == [(1,)]


@pytest.mark.parametrize(
    ("layout", "partition"),
    [
        ("partitioned by (a)", "named_struct('f0', `a`)"),
        ("partitioned by (bucket(3, id))", "named_struct('f0', lake.system.bucket(3, `id`))"),
    ],
)
def test_late_changes(bed: MakeBed, layout: str, partition: str) -> None:
    options = {"deletes": "op = 'd'", "sequence_by": ("at",)}
    made = bed(**options, layout=layout, partition=partition)
    changes = shuffled(random_changes(2, 80), 3)
    for begin in range(0, 80, 20):
        made.land(changes[begin : begin + 20])
        made.drain()
        assert made.rows() == last_of_each(changes[: begin + 20])


def test_nulls_that_leave_the_value(bed: MakeBed) -> None:
    made = bed(deletes="op = 'd'", ignore_null_updates=("a", "b"))
    changes = random_changes(4, 60)
    truth: dict[Any, Row] = {}
    for begin in range(0, 60, 20):
        batch = changes[begin : begin + 20]
        for change in batch:
            if change["op"] == "d":
                truth.pop(change["id"], None)
                continue
            row = truth.setdefault(change["id"], dict.fromkeys(COLUMNS))
            new = {k: v for k, v in change.items() if v is not None and k in COLUMNS}
            row.update(new)
            row["id"] = change["id"]
        made.land(batch)
        made.drain()
        rows = [tuple(row[name] for name in COLUMNS) for row in truth.values()]
        assert made.rows() == sorted(rows, key=lambda row: (row[0] is not None, row[0]))


def test_soft_deletes(bed: MakeBed) -> None:
    made = bed(deletes="op = 'd'", soft_deletes="gone_at", extra=", gone_at timestamp")
    made.land([{"id": 1, "a": "x", "b": 1, "at": 1, "op": "u"}, {"id": 2, "a": "y", "op": "u"}])
    made.drain()
    made.land([{"id": 1, "op": "d"}, {"id": 3, "a": "z", "op": "u"}, {"id": 3, "op": "d"}])
    made.land([{"id": 9, "op": "d"}])
    made.drain()
    rows = made.rows("id, a, b, gone_at is not null")
    assert rows == [(1, "x", 1, True), (2, "y", None, False), (3, "z", None, True)]


def test_truncates(bed: MakeBed) -> None:
    made = bed(deletes="op = 'd'", truncates="op = 't'")
    made.land([{"id": n, "a": "x", "op": "u"} for n in range(5)])
    made.drain()
    made.land([{"id": 7, "a": "y", "op": "u"}, {"op": "t"}, {"id": 8, "a": "z", "op": "u"}])
    made.drain()
    assert made.rows("id, a") == [(8, "z")]
    made.land([{"op": "t"}])
    made.drain()
    assert made.rows("id, a") == []


def versions_of(changes: list[Row]) -> list[tuple[Any, ...]]:
    rows = []
    for key in {change["id"] for change in changes}:
        ours = sorted((c for c in changes if c["id"] == key), key=lambda c: c["at"])
        for change, later in zip(ours, [*ours[1:], None], strict=True):
            if change["op"] != "d":
                end = later["at"] if later else None
                rows.append((key, change["a"], change["b"], change["at"], change["at"], end))
    return sorted(rows, key=lambda row: (row[0] is not None, row[0], row[4]))


def test_versions(bed: MakeBed) -> None:
    extra = ", __START_AT bigint, __END_AT bigint"
    made = bed(deletes="op = 'd'", sequence_by=("at",), scd_type=2, extra=extra)
    changes = shuffled(random_changes(5, 80, keys=5), 6)
    for begin in range(0, 80, 20):
        made.land(changes[begin : begin + 20])
        made.drain()
        found = made.rows("id, a, b, at, __START_AT, __END_AT", "id nulls first, __START_AT")
        assert found == versions_of(changes[: begin + 20])


def test_a_change_that_nothing_orders(bed: MakeBed) -> None:
    made = bed(sequence_by=("at",))
    made.land([{"id": 1, "a": "x", "op": "u"}])
    with pytest.raises(StreamError, match="no value in the column that orders"):
        made.drain()
    assert made.rows() == []
