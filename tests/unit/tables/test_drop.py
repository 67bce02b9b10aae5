"""Drops: the files that a table wrote itself go with it, those that others need stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate

from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.tables import references
from dbt.adapters.iceberg_stream.tables.clones import clone_table
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.drop import Drop, drop_table, drop_tables, run_drops
from tests.unit.catalog.test_locations import VIEW
from tests.unit.local_tables import (
    NAME,
    commit,
    data_file,
    files,
    home,
    insert,
    load,
    make_catalog,
    make_table,
    replace,
    rows,
    write,
)

ROW = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})
OTHER = ("s", "other")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = make_catalog(tmp_path)
    make_table(catalog)
    insert(catalog, ROW)
    yield catalog
    catalog.close()


def set_property(lake: IcebergCatalog, key: str, value: str, name: Name = NAME) -> None:
    lake.commit(load(lake, name), (), (SetPropertiesUpdate(updates={key: value}),))


def register_copy(lake: IcebergCatalog) -> None:
    """As Spark's procedure `register_table` does, to look at a table under another name."""
    lake.register(OTHER, load(lake).location)


def test_all_own_files_go(lake: IcebergCatalog, tmp_path: Path) -> None:
    folder = home(lake)
    replace(lake, ROW)
    index = folder / "metadata" / "index.puffin"
    index.write_text("x")
    set_property(lake, "iceberg-stream.key-index.a", f"file:{index}")
    set_property(lake, "write.data.path", f"file:{tmp_path}/elsewhere")
    insert(lake, ROW)
    assert files(tmp_path / "elsewhere")
    drop_table(lake, NAME)
    assert files(folder) == files(tmp_path / "elsewhere") == set()
    assert lake.relations("s") == []
    drop_table(lake, NAME)


def test_other_files_stay(lake: IcebergCatalog) -> None:
    notes = home(lake) / "notes.txt"
    notes.write_text("mine")
    set_property(lake, "docs", f"file://{notes}")
    drop_table(lake, NAME)
    assert notes.read_text() == "mine"


def test_files_of_another_table_that_were_added(lake: IcebergCatalog) -> None:
    """As `add_files` does: they are the other table's."""
    shared = write(lake, ROW)
    commit(lake, append(*shared, properties={}))
    make_table(lake, name=OTHER)
    commit(lake, append(*shared, properties={}), name=OTHER)
    drop_table(lake, OTHER)
    assert rows(lake) == [(1, "a"), (1, "a")]


def test_files_that_were_added_to_another_table(lake: IcebergCatalog) -> None:
    shared = write(lake, ROW)
    commit(lake, append(*shared, properties={}))
    folder = home(lake)
    make_table(lake, name=OTHER)
    commit(lake, append(*shared, properties={}), name=OTHER)
    drop_table(lake, NAME)
    assert rows(lake, OTHER) == [(1, "a")]
    assert {str(path) for path in files(folder)} == {
        file.file_path.removeprefix("file://") for file in shared
    }


def test_other_tables_are_read_once(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, each drop read all manifests of all tables, twice if they had changed meanwhile."""
    others = [("s", f"other{number}") for number in range(5)]
    for name in others:
        make_table(lake, name=name)
        commit(lake, append(*write(lake, ROW, name=name), properties={}), name=name)
    read_lists: list[str] = []
    read_list = references.read_manifest_list

    def read_and_count(io: FileIO, location: str) -> list[ManifestFile]:
        read_lists.append(location)
        return read_list(io, location)

    monkeypatch.setattr(references, "read_manifest_list", read_and_count)
    drop_table(lake, NAME)
    assert len(read_lists) == len(others) + 1
    make_table(lake)
    insert(lake, ROW)
    commit(lake, append(*write(lake, ROW, name=others[0]), properties={}), name=others[0])
    read_lists.clear()
    drop_table(lake, NAME)
    # One list of the dropped table, two of the table that has changed.
    assert len(read_lists) == 3


@pytest.mark.parametrize("first", [NAME, OTHER])
@pytest.mark.parametrize("spelling", ["file:", "file://"])
def test_a_registered_copy(lake: IcebergCatalog, first: Name, spelling: str) -> None:
    folder = home(lake)
    register_copy(lake)
    second = NAME if first == OTHER else OTHER
    location = SetLocationUpdate(location=f"{spelling}{folder}")
    lake.commit(load(lake, first), (), (location,))
    commit(lake, append(*write(lake, ROW, first), properties={}), name=first)
    drop_table(lake, first)
    assert rows(lake, second) == [(1, "a")]
    drop_table(lake, second)
    assert files(folder) == set()


def test_both_at_once(lake: IcebergCatalog) -> None:
    folder = home(lake)
    register_copy(lake)
    drop_tables(lake, [NAME, OTHER])
    assert files(folder) == set() and lake.relations("s") == []


@pytest.mark.parametrize("writer", [NAME, OTHER])
def test_many_commits_beside_a_copy(lake: IcebergCatalog, writer: Name) -> None:
    """Old metadata files of one table may be in the other one's log, or be its current one."""
    other = NAME if writer == OTHER else OTHER
    for _ in range(3):
        insert(lake, ROW)
    register_copy(lake)
    for number in range(30):
        set_property(lake, "a", str(number), writer)
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    for name in (other, writer):
        assert rows(lake, name) == [(1, "a")] * 4
        for entry in load(lake, name).metadata["metadata-log"]:
            path = local_path(entry["metadata-file"])
            assert path is not None and path.exists()


def test_many_commits_without_a_copy(lake: IcebergCatalog) -> None:
    for number in range(30):
        set_property(lake, "a", str(number))
    assert len(list(home(lake).glob("metadata/*.json"))) == 21


def test_a_table_without_its_metadata(lake: IcebergCatalog) -> None:
    path = local_path(load(lake).location)
    assert path is not None
    path.unlink()
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    drop_table(lake, NAME)
    assert lake.relations("s") == []


@pytest.mark.parametrize("value", ["false", "FALSE"])
def test_gc_enabled(lake: IcebergCatalog, value: str) -> None:
    folder = home(lake)
    set_property(lake, "gc.enabled", value)
    before = files(folder)
    drop_table(lake, NAME)
    assert files(folder) == before and lake.relations("s") == []


def test_another_table_that_cannot_be_read(lake: IcebergCatalog) -> None:
    """It may have any file."""
    make_table(lake, name=OTHER)
    path = local_path(load(lake, OTHER).location)
    assert path is not None
    path.unlink()
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    folder = home(lake)
    before = files(folder)
    drop_table(lake, NAME)
    assert files(folder) == before
    assert lake.relations("s") == [("other", "table")]


def test_a_table_whose_manifests_are_lost(lake: IcebergCatalog) -> None:
    for path in home(lake).rglob("*.avro"):
        path.unlink()
    drop_table(lake, NAME)
    assert lake.relations("s") == []


def test_views(lake: IcebergCatalog) -> None:
    lake.put_view(("s", "v"), VIEW)
    drop_tables(lake, [("s", "v"), ("s", "none")])
    assert lake.relations("s") == [("t", "table")]
    assert rows(lake) == [(1, "a")]


def test_a_table_of_another_catalog(lake: IcebergCatalog, tmp_path: Path) -> None:
    shared = write(lake, ROW)
    commit(lake, append(*shared, properties={}))
    other = make_catalog(tmp_path / "other")
    make_table(other, name=OTHER)
    commit(other, append(*shared, properties={}), name=OTHER)
    drop_table(lake, NAME, Catalogs("lake", {"lake": lambda: lake, "other": lambda: other}))
    assert rows(other, OTHER) == [(1, "a")]
    other.close()


def test_another_catalog_that_cannot_be_opened(lake: IcebergCatalog) -> None:
    def refuse() -> IcebergCatalog:
        raise CatalogError("The catalog is damaged")

    folder = home(lake)
    before = files(folder)
    drop_table(lake, NAME, Catalogs("lake", {"lake": lambda: lake, "other": refuse}))
    assert files(folder) == before and lake.relations("s") == []


def before_unregister(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]
) -> None:
    """Have another writer act after the drop has looked at the table."""
    original = lake._backend.unregister

    def unregister(*arguments: Any) -> Any:
        monkeypatch.undo()
        action()
        return original(*arguments)

    monkeypatch.setattr(lake._backend, "unregister", unregister)


def test_another_writer_uses_the_files_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the files were chosen before the drop, and went although others had them by then."""
    clone, staged, renamed = ("s", "clone"), staged_name(NAME, "pr"), ("s", "renamed")

    def act() -> None:
        clone_table(lake, NAME, clone)
        stage_table(lake, NAME, "pr", {})
        lake.register(renamed, load(lake).location)

    before_unregister(lake, monkeypatch, act)
    drop_table(lake, NAME)
    assert NAME[1] not in dict(lake.relations("s"))
    for name in (clone, staged, renamed):
        assert rows(lake, name) == [(1, "a")]


def test_the_name_is_used_again_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop of several relations looks at each again just before it drops it."""
    make_table(lake, name=OTHER)

    def act() -> None:
        lake.register(("s", "renamed"), load(lake).location)
        lake.unregister(NAME)

    before_unregister(lake, monkeypatch, act)
    drop_tables(lake, [OTHER, NAME])
    assert lake.relations("s") == [("renamed", "table")]
    assert rows(lake, ("s", "renamed")) == [(1, "a")]


def test_another_table_gets_the_name_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        lake.unregister(NAME)
        make_table(lake)
        insert(lake, ROW)

    meant = load(lake)
    before_unregister(lake, monkeypatch, act)
    run_drops(lake, [Drop(NAME, meant)], None)
    assert rows(lake) == [(1, "a")]


def test_another_table_of_the_name_stays(lake: IcebergCatalog) -> None:
    meant = load(lake)
    lake.unregister(NAME)
    make_table(lake)
    insert(lake, ROW)
    run_drops(lake, [Drop(NAME, meant)], None)
    assert rows(lake) == [(1, "a")]


@pytest.mark.parametrize("value", ["False", "no", " true"])
def test_garbage_that_iceberg_would_not_collect(lake: IcebergCatalog, value: str) -> None:
    set_property(lake, "gc.enabled", value)
    before = files(home(lake))
    folder = home(lake)
    drop_table(lake, NAME)
    assert before <= files(folder)


def test_a_table_before_its_copy(lake: IcebergCatalog) -> None:
    register_copy(lake)
    folder = home(lake)
    drop_table(lake, NAME)
    assert rows(lake, OTHER) == [(1, "a")]
    drop_table(lake, OTHER)
    assert files(folder) == set()


def test_a_staged_version_of_a_clone(lake: IcebergCatalog) -> None:
    """It has the clone's properties, but the tag is the clone's."""
    clone_table(lake, NAME, OTHER)
    tags = set(load(lake).metadata["refs"])
    stage_table(lake, OTHER, "pr", {})
    drop_table(lake, staged_name(OTHER, "pr"))
    assert set(load(lake).metadata["refs"]) == tags
    drop_table(lake, OTHER)
    assert set(load(lake).metadata["refs"]) == {"main"}


def test_a_table_of_nessie(lake: IcebergCatalog) -> None:
    """Another branch may have it."""
    set_property(lake, "nessie.catalog.content-id", "1")
    folder = home(lake)
    before = files(folder)
    drop_table(lake, NAME)
    assert files(folder) == before and lake.relations("s") == []


def test_a_copy_of_a_clone_keeps_the_tag(lake: IcebergCatalog) -> None:
    clone = ("s", "clone")
    clone_table(lake, NAME, clone)
    lake.register(OTHER, load(lake, clone).location)
    stage_table(lake, clone, "pr", {})
    for name in (clone, OTHER):
        drop_table(lake, name)
        assert len(load(lake).metadata["refs"]) == 2
    drop_table(lake, staged_name(clone, "pr"))
    assert set(load(lake).metadata["refs"]) == {"main"}


def test_the_version_that_is_dropped_decides(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home(lake)
    before = files(folder)
    before_unregister(lake, monkeypatch, lambda: set_property(lake, "gc.enabled", "false"))
    planned = Drop(NAME)
    planned.run(lake)
    assert before <= files(folder) and lake.relations("s") == []
    assert planned.table is not None
    assert planned.table.metadata["properties"]["gc.enabled"] == "false"


def test_a_table_without_an_id(lake: IcebergCatalog) -> None:
    """As format version 1 allows."""
    path = Path(local_path(load(lake).location))
    metadata = json.loads(path.read_text())
    del metadata["table-uuid"]
    path.write_text(json.dumps(metadata))
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    drop_table(lake, NAME)
    assert lake.relations("s") == []


def test_a_table_that_never_stands_still(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IcebergCatalog, "unregister", lambda *_: None)
    with pytest.raises(CatalogError, match="s.t was not dropped: other writers changed it"):
        drop_table(lake, NAME)


def test_a_folder_becomes_a_link(lake: IcebergCatalog, tmp_path: Path) -> None:
    """In a process that has compared its files before."""
    make_table(lake, name=OTHER)
    references.without_referenced([load(lake).location], [lake])
    old, new = home(lake), tmp_path / "disk" / "t"
    new.parent.mkdir()
    old.rename(new)
    old.symlink_to(new)
    (file,) = new.glob("data/*.parquet")
    commit(lake, append(data_file(f"file://{file}"), properties={}), name=OTHER)
    drop_table(lake, NAME)
    assert file.exists()


def test_another_version_gets_the_name_of_a_metadata_file(lake: IcebergCatalog) -> None:
    """In a process that has read the file before, as Hadoop's catalogs name them."""
    make_table(lake, name=OTHER)
    references.without_referenced([load(lake).location], [lake])
    (shared,) = home(lake).glob("data/*.parquet")
    before = load(lake, OTHER).location
    commit(lake, append(data_file(f"file://{shared}"), properties={}), name=OTHER)
    Path(local_path(load(lake, OTHER).location)).rename(local_path(before))
    lake.unregister(OTHER)
    lake.register(OTHER, before)
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    drop_table(lake, NAME)
    assert shared.exists()


def test_a_location_that_is_not_the_tables_own(lake: IcebergCatalog, tmp_path: Path) -> None:
    """Whoever may change a table may set it, and names files in properties."""
    make_table(lake, name=OTHER)
    (running,) = write(lake, ROW, OTHER)
    database = f"file://{tmp_path}/warehouse/catalog.db"
    set_property(lake, "iceberg-stream.x", json.dumps([running.file_path, database]))
    root = SetLocationUpdate(location=f"file://{tmp_path}/warehouse")
    lake.commit(load(lake), (), (root,))
    drop_table(lake, NAME)
    assert lake.relations("s") == [("other", "table")]
    assert Path(running.file_path[7:]).exists()


def test_a_drop_while_it_is_staged(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    register = lake._backend.register

    def drop_first(*arguments: Any) -> None:
        monkeypatch.undo()
        drop_table(lake, NAME)
        register(*arguments)

    monkeypatch.setattr(lake._backend, "register", drop_first)
    assert not stage_table(lake, NAME, "pr", {})
    staged = load(lake, staged_name(NAME, "pr"))
    assert all(Path(file[7:]).exists() for file in references.own_references(staged))


def test_staging_again_asks_all_catalogs(lake: IcebergCatalog, tmp_path: Path) -> None:
    other = make_catalog(tmp_path / "other")
    staged = staged_name(NAME, "pr")
    stage_table(lake, NAME, "pr", {})
    commit(lake, append(*write(lake, ROW, staged), properties={}), name=staged)
    other.register(OTHER, load(lake, staged).location)
    insert(lake, ROW)
    catalogs = Catalogs("lake", {"lake": lambda: lake, "other": lambda: other})
    stage_table(lake, NAME, "pr", {}, catalogs=catalogs)
    assert rows(other, OTHER) == [(1, "a"), (1, "a")]
    other.close()


def test_a_relation_of_another_kind_stays(lake: IcebergCatalog) -> None:
    """A run drops the view that it knows. Once, that was a table of another writer by then."""
    lake.put_view(("s", "v"), VIEW)
    for name, kind in ((NAME, "view"), (("s", "v"), "table")):
        with pytest.raises(CatalogError, match=f"in the place of the {kind}"):
            drop_table(lake, name, kind=kind)
        assert lake.metadata(name) is not None
    drop_table(lake, ("s", "v"), kind="view")
    assert lake.metadata(("s", "v")) is None
