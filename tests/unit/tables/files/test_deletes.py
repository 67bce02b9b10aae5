"""Delete files of both kinds and deletion vectors: as written, as read, and as PyIceberg applies them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    may_delete_of,
    only_data_file,
    read_position_deletes,
    write_equality_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    read_deletion_vector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import duckdb_rows
from tests.unit.local_tables import (
    FIELD,
    NAME,
    SCHEMA,
    commit,
    data_file,
    insert,
    live,
    load,
    make_table,
    rows,
)

ROWS = pa.table({"id": [0, 1, 2, 3], "x": ["a", "b", "c", "d"]})
FILE_PATH, POS = 2147483546, 2147483545
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))


def target(lake: IcebergCatalog) -> WriteTarget:
    base = load(lake)
    return WriteTarget.of(base.metadata, base.io)


def delete(lake: IcebergCatalog, *files: DataFile, removed: tuple[DataFile, ...] = ()) -> None:
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=files),), removed=removed))


def data(lake: IcebergCatalog) -> list[DataFile]:
    return [file for file in live(lake) if file.content == DataFileContent.DATA]


class TestPositionDeletes:
    def test_rows_are_gone(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        insert(lake, ROWS)
        insert(lake, ROWS)
        first, second = data(lake)
        delete(
            lake,
            write_position_deletes(
                target(lake), "d", {first.file_path: [3, 0, 0], second.file_path: pa.array([1])}
            ),
        )
        assert rows(lake) == [(0, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d")]
        snapshot = lake.pyiceberg.load_table(("s", "t")).current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        assert snapshot.summary["added-position-deletes"] == "3"

    def test_they_are_sorted_and_named_as_the_spec_wants(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        file = write_position_deletes(target(lake), "d", {"b": [2, 1], "a": [9, 5, 9]})
        with load(lake).io.new_input(file.file_path).open() as stream:
            actual = pq.read_table(stream)
        assert actual.to_pydict() == {"file_path": ["a", "a", "b", "b"], "pos": [5, 9, 1, 2]}
        assert [f.metadata[b"PARQUET:field_id"] for f in actual.schema] == [
            str(FILE_PATH).encode(),
            str(POS).encode(),
        ]
        assert not any(f.nullable for f in actual.schema)
        assert file.content == DataFileContent.POSITION_DELETES
        assert (file.record_count, file.file_format) == (4, FileFormat.PARQUET)
        assert (file.lower_bounds[FILE_PATH], file.upper_bounds[FILE_PATH]) == (b"a", b"b")
        assert file[FIELD["referenced_data_file"]] is None
        assert "/data/" in file.file_path and file.file_path.endswith("/d.parquet")

    def test_bounds_of_paths_are_whole(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        path = "file:///" + "long/" * 60
        file = write_position_deletes(target(lake), "d", {path: [1]})
        assert file.lower_bounds[FILE_PATH] == file.upper_bounds[FILE_PATH] == path.encode()
        assert file[FIELD["referenced_data_file"]] == path

    def test_of_a_partition(self, lake: IcebergCatalog) -> None:
        make_table(lake, spec=BY_ID)
        file = write_position_deletes(
            target(lake), "d", {"a": [1]}, partition_key(BY_ID, SCHEMA, [7])
        )
        assert file.partition[0] == 7
        assert "p=7" in file.file_path

    def test_reading(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        file = write_position_deletes(target(lake), "d", {"a": [1, 2], "b": [3], "c": [4]})
        io = load(lake).io

        def read(paths: set[str] | None = None) -> dict[str, list[int]]:
            return {
                path: actual.to_pylist() for path, actual in read_position_deletes(io, file, paths)
            }

        assert read() == {"a": [1, 2], "b": [3], "c": [4]}
        assert read({"c", "a", "z"}) == {"a": [1, 2], "c": [4]}
        assert read(set()) == {}


def bounded(lower: str | None, upper: str | None) -> DataFile:
    bounds = {
        name: {FILE_PATH: path.encode()}
        for name, path in (("lower_bounds", lower), ("upper_bounds", upper))
        if path is not None
    }
    return data_file("x", content=DataFileContent.POSITION_DELETES, **bounds)


REFERRING = data_file("x", content=DataFileContent.POSITION_DELETES, referenced_data_file="b")


@pytest.mark.parametrize(
    ("deletes", "only", "may"),
    [
        (REFERRING, "b", "b"),
        (bounded("b", "b"), "b", "b"),
        (bounded("b", "c"), None, "bc"),
        (bounded("a", "c"), None, "abc"),
        (bounded("c", "d"), None, "cd"),
        (bounded("b", None), None, "abcd"),
        (bounded(None, "b"), None, "abcd"),
        (bounded(None, None), None, "abcd"),
    ],
)
def test_whose_rows_position_deletes_are(deletes: DataFile, only: str | None, may: str) -> None:
    assert only_data_file(deletes) == only
    assert [path for path in "abcd" if may_delete_of(deletes, [path])] == list(may)
    assert not may_delete_of(deletes, []) or only is None
    assert may_delete_of(deletes, ["zz", may[0]])


class TestEqualityDeletes:
    def test_what_readers_are_told(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        keys = pa.table({"x": ["a", None], "id": pa.array([1, 2], pa.int32())})
        file = write_equality_deletes(target(lake), "e", keys)
        assert file.content == DataFileContent.EQUALITY_DELETES
        assert sorted(file.equality_ids) == [1, 2]
        with load(lake).io.new_input(file.file_path).open() as stream:
            actual = pq.read_table(stream)
        assert actual.to_pydict() == {"id": [1, 2], "x": ["a", None]}
        assert actual.schema.field("id").type == pa.int64()
        ids = {f.name: f.metadata[b"PARQUET:field_id"] for f in actual.schema}
        assert ids == {"id": b"1", "x": b"2"}
        assert file.lower_bounds.keys() == {1, 2}
        assert file.null_value_counts == {1: 0, 2: 1}

    def test_of_a_partition(self, lake: IcebergCatalog) -> None:
        make_table(lake, spec=BY_ID)
        key = partition_key(BY_ID, SCHEMA, [7])
        file = write_equality_deletes(target(lake), "e", pa.table({"x": ["a"]}), key)
        assert (file.partition[0], file.spec_id, file.equality_ids) == (7, 0, [2])


class TestDeletionVectors:
    def test_rows_are_gone(self, lake: IcebergCatalog) -> None:
        make_table(lake, 3)
        insert(lake, ROWS)
        insert(lake, ROWS)
        first, second = data(lake)
        vectors = write_deletion_vectors(
            target(lake), "v", [DeletionVector(first, [0, 3]), DeletionVector(second, [1])]
        )
        delete(lake, *vectors)
        assert rows(lake) == [(0, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d")]
        # Another vector in its place.
        delete(
            lake,
            *write_deletion_vectors(target(lake), "w", [DeletionVector(second, [1, 2])]),
            removed=(vectors[1],),
        )
        assert rows(lake) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]

    def test_descriptors(self, lake: IcebergCatalog) -> None:
        make_table(lake, 3, spec=BY_ID)
        of = [data_file("a", partition=[7]), data_file("b", partition=[None], spec_id=0)]
        of[0].spec_id = 5
        made = write_deletion_vectors(
            target(lake), "v", [DeletionVector(of[0], [4, 2]), DeletionVector(of[1], [1])]
        )
        assert [v.record_count for v in made] == [2, 1]
        assert [v[FIELD["referenced_data_file"]] for v in made] == ["a", "b"]
        assert [(v.partition[0], v.spec_id) for v in made] == [(7, 5), (None, 0)]
        assert {v.file_format for v in made} == {FileFormat.PUFFIN}
        assert {v.content for v in made} == {DataFileContent.POSITION_DELETES}
        assert made[0].file_path == made[1].file_path
        size = Path(made[0].file_path.removeprefix("file:").replace("///", "/")).stat().st_size
        assert {v.file_size_in_bytes for v in made} == {size}
        assert [read_deletion_vector(load(lake).io, v) for v in made] == [[2, 4], [1]]

    @pytest.mark.parametrize(
        "positions",
        [
            [],
            [0],
            [0, 7, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 + 5],
            list(range(100_000)),
            [2**40],
        ],
        ids=len,
    )
    def test_positions_are_read_as_written(
        self, lake: IcebergCatalog, positions: list[int]
    ) -> None:
        make_table(lake, 3)
        (file,) = write_deletion_vectors(
            target(lake), "v", [DeletionVector(data_file("a"), positions[::-1] + positions[:1])]
        )
        assert read_deletion_vector(load(lake).io, file) == positions
        assert file.record_count == len(positions)
        # Runs are packed.
        assert file[FIELD["content_size_in_bytes"]] < 300

    def test_the_file_is_as_the_specification_says(self, lake: IcebergCatalog) -> None:
        """Puffin, and the blob `deletion-vector-v1` in it, taken apart by hand."""
        make_table(lake, 3)
        made = write_deletion_vectors(
            target(lake),
            "v",
            [DeletionVector(data_file("a"), [1, 2**32 + 3]), DeletionVector(data_file("b"), [0])],
        )
        with load(lake).io.new_input(made[0].file_path).open() as stream:
            content = stream.read()
        assert content[:4] == content[-4:] == b"PFA1"
        assert content[-8:-4] == bytes(4)
        (length,) = struct.unpack("<i", content[-12:-8])
        assert content[-16 - length : -12 - length] == b"PFA1"
        footer = json.loads(content[-12 - length : -12])
        assert footer["properties"]["created-by"].startswith("dbt-iceberg-stream ")
        expected: list[dict[str, Any]] = [
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": v[FIELD["content_offset"]],
                "length": v[FIELD["content_size_in_bytes"]],
                "properties": {"referenced-data-file": name, "cardinality": count},
            }
            for v, name, count in zip(made, "ab", "21", strict=True)
        ]
        # The shortest first, for DuckDB's sake.
        assert footer["blobs"] == expected[::-1]
        assert [expected[1]["offset"], expected[0]["offset"]] == [4, 5 + expected[1]["length"]]
        offset, size = expected[0]["offset"], expected[0]["length"]
        blob = content[offset : offset + size]
        assert struct.unpack(">I", blob[:4])[0] == len(blob) - 8
        assert blob[4:8] == b"\xd1\xd3\x39\x64"
        assert struct.unpack(">I", blob[-4:])[0] == zlib.crc32(blob[4:-4])
        assert struct.unpack("<qI", blob[8:20]) == (2, 0)
        assert list(BitMap.deserialize(blob[20:])) == [1]

    @pytest.mark.parametrize("place", [8, 22, -1])
    def test_damage_is_seen(self, lake: IcebergCatalog, place: int) -> None:
        make_table(lake, 3)
        (file,) = write_deletion_vectors(
            target(lake), "v", [DeletionVector(data_file("a"), [1, 2])]
        )
        io = load(lake).io
        with io.new_input(file.file_path).open() as stream:
            content = bytearray(stream.read())
        end = 4 + file[FIELD["content_size_in_bytes"]]
        content[place if place > 0 else end + place] ^= 1
        with io.new_output(file.file_path).create(overwrite=True) as out:
            out.write(bytes(content))
        with pytest.raises(ValueError, match="The deletion vector at 4 of .* is damaged"):
            read_deletion_vector(io, file)


@pytest.mark.parametrize("sizes", [(600, 30), (30, 600), (500, 20, 700, 10, 30), (25, *[25] * 15)])
def test_duckdb_reads_vectors_of_different_sizes(
    lake: IcebergCatalog, sizes: tuple[int, ...]
) -> None:
    """DuckDB 1.5.5 mixes up adjacent vectors of one Puffin file, and those behind longer ones."""
    make_table(lake, 3, properties={"write.target-file-size-bytes": "1000000"})
    count, expected = 2000, set()
    for number in range(len(sizes)):
        ids = pa.array(range(number * count, (number + 1) * count), pa.int64())
        insert(lake, pa.table({"id": ids, "x": ["x"] * count}))
    vectors = []
    for file, size in zip(live(lake), sizes, strict=True):
        positions = range(0, size * 2, 2)
        vectors.append(DeletionVector(file, positions))
        path = target(lake).path_of(file.file_path)
        ids_of_file = pq.read_table(path)["id"].to_pylist()
        expected |= {n for place, n in enumerate(ids_of_file) if place not in positions}
    delete(lake, *write_deletion_vectors(target(lake), "v", vectors))
    assert [row[0] for row in duckdb_rows(lake, NAME[1], "id")] == sorted(expected)
