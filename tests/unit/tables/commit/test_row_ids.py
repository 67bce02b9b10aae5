"""Row ids of format version 3 (spec, "Row Lineage"): each row has its own, and keeps it."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    FILE_FIRST_ROW_ID,
    read_manifest,
    read_manifest_list,
)
from tests.unit.local_tables import (
    NAME,
    commit,
    data_file,
    evolve,
    load,
    make_table,
    set_metadata,
)


def upgrade(lake: IcebergCatalog) -> None:
    # PyIceberg does not do it.
    set_metadata(lake, format_version=3, next_row_id=0)


def row_ids(lake: IcebergCatalog) -> dict[str, int | None]:
    """The first row id of each live file, as the manifests give it."""
    table = load(lake)
    refs = table.metadata["refs"]["main"]["snapshot-id"]
    snapshot = next(s for s in table.metadata["snapshots"] if s["snapshot-id"] == refs)
    return {
        entry.data_file.file_path: entry.data_file[FILE_FIRST_ROW_ID]
        for manifest in read_manifest_list(table.io, snapshot["manifest-list"])
        for entry in read_manifest(table.io, manifest)
        if entry.status != DELETED
    }


def add(lake: IcebergCatalog, *files: DataFile) -> None:
    commit(lake, append(*files, properties={}))


def remove(lake: IcebergCatalog, *files: DataFile) -> None:
    commit(lake, Change(Operation.DELETE, removed=files))


def ranges(lake: IcebergCatalog, counts: dict[str, int]) -> list[int]:
    """All row ids of the live files; overlaps show as repetitions."""
    actual = row_ids(lake)
    return sorted(
        number
        for path, first in actual.items()
        for number in range(first or 0, (first or 0) + counts[path])
    )


def test_new_files_get_ids_one_after_the_other(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    add(lake, data_file("a", 10), data_file("b", 5))
    add(lake, data_file("c", 1))
    assert row_ids(lake) == {"a": 0, "b": 10, "c": 15}
    metadata = load(lake).metadata
    assert metadata["next-row-id"] == 16
    actual = [(s["first-row-id"], s["added-rows"]) for s in metadata["snapshots"]]
    assert actual == [(0, 15), (15, 1)]


def test_a_version_below_has_none(lake: IcebergCatalog) -> None:
    make_table(lake, 2)
    add(lake, data_file("a", 10))
    assert row_ids(lake) == {"a": None}
    assert "next-row-id" not in load(lake).metadata
    assert "added-rows" not in load(lake).metadata["snapshots"][0]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_after_an_upgrade_deleted_files_take_none(lake: IcebergCatalog, gone: str) -> None:
    make_table(lake, 2)
    files = {name: data_file(name, count) for name, count in (("a", 10), ("b", 5), ("c", 2))}
    counts = {"a": 10, "b": 5, "c": 2, "d": 3, "e": 4}
    add(lake, *files.values())
    upgrade(lake)
    # This commit gives ids to the rows that live; its manifest says of one file that it is gone.
    remove(lake, files.pop(gone))
    live = sum(counts[name] for name in files)
    assert ranges(lake, counts) == list(range(live))
    before = row_ids(lake)
    add(lake, data_file("d", 3))
    assert row_ids(lake) == before | {"d": live}
    # The ids stay, whatever becomes of the manifests.
    evolve(lake, properties={"commit.manifest.min-count-to-merge": "2"})
    add(lake, data_file("e", 4))
    assert row_ids(lake) == before | {"d": live, "e": live + 3}
    # Manifests that are written again take ids that nobody uses, as those of Java.
    assert load(lake).metadata["next-row-id"] >= live + 7


def test_files_keep_their_ids_when_others_go(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    files = [data_file(name, 10) for name in "abc"]
    add(lake, *files)
    remove(lake, files[0])
    assert row_ids(lake) == {"b": 10, "c": 20}
    commit(
        lake,
        Change(Operation.OVERWRITE, (AddedFiles((data_file("d", 7),)),), removed=(files[2],)),
    )
    metadata = load(lake).metadata
    actual = row_ids(lake)
    assert actual["b"] == 10
    assert actual["d"] >= 30
    assert metadata["next-row-id"] >= actual["d"] + 7


def cached_row_ids(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> dict[str, int | None]:
    """As commits read them, which keep manifests in memory."""
    table = load(lake, name)
    entries = live_entries(table.io, table.metadata, ManifestContent.DATA)
    return {item.data_file.file_path: item.data_file[FILE_FIRST_ROW_ID] for item in entries}


def test_manifests_in_memory_get_ids_with_an_upgrade(lake: IcebergCatalog) -> None:
    make_table(lake, 2)
    add(lake, data_file("a", 10))
    assert cached_row_ids(lake) == {"a": None}
    upgrade(lake)
    add(lake, data_file("b", 1))
    assert cached_row_ids(lake) == row_ids(lake)
    assert None not in cached_row_ids(lake).values()


def test_clones_that_are_upgraded_have_ids_of_their_own(lake: IcebergCatalog) -> None:
    make_table(lake, 2)
    add(lake, data_file("a", 10))
    table, (other, counts) = load(lake), (("s", "clone"), {"a": 10, "b": 5, "c": 3})
    make_table(lake, 2, name=other)
    shared = {key: table.metadata[key] for key in ("snapshots", "refs", "current-snapshot-id")}
    numbers = {"last-sequence-number": 1, "format-version": 3, "next-row-id": 100}
    both = {key.replace("-", "_"): value for key, value in {**shared, **numbers}.items()}
    set_metadata(lake, name=other, **both)
    upgrade(lake)
    add(lake, data_file("b", 5))
    assert cached_row_ids(lake)["a"] in range(10)
    commit(lake, append(data_file("c", 3), properties={}), name=other)
    assert min(n or 0 for n in cached_row_ids(lake, other).values()) >= 100
    # The other table's ids are not written to this one.
    evolve(lake, properties={"commit.manifest.min-count-to-merge": "2"})
    add(lake, data_file("c", 3))
    assert len(set(ranges(lake, counts))) == sum(counts.values())
    assert max(n or 0 for n in row_ids(lake).values()) < 100


def test_files_that_are_appended_behind_another_writer(lake: IcebergCatalog) -> None:
    """A build has staged them with ids that the other writer's rows have now."""
    make_table(lake, 3)
    staged = load(lake)
    add(lake, data_file("theirs", 10))
    ours = data_file("ours", 5, first_row_id=0)
    Committer(lake, NAME, append(ours, properties={}), staged).commit()
    assert row_ids(lake) == {"theirs": 0, "ours": 10}
    # The descriptor is the staged table's, too.
    assert ours[FILE_FIRST_ROW_ID] == 0


def test_delete_files_have_none(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    add(lake, data_file("a", 10))
    deletes = data_file("x", 4, content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(deletes,)),)))
    add(lake, data_file("b", 1))
    assert row_ids(lake) == {"a": 0, "x": None, "b": 10}
