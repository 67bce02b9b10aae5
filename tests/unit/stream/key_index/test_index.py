"""A key index beside other writers: what it finds, and what commits leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict
from dbt.adapters.iceberg_stream.stream.key_index import index as index_module
from dbt.adapters.iceberg_stream.stream.key_index import index_runs, snapshot_index
from dbt.adapters.iceberg_stream.stream.key_index.index import KeyIndex
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import NotIndexable
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink import sink as sink_module
from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import RowLookup
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
from tests.integration.streams import NAME, SINK, Change, batch, make_table, open_sink
from tests.integration.streams import write as write_batch
from tests.integration.tables import LATER, duckdb_rows, write
from tests.unit.local_tables import live_deletes

ROWS = pa.table({"id": [1, 2, 3], "part": ["a"] * 3, "value": ["old"] * 3})


@pytest.fixture(params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def open_indexed(lake: IcebergCatalog) -> Sink:
    sink = open_sink(lake)
    sink.load_index(1000, refresh=False)
    return sink


def insert(lake: IcebergCatalog, rows: pa.Table = ROWS) -> None:
    commit(lake, append(*write(lake, NAME[1], *rows.to_batches()), properties={}))


def commit(lake: IcebergCatalog, change: TableChange) -> None:
    base = lake.load(NAME)
    assert base is not None
    Committer(lake, NAME, change, base).commit()


def changed(
    sink: Sink, *changes: Change, upper: int = 1, joins: bool = False
) -> tuple[str, WrittenBatch]:
    write_id, batch = write_batch(sink, changes, upper, keeps_keys=True)
    return write_id, sink.add_to_index(batch, joins=joins)


def apply(sink: Sink, *changes: Change, upper: int = 1) -> None:
    write_id, batch = changed(sink, *changes, upper=upper)
    sink.commit(write_id, [batch])


def rows(lake: IcebergCatalog) -> list[tuple[Any, ...]]:
    return sorted(duckdb_rows(lake, NAME[1], "id, value"))


def data_files(lake: IcebergCatalog) -> set[str]:
    base = lake.load(NAME)
    assert base is not None
    return {file.file_path for file in live_files(base.io, base.metadata)}


def orphans(lake: IcebergCatalog) -> list[Any]:
    base = lake.load(NAME)
    assert base is not None
    return unreferenced_files(base, LATER)


def positions(index: KeyIndex | None, *keys: int) -> list[int]:
    assert index is not None
    table = pa.table({"id": pa.array(keys, pa.int64())})
    rows_by_file = {rows.location: rows.positions.tolist() for rows in index.live_rows(table)}
    return sorted(position for positions in rows_by_file.values() for position in positions)


def test_no_equality_deletes_are_left(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"), Change(3, None), Change(4, "new"))
    assert rows(lake) == [(1, "new"), (2, "old"), (4, "new")]
    base = lake.load(NAME)
    assert base is not None
    (delete,) = live_deletes(base.io, base.metadata)
    assert delete.content == DataFileContent.POSITION_DELETES
    assert delete.file_format == (FileFormat.PUFFIN if version == 3 else FileFormat.PARQUET)
    assert delete.record_count == 2


def test_data_files_without_live_rows_are_removed(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake)
    (first,) = data_files(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"))
    assert first in data_files(lake)
    apply(sink, Change(2, "new"), Change(3, "new"), upper=2)
    assert first not in data_files(lake)
    assert rows(lake) == [(1, "new"), (2, "new"), (3, "new")]
    base = lake.load(NAME)
    assert base is not None
    assert live_deletes(base.io, base.metadata) == []


def test_rows_that_do_not_last_until_the_commit_are_never_added(
    lake: IcebergCatalog, version: int
) -> None:
    make_table(lake, version)
    sink = open_indexed(lake)
    batches = [
        changed(sink, Change(1, "first")),
        changed(sink, Change(1, "second"), upper=2),
        changed(sink, Change(1, None), upper=3),
    ]
    assert sink.commit(batches[-1][0], [batch for _, batch in batches]) is None
    assert rows(lake) == []
    assert orphans(lake) == []
    apply(sink, Change(1, "again"), upper=4)
    assert rows(lake) == [(1, "again")]


@pytest.mark.parametrize("values", [("a", "b"), ("a", None), (None, None)])
def test_a_commit_keeps_few_entries_of_a_key(
    lake: IcebergCatalog, version: int, values: tuple[str | None, ...]
) -> None:
    """Otherwise each look-up of a key would find all its changes since the last commit."""
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    batches = [
        changed(sink, Change(1, values[upper % 2]), upper=upper, joins=upper > 1)
        for upper in range(1, 82)
    ]
    assert sink.index is not None
    entries = sink.index.most_rows(pa.table({"id": pa.array([1], pa.int64())}))
    assert entries <= index_runs.MERGED_RUNS + 2
    # Rows of others are still found by the keys of any of the batches.
    insert(lake)
    sink.commit(batches[-1][0], [batch for _, batch in batches])
    others = [(2, "old"), (2, "old"), (3, "old"), (3, "old")]
    assert rows(lake) == [(1, value) for value in values[1:] if value] + others
    apply(sink, Change(1, None), upper=82)
    assert rows(lake) == others


def test_what_the_next_commit_deletes_is_still_of_this_one(
    lake: IcebergCatalog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer adds the key between the batches of two commits."""
    monkeypatch.setattr(index_runs, "MERGED_RUNS", 2)
    make_table(lake, version)
    sink = open_indexed(lake)
    write_id, first = changed(sink, Change(1, "a"))
    later = [changed(sink, Change(1, "b"), upper=n, joins=n > 2) for n in range(2, 6)]
    insert(lake)
    sink.commit(write_id, [first])
    assert rows(lake) == [(1, "a"), (2, "old"), (3, "old")]
    sink.commit(later[-1][0], [batch for _, batch in later])
    assert rows(lake) == [(1, "b"), (2, "old"), (3, "old")]


def test_a_commit_of_others_costs_a_lookup_and_not_the_batch(
    lake: IcebergCatalog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer is faster after the commit's files are planned."""
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    write_id, batch = changed(sink, Change(1, "new"), Change(2, None))
    written = set(batch.files)
    prepare = Committer.prepare
    raced: list[bool] = []

    def prepare_after_others(committer: Committer) -> Any:
        if not raced:
            raced.append(True)
            insert(lake)
        return prepare(committer)

    monkeypatch.setattr(Committer, "prepare", prepare_after_others)
    sink.commit(write_id, [batch])
    assert rows(lake) == [(1, "new"), (3, "old"), (3, "old")]
    assert written <= data_files(lake)
    assert orphans(lake) == []


def test_writers_who_are_always_faster(
    lake: IcebergCatalog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module.Sink._commit.retry, "stop", lambda state: True)
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    write_id, batch = changed(sink, Change(1, "new"))
    prepare = Committer.prepare

    def prepare_after_others(committer: Committer) -> Any:
        monkeypatch.setattr(Committer, "prepare", prepare)
        insert(lake)
        return prepare(committer)

    monkeypatch.setattr(Committer, "prepare", prepare_after_others)
    with pytest.raises(StreamConflict, match="s.t after the rows to delete were located"):
        sink.commit(write_id, [batch])
    assert len(rows(lake)) == 6
    assert orphans(lake) == []


def test_a_file_of_others_that_is_gone_in_the_first_attempt(
    lake: IcebergCatalog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(lake, version)
    sink = open_indexed(lake)
    write_id, batch = changed(sink, Change(1, "new"))
    insert(lake)
    read_keys, gone = snapshot_index.read_keys, [FileNotFoundError("gone")]

    def read_after_others(*arguments: Any) -> Any:
        if gone:
            raise gone.pop()
        return read_keys(*arguments)

    monkeypatch.setattr(snapshot_index, "read_keys", read_after_others)
    sink.commit(write_id, [batch])
    assert rows(lake) == [(1, "new"), (2, "old"), (3, "old")]
    assert orphans(lake) == []


def test_rows_that_another_writer_brings_back(lake: IcebergCatalog, version: int) -> None:
    """Entries of deleted rows may be gone by then."""
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"))
    for number in range(2, 10):  # until runs are merged
        apply(sink, Change(10 + number, "new"), upper=number)
    assert positions(sink.index, 1) == [0]
    base = lake.load(NAME)
    assert base is not None
    deletes = tuple(live_deletes(base.io, base.metadata))
    commit(lake, TableChange(Operation.OVERWRITE, removed=deletes))
    assert rows(lake)[:2] == [(1, "new"), (1, "old")]
    apply(sink, Change(1, "newest"), upper=6)
    assert rows(lake)[:2] == [(1, "newest"), (2, "old")]


def test_a_refresh_forgets_the_rows(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    sink.claim(refresh=True)
    sink.replace_with(pa.schema({"id": pa.int64(), "part": pa.string(), "value": pa.string()}))
    sink.load_index(1000, refresh=True)
    assert positions(sink.index, 1, 2, 3) == []
    batches = [changed(sink, Change(1, "a"), Change(2, "a")), changed(sink, Change(1, "b"))]
    insert(lake)
    sink.commit(batches[-1][0], [batch for _, batch in batches])
    assert rows(lake) == [(1, "b"), (2, "a")]
    apply(sink, Change(2, "c"), upper=2)
    assert rows(lake) == [(1, "b"), (2, "c")]


def test_a_table_with_too_many_rows(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake)
    open_sink(lake).load_index(3, refresh=False)
    sink = open_sink(lake)
    with pytest.raises(NotIndexable, match="over 2 rows"):
        sink.load_index(2, refresh=False)
    assert sink.index is None


def test_files_without_field_ids(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    (file,) = write(lake, NAME[1], *ROWS.to_batches())
    pq.write_table(ROWS, file.file_path.removeprefix("file://"))
    commit(lake, append(file, properties={}))
    with pytest.raises(NotIndexable, match=r"a file of the table has no field ids \(.*\.parquet\)"):
        open_sink(lake).load_index(1000, refresh=False)


def test_a_file_that_cannot_be_read_is_read_by_the_next_attempt(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(lake)
    insert(lake)
    sink = open_indexed(lake)
    insert(lake)
    write_id, batch = changed(sink, Change(1, "new"))
    with monkeypatch.context() as broken:
        broken.setattr(snapshot_index, "read_keys", _refuse)
        with pytest.raises(OSError, match="no storage today"):
            sink.commit(write_id, [batch])
    assert sink.index is not None
    base = lake.load(NAME)
    assert base is not None
    sink.index.load(base)
    assert positions(sink.index, 1) == [0, 0]


def _refuse(*arguments: Any) -> Any:
    raise OSError("no storage today")


def test_the_index_is_gone_with_its_stream(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake)
    sink = open_indexed(lake)
    assert sink.index is not None
    folder = sink.index._runs.folder
    assert any(folder.iterdir())
    sink.index = None
    assert not folder.exists()


@pytest.fixture
def stores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "STORED_ROWS", 1)


def indexed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files whose keys are read from now on."""
    read: list[str] = []
    read_keys = snapshot_index.read_keys

    def noted(target: Any, schema: Any, location: str) -> Any:
        read.append(location)
        return read_keys(target, schema, location)

    monkeypatch.setattr(snapshot_index, "read_keys", noted)
    return read


def stored(lake: IcebergCatalog) -> list[Path]:
    """The stored indexes in the table's folder."""
    table = lake.load(NAME)
    assert table is not None
    folder = Path(table.metadata["location"].removeprefix("file://"))
    return list(folder.rglob("*key-index*"))


@pytest.mark.usefixtures("stores_at_once")
def test_the_next_run_reads_only_files_that_are_not_indexed(
    lake: IcebergCatalog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"), Change(2, None))
    sink.store_index()
    before = data_files(lake)
    insert(lake, ROWS.slice(2))
    read = indexed_files(monkeypatch)
    sink = open_indexed(lake)
    assert set(read) == data_files(lake) - before
    apply(sink, Change(1, "newest"), Change(3, "new"), upper=2)
    assert rows(lake) == [(1, "newest"), (3, "new")]
    sink.store_index()
    assert orphans(lake) == []
    assert len(stored(lake)) == 1


@pytest.mark.usefixtures("stores_at_once")
@pytest.mark.parametrize("damage", ["gone", "cut", "other keys"])
def test_a_stored_index_that_cannot_be_used_is_built_again(
    lake: IcebergCatalog, damage: str
) -> None:
    make_table(lake)
    insert(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"))
    sink.store_index()
    (path,) = stored(lake)
    if damage == "gone":
        path.unlink()
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    if damage == "other keys":
        path.write_bytes(path.read_bytes().replace(b"int64", b"int32"))
    apply(open_indexed(lake), Change(1, "newest"), Change(3, None), upper=2)
    assert rows(lake) == [(1, "newest"), (2, "old")]


def open_by_prefix(lake: IcebergCatalog) -> Sink:
    """Of a row for each id and part, found by the id."""
    sink = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    sink.claim()
    sink.load_index(1000, refresh=False, prefix=1)
    return sink


def rows_of(sink: Sink, *keys: int, most_rows: int = 9) -> list[tuple[Any, ...]] | None:
    table = pa.table({"id": pa.array(keys, pa.int64())})
    lookup = RowLookup(table, ["id", "part", "value"], most_rows, 1000)
    actual = sink.rows_of(lookup)
    return None if actual is None else sorted(zip(*actual.to_pydict().values(), strict=True))


@pytest.mark.usefixtures("stores_at_once")
def test_rows_are_found_by_the_first_key_column(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake, pa.table({"id": [1, 1, 2], "part": ["a", "b", "a"], "value": ["old"] * 3}))
    sink = open_by_prefix(lake)
    apply(sink, Change(1, "new", "b"), Change(1, "new", "c"), Change(2, None, "a"))
    expected = [(1, "a", "old"), (1, "b", "new"), (1, "c", "new")]
    assert rows_of(sink, 1, 2, 3) == expected
    sink.store_index()
    assert rows_of(open_by_prefix(lake), 1, 2, 3) == expected
    assert rows_of(sink, 1, most_rows=2) is None


@pytest.mark.usefixtures("stores_at_once")
@pytest.mark.parametrize("prefix", [0, 1])
def test_an_index_that_finds_rows_by_other_columns_is_built_again(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, prefix: int
) -> None:
    make_table(lake)
    insert(lake)
    sink = open_by_prefix(lake)
    # As an earlier version of the stream has stored it.
    sink.load_index(1000, refresh=False)
    sink.store_index()
    assert stored(lake)
    read = indexed_files(monkeypatch)
    sink.load_index(1000, refresh=False, prefix=prefix)
    again = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    again.claim()
    again.load_index(1000, refresh=False, prefix=prefix)
    assert len(read) == 2 * prefix
    if prefix:
        assert rows_of(again, 1) == [(1, "a", "old")]


@pytest.mark.usefixtures("stores_at_once")
def test_an_index_is_not_stored_over_the_commit_of_others(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake)
    sink = open_indexed(lake)
    insert(lake)
    sink.store_index()
    assert stored(lake) == []
    assert orphans(lake) == []


def test_a_small_index_is_not_stored(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake)
    open_indexed(lake).store_index()
    assert stored(lake) == []


@pytest.mark.usefixtures("stores_at_once")
def test_a_table_that_has_lost_all_rows(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake)
    sink = open_indexed(lake)
    apply(sink, Change(1, None), Change(2, None), Change(3, None))
    sink.store_index()
    sink = open_indexed(lake)
    apply(sink, Change(1, "new"), upper=2)
    assert rows(lake) == [(1, "new")]


def test_a_key_with_an_initial_default(lake: IcebergCatalog) -> None:
    """Files from before it have the default and not null."""
    make_table(lake, 3)
    insert(lake, ROWS)
    table = lake.load(NAME)
    assert table is not None
    fields = current_schema(table.metadata).fields
    region = NestedField(9, "region", StringType(), required=False, initial_default="eu")
    updates = (
        AddSchemaUpdate(schema=Schema(*fields, region, schema_id=1)),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
    )
    lake.commit(table, (), updates)
    sink = Sink(lake, NAME, Progress(SINK), ("id", "region"))
    sink.claim()
    sink.load_index(1000, refresh=False)
    assert sink.index is not None
    keys = pa.table({"id": [1, 2, 3], "region": ["eu", None, "us"]})
    assert [rows.positions.tolist() for rows in sink.index.live_rows(keys)] == [[0]]


def test_a_query_that_returns_keys_of_a_narrower_type(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    for number in range(2):
        sink = open_indexed(lake)
        write_id = f"w{number}"
        columns = batch([Change(1, str(number))], 10)[0]
        narrow = columns.set_column(0, "id", columns["id"].cast(pa.int32()))
        delta = write_changes(sink.plan(write_id, keeps_keys=True), [narrow])
        written = WrittenBatch(BatchRange(None, {"offset": number}), [delta])
        sink.commit(write_id, [sink.add_to_index(written)])
    assert rows(lake) == [(1, "1")]


def test_tables_of_one_commit_that_share_a_folder(
    lake: IcebergCatalog, version: int, tmp_path: Path
) -> None:
    names, parts = [("s", "one"), ("s", "two")], []
    for name in names:
        make_table(lake, version, name=name)
        table = lake.load(name)
        assert table is not None
        shared = {"write.data.path": f"file://{tmp_path}/shared"}
        lake.commit(table, (), (SetPropertiesUpdate(updates=shared),))
    for upper in range(1, 3):
        parts = []
        for name in names:
            sink = open_sink(lake, name)
            sink.load_index(1000, refresh=False)
            changes = [Change(1, f"{name[1]}{upper}"), Change(2, "x"), Change(2 + upper, "y")]
            parts.append((sink, [changed(sink, *changes, upper=upper)[1]]))
        commit_batches(f"w{upper}", parts)
    for name in names:
        actual = sorted(duckdb_rows(lake, name[1], "id, value"))
        assert actual == [(1, f"{name[1]}2"), (2, "x"), (3, "y"), (4, "y")]


def test_another_writer_replaces_the_key_column(lake: IcebergCatalog) -> None:
    """The new column has no value in the older files."""
    make_table(lake)
    insert(lake)
    sink = open_indexed(lake)
    write_id, written = changed(sink, Change(1, "new"))
    table = lake.load(NAME)
    assert table is not None
    others = [f for f in current_schema(table.metadata).fields if f.name != "id"]
    again = NestedField(9, "id", LongType(), required=False)
    updates = (
        AddSchemaUpdate(schema=Schema(again, *others, schema_id=1)),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
    )
    lake.commit(table, (), updates)
    insert(lake)
    with pytest.raises(StreamConflict, match="changed the key columns of s.t"):
        sink.commit(write_id, [written])
    assert orphans(lake) == []


def test_an_index_of_an_empty_table_is_not_stored(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "STORED_ROWS", 0)
    make_table(lake)
    open_indexed(lake).store_index()
    assert stored(lake) == []
