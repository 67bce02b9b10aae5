"""Files of several row groups, keys of all types, and columns that are younger than a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions, read_footer
from dbt.adapters.iceberg_stream.tables.files.reader import (
    LAST_UPDATED,
    ROW_ID,
    NotByRewriting,
    OldFile,
    read_rows,
    require_ids,
)
from dbt.adapters.iceberg_stream.tables.merge import file_task
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.file_task import read_task_result, run_with_retries
from dbt.adapters.iceberg_stream.tables.merge.rows import Source, changed


def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


SCHEMA = pa.schema([field("id", pa.int64(), 1), field("n", pa.int64(), 2)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Row groups of two, two and one row."""
    path = tmp_path / "one.parquet"
    rows = pa.table({"id": range(5), "n": [0] * 5}).cast(SCHEMA)
    pq.write_table(rows, path, row_group_size=2)
    return path


def run(
    file: Path,
    source: dict[str, list[Any]],
    deletes: Deletes = Deletes.NONE,
    updates: Sequence[str] = ("n",),
) -> tuple[Any, dict[str, list[Any]] | None]:
    rows = Source(pa.table(source, schema=SCHEMA), ["id"])
    options = ParquetOptions(target_size=1)
    merge = FileRewrite(fs.LocalFileSystem(), SCHEMA, options, "w", rows, updates, deletes)
    done = merge.run(OldFile(f"x://{file}", str(file)))
    made = [p for p in file.parent.iterdir() if p != file]
    assert len(made) == len(done.new_files) <= 1
    return done, pq.read_table(made[0]).to_pydict() if made else None


@pytest.mark.parametrize("place", range(5))
def test_a_row_of_any_row_group_is_updated(file: Path, place: int) -> None:
    done, actual = run(file, {"id": [9, place], "n": [1, 7]})
    assert actual == {"id": list(range(5)), "n": [7 if n == place else 0 for n in range(5)]}
    assert (done.changed, done.deleted, done.matched.to_pylist()) == (1, 0, [1])
    assert done.changes_rows
    assert read_footer(done.new_files[0].footer).num_row_groups == 3


def test_rows_that_are_the_same_change_nothing(file: Path) -> None:
    done, actual = run(file, {"id": [0, 4, 9], "n": [0, 0, 1]})
    assert actual is None
    assert (done.changed, done.deleted, done.matched.to_pylist()) == (0, 0, [0, 1])
    assert not done.changes_rows


def test_only_what_differs_counts(file: Path) -> None:
    done, actual = run(file, {"id": [0, 1, 4], "n": [0, 5, 6]})
    assert done.changed == 2
    assert actual == {"id": list(range(5)), "n": [0, 5, 0, 0, 6]}


def test_nothing_to_update(file: Path) -> None:
    done, actual = run(file, {"id": [0], "n": [3]}, updates=())
    assert (actual, done.changed, done.matched.to_pylist()) == (None, 0, [0])


@pytest.mark.parametrize(
    ("deletes", "left", "gone"),
    [(Deletes.MATCHED, [0, 2, 3], 2), (Deletes.UNMATCHED, [1, 4], 3)],
)
def test_rows_go(file: Path, deletes: Deletes, left: list[int], gone: int) -> None:
    done, actual = run(file, {"id": [1, 4], "n": [0, 0]}, deletes, ())
    assert actual == {"id": left, "n": [0] * len(left)}
    assert (done.changed, done.deleted) == (0, gone)


@pytest.mark.parametrize(
    ("deletes", "ids"), [(Deletes.MATCHED, list(range(5))), (Deletes.UNMATCHED, [9])]
)
def test_all_rows_go(file: Path, deletes: Deletes, ids: list[int]) -> None:
    done, actual = run(file, {"id": ids, "n": [0] * len(ids)}, deletes)
    assert (actual, done.deleted, done.changes_rows) == (None, 5, True)


@pytest.mark.parametrize(
    ("deletes", "ids"), [(Deletes.MATCHED, [9]), (Deletes.UNMATCHED, list(range(5)))]
)
def test_no_row_goes(file: Path, deletes: Deletes, ids: list[int]) -> None:
    done, actual = run(file, {"id": ids, "n": [0] * len(ids)}, deletes)
    assert (actual, done.deleted, done.changes_rows) == (None, 0, False)


WIDE = pa.schema(
    [
        *SCHEMA,
        field("s", pa.string(), 3),
        field("kept", pa.string(), 4),
        pa.field(
            "l", pa.list_(field("element", pa.int64(), 6)), metadata={b"PARQUET:field_id": b"5"}
        ),
        field(ROW_ID, pa.int64(), 7),
        field(LAST_UPDATED, pa.int64(), 8),
    ]
)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_place", [True, False])
def test_a_row_changes_if_one_of_its_columns_does(
    tmp_path: Path, in_place: bool, seed: int
) -> None:
    """Random rows of a few values, of which each merge changes all, some or none."""
    rng, count = Random(seed), 40
    updates = [name for name in ("n", "s", "l") if rng.random() < 0.7]

    def row(number: int) -> dict[str, Any]:
        few = rng.choice([1, 2, 9])
        n, s, values = (rng.choice([None, *range(few)]) for _ in range(3))
        listed = None if values is None else [values]
        return {
            "id": number,
            "n": n,
            "s": s if s is None else str(s),
            "kept": str(rng.random()),
            "l": listed,
        }

    old = {number: row(number) for number in range(count)}
    new = {number: row(number) for number in rng.sample(range(2 * count), count)}
    dead = set(rng.sample(range(count), rng.choice([0, 10])))
    path = tmp_path / "one.parquet"
    stored = {"s": None} if rng.random() < 0.2 else {}
    names = [name for name in WIDE.names[:5] if name not in stored]
    old = {number: each | stored for number, each in old.items()}
    file_schema = pa.schema([WIDE.field(name) for name in names])
    pq.write_table(pa.Table.from_pylist([*old.values()], file_schema), path, row_group_size=7)
    merge = FileRewrite(
        fs.LocalFileSystem(),
        WIDE,
        ParquetOptions(),
        "w",
        Source(pa.Table.from_pylist([*new.values()], WIDE), ["id"]),
        updates,
        moved_by=updates[:1],
        in_place=in_place,
    )
    positions = pa.array(sorted(dead), pa.int64())
    done = merge.run(OldFile(f"x://{path}", str(path), positions, 100, 7))
    found = [] if done.moved is None else done.moved.to_pylist()
    if done.new_files:
        made = next(each for each in tmp_path.iterdir() if each != path)
        found += pq.read_table(made).to_pylist()
    else:
        gone = done.dead.to_pylist() or dead
        found += [old[n] | {ROW_ID: 100 + n, LAST_UPDATED: 7} for n in old if n not in gone]
    expected = {}
    for number in old.keys() - dead:
        result = old[number] | {name: new.get(number, old[number])[name] for name in updates}
        is_new = result != old[number]
        expected[number] = result | {ROW_ID: 100 + number, LAST_UPDATED: None if is_new else 7}
    assert {each["id"]: each for each in found} == expected
    assert len(found) == len(expected)
    assert done.changed == sum(each[LAST_UPDATED] is None for each in expected.values())


def test_columns_are_known_by_their_ids(file: Path) -> None:
    now = pa.schema([field("new", pa.string(), 3), field("key", pa.int64(), 1)])
    rows = Source(pa.table({"key": [1], "new": ["x"]}).select(["new", "key"]).cast(now), ["key"])
    merge = FileRewrite(fs.LocalFileSystem(), now, ParquetOptions(), "w", rows, ["new"])
    (made,) = merge.run(OldFile(str(file), str(file))).new_files
    assert pq.read_table(made.location).to_pydict() == {
        "new": [None, "x", None, None, None],
        "key": list(range(5)),
    }


def test_a_file_that_is_older_than_all_columns(file: Path) -> None:
    now = pa.schema([field("key", pa.int64(), 3), field("v", pa.int64(), 4)])
    rows = Source(pa.table({"key": [None], "v": [1]}, schema=now), ["key"])
    merge = FileRewrite(fs.LocalFileSystem(), now, ParquetOptions(), "w", rows, ["v"])
    done = merge.run(OldFile(str(file), str(file)))
    assert done.changed == 5
    assert pq.read_table(done.new_files[0].location)["v"].to_pylist() == [1] * 5


def nested(name: str, number: int) -> pa.Schema:
    return pa.schema([field("s", pa.struct([field(name, pa.int64(), number)]), 1)])


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (nested("x", 2), {"s": {"x": 1}}),
        (nested("y", 2), {"s": {"y": 1}}),
        (nested("a b", 2), {"s": {"a b": 1}}),
        (nested("x", 3), {"s": {"x": None}}),
        (pa.schema([field("other", pa.int64(), 9)]), {"other": None}),
    ],
)
def test_nested_fields_are_matched_by_their_ids(
    tmp_path: Path, now: pa.Schema, expected: dict[str, Any]
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"s": [{"x": 1}]}, schema=nested("x", 2)), path)
    with pq.ParquetFile(path) as parquet:
        assert read_rows(parquet, now).to_pylist() == [expected]


def test_nested_fields_need_ids(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    plain = pa.schema([field("s", pa.struct([("x", pa.int64())]), 1)])
    pq.write_table(pa.table({"s": [{"x": 1}]}, schema=plain), path)
    with pq.ParquetFile(path) as parquet, pytest.raises(NotByRewriting, match="no field ids"):
        require_ids(parquet)


def test_nested_fields_that_were_added_since_are_null(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"s": [{"x": 1}, None]}, schema=nested("x", 2)), path)
    wider = pa.struct([field("y", pa.string(), 3), field("x", pa.float64(), 2)])
    now = pa.schema([field("s", wider, 1)])
    with pq.ParquetFile(path) as parquet:
        rows = read_rows(parquet, now)
    assert rows.to_pylist() == [{"s": {"y": None, "x": 1.0}}, {"s": None}]


def test_faults_of_files_tell_which(file: Path) -> None:
    source = Source(pa.table({"id": [1], "n": [1]}, schema=SCHEMA), ["id"])
    merge = FileRewrite(fs.LocalFileSystem(), SCHEMA, ParquetOptions(), "w", source, ["n"])
    with pytest.raises(OSError, match="x://lost: "):
        merge.run(OldFile("x://lost", str(file.with_name("lost"))))
    required = pa.schema(
        [
            SCHEMA.field("id"),
            SCHEMA.field("n"),
            pa.field("m", pa.int64(), False, {"PARQUET:field_id": "3"}),
        ]
    )
    with pytest.raises(ColumnError, match="`m` is missing or null in a file"):
        replace(merge, schema=required).run(OldFile(str(file), str(file)))


class TestTasks:
    @pytest.fixture(autouse=True)
    def slept(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        actual: list[float] = []
        monkeypatch.setattr(file_task.time, "sleep", actual.append)
        return actual

    @pytest.mark.parametrize("failures", [0, 1, 2])
    def test_a_storage_that_comes_back(self, failures: int, slept: list[float]) -> None:
        left = [OSError("slow")] * failures

        def work() -> dict[str, Any]:
            if left:
                raise left.pop()
            return {"changed": 1}

        assert run_with_retries(work) == {"changed": 1}
        assert slept == [1, 2][:failures]

    def test_one_that_does_not(self, slept: list[float]) -> None:
        def work() -> dict[str, Any]:
            raise OSError("away")

        assert run_with_retries(work) == {"failed": "away"}
        assert slept == [1, 2]

    @pytest.mark.parametrize(
        ("error", "reason"),
        [(NotByRewriting("no"), "no"), (ColumnError("c", "is no"), "the column `c` is no")],
    )
    def test_refusals_are_not_tried_again(
        self, error: Exception, reason: str, slept: list[float]
    ) -> None:
        def work() -> dict[str, Any]:
            raise error

        assert run_with_retries(work) == {"refused": reason}
        assert slept == []

    def test_failures_are_raised_by_who_reads_them(self) -> None:
        row = {"failed": None, "refused": None, "location": "l", "matched": [2], "changed": 3, "deleted": 4, "new_files": [], "dead": [], "moved": None}  # fmt: skip
        done = read_task_result(row)
        assert (done.location, done.matched.to_pylist(), done.changed, done.deleted) == (
            "l",
            [2],
            3,
            4,
        )
        with pytest.raises(OSError, match="away"):
            read_task_result(row | {"failed": "away"})
        with pytest.raises(NotByRewriting, match="no"):
            read_task_result(row | {"refused": "no"})


NESTED = pa.struct([("x", pa.int64())])
KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [1, 0]),
    (pa.int64(), [1, 0]),
    (pa.float32(), [1.5, 0.0]),
    (pa.float64(), [1.5, 0.0]),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("0.00")]),
    (pa.date32(), [date(2026, 1, 1), date(1970, 1, 1)]),
    (pa.time64("us"), [time(1), time(0)]),
    (pa.timestamp("us"), [datetime(2026, 1, 1), datetime(1970, 1, 1)]),
    (pa.string(), ["a", ""]),
    (pa.binary(), [b"a", b""]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=str)
def test_keys_of_all_types(kind: pa.DataType, values: list[Any]) -> None:
    """With null, which is equal to itself and to nothing else."""
    source = Source(pa.table({"k": pa.array([None, *values], kind), "j": [1, 1, 1]}), ["k", "j"])
    given = pa.table({"k": pa.array([values[1], None, values[0], None], kind), "j": [1, 1, 1, 2]})
    matches = source.match(given)
    assert len(matches) == 3
    assert matches.in_file.to_pylist() == [0, 1, 2]
    assert matches.in_source.to_pylist() == [2, 0, 1]
    assert source.duplicates() == 0
    twice = Source(pa.table({"k": pa.array([None, None, *values, values[0]], kind)}), ["k"])
    assert twice.duplicates() == 2
    single = Source(pa.table({"k": pa.array([None, *values], kind)}), ["k"])
    actual = single.match(given.select(["k"]))
    assert actual.in_file.to_pylist() == [0, 1, 2, 3]
    assert actual.in_source.to_pylist() == [2, 0, 1, 0]


@pytest.mark.parametrize(("kind", "values"), [*KEYS, (NESTED, [{"x": 1}, {"x": None}])], ids=str)
def test_differences_of_all_types(kind: pa.DataType, values: list[Any]) -> None:
    old = [values[0], values[0], None, values[1], None]
    new = [values[0], values[1], values[1], None, None]
    file = pa.table({"k": range(5), "v": pa.array(old, kind)})
    source = Source(pa.table({"k": range(5), "v": pa.array(new, kind)}), ["k"])
    actual = changed(file, source.rows, source.match(file.select(["k"])), ["v"])
    assert actual.in_file.to_pylist() == [1, 2, 3]
    none = changed(file, source.rows, source.match(file.select(["k"])), [])
    assert len(none) == 0
