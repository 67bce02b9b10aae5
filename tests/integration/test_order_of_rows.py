"""The highest order of a table's rows, by which a stream tells which changes may be late."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimeType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index import highest_values, late_changes
from dbt.adapters.iceberg_stream.stream.key_index.highest_values import HighestValues
from dbt.adapters.iceberg_stream.stream.sink.known_streams import forget_stream
from dbt.adapters.iceberg_stream.stream.sink.table_index import ChangeOrder
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.ordered_table import OrderedTable, schema
from tests.integration.streams import NAME
from tests.integration.tables import duckdb_rows
from tests.lost_files import assert_nothing_lost
from tests.unit.local_tables import evolve

EPOCH = datetime(2026, 1, 1)
# Types with values of a few orders of magnitude, so that bounds that are cut are often equal.
VALUES: dict[IcebergType, st.SearchStrategy[Any]] = {
    LongType(): st.integers(-3, 3),
    DoubleType(): st.sampled_from([-1.5, 0.0, 2.5, float("nan")]),
    DateType(): st.integers(0, 3).map(lambda days: date(2026, 1, 1) + timedelta(days)),
    TimestampType(): st.integers(0, 3).map(lambda us: EPOCH + timedelta(microseconds=us)),
    DecimalType(38, 6): st.integers(-3, 3).map(lambda n: Decimal(n).scaleb(-6)),
    StringType(): st.text("ab\u00e9\U0001f600", max_size=2).map("2026-01-01T00:0".__add__),
    BinaryType(): st.binary(max_size=2).map(b"0123456789abcde".__add__),
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Locations of the files that were read for their highest value."""
    locations: list[str] = []
    read = highest_values.read_keys

    def read_keys(target: Any, columns: Any, location: str) -> Any:
        locations.append(location)
        return read(target, columns, location)

    monkeypatch.setattr(highest_values, "read_keys", read_keys)
    return locations


@pytest.fixture
def longs(tmp_path: Path) -> Iterator[OrderedTable]:
    table = OrderedTable(tmp_path, LongType())
    yield table
    table.lake.close()


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_random_files(kind: IcebergType, tmp_path: Path) -> None:
    """The highest value is the same with all bounds, with some, and with none, in any order."""
    table = OrderedTable(tmp_path, kind)
    target = WriteTarget.of(table.base.metadata, table.base.io)
    values = st.lists(st.none() | VALUES[kind], min_size=1, max_size=3)
    metrics = st.sampled_from(["upper_bounds", "null_value_counts", "lower_bounds"])

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(values, metrics), max_size=6))
    def check(rows: list[tuple[list[Any], str]]) -> None:
        files = table.files(*(of_file for of_file, _ in rows))
        for file, (_, missing) in zip(files, rows, strict=True):
            getattr(file, missing).clear()
        highest = HighestValues(target.file_schema.field("at"))
        # Files come and go between two calls.
        for shown in (slice(0, 3), slice(1, 6)):
            each = [v for of_file, _ in rows[shown] for v in of_file if v is not None and v == v]
            assert highest.of(target, files[shown]).as_py() == max(each, default=None)

    check()
    table.lake.close()


def test_few_files_are_opened(tmp_path: Path, opened: list[str]) -> None:
    """Although each bound is cut, only those that may have the highest value are looked at."""
    table = OrderedTable(tmp_path, StringType())
    table.append(
        *([f"2026-01-01T{hour:02}:{m:02}:00.000Z"] for hour in range(3) for m in range(40))
    )
    sink = table.sink()
    assert len(set(opened)) == len(opened) <= highest_values.READERS
    opened.clear()
    table.append(["2026-01-01T00:00:00.000Z"])
    table.change(sink, (1, "x", "2026-01-01T05:00:00.000Z"))
    assert opened == []


def test_empty_columns_are_not_read(tmp_path: Path, opened: list[str]) -> None:
    table = OrderedTable(tmp_path, LongType())
    table.append(*([None, None] for _ in range(20)))
    assert not table.may_precede(0)
    assert opened == []


@pytest.mark.parametrize("has_bounds", [True, False])
def test_not_a_number_is_no_order(tmp_path: Path, has_bounds: bool) -> None:
    """Whether the first file has it or the last one."""
    table = OrderedTable(tmp_path, DoubleType())
    files = table.files([float("nan")], [100.0], [float("nan")])
    for file in files:
        if not has_bounds:
            file.upper_bounds.clear()
    Committer(table.lake, NAME, append(*files, properties={}), table.base).commit()
    assert table.may_precede(50.0)
    assert not table.may_precede(150.0)


def test_the_default_of_a_column_that_was_added_later(longs: OrderedTable) -> None:
    longs.append([1])
    by = NestedField(4, "by", LongType(), required=False, initial_default=100, write_default=100)
    evolve(longs.lake, schema(LongType(), by).model_copy(update={"schema_id": 1}), name=NAME)
    assert longs.may_precede(50, "by")
    assert not longs.may_precede(100, "by")


def test_rows_of_a_file_that_the_stream_has_deleted_from(longs: OrderedTable) -> None:
    """They are another writer's rows as before, whatever others commit next."""
    longs.append([10, 100])
    sink = longs.sink()
    longs.change(sink, (0, "ours", 20))
    longs.append([1])
    longs.change(sink, (1, "late", 50))
    assert longs.actual() == [(0, "ours", 20), (0, "other", 1), (1, "other", 100)]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("keys", [("id", "k"), ("k",)])
def test_deletes_of_a_stream_with_other_keys(
    longs: OrderedTable, keys: tuple[str, ...], has_index: bool
) -> None:
    """Also of a key that has a null where they have no column."""
    k = NestedField(4, "k", LongType(), required=False)
    evolve(longs.lake, schema(LongType(), k).model_copy(update={"schema_id": 1}), name=NAME)
    open_sink = longs.sink if has_index else longs.equality_sink
    longs.change(open_sink("model.a.other", keys), (77, None, 50), (78, "theirs", 100))
    longs.change(longs.sink(), (77, "ours", 40), (None, "null", 40))
    assert longs.actual() == [(77, "ours", 40), (78, "theirs", 100), (None, "null", 40)]


def test_equality_deletes_of_another_stream(longs: OrderedTable) -> None:
    """Those of before, and those that come while the stream runs."""
    other = longs.equality_sink()
    longs.change(other, (1, "x", 1), (1, None, 9))
    ours = longs.sink()
    longs.change(ours, (1, "late", 5), (2, "ours", 5))
    longs.change(other, (2, None, 20))
    longs.change(ours, (2, "late", 19), (1, "again", 10))
    assert longs.actual() == [(1, "again", 10)]


def test_deletes_of_a_stream_with_another_order(longs: OrderedTable) -> None:
    by = NestedField(4, "by", LongType(), required=False)
    evolve(longs.lake, schema(LongType(), by).model_copy(update={"schema_id": 1}), name=NAME)
    longs.change(longs.sink("model.a.other", by="by"), (77, None, 50), by="by")
    longs.change(longs.sink(), (77, "ours", 40))
    assert longs.actual() == [(77, "ours", 40)]


def test_streams_that_another_column_orders(longs: OrderedTable) -> None:
    """Their microseconds do not make all changes late that small numbers order."""
    longs.append([1])
    by = NestedField(4, "by", LongType(), required=False)
    evolve(longs.lake, schema(LongType(), by).model_copy(update={"schema_id": 1}), name=NAME)
    other = longs.sink("model.a.other", by="by")
    longs.change(other, (7, "theirs", 1_764_259_200_000_000), by="by")
    assert not longs.may_precede(1000)
    assert longs.may_precede(1000, "by")


@pytest.mark.parametrize("watermark", [2**63, "x", {"decimal": "1E+40"}, {"date": "2026-01-01"}])
def test_streams_of_older_versions_with_an_order_of_another_type(
    longs: OrderedTable, watermark: Any
) -> None:
    longs.append([1])
    progress = {"version": 1, "run": "r", "frontier": None, "write-id": "w", "recorded": 0}
    content = json.dumps({**progress, "watermark": watermark})
    properties = {"iceberg-stream.sink.model.p.old": content}
    evolve(longs.lake, schema(LongType()), properties=properties, name=NAME)
    assert not longs.may_precede(1000)
    assert longs.may_precede(0)


@pytest.mark.parametrize("kind", [UUIDType(), TimeType()], ids=str)
def test_types_that_order_nothing(tmp_path: Path, kind: IcebergType) -> None:
    table = OrderedTable(tmp_path, kind)
    with pytest.raises(StreamError, match="`sequence_by` names `at` of s.t, whose type"):
        table.sink()


def test_deletes_of_a_forgotten_stream(longs: OrderedTable) -> None:
    """Late changes of another stream do not bring its keys back."""
    longs.change(longs.sink(), (1, None, 9))
    forget_stream(longs.lake, NAME, "model.a.b")
    longs.change(longs.sink("model.a.other"), (1, "late", 5), (2, "x", 5))
    assert duckdb_rows(longs.lake, "t", "id, value") == [(2, "x")]


def test_a_replacement_after_a_stream_was_forgotten(longs: OrderedTable) -> None:
    """What it has deleted is of rows that the table does not have any more."""
    longs.change(longs.sink(), (1, None, 9), (3, "x", 9))
    forget_stream(longs.lake, NAME, "model.a.b")
    other = longs.sink("model.a.other")
    other.replace_rows()
    longs.change(other, (3, "new", 1))
    longs.change(longs.sink("model.a.other"), (1, "new", 2), (3, "newer", 2))
    actual = duckdb_rows(longs.lake, "t", "id, value")
    assert sorted(actual) == [(1, "new"), (3, "newer")]
    assert_nothing_lost(longs.lake)


def test_a_full_refresh_forgets_the_deletes_of_all_streams(longs: OrderedTable) -> None:
    """A key that it brings back takes changes again, of both streams."""
    live, other = longs.sink("model.a.other"), longs.sink()
    longs.change(live, (1, "x", 4), (1, None, 9), (2, "x", 9))
    assert longs.actual() == [(2, "x", 9)]
    other.claim(None, refresh=True)
    other.replace_with(schema(LongType()).as_arrow())
    other.load_index(1000, True, ChangeOrder(("at",), 7.0))
    longs.change(other, (1, "again", 5))
    assert longs.actual() == [(1, "again", 5)]
    # Without the refresh, both would be older than the delete.
    longs.change(live, (1, "live", 6))
    assert longs.actual() == [(1, "live", 6)]
    longs.change(other, (1, "other", 7))
    assert longs.actual() == [(1, "other", 7)]
    longs.change(live, (1, None, 8))
    longs.change(other, (1, "late", 7))
    assert longs.actual() == []


def test_a_pending_change_that_another_delete_overtakes(longs: OrderedTable) -> None:
    """It deletes no row of other writers, as if it had come after the delete."""
    other = longs.sink("model.a.other")
    for key, value in ((1, "late"), (2, None)):
        ours = longs.sink()
        write_id, batch = longs.written(ours, (key, value, 6))
        longs.change(other, (key, None, 9))
        longs.insert((key, "foreign", 5))
        ours.commit(write_id, [batch])
    assert longs.actual() == [(1, "foreign", 5), (2, "foreign", 5)]


@pytest.mark.parametrize("again", [True, False])
def test_rows_that_equality_deletes_without_an_order_have_deleted(
    longs: OrderedTable, again: bool
) -> None:
    """Another writer's deletes have no time: older changes of the key come back."""
    ours = longs.sink()
    longs.change(ours, (1, "x", 50), (2, "y", 51), (None, "z", 52))
    longs.delete_equal(1, None)
    if again:
        ours = longs.sink()
    longs.change(ours, (1, "new", 40), (2, "late", 40), (None, "null", 41))
    assert longs.actual() == [(1, "new", 40), (2, "y", 51), (None, "null", 41)]


def test_rows_after_an_equality_delete(longs: OrderedTable) -> None:
    longs.change(longs.sink(), (1, "x", 50))
    longs.delete_equal(1)
    longs.insert((1, "foreign", 60))
    longs.change(longs.sink(), (1, "late", 55))
    assert longs.actual() == [(1, "foreign", 60)]


def test_equality_deletes_of_a_forgotten_stream(longs: OrderedTable) -> None:
    other = longs.equality_sink()
    longs.change(other, (1, "x", 1), (1, None, 9))
    forget_stream(longs.lake, NAME, "model.a.other")
    longs.change(longs.sink(), (1, "late", 5))
    assert longs.actual() == []


@pytest.mark.parametrize("pending", [True, False])
def test_rows_that_a_rollback_of_equality_deletes_brings_back(
    longs: OrderedTable, pending: bool
) -> None:
    """The stream's own commits stay: only the other writer's delete is rolled back."""
    longs.insert((1, "other", 5), (2, "other", 50), (3, "other", 5))
    ours = longs.sink()
    longs.change(ours, (4, "x", 60))
    before = longs.base.metadata["current-snapshot-id"]
    longs.delete_equal(1, 2)
    longs.change(longs.sink(), (3, "late", 1))
    ours = longs.sink()
    changes = (1, "new", 30), (2, "late", 30)
    if pending:
        write_id, batch = longs.written(ours, *changes)
    longs.roll_back(before)
    if not pending:
        write_id, batch = longs.written(ours, *changes)
    ours.commit(write_id, [batch])
    assert longs.actual() == [(1, "new", 30), (2, "other", 50), (3, "other", 5), (4, "x", 60)]


def test_a_read_of_other_deletes_that_fails_once(
    longs: OrderedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage error while maintenance follows the table: the commit looks at them again."""
    ours, other = longs.sink(), longs.sink("model.a.other")
    longs.change(other, (1, "x", 10), (2, "y", 10))
    write_id, batch = longs.written(ours, (1, "late", 20))
    longs.change(other, (1, None, 30))

    def refuse(*_: Any) -> Any:
        raise OSError("slow down")

    with monkeypatch.context() as patch:
        patch.setattr(late_changes, "read_keys", refuse)
        ours._follow_now()
    ours.commit(write_id, [batch])
    assert longs.actual() == [(2, "y", 10)]
