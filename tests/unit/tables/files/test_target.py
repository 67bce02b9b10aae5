"""What a table's metadata ask of its writers, and files that roll over, fail and go out late."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.files import writer
from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    RollingWriter,
    WrittenFile,
    read_footer,
    writer_beside,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.uploads import AT_ONCE, SMALL_FILE, Uploads
from dbt.adapters.iceberg_stream.tables.files.writer import LANES, MAX_OPEN, DataFileWriter
from tests.unit.local_tables import (
    SCHEMA,
    insert,
    live,
    load,
    make_table,
    rows,
    set_metadata,
    write,
)

MIB = 1024 * 1024
SORTED = [
    {"transform": "identity", "source-id": 2, "direction": "desc", "null-order": "nulls-first"},
    {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-last"},
]


def target(lake: IcebergCatalog) -> WriteTarget:
    base = load(lake)
    return WriteTarget.of(base.metadata, base.io)


def options(lake: IcebergCatalog, **properties: str) -> ParquetOptions:
    names = {
        f"write.{key.replace('__', '.').replace('_', '-')}": v for key, v in properties.items()
    }
    make_table(lake, properties=names)
    return target(lake).options


class TestOptions:
    def test_defaults(self, lake: IcebergCatalog) -> None:
        assert options(lake) == ParquetOptions(
            target_size=128 * MIB,
            row_group_size=32 * MIB,
            codec="zstd",
            codec_level=None,
            page_size=MIB,
            dictionary_size=2 * MIB,
        )

    def test_defaults_of_tables_and_tasks_are_the_same(self, lake: IcebergCatalog) -> None:
        assert options(lake) == ParquetOptions()

    def test_those_of_the_table(self, lake: IcebergCatalog) -> None:
        actual = options(
            lake,
            target_file_size_bytes="9000",
            parquet__row_group_size_bytes="5000",
            parquet__compression_codec="GZIP",
            parquet__compression_level="3",
            parquet__page_size_bytes="70",
            parquet__dict_size_bytes="80",
        )
        assert actual == ParquetOptions(9000, 5000, "gzip", 3, 70, 80)

    @pytest.mark.parametrize(
        ("codec", "expected"),
        [("uncompressed", "none"), ("snappy", "snappy"), ("lz4", "lz4"), ("brotli", "brotli")],
    )
    def test_codecs(self, lake: IcebergCatalog, codec: str, expected: str) -> None:
        assert options(lake, parquet__compression_codec=codec).codec == expected

    def test_row_groups_are_no_larger_than_files_or_memory_allows(
        self, lake: IcebergCatalog
    ) -> None:
        actual = options(lake, parquet__row_group_size_bytes=str(64 * MIB))
        assert actual.row_group_size == 32 * MIB

    def test_files_smaller_than_row_groups(self, lake: IcebergCatalog) -> None:
        actual = options(lake, target_file_size_bytes="900")
        assert (actual.target_size, actual.row_group_size) == (900, 900)

    def test_as_the_files_have_them(self, tmp_path: Path) -> None:
        schema = pa.schema([("d", pa.decimal128(9, 2)), ("s", pa.string())])
        files = rolling(tmp_path, schema, ParquetOptions(codec="gzip"))
        files.write(pa.table({"d": pa.array([1, 2], schema.field("d").type), "s": ["a", "b"]}))
        (made,) = files.close()
        metadata = read_footer(made.footer)
        column = metadata.row_group(0).column(0)
        assert (column.physical_type, column.compression) == ("INT32", "GZIP")
        assert metadata.metadata is None
        assert metadata.format_version == "2.6"


class TestSortOrder:
    @pytest.mark.parametrize("order", [SORTED, SORTED[::-1]])
    def test_rows_are_in_it(self, lake: IcebergCatalog, order: list[dict[str, Any]]) -> None:
        make_table(lake)
        fields = {"order-id": 1, "fields": order}
        set_metadata(
            lake, sort_orders=[{"order-id": 0, "fields": []}, fields], default_sort_order_id=1
        )
        given = pa.table({"id": [1, None, 3, 2, 1], "x": ["a", "b", None, "a", "b"]})
        (file,) = write(lake, given)
        with load(lake).io.new_input(file.file_path).open() as stream:
            actual = [tuple(row.values()) for row in pq.read_table(stream).to_pylist()]
        by_x = [(3, None), (1, "b"), (None, "b"), (1, "a"), (2, "a")]
        by_id = [(1, "b"), (1, "a"), (2, "a"), (3, None), (None, "b")]
        assert actual == (by_x if order is SORTED else by_id)
        assert file.sort_order_id == 1

    @pytest.mark.parametrize(
        ("direction", "nulls", "expected"),
        [
            ("ascending", "at_start", [None, -1.0, 3.0, "nan"]),
            ("ascending", "at_end", [-1.0, 3.0, "nan", None]),
            ("descending", "at_start", [None, "nan", 3.0, -1.0]),
            ("descending", "at_end", ["nan", 3.0, -1.0, None]),
        ],
    )
    def test_nan_is_behind_all_numbers(
        self, direction: str, nulls: str, expected: list[Any]
    ) -> None:
        rows = pa.table({"x": [3.0, None, float("nan"), -1.0]})
        ordered = writer.sorted_rows(rows, [("x", direction, nulls)])["x"].to_pylist()
        assert ["nan" if x is not None and x != x else x for x in ordered] == expected

    def test_what_cannot_be_sorted_by_is_left_as_it_is(self, lake: IcebergCatalog) -> None:
        make_table(lake)
        struct = StructType(NestedField(4, "n", LongType(), required=False))
        schema = Schema(*SCHEMA.fields, NestedField(3, "s", struct, required=False))
        base = target(lake)
        for source, transform in (
            (1, BucketTransform(2)),
            (4, IdentityTransform()),
            (9, IdentityTransform()),
        ):
            field = SortField(source, transform, SortDirection.ASC, NullOrder.NULLS_FIRST)
            order = SortOrder(field, order_id=1)
            actual = WriteTarget(schema, base.spec, order, {}, base.location, base.io)
            assert actual.sort_columns == []

    def test_a_file_of_several_row_groups_is_not_sorted(
        self, lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # All rows go to one file: of several, the last may have a single row group.
        monkeypatch.setattr(writer, "LANES", 1)
        make_table(lake, properties={"write.parquet.row-group-size-bytes": "60"})
        fields = {"order-id": 1, "fields": SORTED}
        set_metadata(
            lake, sort_orders=[{"order-id": 0, "fields": []}, fields], default_sort_order_id=1
        )
        files = write(lake, pa.table({"id": list(range(100)), "x": ["abcd"] * 100}))
        assert {file.sort_order_id for file in files} == {None}
        assert sum(file.record_count for file in files) == 100


def rolling(folder: Path, schema: pa.Schema, options: ParquetOptions, **more: Any) -> RollingWriter:
    numbers = iter(range(1000))
    return RollingWriter(
        fs.LocalFileSystem(),
        schema,
        options,
        lambda: f"x://{folder}/{next(numbers)}.parquet",
        lambda location: location.removeprefix("x://"),
        **more,
    )


ID = pa.schema([("id", pa.int64())])
TABLE = pa.table({"id": pa.array(range(100), pa.int64())})


class TestRolling:
    def test_a_new_file_begins_where_one_is_full(self, tmp_path: Path) -> None:
        with rolling(tmp_path, ID, ParquetOptions(target_size=1)) as files:
            files.write(TABLE)
            files.write(TABLE.slice(0, 0))
            files.write(TABLE, may_roll=False)
            files.write(TABLE)
            made = files.close()
        assert [file.row_groups for file in made] == [1, 2]
        assert [file.location for file in made] == [f"x://{tmp_path}/{n}.parquet" for n in (0, 1)]
        assert [pq.read_table(tmp_path / f"{n}.parquet").num_rows for n in (0, 1)] == [100, 200]
        for file in made:
            assert file.size == Path(file.location.removeprefix("x://")).stat().st_size
            assert read_footer(file.footer).num_rows == 100 * file.row_groups

    def test_a_file_is_full_at_its_size(self, tmp_path: Path) -> None:
        first = rolling(tmp_path, ID, ParquetOptions())
        first.write(TABLE)
        size = first._sink.tell()
        first.close()
        for target_size, expected in ((size, 1), (size + 1, 0)):
            files = rolling(tmp_path, ID, ParquetOptions(target_size=target_size))
            files.write(TABLE)
            assert len(files.finished) == expected
            files.close()

    def test_no_rows_make_no_file(self, tmp_path: Path) -> None:
        files = rolling(tmp_path, ID, ParquetOptions())
        files.write(TABLE.slice(0, 0))
        files.roll_if_full()
        assert files.close() == []
        assert list(tmp_path.iterdir()) == []

    def test_a_row_group_is_what_is_given_at_once(self, tmp_path: Path) -> None:
        files = rolling(tmp_path, ID, ParquetOptions())
        many = pa.table({"id": pa.array(range(1_050_000), pa.int64())})
        files.write(many)
        assert [file.row_groups for file in files.close()] == [1]

    @pytest.mark.parametrize("closed", [True, False])
    def test_whatever_goes_wrong_leaves_no_file(self, tmp_path: Path, closed: bool) -> None:
        with (
            pytest.raises(KeyboardInterrupt),
            rolling(tmp_path, ID, ParquetOptions(target_size=1)) as files,
        ):
            files.write(TABLE)
            files.write(TABLE, may_roll=False)
            if closed:
                files.close()
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []
        assert files.finished == []

    def test_folders_are_made(self, tmp_path: Path) -> None:
        folder = tmp_path / "a" / "b"
        files = rolling(folder, ID, ParquetOptions())
        files.write(TABLE)
        files.close()
        assert len(list(folder.iterdir())) == 1

    def test_beside_another(self, tmp_path: Path) -> None:
        files = writer_beside(
            fs.LocalFileSystem(),
            ID,
            ParquetOptions(),
            "s3://b/d/f.parquet",
            f"{tmp_path}/f.parquet",
            "new-",
        )
        files.write(TABLE)
        (made,) = files.close()
        (there,) = tmp_path.iterdir()
        assert there.name.startswith("new-") and there.suffix == ".parquet"
        assert made.location == f"s3://b/d/{there.name}"


class TestUploads:
    def open(self, path: Path, uploads: Uploads, size: int) -> None:
        stream = uploads.open(fs.LocalFileSystem(), str(path))
        assert stream.write(b"x" * size) == size
        assert stream.tell() == size
        stream.flush()
        assert path.exists() == (size > SMALL_FILE)
        stream.close()
        stream.close()

    @pytest.mark.parametrize("size", [0, 1, SMALL_FILE, SMALL_FILE + 1])
    def test_small_files_go_out_when_they_are_closed(self, tmp_path: Path, size: int) -> None:
        uploads = Uploads()
        self.open(tmp_path / "f", uploads, size)
        uploads.finish()
        uploads.shutdown()
        assert (tmp_path / "f").read_bytes() == b"x" * size

    def test_parts_stay_in_their_order(self, tmp_path: Path) -> None:
        uploads = Uploads()
        stream = uploads.open(fs.LocalFileSystem(), str(tmp_path / "f"))
        parts = [bytes([n]) * (SMALL_FILE // 2) for n in range(4)]
        for part in parts:
            stream.write(part)
        stream.close()
        uploads.finish()
        assert (tmp_path / "f").read_bytes() == b"".join(parts)
        uploads.shutdown()

    def test_after_the_end_files_go_at_once(self, tmp_path: Path) -> None:
        uploads = Uploads()
        uploads.shutdown()
        self.open(tmp_path / "f", uploads, 5)
        assert (tmp_path / "f").read_bytes() == b"xxxxx"

    def test_only_so_many_wait(self) -> None:
        uploads, gate, begun = Uploads(), threading.Event(), []

        def upload() -> None:
            begun.append(None)
            gate.wait(10)

        for _ in range(AT_ONCE):
            uploads._send(upload)
        more = threading.Thread(target=lambda: uploads._send(upload))
        more.start()
        more.join(0.1)
        assert more.is_alive()
        gate.set()
        more.join(10)
        uploads.finish()
        assert len(begun) == AT_ONCE + 1
        uploads.shutdown()

    def test_refusals_are_told(self) -> None:
        def refuse() -> None:
            raise OSError("full")

        uploads = Uploads()
        uploads._send(refuse)
        with pytest.raises(OSError, match="full"):
            uploads.finish()
        uploads.shutdown()


class TestDataFileWriter:
    def test_more_partitions_than_open_files(self, lake: IcebergCatalog, tmp_path: Path) -> None:
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
        make_table(lake, spec=spec)
        count = MAX_OPEN + 6
        base = target(lake)
        with DataFileWriter(base, "test", "w") as writer:
            writer.write(pa.table({"id": [0], "x": ["first"]}).to_batches())
            for number in [*range(1, MAX_OPEN), 0, *range(MAX_OPEN, count), 0, 1]:
                writer.write(pa.table({"id": [number], "x": ["v"]}).to_batches())
            assert writer.rows == count + 3
            assert len(writer._open) == MAX_OPEN
            files = writer.close()
        by_partition: dict[int, list[int]] = {}
        for file in files:
            by_partition.setdefault(file.partition[0], []).append(file.record_count)
        # The one that was used least is finished, and begun again.
        assert by_partition[0] == [3]
        assert by_partition[1] == [1, 1]
        assert sorted(by_partition) == list(range(count))
        names = [file.file_path.rsplit("/", 1)[1] for file in files]
        assert names == sorted(names)
        assert names[0] == "test-w-00000.parquet"

    def test_files_of_a_size(self, lake: IcebergCatalog) -> None:
        small = {
            "write.target-file-size-bytes": "2000",
            "write.parquet.row-group-size-bytes": "800",
        }
        make_table(lake, properties=small)
        given = pa.table(
            {"id": list(range(1500)), "x": [str(n * 7919 % 1511) for n in range(1500)]}
        )
        insert(lake, given)
        files = live(lake)
        assert len(files) > 3
        assert max(file.file_size_in_bytes for file in files) < 20_000
        assert [row[0] for row in sorted(rows(lake))] == list(range(1500))

    @pytest.mark.parametrize("spec", [None, "partitioned"])
    def test_whatever_goes_wrong_leaves_no_file(
        self, lake: IcebergCatalog, tmp_path: Path, spec: str | None
    ) -> None:
        by = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
        properties = {
            "write.target-file-size-bytes": "200",
            "write.parquet.row-group-size-bytes": "200",
        }
        make_table(lake, properties=properties, **({"spec": by} if spec else {}))
        with pytest.raises(KeyboardInterrupt), DataFileWriter(target(lake), "test", "w") as writer:
            for number in range(MAX_OPEN + 2):
                writer.write(pa.table({"id": [number] * 5, "x": ["v" * 20] * 5}).to_batches())
            raise KeyboardInterrupt
        assert list(tmp_path.rglob("*.parquet")) == []

    def test_memory_is_bounded(self, lake: IcebergCatalog) -> None:
        """Many partitions wait together for no more than some row groups."""
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
        size = 1000
        make_table(lake, spec=spec, properties={"write.parquet.row-group-size-bytes": str(size)})
        with DataFileWriter(target(lake), "test", "w") as writer:
            for number in range(160):
                writer.write(pa.table({"id": [number % 40], "x": ["v" * 80]}).to_batches())
                held = sum(one.pending_bytes for one in writer._open.values())
                assert held <= LANES * size
            assert held > size
            assert writer._pending_bytes == held
            files = writer.close()
        assert sum(file.record_count for file in files) == 160


def test_paths_of_locations(lake: IcebergCatalog) -> None:
    make_table(lake)
    actual = target(lake)
    assert actual.path_of("file:///a/b") == "/a/b"
    assert isinstance(actual.filesystem(), fs.FileSystem)
    assert WrittenFile("a", 1, b"", 1) == WrittenFile("a", 1, b"", 1)


def test_a_table_has_its_current_schema_spec_and_order(lake: IcebergCatalog) -> None:
    make_table(lake)
    later = Schema(NestedField(2, "y", StringType(), required=False), schema_id=3)
    spec = {"spec-id": 4, "fields": []}
    order = {"order-id": 5, "fields": SORTED[:1]}
    base = load(lake).metadata
    changed = {
        **base,
        "schemas": [later.model_dump(by_alias=True, mode="json"), *base["schemas"]],
        "partition-specs": [*base["partition-specs"], spec],
        "sort-orders": [*base["sort-orders"], order],
        "default-spec-id": 4,
        "default-sort-order-id": 5,
        "current-schema-id": 3,
        "properties": None,
    }
    actual = WriteTarget.of(changed, load(lake).io)
    assert (actual.schema.schema_id, actual.spec.spec_id, actual.sort_order.order_id) == (3, 4, 5)
    assert actual.file_schema.names == ["y"]
    assert actual.sort_columns == [("y", "descending", "at_start")]
    assert actual.properties == {}
