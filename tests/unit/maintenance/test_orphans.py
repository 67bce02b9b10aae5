"""Orphans: no file that any table or view references is removed, however its location is spelled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetLocationUpdate, SetPropertiesUpdate

from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import file_uri, local_path
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.maintenance.orphans import (
    delete_removed,
    find_orphans,
    remove_orphans,
    removed_files,
    restore_removed,
)
from dbt.adapters.iceberg_stream.tables.clones import clone_table
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.references import own_references
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
INNER, OTHER = ("s", "inner"), ("s", "other")
LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = make_catalog(tmp_path)
    make_table(catalog)
    insert(catalog, ROW)
    yield catalog
    catalog.close()


def orphans(lake: IcebergCatalog, name: Name = NAME) -> set[Path]:
    return {Path(o.path) for o in find_orphans(load(lake, name), LATER, [lake])}


def create_at(
    lake: IcebergCatalog, name: Name, location: str, properties: Mapping[str, str] | None = None
) -> None:
    """Create a table with rows at a location, with locations in this spelling as Spark has them."""
    made = make_table(lake, name=name, properties=properties)
    lake.commit(made, (), (SetLocationUpdate(location=location),))
    commit(lake, append(*write(lake, ROW, name), properties={}), name=name)
    commit(lake, append(*write(lake, ROW, name), properties={}), name=name)


@pytest.mark.parametrize("prefix", ["file://", "file:", "", "file:////"])
@pytest.mark.parametrize("suffix", ["", "/"])
def test_a_table_within_the_folder(lake: IcebergCatalog, prefix: str, suffix: str) -> None:
    """Once, all its files were removed, because Spark stores `file:/` for `file:///`."""
    folder = home(lake) / "inner"
    create_at(lake, INNER, f"{prefix}{folder}{suffix}")
    assert len(files(folder)) > 3
    lost, running = home(lake) / "data" / "lost.parquet", folder / "data" / "running.parquet"
    for path in (lost, running):
        path.write_text("x")
    assert orphans(lake) == {lost}, "a write to the other table may still run"


@pytest.mark.parametrize("spelling", ["file:{}/", "{}", "file:///{}//", "file://{}/../t"])
def test_spellings_of_the_own_folder(lake: IcebergCatalog, spelling: str) -> None:
    folder = home(lake)
    update = SetLocationUpdate(location=spelling.format(folder))
    lake.commit(load(lake), (), (update,))
    insert(lake, ROW)
    assert orphans(lake) == set()
    lost = folder / "data" / "lost.parquet"
    lost.write_text("x")
    found = find_orphans(load(lake), LATER, [lake])
    assert [Path(orphan.path) for orphan in found] == [lost]
    assert remove_orphans(load(lake), found) == 1 and orphans(lake) == set()
    assert restore_removed(load(lake)) == (1, []) and lost.exists()
    assert rows(lake) == [(1, "a")] * 2


def test_folders_that_another_table_writes_to(lake: IcebergCatalog) -> None:
    folder = home(lake)
    paths = {
        "write.data.path": f"file:{folder}/elsewhere",
        "write.metadata.path": f"{folder}/meta/",
    }
    create_at(lake, OTHER, file_uri(folder.parent / "other"), paths)
    assert files(folder / "elsewhere") and files(folder / "meta")
    (folder / "elsewhere" / "running.parquet").write_text("x")
    assert orphans(lake) == set()


def test_a_moved_table_whose_name_another_one_took(lake: IcebergCatalog) -> None:
    old = home(lake)
    lake.commit(load(lake), (), (SetLocationUpdate(location=file_uri(old.parent / "moved")),))
    lake.register(OTHER, load(lake).location)
    lake.unregister(NAME)
    make_table(lake)
    insert(lake, ROW)
    assert home(lake) == old
    assert orphans(lake) == set()
    assert rows(lake, OTHER) == [(1, "a")]


def test_files_that_another_table_added(lake: IcebergCatalog) -> None:
    shared = write(lake, ROW)
    make_table(lake, name=OTHER)
    commit(lake, append(*shared, properties={}), name=OTHER)
    assert orphans(lake) == set()
    lake.unregister(OTHER)
    assert orphans(lake) == {Path(file.file_path.removeprefix("file://")) for file in shared}


def test_views_in_the_folder(lake: IcebergCatalog) -> None:
    folder = home(lake)
    inner = {**VIEW, "location": "x"}
    lake.put_view(("s", "v"), inner)
    _set_location(lake, ("s", "v"), file_uri(folder))
    lake.put_view(("s", "v"), inner)
    assert orphans(lake) == set()


def _set_location(lake: IcebergCatalog, name: Name, location: str) -> None:
    metadata = {**(lake.metadata(name) or {}), "location": location}
    path = local_path(lake._backend._location(*name))  # type: ignore[attr-defined]
    assert path is not None
    path.write_text(json.dumps(metadata))


def test_symbolic_links(lake: IcebergCatalog, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home(lake))
    create_at(lake, INNER, file_uri(link / "inner"))
    assert orphans(lake) == set()


def test_builds_clones_and_old_versions(lake: IcebergCatalog) -> None:
    replace(lake, ROW)
    stage_table(lake, NAME, "pr-1", {})
    clone_table(lake, NAME, OTHER)
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert orphans(lake) == set()
    assert orphans(lake, OTHER) == set()


def test_locations_in_properties(lake: IcebergCatalog) -> None:
    """Such as those of a key index and of deleted keys."""
    kept = [home(lake) / "metadata" / f"{number}.puffin" for number in range(3)]
    for path in kept:
        path.write_text("x")
    updates = {
        "iceberg-stream.key-index.a": f"file:{kept[0]}",
        "iceberg-stream.deleted-keys.a": json.dumps([{"location": file_uri(kept[1])}]),
    }
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates=updates),))
    assert orphans(lake) == {kept[2]}


def test_quoted_locations(lake: IcebergCatalog) -> None:
    """Programs that decode URIs write to `a b` what their metadata call `a%20b`."""
    path = home(lake) / "data" / "a b#.parquet"
    path.write_text("x")
    update = SetPropertiesUpdate(updates={"p": f"file://{home(lake)}/data/a%20b%23.parquet"})
    lake.commit(load(lake), (), (update,))
    assert orphans(lake) == set()


def test_a_catalog_of_another_name_in_the_same_file(lake: IcebergCatalog, tmp_path: Path) -> None:
    """A profile that renames its catalog finds no tables, and creates them again."""
    other = IcebergCatalog("renamed", SqliteBackend("renamed", tmp_path / "warehouse"))
    make_table(other)
    insert(other, ROW)
    before = rows(lake)
    assert [neighbor.name for neighbor in other.neighbors()] == ["lake"]
    found = find_orphans(load(other), LATER, [other, *other.neighbors()])
    assert found == []
    assert rows(lake) == before
    other.close()


@pytest.mark.parametrize("part", ["metadata", "manifest list", "manifest", "garbage"])
def test_a_table_that_cannot_be_read(lake: IcebergCatalog, part: str) -> None:
    make_table(lake, name=OTHER)
    commit(lake, append(*write(lake, ROW, OTHER), properties={}), name=OTHER)
    (home(lake) / "data" / "lost.parquet").write_text("x")
    folder = home(lake, OTHER) / "metadata"
    pattern = {"metadata": "*.json", "manifest list": "snap-*.avro"}.get(part, "*-m*.avro")
    lake._backend._last_written.clear()  # type: ignore[attr-defined]
    for path in folder.glob(pattern):
        if part == "garbage":
            path.write_bytes(b"Obj\x01garbage")
        else:
            path.unlink()
    with pytest.raises(CatalogError, match=r"(?s)s\.other cannot be read.*Nothing was removed"):
        find_orphans(load(lake), LATER, [lake])


def test_a_namespace_that_cannot_be_listed(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home(lake) / "data" / "lost.parquet").write_text("x")

    def refuse() -> Any:
        raise CatalogError("forbidden")

    monkeypatch.setattr(lake._backend, "all_relations", refuse)
    with pytest.raises(CatalogError, match="cannot be listed, and may have files"):
        find_orphans(load(lake), LATER, [lake])


def test_a_file_that_goes_to_another_table_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a build is published between the two reads."""
    shared = write(lake, ROW)
    make_table(lake, name=("s", "a"))
    make_table(lake, name=("s", "z"))
    commit(lake, append(*shared, properties={}), name=("s", "z"))
    original, moved = lake._backend.load, []

    def load_and_move(namespace: str, name: str, history: bool = True) -> Any:
        if name == "z" and not moved:
            moved.append(name)
            commit(lake, append(*shared, properties={}), name=("s", "a"))
            lake.unregister(("s", "z"))
        return original(namespace, name, history=history)

    table = load(lake)
    monkeypatch.setattr(lake._backend, "load", load_and_move)
    assert find_orphans(table, LATER, [lake]) == []
    assert moved


class TestRemoved:
    """Removed files wait in a folder of the table."""

    @pytest.fixture
    def lost(self, lake: IcebergCatalog) -> Path:
        path = home(lake) / "data" / "day=1" / "lost.parquet"
        path.parent.mkdir()
        path.write_text("content")
        return path

    def test_are_brought_back(self, lake: IcebergCatalog, lost: Path) -> None:
        found = find_orphans(load(lake), LATER, [lake])
        assert remove_orphans(load(lake), found) == 1
        assert not lost.exists() and orphans(lake) == set()
        assert remove_orphans(load(lake), found) == 0
        (removed,) = removed_files(load(lake))
        assert Path(removed.path).read_text() == "content"
        assert Path(removed.origin) == lost
        assert restore_removed(load(lake)) == (1, [])
        assert lost.read_text() == "content" and orphans(lake) == {lost}
        assert list((home(lake) / "_removed").iterdir()) == []

    def test_replace_no_file(self, lake: IcebergCatalog, lost: Path) -> None:
        remove_orphans(load(lake), find_orphans(load(lake), LATER, [lake]))
        lost.write_text("another")
        (removed,) = removed_files(load(lake))
        assert restore_removed(load(lake)) == (0, [removed.path])
        assert lost.read_text() == "another" and Path(removed.path).exists()

    def test_are_deleted_later(self, lake: IcebergCatalog, lost: Path) -> None:
        remove_orphans(load(lake), find_orphans(load(lake), LATER, [lake]))
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        assert delete_removed(load(lake), hour_ago, [lake]) == (0, 0)
        assert delete_removed(load(lake), LATER, [lake]) == (1, 0)
        assert removed_files(load(lake)) == []

    def test_are_brought_back_if_a_table_has_them(self, lake: IcebergCatalog) -> None:
        shared = write(lake, ROW)
        remove_orphans(load(lake), find_orphans(load(lake), LATER, [lake]))
        make_table(lake, name=OTHER)
        commit(lake, append(*shared, properties={}), name=OTHER)
        assert delete_removed(load(lake), LATER, [lake]) == (0, 1)
        assert rows(lake, OTHER) == [(1, "a")]

    def test_stay_if_a_table_has_them_where_they_are(self, lake: IcebergCatalog) -> None:
        write(lake, ROW)
        remove_orphans(load(lake), find_orphans(load(lake), LATER, [lake]))
        (removed,) = removed_files(load(lake))
        make_table(lake, name=OTHER)
        commit(lake, append(data_file(f"file://{removed.path}"), properties={}), name=OTHER)
        assert delete_removed(load(lake), LATER, [lake]) == (0, 0)
        assert Path(removed.path).exists()

    def test_foreign_files_in_the_folder_stay(self, lake: IcebergCatalog) -> None:
        foreign = home(lake) / "_removed" / "notes" / "mine.txt"
        foreign.parent.mkdir(parents=True)
        foreign.write_text("mine")
        assert delete_removed(load(lake), LATER, [lake]) == (0, 0)
        assert restore_removed(load(lake)) == (0, [])
        assert foreign.exists()


def test_a_table_at_the_root_of_the_warehouse(lake: IcebergCatalog, tmp_path: Path) -> None:
    """Once, the catalog itself was removed."""
    root = home(lake).parent.parent
    create_at(lake, OTHER, file_uri(root))
    for name in ("notes.csv", "catalog.db-journal", "data/lost.parquet"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    assert (root / "catalog.db").exists()
    assert orphans(lake, OTHER) == {root / "data" / "lost.parquet"}


def test_links_out_of_the_folder(lake: IcebergCatalog, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.parquet").write_text("x")
    (home(lake) / "data" / "link").symlink_to(outside)
    (home(lake) / "data" / "file.parquet").symlink_to(outside / "precious.parquet")
    (home(lake) / "data" / "lost.parquet").write_text("x")
    assert orphans(lake) == {home(lake) / "data" / "lost.parquet"}


@pytest.mark.parametrize("value", ["false", "False", "no", "0", " true", ""])
def test_garbage_is_collected_only_if_iceberg_would(lake: IcebergCatalog, value: str) -> None:
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates={"gc.enabled": value}),))
    (home(lake) / "data" / "lost.parquet").write_text("x")
    with pytest.raises(CatalogError, match="gc.enabled is false"):
        orphans(lake)


def test_a_file_that_a_table_gets_after_the_listing_comes_back_at_once(
    lake: IcebergCatalog,
) -> None:
    written = write(lake, ROW, NAME)
    found = find_orphans(load(lake), LATER, [lake])
    commit(lake, append(*written, properties={}), name=NAME)
    assert remove_orphans(load(lake), found) == len(found) > 0
    now = datetime.now(timezone.utc)
    assert delete_removed(load(lake), now - timedelta(hours=168), [lake]) == (0, len(found))
    assert rows(lake) == [(1, "a")] * 2


def test_a_property_names_no_file_elsewhere(lake: IcebergCatalog, tmp_path: Path) -> None:
    """A drop removes what the table wrote, and its owner may write any property."""
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("x")
    updates = {"iceberg-stream.x": file_uri(thesis), "write.data.path": file_uri(tmp_path)}
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates=updates),))
    assert str(thesis) not in "".join(own_references(load(lake)))
    drop_table(lake, NAME)
    assert thesis.exists()


def test_a_damaged_manifest_list_of_another_table(lake: IcebergCatalog) -> None:
    create_at(lake, OTHER, file_uri(home(lake).parent / "other"))
    location = load(lake, OTHER).metadata["snapshots"][-1]["manifest-list"]
    path = local_path(location)
    assert path is not None
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    (home(lake) / "data" / "lost.parquet").write_text("x")
    with pytest.raises(CatalogError, match="s.other cannot be read"):
        orphans(lake)


def test_a_table_that_is_renamed_while_the_tables_are_read(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy needs files that the table itself does not have any more."""
    lake.register(OTHER, load(lake).location)
    replace(lake, ROW)
    snapshots = load(lake).metadata["snapshots"]
    old = [s["snapshot-id"] for s in snapshots[:-1]]
    lake.commit(load(lake), (), (RemoveSnapshotsUpdate(snapshot_ids=old),))
    before, name, listed = rows(lake, OTHER), [OTHER], lake.all_relations

    def list_and_rename(times: int) -> list[Any]:
        relations = listed()
        if len(name) <= times:
            new = ("s", f"renamed{len(name)}")
            lake.register(new, load(lake, name[-1]).location)
            lake.unregister(name[-1])
            name.append(new)
        return relations

    monkeypatch.setattr(lake, "all_relations", lambda: list_and_rename(2))
    assert orphans(lake) == set()
    monkeypatch.setattr(lake, "all_relations", lambda: list_and_rename(1000))
    with pytest.raises(CatalogError, match="was renamed or dropped while the tables were read"):
        orphans(lake)
    assert rows(lake, name[-1]) == before
