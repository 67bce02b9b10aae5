"""Clones of tables on both kinds of catalog: neither table damages the other one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.clone_tags import CloneTag, clone_tags
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import (
    find_orphans,
    remove_orphans,
)
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots
from dbt.adapters.iceberg_stream.maintenance.steps.clones import unused_tags
from dbt.adapters.iceberg_stream.tables import clones
from dbt.adapters.iceberg_stream.tables.clones import NotClonable, clone_table
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.lost_files import assert_nothing_lost
from tests.servers.rest_catalog import RestCatalog

ORIGINAL, CLONE = ("s", "orders"), ("s", "orders_dev")
FAR_MS = 10**15


def rest_lake(server: RestCatalog, *principal: str) -> IcebergCatalog:
    settings = CatalogSettings("lake", {"type": "rest", "uri": server.uri})
    identity = Identity(LiteralToken(server.token(*principal)))
    return IcebergCatalog("lake", RemoteBackend(settings, identity))


@pytest.fixture(params=["sqlite", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A catalog with a table of three rows in two snapshots."""
    if request.param == "sqlite":
        lake = IcebergCatalog("lake", SqliteBackend("lake", tmp_path / "warehouse"))
    else:
        lake = rest_lake(request.getfixturevalue("catalog"), "wanda")
    lake.create_namespace("s")
    write(lake, ORIGINAL, [1, 2])
    write(lake, ORIGINAL, [3])
    schema_folder = folder(load(lake, ORIGINAL)).parent
    yield lake
    for name, _ in lake.relations("s"):
        lake.unregister(("s", name))
    # The server's folder is the same in all tests.
    shutil.rmtree(schema_folder)


def write(lake: IcebergCatalog, name: Name, ids: Sequence[int], mode: Mode = Mode.APPEND) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    existing = lake.metadata(name) is not None
    ingest(lake, name, rows.to_reader(), mode if existing else Mode.CREATE)


def ids(lake: IcebergCatalog, name: Name) -> list[int]:
    """The rows, as PyIceberg reads them."""
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def load(lake: IcebergCatalog, name: Name) -> LoadedTable:
    table = lake.load(name)
    assert table is not None
    return table


def folder(table: LoadedTable) -> Path:
    return Path("/" + table.metadata["location"].removeprefix("file:").lstrip("/"))


def files(table: LoadedTable) -> list[Path]:
    return [path for path in folder(table).rglob("*") if path.is_file() and path.name[0] != "."]


def assert_sound(lake: IcebergCatalog, *names: Name) -> None:
    assert_nothing_lost(lake, ["s"])
    for name in names:
        table = load(lake, name)
        assert list(check_table(table, data=True).findings) == []
        now = datetime.now(timezone.utc) + timedelta(hours=1)
        assert find_orphans(table, now, [lake]) == []


def set_property(lake: IcebergCatalog, name: Name, key: str, value: str) -> None:
    lake.commit(load(lake, name), (), (SetPropertiesUpdate(updates={key: value}),))


def tag_names(lake: IcebergCatalog, name: Name = ORIGINAL) -> list[str]:
    return [tag.table for tag in clone_tags(load(lake, name).metadata)]


def test_each_table_has_its_own_later_rows(lake: IcebergCatalog) -> None:
    set_property(lake, ORIGINAL, "write.data.path", f"{folder(load(lake, ORIGINAL))}/elsewhere")
    before = set(files(load(lake, ORIGINAL)))
    clone = clone_table(lake, ORIGINAL, CLONE)
    original = load(lake, ORIGINAL)
    assert ids(lake, CLONE) == [1, 2, 3]
    assert clone.metadata["table-uuid"] != original.metadata["table-uuid"]
    assert [path.suffix for path in files(clone)] == [".json"], "only metadata is written"
    assert clone.metadata["properties"]["gc.enabled"] == "false"
    write(lake, CLONE, [4])
    assert [path for path in files(load(lake, CLONE)) if path.suffix == ".parquet"]
    written = set(files(load(lake, ORIGINAL))) - before
    assert {path.suffix for path in written} == {".json"}, "the tag is a commit of metadata"
    write(lake, ORIGINAL, [5])
    assert ids(lake, CLONE) == [1, 2, 3, 4]
    assert ids(lake, ORIGINAL) == [1, 2, 3, 5]
    write(lake, CLONE, [9], Mode.REPLACE)
    write(lake, ORIGINAL, [8], Mode.REPLACE)
    assert (ids(lake, CLONE), ids(lake, ORIGINAL)) == ([9], [8])
    assert_sound(lake, ORIGINAL, CLONE)


def test_the_original_is_dropped_and_created_again(lake: IcebergCatalog) -> None:
    clone_table(lake, ORIGINAL, CLONE)
    drop_table(lake, ORIGINAL)
    assert ids(lake, CLONE) == [1, 2, 3]
    write(lake, ORIGINAL, [7])
    new, now = load(lake, ORIGINAL), datetime.now(timezone.utc) + timedelta(hours=1)
    orphans = find_orphans(new, now, [lake])
    # Of the dropped table: its metadata, and the snapshot that the clone does not have.
    assert not [orphan for orphan in orphans if orphan.path.endswith(".parquet")]
    remove_orphans(new, orphans)
    assert ids(lake, CLONE) == [1, 2, 3]
    drop_table(lake, ORIGINAL)
    assert ids(lake, CLONE) == [1, 2, 3]
    assert list(check_table(load(lake, CLONE), data=True).findings) == []


def test_a_dropped_clone_takes_only_its_own_files(lake: IcebergCatalog) -> None:
    clone_table(lake, ORIGINAL, CLONE)
    write(lake, CLONE, [4])
    write(lake, CLONE, [5], Mode.REPLACE)
    clone, original = load(lake, CLONE), load(lake, ORIGINAL)
    before = {path for path in files(original) if path.suffix != ".json"}
    drop_table(lake, CLONE)
    assert files(clone) == []
    assert {path for path in files(original) if path.suffix != ".json"} == before
    assert ids(lake, ORIGINAL) == [1, 2, 3]
    assert tag_names(lake) == []
    assert_sound(lake, ORIGINAL)
    drop_table(lake, ORIGINAL)
    assert not [path for path in files(original) if path.suffix == ".parquet"]


def test_others_that_drop_a_clone_leave_its_files(lake: IcebergCatalog) -> None:
    clone_table(lake, ORIGINAL, CLONE)
    write(lake, CLONE, [4])
    clone = load(lake, CLONE)
    lake.unregister(CLONE)
    assert [path for path in files(clone) if path.suffix == ".parquet"]
    assert ids(lake, ORIGINAL) == [1, 2, 3]
    # `maintain` removes the tag a day later.
    assert tag_names(lake) == ["s.orders_dev"]
    tag = clone_tags(load(lake, ORIGINAL).metadata)[0]
    assert unused_tags([lake], load(lake, ORIGINAL).metadata) == []
    old = str(replace(tag, created=tag.created - timedelta(days=2)))
    metadata = dict(load(lake, ORIGINAL).metadata)
    metadata["refs"] = {old: metadata["refs"][str(tag)], "main": metadata["refs"]["main"]}
    assert unused_tags([lake], metadata) == [old]
    update = RemoveSnapshotRefUpdate.model_validate({"ref-name": str(tag)})
    lake.commit(load(lake, ORIGINAL), (), (update,))


def test_the_tag_keeps_the_snapshot(lake: IcebergCatalog) -> None:
    set_property(lake, ORIGINAL, "history.expire.max-ref-age-ms", "1")
    clone_table(lake, ORIGINAL, CLONE)
    (shared,) = load(lake, CLONE).metadata["snapshots"]
    write(lake, ORIGINAL, [6], Mode.REPLACE)
    metadata = load(lake, ORIGINAL).metadata
    kept = {s["snapshot-id"] for s in metadata["snapshots"]}
    kept -= expirable_snapshots(metadata, FAR_MS)
    assert kept == {shared["snapshot-id"], metadata["current-snapshot-id"]}
    # The tag of a clone that exists is needed, however old it is.
    (tag,) = clone_tags(metadata)
    old = str(replace(tag, created=tag.created - timedelta(days=400)))
    assert unused_tags([lake], {**metadata, "refs": {old: {}}}) == []


def test_a_table_without_rows(lake: IcebergCatalog) -> None:
    empty = ("s", "nothing")
    lake.pyiceberg.create_table(empty, pa.schema([("id", pa.int64())]))
    clone_table(lake, empty, CLONE)
    assert tag_names(lake, empty) == []
    write(lake, CLONE, [1])
    assert (ids(lake, CLONE), ids(lake, empty)) == ([1], [])
    clone = load(lake, CLONE)
    drop_table(lake, CLONE)
    assert files(clone) == []


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("gc.enabled", "FALSE", "may belong to other tables"),
        ("iceberg-stream.sink.model.shop.orders", "{}", "a stream writes to it"),
    ],
)
def test_not_clonable(lake: IcebergCatalog, key: str, value: str, why: str) -> None:
    set_property(lake, ORIGINAL, key, value)
    with pytest.raises(NotClonable, match=why):
        clone_table(lake, ORIGINAL, CLONE)
    assert lake.metadata(CLONE) is None and tag_names(lake) == []


def test_a_clone_is_not_cloned(lake: IcebergCatalog) -> None:
    clone_table(lake, ORIGINAL, CLONE)
    with pytest.raises(NotClonable, match=r"a clone of s\.orders"):
        clone_table(lake, CLONE, ("s", "third"))
    with pytest.raises(NotClonable, match="not a table"):
        clone_table(lake, ("s", "gone"), ("s", "third"))
    with pytest.raises(CatalogError, match=r"s\.orders_dev already exists"):
        clone_table(lake, ORIGINAL, CLONE)
    assert tag_names(lake) == ["s.orders_dev"]
    assert ids(lake, CLONE) == [1, 2, 3]


@pytest.mark.parametrize("step", ["register", "load"])
def test_a_clone_that_fails_leaves_nothing(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: Any) -> None:
        raise CatalogError("no") if step == "register" else PermissionError("no")

    if step == "register":
        monkeypatch.setattr(lake, "register", refuse)
    else:
        monkeypatch.setattr(clones, "read_manifest_list", refuse)
    with pytest.raises(NotClonable, match="no"):
        clone_table(lake, ORIGINAL, CLONE)
    monkeypatch.undo()
    assert tag_names(lake) == []
    assert lake.metadata(CLONE) is None
    clone = clone_table(lake, ORIGINAL, CLONE)
    assert [path.suffix for path in files(clone)] == [".json"]


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_clone_whose_answer_is_lost(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """Once, a table was left whose metadata file was removed, or that of another writer dropped."""
    register = lake._backend.register

    def lose(*arguments: str) -> None:
        register(*arguments)
        if is_taken:
            lake.unregister(CLONE)
            write(lake, CLONE, [9])
        raise CatalogError("does not answer")

    with monkeypatch.context() as patch, pytest.raises(NotClonable, match="does not answer"):
        patch.setattr(lake._backend, "register", lose)
        clone_table(lake, ORIGINAL, CLONE)
    assert (lake.load(CLONE) is not None) is is_taken
    assert_nothing_lost(lake, ["s"])


def test_another_writer_commits_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, conflicts = lake.commit, iter([True])

    def overtaken(*arguments: Any) -> None:
        if next(conflicts, False):
            write(lake, ORIGINAL, [4])
            raise CommitConflict("another writer")
        commit(*arguments)

    monkeypatch.setattr(lake, "commit", overtaken)
    clone_table(lake, ORIGINAL, CLONE)
    assert ids(lake, CLONE) == [1, 2, 3, 4]
    assert tag_names(lake) == ["s.orders_dev"]


def test_a_user_who_may_not_write_the_original(catalog: RestCatalog) -> None:
    owner = rest_lake(catalog, "wanda")
    owner.create_namespace("s")
    write(owner, ORIGINAL, [1])
    with pytest.raises(NotClonable, match="a tag must keep its snapshot, and cannot be set"):
        clone_table(rest_lake(catalog, "rita", "reader"), ORIGINAL, CLONE)
    assert owner.metadata(CLONE) is None and tag_names(owner) == []
    drop_table(owner, ORIGINAL)


@pytest.mark.parametrize(
    "text", ["main", "dbt_clone", "dbt_clone/a.b", "dbt_clone/a.b/yesterday/x", "v1/a/b/c"]
)
def test_other_tags(text: str) -> None:
    assert CloneTag.parse(text) is None


def test_the_name_of_a_tag() -> None:
    tag = CloneTag.create(("a.b", "c/d"))
    assert CloneTag.parse(str(tag)) == tag


def test_a_dropped_table_leaves_files_of_others(lake: IcebergCatalog) -> None:
    """Added files, and those of a registered copy; a server would purge them."""
    for name in ("adding", "copied"):
        write(lake, ("s", name), [7])
    shared = [Path(file) for file in _data_files(lake, ORIGINAL)]
    lake.table(("s", "adding")).add_files([str(file) for file in shared])
    lake.register(("s", "copy"), load(lake, ("s", "copied")).location)
    copied = files(load(lake, ("s", "copied")))
    for name in ("adding", "copy"):
        drop_table(lake, ("s", name))
    assert ids(lake, ORIGINAL) == [1, 2, 3] and ids(lake, ("s", "copied")) == [7]
    assert_sound(lake, ORIGINAL, ("s", "copied"))
    drop_table(lake, ("s", "copied"))
    assert not [path for path in copied if path.exists()]


def _data_files(lake: IcebergCatalog, name: Name) -> list[str]:
    tasks = lake.table(name).scan().plan_files()
    return [task.file.file_path.removeprefix("file://") for task in tasks]
