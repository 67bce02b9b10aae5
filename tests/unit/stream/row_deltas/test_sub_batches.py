"""Changes as files, applied by hand as a reader does it: the rows are those that the changes tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.row_deltas.changes import (
    DELETED,
    ORDER,
    PARTITION,
    chunks,
    last_changes,
    row_positions,
    split,
    without,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import (
    DATA,
    EQUALITY_DELETES,
    TASK_RESULT,
    Delta,
    MissingOrderValue,
    TooManyKeys,
    from_bytes,
    run_task,
    sweep,
    write_changes,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import (
    MAX_OPEN,
    POS,
    ROWS_PER_KEY,
    DeltaPlan,
    NewData,
    SubBatch,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.written import (
    BatchRange,
    RewrittenFile,
    TargetDeletes,
    WrittenBatch,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions, WrittenFile
from tests.unit.local_tables import data_file

SCHEMA = pa.schema(
    [
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
        for number, (name, kind) in enumerate(
            (("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())), 1
        )
    ]
)


@dataclass(frozen=True)
class Step:
    """A change: `v` is None for a delete."""

    id: int | None
    v: int | None
    part: str = "a"
    order: int | None = None


def plan(folder: Path, **more: Any) -> DeltaPlan:
    defaults = {"keys": ("id",), "options": ParquetOptions(), "write_id": "w", "chunk_bytes": 1}
    return DeltaPlan(
        fs.LocalFileSystem(), f"x://{folder}", str(folder), SCHEMA, **(defaults | more)
    )


def batches(steps: Sequence[Step], rows: int, partitioned: bool = False) -> list[pa.RecordBatch]:
    columns: dict[str, Any] = {
        "id": pa.array([s.id for s in steps], pa.int64()),
        "part": pa.array([s.part for s in steps], pa.string()),
        "v": pa.array([s.v for s in steps], pa.int64()),
        f"{ORDER}0": pa.array(
            [n if s.order is None else s.order for n, s in enumerate(steps)], pa.int64()
        ),
        f"{ORDER}1": pa.array(range(len(steps)), pa.int64()),
        DELETED: pa.array([s.v is None for s in steps], pa.bool_()),
    }
    if partitioned:
        values = [{"f0": s.part} for s in steps]
        columns[PARTITION] = pa.array(values, pa.struct([("f0", pa.string())]))
    return pa.table(columns).to_batches(max_chunksize=rows)


def rows_of(file: WrittenFile) -> list[dict[str, Any]]:
    return pq.read_table(file.location.removeprefix("x://")).to_pylist()


def read(subs: Sequence[SubBatch], by_partition: bool = False) -> list[tuple[Any, ...]]:
    """Rows after all sub-batches: a delete by keys applies to what comes before its own."""
    live: list[tuple[Any, dict[str, Any]]] = []
    for sub in subs:
        for file, partition in sub.equality_deletes:
            keys = {row["id"] for row in rows_of(file)}
            live = [
                (p, row)
                for p, row in live
                if row["id"] not in keys or (by_partition and p != partition)
            ]
        for new in sub.data:
            dead = set(new.dead.to_pylist())
            live += [
                (new.partition, row) for n, row in enumerate(rows_of(new.file)) if n not in dead
            ]
    return sorted((tuple(row.values()) for _, row in live), key=repr)


def truth(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    rows: dict[int | None, tuple[Any, ...]] = {}
    orders: dict[int | None, int] = {}
    for number, step in enumerate(steps):
        order = number if step.order is None else step.order
        if order < orders.get(step.id, order):
            continue
        orders[step.id] = order
        rows.pop(step.id, None)
        if step.v is not None:
            rows[step.id] = (step.id, step.part, step.v)
    return sorted(rows.values(), key=repr)


STEPS = st.lists(
    st.builds(
        Step,
        st.none() | st.integers(0, 3),
        st.none() | st.integers(0, 9),
        st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(1, 4), st.sampled_from([0, 1, 2, 100]), st.booleans())
def test_rows_are_those_of_the_changes(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Step],
    rows: int,
    max_keys: int,
    partitioned: bool,
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    delta = write_changes(plan(folder, max_keys=max_keys), batches(steps, rows, partitioned))
    assert read(delta.sub_batches) == truth(steps)
    assert (delta.changes, delta.first, delta.last) == (len(steps), 0, len(steps) - 1)
    if max_keys == 100:
        assert len(delta.sub_batches) == 1
    if max_keys == 0:
        assert len(delta.sub_batches) == -(-len(steps) // rows)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.lists(st.integers(0, 5), min_size=12, max_size=12), st.integers(1, 4))
def test_changes_that_come_late(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], orders: list[int], rows: int
) -> None:
    steps = [replace(s, order=o) for s, o in zip(steps, orders, strict=False)]
    folder = tmp_path_factory.mktemp("delta")
    delta = write_changes(plan(folder, max_keys=100, ordered=False), batches(steps, rows))
    assert read(delta.sub_batches) == truth(steps)
    given_orders = [s.order for s in steps]
    assert (delta.first, delta.last) == (min(given_orders), max(given_orders))


def test_counts(tmp_path: Path) -> None:
    steps = [Step(1, 1), Step(2, 2), Step(1, 3), Step(2, None), Step(7, None)]
    delta = write_changes(plan(tmp_path, chunk_bytes=10_000), batches(steps, 9))
    assert (delta.changes, delta.upserts, delta.deletes) == (5, 1, 2)
    assert read(delta.sub_batches) == [(1, "a", 3)]


def test_rows_without_keys_are_appended(tmp_path: Path) -> None:
    steps = [Step(1, 1), Step(1, 2)]
    delta = write_changes(plan(tmp_path, keys=()), batches(steps, 1))
    assert read(delta.sub_batches) == [(1, "a", 1), (1, "a", 2)]
    assert [sub.equality_deletes for sub in delta.sub_batches] == [[]]
    assert (delta.changes, delta.upserts, delta.deletes) == (2, 2, 0)


def test_too_many_changes_without_order(tmp_path: Path) -> None:
    steps = [Step(n, n, order=5) for n in range(5)]
    with pytest.raises(TooManyKeys):
        write_changes(plan(tmp_path, max_keys=2, ordered=False), batches(steps, 1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keys", "expected"), [(3, 2), (4, 2), (5, 1), (6, 1)])
def test_a_sub_batch_has_so_many_keys(tmp_path: Path, keys: int, expected: int) -> None:
    """It is full when they are there, and the next change begins another one."""
    steps = [Step(n, n) for n in range(5)]
    delta = write_changes(plan(tmp_path, max_keys=keys), batches(steps, 1))
    assert len(delta.sub_batches) == expected


@pytest.mark.parametrize("more", [0, 1])
def test_a_sub_batch_has_so_many_rows_of_a_key(tmp_path: Path, more: int) -> None:
    steps = [Step(1, n) for n in range(2 * ROWS_PER_KEY + more)]
    delta = write_changes(plan(tmp_path, max_keys=2), batches(steps, 1))
    assert len(delta.sub_batches) == 1 + more
    assert read(delta.sub_batches) == [(1, "a", len(steps) - 1)]


@pytest.mark.parametrize("by_partition", [True, False])
def test_partitions(tmp_path: Path, by_partition: bool) -> None:
    settings = {"deletes_by_partition": by_partition, "max_keys": 2}
    steps = [Step(n, n, "ab"[n % 2]) for n in range(6)] + [Step(0, 9), Step(1, None, "b")]
    delta = write_changes(plan(tmp_path, **settings), batches(steps, 2, True))
    assert read(delta.sub_batches, by_partition) == truth(steps)
    for sub in delta.sub_batches:
        for new in sub.data:
            assert {(row["part"],) for row in rows_of(new.file)} == {new.partition}
        partitions = [partition for _, partition in sub.equality_deletes]
        assert sorted(partitions) == ([("a",), ("b",)] if by_partition else [()])


@pytest.mark.parametrize("more", [0, 1])
def test_more_partitions_than_open_files(tmp_path: Path, more: int) -> None:
    count = MAX_OPEN + more
    steps = [Step(n, n, f"p{n}") for n in range(count)] + [Step(0, 5, "p0")]
    delta = write_changes(plan(tmp_path, max_keys=1000), batches(steps, 1, True))
    assert read(delta.sub_batches) == truth(steps)
    (sub,) = delta.sub_batches
    # The first partition's file has taken the last row, too, if it was still open.
    assert len(sub.data) == count + more


def test_files_are_full_at_their_size(tmp_path: Path) -> None:
    steps = [Step(n, n) for n in range(4)] + [Step(0, 7), Step(3, 8)]
    delta = write_changes(
        plan(tmp_path, max_keys=100, options=ParquetOptions(target_size=1)), batches(steps, 2)
    )
    (sub,) = delta.sub_batches
    assert len(sub.data) == 3
    assert read(delta.sub_batches) == truth(steps)


def test_only_deletes_remember_what_orders_them(tmp_path: Path) -> None:
    steps = [Step(1, 1, order=4), Step(2, None, order=6)]
    for by, deletes in ((("v",), [{"id": 2, "v": 6}]), (("id",), None), ((), None)):
        delta = write_changes(plan(tmp_path, sequence_by=by, chunk_bytes=10_000), batches(steps, 9))
        (sub,) = delta.sub_batches
        ((file, _),) = sub.equality_deletes
        assert rows_of(file) == [{"id": 1}, {"id": 2}]
        assert (None if sub.deletes is None else sub.deletes.to_pylist()) == deletes


ORDERED_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, 5]),
        order=st.integers(1, 6),
    ),
    min_size=1,
    max_size=9,
)


@given(steps=ORDERED_STEPS, rows=st.integers(1, 9), keeps_keys=st.booleans())
@settings(max_examples=200, deadline=None)
def test_deletes_are_remembered_however_a_batch_is_cut(
    steps: list[Step], rows: int, keeps_keys: bool
) -> None:
    """Also those that newer changes have overtaken, but none that was late itself."""
    latest: dict[int | None, int] = {}
    deleted: dict[int | None, int] = {}
    for step in steps:
        assert step.order is not None
        if step.order >= latest.get(step.id, 0):
            latest[step.id] = step.order
            if step.v is None:
                deleted[step.id] = step.order
    with TemporaryDirectory() as folder:
        made = plan(
            Path(folder),
            sequence_by=("v",),
            ordered=False,
            max_keys=100,
            chunk_bytes=1,
            keeps_keys=keeps_keys,
        )
        (sub,) = write_changes(made, batches(steps, rows)).sub_batches
        assert bool(sub.equality_deletes) != keeps_keys
        tables = [] if sub.deletes is None else [sub.deletes]
        if sub.changed_keys is not None:
            tables.append(sub.changed_keys.filter(pc.less(sub.changed_keys[POS], 0)))
        remembered: dict[int | None, int] = {}
        for row in (row for table in tables for row in table.to_pylist()):
            remembered[row["id"]] = max(row["v"], remembered.get(row["id"], 0))
    assert remembered == deleted


def test_columns_that_the_query_does_not_give_are_null(tmp_path: Path) -> None:
    rows = [batch.drop_columns(["v"]) for batch in batches([Step(1, 1)], 1)]
    delta = write_changes(plan(tmp_path), rows)
    assert read(delta.sub_batches) == [(1, "a", None)]


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("order", [pa.array([1, None], pa.int64()), pa.array([1.0, float("nan")])])
def test_changes_without_order(tmp_path: Path, column: int, order: pa.Array) -> None:
    (batch,) = batches([Step(1, 1), Step(2, 2)], 9)
    columns = batch.to_pydict() | {f"{ORDER}{column}": order}
    with pytest.raises(MissingOrderValue, match="1 changes have no value"):
        write_changes(plan(tmp_path), [pa.RecordBatch.from_pydict(columns)])


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_an_order_after_the_year_9999(tmp_path: Path, kind: pa.DataType) -> None:
    """Iceberg and Spark have such times, Python and the watermark have not."""
    (batch,) = batches([Step(1, 1)], 9)
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    order = days if kind == days.type else days.cast(pa.timestamp("s")).cast(kind)
    columns = {name: batch[name] for name in batch.schema.names} | {f"{ORDER}0": order}
    with pytest.raises(ColumnError, match="`v` has a date or time outside the years 1 to 9999"):
        write_changes(plan(tmp_path, sequence_by=("v",)), [pa.RecordBatch.from_pydict(columns)])


def test_a_task_tells_what_it_has_made(tmp_path: Path) -> None:
    """As whoever commits reads it."""
    steps = [Step(1, 1), Step(2, 2, "b"), Step(1, 3), Step(2, None)]
    (result,) = run_task(plan(tmp_path, max_keys=100), batches(steps, 2, True))
    assert result.schema == TASK_RESULT
    first, *files = result.to_pylist()
    assert from_bytes(first["totals"]) == (4, 3, 1, 0, 3)
    assert {row["task"] for row in files} == {first["task"]}
    assert {row["sub_batch"] for row in files} == {0}
    data = [row for row in files if row["content"] == DATA]
    assert sorted((from_bytes(r["partition"]), r["dead"]) for r in data) == [
        (("a",), [0]),
        (("b",), [0]),
    ]
    others = [(r["content"], from_bytes(r["partition"])) for r in files if r not in data]
    assert others == [(EQUALITY_DELETES, ())]
    assert {r["file"]["location"] for r in files} == {f"x://{p}" for p in tmp_path.iterdir()}


def test_a_task_refuses(tmp_path: Path) -> None:
    (batch,) = batches([Step(1, 1)], 9)
    for name in (f"{ORDER}0", "v"):
        broken = pa.array([None], pa.int64()) if name != "v" else pa.array(["x"])
        batch = pa.RecordBatch.from_pydict(
            {**dict(zip(batch.schema.names, batch.columns, strict=True)), name: broken}
        )
        (result,) = run_task(plan(tmp_path), [batch])
        (row,) = result.to_pylist()
        assert row["refused"] is not None and row["task"] is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_write_has_left_is_swept(tmp_path: Path) -> None:
    write_changes(plan(tmp_path), batches([Step(1, 1)], 1))
    others = [tmp_path / "stream-w2-a.parquet", tmp_path / "stream-v-a.parquet"]
    for other in others:
        other.touch()
    sweep(plan(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted(others)
    sweep(plan(tmp_path / "gone"))


class TestChanges:
    def test_last_changes(self) -> None:
        changes = pa.table(
            {"id": [1, 2, 1, 2, 3], "v": [0, 1, 2, 3, 4], f"{ORDER}0": [9, 8, 7, 8, 1]}
        )
        assert last_changes(changes, ["id"], True)["v"].to_pylist() == [2, 3, 4]
        last = last_changes(changes, ["id"])
        assert sorted(last["v"].to_pylist()) in ([0, 1, 4], [0, 3, 4])
        assert 0 in last["v"].to_pylist()
        assert last_changes(changes, ["v"], True) is changes

    def test_chunks(self) -> None:
        batch = pa.record_batch({"v": pa.array([1, 2], pa.int64())})
        empty = batch.slice(0, 0)
        parts = [empty, batch, empty, batch, batch]
        assert [c.num_rows for c in chunks(parts, batch.nbytes)] == [2, 2, 2]
        assert [c.num_rows for c in chunks(parts, batch.nbytes + 1)] == [4, 2]
        assert [c.num_rows for c in chunks(parts, 2 * batch.nbytes)] == [4, 2]
        assert [c.num_rows for c in chunks(parts, 10**6)] == [6]
        assert list(chunks([empty], 1)) == []

    def test_split(self) -> None:
        struct = pa.struct([("f0", pa.date32()), ("f1", pa.string())])
        parts = pa.array(
            [{"f0": 1, "f1": "x"}, {"f0": None, "f1": "x"}, {"f0": 1, "f1": "x"}], struct
        )
        rows = pa.table({"v": [1, 2, 3], PARTITION: parts})
        by_partition = {partition: part["v"].to_pylist() for partition, part in split(rows)}
        assert by_partition == {(1, "x"): [1, 3], (None, "x"): [2]}
        assert list(split(rows.slice(0, 0))) == []
        ((partition, part),) = split(rows.select(["v"]))
        assert (partition, part["v"].to_pylist()) == ((), [1, 2, 3])

    def test_places(self) -> None:
        assert row_positions(3).to_pylist() == [0, 1, 2]
        assert row_positions(2, 5).to_pylist() == [5, 6]
        assert row_positions(0).to_pylist() == []
        assert without(pa.table({"v": [1, 2, 3]}), pa.array([1]))["v"].to_pylist() == [1, 3]


def written_file(name: str) -> WrittenFile:
    return WrittenFile(f"x://{name}", 1, b"", 1)


def new(name: str, dead: Sequence[int] = ()) -> NewData:
    return NewData(written_file(name), ("p",), pa.array(dead, pa.int64()))


class TestWritten:
    BATCH = WrittenBatch(
        BatchRange(None, {}),
        [
            Delta(
                [SubBatch([new("a", [1])], [(written_file("e"), ())]), SubBatch([new("b")])],
                changes=3,
            ),
            Delta(
                [SubBatch([new("c")]), SubBatch(), SubBatch([], [(written_file("f"), ())])],
                changes=4,
            ),
        ],
    )

    def test_files(self) -> None:
        assert self.BATCH.changes == 7
        assert sorted(self.BATCH.files) == [f"x://{name}" for name in "abcef"]
        assert self.BATCH.equality_deletes == ["x://e", "x://f"]

    def test_sub_batches_of_tasks_share_their_numbers(self) -> None:
        groups = [
            ([n.file.location for n in sub.data], [f.location for f, _ in sub.equality_deletes])
            for sub in self.BATCH.sub_batches()
        ]
        assert groups == [(["x://a", "x://c"], ["x://e"]), (["x://b"], []), ([], ["x://f"])]

    def test_none_is_empty(self) -> None:
        empty = replace(self.BATCH, deltas=[Delta([SubBatch()])])
        assert list(empty.sub_batches()) == []
        assert empty.files == []

    def test_by_position(self) -> None:
        replaced = (
            RewrittenFile(data_file("old"), written_file("r")),
            RewrittenFile(data_file("gone"), None),
        )
        target_deletes = TargetDeletes(7, {"old": pa.array([1])}, replaced)
        batch = self.BATCH.by_position(target_deletes)
        assert batch.target_deletes is target_deletes
        assert batch.equality_deletes == []
        assert sorted(batch.files) == [f"x://{name}" for name in "abcr"]
        assert self.BATCH.equality_deletes == ["x://e", "x://f"]

    def test_with_other_files(self) -> None:
        batch = self.BATCH.with_files({"x://a": written_file("z"), "x://b": None})
        data = [
            (n.file.location, n.dead.to_pylist()) for sub in batch.sub_batches() for n in sub.data
        ]
        assert data == [("x://z", []), ("x://c", [])]
        same = self.BATCH.with_files({})
        data = [
            (n.file.location, n.dead.to_pylist()) for sub in same.sub_batches() for n in sub.data
        ]
        assert data == [("x://a", [1]), ("x://c", []), ("x://b", [])]
        assert batch.equality_deletes == self.BATCH.equality_deletes
