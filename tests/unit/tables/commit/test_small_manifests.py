"""Manifests that commits make few, and what they and the summaries say of the files."""

from __future__ import annotations

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, ListType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    MissingFiles,
    SnapshotProducer,
    parent_snapshot,
)
from tests.unit.local_tables import (
    commit,
    data_file,
    evolve,
    load,
    make_table,
    manifests,
    set_metadata,
)

MIN_COUNT = "commit.manifest.min-count-to-merge"
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))


def add(lake: IcebergCatalog, *files: DataFile, deletes: tuple[DataFile, ...] = ()) -> None:
    commit(lake, Change(Operation.APPEND, (AddedFiles(files, deletes),)))


def entries(lake: IcebergCatalog, manifest: ManifestFile) -> list[tuple[int, str, int, int | None]]:
    """Status, path, snapshot's place and sequence number of each entry."""
    table = load(lake)
    places = {s["snapshot-id"]: n for n, s in enumerate(table.metadata["snapshots"], 1)}
    return [
        (int(e.status), e.data_file.file_path, places[e.snapshot_id], e.sequence_number)
        for e in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]


def counts(manifest: ManifestFile) -> list[int | None]:
    return [
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
        manifest.added_rows_count,
        manifest.existing_rows_count,
        manifest.deleted_rows_count,
    ]


@pytest.mark.parametrize(("commits", "expected"), [(2, 2), (3, 3), (4, 2), (5, 3), (6, 2), (7, 3)])
def test_older_manifests_become_one(lake: IcebergCatalog, commits: int, expected: int) -> None:
    make_table(lake, properties={MIN_COUNT: "3"})
    for number in range(commits):
        add(lake, data_file(str(number), 10))
    actual = manifests(lake)
    assert len(actual) == expected
    assert counts(actual[0]) == [1, 0, 0, 10, 0, 0]
    if commits == 4:
        assert counts(actual[1]) == [0, 3, 0, 0, 30, 0]
        # Files keep their snapshots and numbers.
        assert entries(lake, actual[1]) == [(0, str(n), n + 1, n + 1) for n in (2, 1, 0)]
        assert (actual[1].sequence_number, actual[1].min_sequence_number) == (4, 1)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({MIN_COUNT: "3", "commit.manifest-merge.enabled": "false"}, 5),
        ({MIN_COUNT: "3", "commit.manifest.target-size-bytes": "10"}, 5),
        ({}, 5),
    ],
)
def test_as_the_table_wants_it(
    lake: IcebergCatalog, properties: dict[str, str], expected: int
) -> None:
    make_table(lake, properties=properties)
    for number in range(5):
        add(lake, data_file(str(number)))
    assert len(manifests(lake)) == expected


def test_a_manifest_has_its_size(lake: IcebergCatalog) -> None:
    make_table(lake)
    for number in range(4):
        add(lake, data_file(str(number)))
    sizes = [m.manifest_length for m in manifests(lake)]
    evolve(
        lake, properties={MIN_COUNT: "3", "commit.manifest.target-size-bytes": str(sum(sizes[:2]))}
    )
    add(lake, data_file("4"))
    # The newest two fit into one; the others stay.
    actual = [[path for _, path, _, _ in entries(lake, m)] for m in manifests(lake)]
    assert actual == [["4"], ["3", "2"], ["1"], ["0"]]


def test_contents_and_specs_stay_apart(lake: IcebergCatalog) -> None:
    make_table(lake, properties={MIN_COUNT: "2"})
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    for number in range(3):
        deletes = (data_file(f"e{number}", **equality),)
        add(lake, data_file(f"d{number}"), deletes=deletes)
    actual = [sorted(path for _, path, _, _ in entries(lake, m)) for m in manifests(lake)]
    assert sorted(actual) == [["d0", "d1"], ["d2"], ["e0", "e1"], ["e2"]]
    evolve(lake, spec=PartitionSpec(*BY_ID.fields, spec_id=1))
    spec = load(lake).metadata["default-spec-id"]
    add(lake, data_file("p", partition=[1], spec_id=spec))
    add(lake, data_file("q", partition=[2], spec_id=spec))
    add(lake, data_file("r", partition=[5], spec_id=spec))
    by_spec = {
        tuple(sorted(path for _, path, _, _ in entries(lake, m))): m.partition_spec_id
        for m in manifests(lake)
        if m.content == 0
    }
    assert by_spec == {("d0", "d1", "d2"): 0, ("p", "q"): spec, ("r",): spec}


def test_files_that_go_are_told(lake: IcebergCatalog) -> None:
    make_table(lake)
    files = [data_file(name, count) for name, count in (("a", 1), ("b", 2), ("c", 4))]
    add(lake, *files)
    add(lake, data_file("d", 8))
    commit(lake, Change(Operation.DELETE, removed=(files[1],)))
    other, merged = manifests(lake)
    assert counts(merged) == [0, 2, 1, 0, 5, 2]
    assert entries(lake, merged) == [(0, "a", 1, 1), (2, "b", 3, 1), (0, "c", 1, 1)]
    assert counts(other) == [1, 0, 0, 8, 0, 0]
    # What went before is not told again.
    commit(lake, Change(Operation.DELETE, removed=(files[0],)))
    assert entries(lake, manifests(lake)[1]) == [(2, "a", 4, 1), (0, "c", 1, 1)]
    commit(lake, Change(Operation.DELETE, removed=(files[2],)))
    commit(lake, append(data_file("e"), properties={}))
    summary = load(lake).metadata["snapshots"][-1]["summary"]
    assert (summary["total-data-files"], summary["total-records"]) == ("2", "9")


def test_all_files_go(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a", 3))
    add(
        lake,
        data_file("b", 4),
        deletes=(data_file("e", content=DataFileContent.EQUALITY_DELETES, equality_ids=[1]),),
    )
    replacing = Change(Operation.OVERWRITE, (AddedFiles((data_file("c", 5),)),), removes_all=True)
    commit(lake, replacing)
    actual = [entry for m in manifests(lake) for entry in entries(lake, m)]
    assert sorted(actual) == [(1, "c", 3, 3), (2, "a", 3, 1), (2, "b", 3, 2), (2, "e", 3, 2)]
    commit(lake, replacing)
    summary = load(lake).metadata["snapshots"][-1]["summary"]
    assert (summary["deleted-data-files"], summary["total-data-files"]) == ("1", "1")
    # Manifests of nothing but files that are gone are left out.
    assert len(manifests(lake)) == 2


def test_a_file_that_is_not_there(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a"))
    table = load(lake)
    producer = SnapshotProducer(
        table.io, Change(Operation.DELETE, removed=(data_file("a"), data_file("x")))
    )
    with pytest.raises(MissingFiles) as raised:
        producer.build(table.metadata)
    assert raised.value.paths == {"x"}
    table = load(lake)
    assert "a" in str(entries(lake, manifests(lake)[0]))


def test_partitions_are_summed_up(lake: IcebergCatalog) -> None:
    make_table(lake, spec=BY_ID)
    add(lake, *(data_file(str(n), partition=[n]) for n in (3, None, 7)))
    (manifest,) = manifests(lake)
    assert manifest.partitions is not None
    (summary,) = manifest.partitions
    assert (summary.contains_null, summary.contains_nan) == (True, False)
    assert (summary.lower_bound, summary.upper_bound) == (
        (3).to_bytes(8, "little"),
        (7).to_bytes(8, "little"),
    )


def test_totals(lake: IcebergCatalog) -> None:
    make_table(lake)
    position = {"content": DataFileContent.POSITION_DELETES}
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    deletes = (data_file("p", 2, **position), data_file("e", 3, **equality))
    add(lake, data_file("a", 10), data_file("b", 20), deletes=deletes)
    commit(
        lake,
        Change(
            Operation.OVERWRITE,
            (AddedFiles((data_file("c", 5),)),),
            removed=(data_file("a", 10), deletes[0]),
        ),
    )
    summary = load(lake).metadata["snapshots"][-1]["summary"]
    totals = {key: value for key, value in summary.items() if key.startswith("total")}
    assert totals == {
        "total-data-files": "2",
        "total-delete-files": "1",
        "total-records": "25",
        "total-files-size": "300",
        "total-position-deletes": "0",
        "total-equality-deletes": "3",
    }
    # Where the one before does not know, neither do we; and nothing is below zero.
    snapshots = load(lake).metadata["snapshots"]
    snapshots[-1]["summary"] = {"operation": "append", "total-records": "1"}
    set_metadata(lake, snapshots=snapshots)
    commit(lake, Change(Operation.DELETE, removed=(data_file("b", 20),)))
    summary = load(lake).metadata["snapshots"][-1]["summary"]
    actual = {key: value for key, value in summary.items() if key.startswith("total")}
    assert actual == {"total-records": "0"}


def test_metadata_go_where_the_table_wants_them(lake: IcebergCatalog) -> None:
    base = make_table(lake)
    folder = f"{base.metadata['location']}/elsewhere/"
    evolve(lake, properties={"write.metadata.path": folder})
    add(lake, data_file("a"))
    (manifest,) = manifests(lake)
    assert manifest.manifest_path.startswith(folder)
    assert "//m" not in manifest.manifest_path.removeprefix(folder)
    assert load(lake).metadata["snapshots"][0]["manifest-list"].startswith(f"{folder}snap-")


@pytest.mark.parametrize(
    ("metadata", "branch", "expected"),
    [
        ({"refs": {"main": {"snapshot-id": 1}}, "current-snapshot-id": 2}, "main", 1),
        ({"current-snapshot-id": 2}, "main", 2),
        ({"current-snapshot-id": 2}, "other", None),
        ({"refs": {"other": {"snapshot-id": 1}}, "current-snapshot-id": 2}, "other", 1),
        ({"current-snapshot-id": -1}, "main", None),
        ({}, "main", None),
    ],
)
def test_what_a_branch_points_to(
    metadata: dict[str, object], branch: str, expected: int | None
) -> None:
    base = {"snapshots": [{"snapshot-id": 1}, {"snapshot-id": 2}]}
    actual = parent_snapshot(base | metadata, branch)
    assert (actual and actual["snapshot-id"]) == expected


def test_times_never_go_back(lake: IcebergCatalog) -> None:
    make_table(lake)
    later = load(lake).metadata["last-updated-ms"] + 10**9
    set_metadata(lake, last_updated_ms=later)
    add(lake, data_file("a"))
    assert load(lake).metadata["snapshots"][0]["timestamp-ms"] == later


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_list_tells_its_snapshot(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    commit(lake, append(data_file("a"), properties={}))
    table = load(lake)
    producer = SnapshotProducer(table.io, append(data_file("b"), properties={}))
    built = producer.build(table.metadata)
    with AvroFile[ManifestFile](table.io.new_input(built["manifest-list"])) as reader:
        said = reader.header.meta
    parent = table.metadata["snapshots"][0]["snapshot-id"]
    assert said["snapshot-id"] == str(producer.snapshot_id) == str(built["snapshot-id"])
    assert said["parent-snapshot-id"] == str(parent) == str(built["parent-snapshot-id"])
    assert said["sequence-number"] == ("0" if version == 1 else "2")
    assert said["format-version"] == str(version)


@pytest.mark.parametrize("version", [2, 3])
def test_equality_ids_are_as_the_specification_has_them(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1, 2]}
    add(lake, deletes=(data_file("e", **equality),))
    (manifest,) = manifests(lake)
    with AvroFile[ManifestFile](load(lake).io.new_input(manifest.manifest_path)) as reader:
        data_file_type = reader.schema.find_type("data_file")
        said = reader.header.meta
    (ids,) = (f.field_type for f in data_file_type.fields if f.field_id == 135)
    assert ids == ListType(136, IntegerType(), element_required=True)
    assert (said["content"], said["format-version"]) == ("deletes", str(version))
    assert said["partition-spec-id"] == "0"
