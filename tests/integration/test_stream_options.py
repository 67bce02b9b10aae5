"""What a stream makes of its changes, against a plain model of each option; read by Spark."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from tests.integration.stream_bed import (
    COLUMNS,
    Bed,
    Row,
    last_of_each,
    random_changes,
)
from tests.lost_files import assert_nothing_lost

MakeBed = Callable[..., Bed]


@pytest.fixture(params=["process", "parquet", pytest.param("tasks", marks=pytest.mark.slow)])
def bed(
    request: pytest.FixtureRequest, lake: IcebergCatalog, spark: Session, tmp_path: Path
) -> MakeBed:
    runner = in_tasks if request.param == "tasks" else in_process

    def make(**options: Any) -> Bed:
        layout = {name: options.pop(name, "") for name in ("extra", "layout", "partition")}
        parquet = request.param == "parquet"
        landing = tmp_path / "landing"
        return Bed(lake, spark, landing, runner, options, **layout, parquet=parquet)

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
    actual = [
        as_rows(made.spark.query(f"select b from s.{made.name} where at = {at}")) for at in range(3)
    ]
    assert actual == [[], [], [(2,)]]


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


@pytest.mark.parametrize("encoding", ["auto", "equality", "copy_on_write"])
@pytest.mark.variants(2)
def test_deletes_are_remembered_after_a_compaction(bed: MakeBed, encoding: str) -> None:
    made = bed(deletes="op = 'd'", sequence_by=("at",), delete_encoding=encoding)
    options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
    for at, op, rows in ((1, "u", [1, 2]), (5, "d", [2]), (3, "u", [2]), (9, "u", [1, 2])):
        made.land([{"id": 1, "a": "x", "b": 0, "at": at, "op": op}])
        made.land([{"id": 2, "a": "y", "b": 0, "at": at, "op": "u"}])
        made.drain()
        assert made.rows("id") == [(key,) for key in rows]
        made.spark.run(
            f"call lake.system.rewrite_data_files(table => 's.{made.name}', options => {options})"
        )


@pytest.mark.parametrize("encoding", ["auto", "equality"])
@pytest.mark.variants(2)
def test_late_changes_of_columns(bed: MakeBed, encoding: str) -> None:
    """Spark reads the table's rows then, and which keys are deleted."""
    made = bed(
        deletes="op = 'd'",
        sequence_by=("at",),
        ignore_null_updates=("a", "b"),
        delete_encoding=encoding,
    )
    changes = shuffled(random_changes(2, 80), 3)
    for change in changes:
        change |= {"a": change["a"] or "z", "b": change["at"]}
    for begin in range(0, 80, 20):
        made.land(changes[begin : begin + 20])
        made.drain()
        assert made.rows() == last_of_each(changes[: begin + 20])


@pytest.mark.parametrize("encoding", ["auto", "equality"])
def test_rows_of_another_writer_are_newer(bed: MakeBed, encoding: str) -> None:
    """There were rows before the stream, and others come while it does not run."""
    made = bed(deletes="op = 'd'", sequence_by=("at",), delete_encoding=encoding)
    for at in (10, 20):
        made.spark.run(f"insert into s.{made.name} values ({at}, 'other', 0, {at})")
        for older in (at - 1, at + 1):
            made.land([{"id": at, "a": str(older), "b": 0, "at": older, "op": "u"}])
            made.drain()
            expected = "other" if older < at else str(older)
            assert made.rows("a, at")[-1] == (expected, max(at, older))


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


@pytest.mark.parametrize("encoding", ["auto", "equality"])
def test_a_delete_before_the_row_that_it_marks(bed: MakeBed, encoding: str) -> None:
    made = bed(
        deletes="op = 'd'",
        soft_deletes="gone_at",
        sequence_by=("at",),
        delete_encoding=encoding,
        extra=", gone_at timestamp",
    )
    made.land([{"id": 1, "op": "d", "at": 5}, {"id": 2, "op": "d", "at": 5}])
    made.drain()
    made.land([{"id": 1, "a": "x", "at": 3, "op": "u"}, {"id": 2, "a": "y", "at": 7, "op": "u"}])
    made.drain()
    assert made.rows("id, a, at, gone_at is null") == [(2, "y", 7, True)]


@pytest.mark.parametrize("encoding", ["auto", "copy_on_write"])
def test_soft_deletes_and_nulls_that_leave_the_value(bed: MakeBed, encoding: str) -> None:
    made = bed(
        deletes="op = 'd'",
        soft_deletes="gone_at",
        ignore_null_updates=True,
        delete_encoding=encoding,
        extra=", gone_at timestamp",
    )
    made.land([{"id": 1, "a": "x", "b": 1, "op": "u"}])
    made.drain()
    made.land([{"id": 1, "b": 2, "op": "u"}, {"id": 1, "op": "d"}])
    made.drain()
    assert made.rows("id, a, b, gone_at is null") == [(1, "x", 2, False)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_deletes_that_were_rolled_back(bed: MakeBed, scd_type: int) -> None:
    extra = ", __START_AT bigint, __END_AT bigint" if scd_type == 2 else ""
    made = bed(deletes="op = 'd'", sequence_by=("at",), scd_type=scd_type, extra=extra)
    made.land([{"id": 1, "a": "x", "at": 1, "op": "u"}, {"id": 3, "a": "x", "at": 20, "op": "u"}])
    made.land([{"id": 4, "op": "d", "at": 8}])
    made.drain()
    good = made.lake.table(("s", made.name)).metadata.current_snapshot_id
    made.land([{"id": 1, "op": "d", "at": 9}, {"id": 2, "op": "d", "at": 9}])
    (wrong,) = made.folder.glob("00003.*")
    made.drain()
    made.spark.run(f"call lake.system.rollback_to_snapshot('s.{made.name}', {good})")
    accept_rollback(made.lake, ("s", made.name), f"sink.{made.name}")
    wrong.unlink()
    made.land([{"id": key, "a": "y", "at": 5, "op": "u"} for key in (1, 2, 4)])
    made.drain()
    if scd_type == 1:
        assert made.rows("id, a, at") == [(1, "y", 5), (2, "y", 5), (3, "x", 20)]
    else:
        assert made.rows("id, a, __END_AT", "id, __START_AT") == [
            *[(1, "x", 5), (1, "y", None), (2, "y", None), (3, "x", None), (4, "y", 8)]
        ]
    assert_nothing_lost(made.lake)


def test_versions_of_rows_without_a_start(bed: MakeBed) -> None:
    made = bed(sequence_by=("at",), scd_type=2, extra=", __START_AT bigint, __END_AT bigint")
    made.land([{"id": 1, "a": "x", "at": 1, "op": "u"}])
    made.drain()
    made.spark.run(f"insert into s.{made.name} (id, a, at) values (2, 'other', 1)")
    made.land([{"id": 2, "a": "y", "at": 5, "op": "u"}])
    with pytest.raises(Exception, match="A row of the table has no value in __START_AT"):
        made.drain()


@pytest.mark.parametrize(
    "options, change, expected",
    [
        ({"ignore_null_updates": True}, {"a": "z", "op": "u"}, (1, "z", 7, 1)),
        ({"soft_deletes": "gone_at", "extra": ", gone_at timestamp"}, {"op": "d"}, (1, "x", 7, 1)),
        (
            {"ignore_null_updates": ("a",), "sequence_by": ("at",)},
            {"b": 5, "at": 2, "op": "u"},
            (1, "x", 7, 9),
        ),
    ],
)
@pytest.mark.variants(2)
def test_another_writer_changes_the_rows_that_were_read(
    bed: MakeBed, monkeypatch: pytest.MonkeyPatch, options: Any, change: Row, expected: Any
) -> None:
    """Once, the other writer's values were lost."""
    made = bed(deletes="op = 'd'", **options)
    made.land([{"id": 1, "a": "x", "b": 1, "at": 1, "op": "u"}])
    made.drain()
    made.land([{"id": 1, **change}])
    prepare = Sink.prepare

    def update_first(self: Sink, *arguments: Any) -> Any:
        monkeypatch.undo()
        made.spark.run(f"update s.{made.name} set b = 7, at = {expected[-1]}")
        return prepare(self, *arguments)

    monkeypatch.setattr(Sink, "prepare", update_first)
    made.drain()
    assert made.rows() == [expected]


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
        actual = made.rows("id, a, b, at, __START_AT, __END_AT", "id nulls first, __START_AT")
        assert actual == versions_of(changes[: begin + 20])


def test_a_change_that_nothing_orders(bed: MakeBed) -> None:
    made = bed(sequence_by=("at",))
    made.land([{"id": 1, "a": "x", "op": "u"}])
    with pytest.raises(StreamError, match="no value in the column that orders"):
        made.drain()
    assert made.rows() == []
