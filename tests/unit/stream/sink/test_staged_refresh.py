"""The staged table of a full refresh: nothing of it is left, whatever fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.stream.errors import Fenced
from dbt.adapters.iceberg_stream.stream.sink import claimed_table
from dbt.adapters.iceberg_stream.stream.sink.claimed_table import ClaimedTable
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.staged_refresh import read_takeover, refresh_name
from dbt.adapters.iceberg_stream.tables.commit.change import Change, append
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.unit.local_tables import NAME, commit, home, insert, load, make_table, rows, write

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.string())])
SINK = "model.shop.t"
ROWS = pa.table({"id": [1, 2], "x": ["a", "b"]})


@pytest.fixture(autouse=True)
def table(lake: IcebergCatalog) -> None:
    make_table(lake, 3)


def refreshed(lake: IcebergCatalog) -> ClaimedTable:
    """A run that has begun a full refresh."""
    table = ClaimedTable(lake, NAME, Progress(SINK))
    table.claim(refresh=True)
    table.replace_with(COLUMNS)
    return table


def names(lake: IcebergCatalog) -> list[str]:
    return sorted(name for name, _ in lake.relations(NAME[0]))


def metadata_files(lake: IcebergCatalog) -> set[str]:
    return {path.name for path in home(lake).glob("metadata/*.metadata.json")}


def test_a_registration_whose_answer_is_lost(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = lake._backend.register

    def lose(*arguments: Any) -> None:
        register(*arguments)
        raise CommitStateUnknown("lost")

    monkeypatch.setattr(lake._backend, "register", lose)
    table = refreshed(lake)
    table.stage()
    assert table.table().name == refresh_name(NAME)


def test_a_registration_of_which_nothing_is_known(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata file stays: a table without it can neither be read nor made again."""

    def lose(self: IcebergCatalog, *arguments: Any) -> None:
        register(self, *arguments)
        raise CommitStateUnknown("lost")

    register = IcebergCatalog.register
    with monkeypatch.context() as patch:
        patch.setattr(IcebergCatalog, "register", lose)
        with pytest.raises(CommitStateUnknown):
            refreshed(lake).stage()
    assert lake.load(refresh_name(NAME)) is not None
    ClaimedTable(lake, NAME, Progress(SINK)).claim()
    assert names(lake) == ["t"]


def test_a_registration_that_is_refused(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CatalogError("no right")

    table = refreshed(lake)
    before = metadata_files(lake)
    monkeypatch.setattr(lake._backend, "register", refuse)
    with pytest.raises(CatalogError, match="no right"):
        table.stage()
    assert metadata_files(lake) == before


def lose_metadata(lake: IcebergCatalog) -> None:
    staged = lake.load(refresh_name(NAME))
    assert staged is not None
    remove_quietly(staged.io, staged.location)


def test_a_staged_table_whose_metadata_are_lost(lake: IcebergCatalog) -> None:
    refreshed(lake).stage()
    lose_metadata(lake)
    ClaimedTable(lake, NAME, Progress(SINK)).claim()
    assert names(lake) == ["t"]


def test_one_that_a_server_lists_but_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}",
    }
    lake = IcebergCatalog("lake", RemoteBackend(CatalogSettings("lake", place), None))
    lake.create_namespace("s")
    make_table(lake)
    refreshed(lake).stage()
    lose_metadata(lake)
    load_table = lake.pyiceberg.load_table

    def find(identifier: Any) -> Any:
        try:
            return load_table(identifier)
        except FileNotFoundError as error:
            raise NoSuchTableError(identifier) from error

    monkeypatch.setattr(lake.pyiceberg, "load_table", find)
    again = refreshed(lake)
    again.stage()
    again.drop_staged()
    assert names(lake) == ["t"]
    lake.close()


def test_one_of_a_table_that_was_dropped(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of the new table drops it; if that run dies before, the next one does."""
    refreshed(lake).stage()
    drop_table(lake, NAME)
    make_table(lake)

    def die(*_: Any) -> None:
        raise CatalogError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(claimed_table, "drop_refresh", die)
        with pytest.raises(CatalogError, match="killed"):
            ClaimedTable(lake, NAME, Progress(SINK)).claim()
    ClaimedTable(lake, NAME, Progress(SINK)).claim()
    assert names(lake) == ["t"]


def test_a_run_drops_only_its_own(lake: IcebergCatalog) -> None:
    older = refreshed(lake)
    older.stage()
    newer = refreshed(lake)
    newer.stage()
    with pytest.raises(Fenced, match="another run of the stream .* or by a user"):
        older.table()
    older.drop_staged()
    assert newer.table().name == refresh_name(NAME)


def identities(table: LoadedTable) -> list[tuple[str, int | None, int | None]]:
    """The files of a table, with the first row id and the sequence number of each."""
    entries = live_entries(table.io, table.metadata, ManifestContent.DATA)
    return sorted(
        (e.data_file.file_path, e.data_file[FILE_FIRST_ROW_ID], e.sequence_number) for e in entries
    )


@pytest.mark.parametrize("others", [0, 9])
def test_row_ids_after_the_takeover(lake: IcebergCatalog, others: int) -> None:
    """Rewritten files keep the ids of their rows in a column, which later rows must not get."""
    insert(lake, ROWS)
    table = refreshed(lake)
    table.stage()
    for _ in range(2):
        commit(lake, append(*write(lake, ROWS, table.name), properties={}), name=table.name)
    staged = table.table()
    for _ in range(others):
        insert(lake, ROWS)
    own = load(lake)
    taken = read_takeover(staged, own, SINK)
    next_row_id = taken.next_row_id
    commit(
        lake,
        Change(Operation.OVERWRITE, taken.added, removes_all=True, next_row_id=next_row_id),
    )
    after = load(lake)
    assert identities(after) == identities(staged)
    assert after.metadata["next-row-id"] >= staged.metadata["next-row-id"] == 6
    assert after.metadata["last-sequence-number"] >= staged.metadata["last-sequence-number"] == 3
    assert after.metadata["last-sequence-number"] > own.metadata["last-sequence-number"]
    insert(lake, ROWS)
    assert [f for f in check_table(load(lake), data=True).findings if f.severity != "note"] == []
    table.drop_staged()
    assert len(rows(lake)) == 6


@pytest.mark.parametrize("step", ["stage", "take_over"])
def test_a_batch_is_planned_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another thread has asked for the table, and gets the answer after it was another one."""
    table, load = refreshed(lake), lake.load
    if step == "take_over":
        table.stage()

    def answer_late(*arguments: Any) -> LoadedTable | None:
        monkeypatch.undo()
        loaded = load(*arguments)
        getattr(table, step)()
        return loaded

    monkeypatch.setattr(lake, "load", answer_late)
    assert table.table().name == table.name
