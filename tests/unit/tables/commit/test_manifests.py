"""Manifests: what is read of them, and which are not read at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.tables.commit import manifest_writer
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.manifest_writer import write_manifest_list
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    READ_AHEAD,
    DamagedFile,
    iter_manifests,
    read_manifest,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.partition_summaries import (
    FieldValues,
    may_have_partition,
)
from tests.unit.local_tables import (
    FIELD,
    NAME,
    commit,
    data_file,
    home,
    insert,
    live,
    load,
    make_table,
    manifests,
    write,
)

ROWS = pa.table({"id": [1, 2], "x": ["a", "b"]})

FULL = {
    "column_sizes": {1: 10},
    "value_counts": {1: 3},
    "null_value_counts": {1: 0},
    "nan_value_counts": {1: 0},
    "lower_bounds": {1: b"a"},
    "upper_bounds": {1: b"z"},
    "split_offsets": [4],
    "sort_order_id": 3,
}


def listed(lake: IcebergCatalog) -> list[ManifestFile]:
    table = load(lake)
    return read_manifest_list(table.io, table.metadata["snapshots"][-1]["manifest-list"])


def as_dict(file: DataFile) -> dict[str, Any]:
    return {name: file[place] for name, place in FIELD.items()}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entries_are_read_as_they_were_written(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    commit(lake, append(data_file("a", 3, **FULL), data_file("b", 4), properties={}))
    (manifest,) = listed(lake)
    whole, bare = read_manifest(load(lake).io, manifest)
    assert {name: as_dict(whole.data_file)[name] for name in FULL} == FULL
    assert (bare.data_file.file_path, bare.data_file.record_count) == ("b", 4)
    for entry in (whole, bare):
        assert entry.snapshot_id == manifest.added_snapshot_id
        assert entry.sequence_number == entry.file_sequence_number == min(version - 1, 1)
        assert entry.data_file.spec_id == 0


@pytest.mark.parametrize("count", [0, 1, READ_AHEAD, READ_AHEAD + 3])
def test_manifests_come_in_their_order(lake: IcebergCatalog, count: int) -> None:
    make_table(lake)
    for number in range(count):
        commit(lake, append(data_file(str(number)), properties={}))
    wanted = listed(lake) if count else []
    actual = [
        (manifest.manifest_path, [e.data_file.file_path for e in entries])
        for manifest, entries in iter_manifests(load(lake).io, wanted)
    ]
    assert [path for path, _ in actual] == [m.manifest_path for m in wanted]
    assert [paths for _, paths in actual] == [[str(n)] for n in reversed(range(count))]


PARTITIONED = Schema(
    iceberg.NestedField(1, "x", iceberg.StringType(), required=False),
    iceberg.NestedField(2, "d", iceberg.DoubleType(), required=False),
    iceberg.NestedField(3, "n", iceberg.DecimalType(9, 2), required=False),
)
BY_ALL = PartitionSpec(
    *(PartitionField(n, 999 + n, IdentityTransform(), f"p{n}") for n in (1, 2, 3))
)


def random_file(rng: Random, path: str) -> DataFile:
    partition = (
        rng.choice([None, "", "é" * 70]),
        rng.choice([None, 0.1, -0.0, math.nan]),
        rng.choice([None, Decimal("1.10"), Decimal("-9999999.99")]),
    )
    counts = {n: rng.randrange(1 << rng.randrange(1, 40)) for n in rng.sample(range(300), 9)}
    bounds = {n: rng.randbytes(rng.randrange(20)) for n in rng.sample(range(300), 9)}
    chosen: dict[str, Any] = {
        "column_sizes": counts,
        "value_counts": counts,
        "nan_value_counts": {},
        "lower_bounds": bounds,
        "upper_bounds": bounds,
        "key_metadata": b"key",
        "split_offsets": [4, 1 << 40],
        "sort_order_id": 3,
    }
    kept = {name: value for name, value in chosen.items() if rng.random() < 0.7}
    return data_file(path, rng.randrange(1 << 33), partition, **kept)


def seen(lake: IcebergCatalog) -> dict[str, str]:
    """Live entries as PyIceberg reads them, but for their status."""
    table = lake.pyiceberg.load_table(NAME)

    def shown(value: Any) -> Any:
        return dict(value) if isinstance(value, Mapping) else value

    return {
        entry.data_file.file_path: repr(
            [entry.snapshot_id, entry.sequence_number, *map(shown, entry.data_file._data)]
        )
        for manifest in manifests(lake)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("are_copied", [True, False])
def test_entries_that_stay_are_as_they_were(
    lake: IcebergCatalog, version: int, are_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of entries that are written again, the bytes are copied, unless they have inherited an id."""
    copied = []
    real = manifest_writer._stored

    def stored(entry: ManifestEntry, schema: str) -> bytes | None:
        content = real(entry, schema) if are_copied else None
        copied.append(content is not None)
        return content

    monkeypatch.setattr(manifest_writer, "_stored", stored)
    rng, paths = Random(version), itertools.count()
    small = {
        "commit.manifest.target-size-bytes": "9000",
        "commit.manifest.min-count-to-merge": "3" if are_copied else "100",
    }
    make_table(lake, version, PARTITIONED, BY_ALL, small)
    for _ in range(12):
        before = seen(lake)
        gone = set(rng.sample(sorted(before), len(before) // 4))
        new = [random_file(rng, str(next(paths))) for _ in range(rng.randrange(1, 9))]
        removed = tuple(file for file in live(lake) if file.file_path in gone)
        commit(lake, Change(Operation.OVERWRITE, (AddedFiles(tuple(new)),), removed))
        after = seen(lake)
        assert set(after) == set(before) - gone | {file.file_path for file in new}
        assert {path: after[path] for path in before if path not in gone} == {
            path: entry for path, entry in before.items() if path not in gone
        }
    assert are_copied == any(copied)


COUNTS = iceberg.MapType(123, iceberg.IntegerType(), 124, iceberg.LongType())
FOREIGN: dict[str, tuple[Any, Any]] = {
    "map": (COUNTS, {1: 7}),
    "null": (COUNTS, None),
    "list": (iceberg.ListType(125, iceberg.StringType(), element_required=True), ["a"]),
    "struct": (
        iceberg.StructType(iceberg.NestedField(126, "n", iceberg.LongType(), required=True)),
        Record(7),
    ),
    "text": (iceberg.StringType(), "a"),
}


def write_again(lake: IcebergCatalog, name: str, codec: str) -> None:
    """Write the only manifest as others do, with a field of FOREIGN in entries and data files."""
    kind, value = FOREIGN[name]
    table, (manifest,) = load(lake), listed(lake)
    entries = read_manifest(table.io, manifest)
    schema = manifest_writer.entry_schema(3, iceberg.StructType(), manifest_writer.EQUALITY_IDS)
    *fields, data_file = schema.fields
    of_files = iceberg.NestedField(111, "of_files", kind, required=False)
    own = iceberg.StructType(*data_file.field_type.fields, of_files)
    schema = Schema(
        *fields,
        iceberg.NestedField(2, "data_file", own, required=True),
        iceberg.NestedField(900, "of_entries", kind, required=False),
    )
    for entry in entries:
        entry._data += [value]
        entry.data_file._data += [value]
    output = table.io.new_output(manifest.manifest_path)
    # The file must not be shorter than the manifest list says.
    meta = {"avro.codec": codec, "comment": " " * manifest.manifest_length}
    with AvroOutputFile[ManifestEntry](output, schema, "manifest_entry", schema, meta) as writer:
        writer.write_block([*entries])


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard", "snappy"])
@pytest.mark.parametrize("name", FOREIGN)
def test_fields_and_codecs_of_others(lake: IcebergCatalog, name: str, codec: str) -> None:
    """Such as the specification's own `distinct_counts`, which few have."""
    make_table(lake, 3)
    commit(lake, append(*(data_file(path, 3, **FULL) for path in "abc"), properties={}))
    io = load(lake).io
    before = read_manifest(io, *listed(lake))
    write_again(lake, name, codec)
    commit(lake, Change(Operation.DELETE, removed=(before[1].data_file,)))
    after = read_manifest(io, *listed(lake))
    assert [entry.data_file.file_path for entry in after if entry.status != DELETED] == ["a", "c"]
    assert [as_dict(e.data_file) for e in after] == [as_dict(e.data_file) for e in before]


def test_a_damaged_manifest_leaves_nothing_behind(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, ROWS)
    removed, new = live(lake), write(lake, ROWS)
    path = Path(str(local_path(listed(lake)[0].manifest_path)))
    path.write_bytes(path.read_bytes()[:-20])
    said = (
        f"{path.name} cannot be read .*Nothing was written to s.t. Run `iceberg-stream check s.t`"
    )
    with pytest.raises(CatalogError, match=said):
        commit(lake, Change(Operation.OVERWRITE, (AddedFiles(tuple(new)),), tuple(removed)))
    assert [file.name for file in (home(lake) / "data").iterdir()] == [
        Path(file.file_path).name for file in removed
    ]


def test_a_file_that_was_cut_off_anywhere(lake: IcebergCatalog) -> None:
    """Its rest may still be in the memory behind what was read."""
    make_table(lake)
    insert(lake, ROWS)
    (manifest,), table = listed(lake), load(lake)
    location = table.metadata["snapshots"][-1]["manifest-list"]
    files: tuple[tuple[str, Callable[[], Sequence[Any]]], ...] = (
        (manifest.manifest_path, lambda: read_manifest(table.io, manifest)),
        (location, lambda: read_manifest_list(table.io, location)),
    )
    for path, read in files:
        file = Path(str(local_path(path)))
        whole = file.read_bytes()
        assert len(read()) == 1
        # A list without any manifest is whole if it ends behind its header.
        header = len(whole.split(whole[-16:])[0]) + 16
        for size in set(range(len(whole))) - ({header} if path == location else set()):
            file.write_bytes(whole[:size])
            with pytest.raises(DamagedFile, match=file.name):
                read()
        file.write_bytes(whole)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_counts_that_version_1_may_leave_out(lake: IcebergCatalog, version: int) -> None:
    """Version 2 requires them, and in version 3 row ids depend on them."""
    make_table(lake, 1)
    commit(lake, append(data_file("a", 3), data_file("b", 4), properties={}))
    (manifest,), io = listed(lake), load(lake).io
    for position in manifest_writer.COUNTS.values():
        manifest[position] = None
    snapshot = {"sequence-number": 0, **load(lake).metadata["snapshots"][-1]}
    write_manifest_list(io, snapshot["manifest-list"], 1, snapshot, [manifest])
    assert listed(lake)[0].added_files_count is None
    for number in range(2, version + 1):
        upgrade = UpgradeFormatVersionUpdate.model_validate({"format-version": number})
        lake.commit(load(lake), (), (upgrade,))
    commit(lake, append(data_file("c", 5), properties={}))
    counts = [(m.added_files_count, m.added_rows_count) for m in listed(lake)]
    assert counts == [(1, 5), (None, None) if version == 1 else (2, 7)]
    ids = {
        entry.data_file.file_path: entry.data_file[FIELD["first_row_id"]]
        for manifest in listed(lake)
        for entry in read_manifest(io, manifest)
    }
    expected = {"a": 5, "b": 8, "c": 0} if version == 3 else dict.fromkeys("abc")
    assert ids == expected


def summary(
    kind: Any, lower: Any, upper: Any, null: bool = False, nan: bool = False
) -> ManifestFile:
    bounds = [None if v is None else to_bytes(kind, v) for v in (lower, upper)]
    summary = PartitionFieldSummary(null, nan, *bounds)
    return ManifestFile.from_args(_table_format_version=3, partitions=[summary])


LONG, TEXT, DATE = iceberg.LongType(), iceberg.StringType(), iceberg.DateType()
DECIMAL = iceberg.DecimalType(9, 2)


@pytest.mark.parametrize(
    ("kind", "lower", "upper", "values", "expected"),
    [
        (LONG, 3, 5, [3], True),
        (LONG, 3, 5, [5], True),
        (LONG, 3, 5, [4, 9], True),
        (LONG, 3, 5, [2], False),
        (LONG, 3, 5, [6], False),
        (LONG, 3, 5, [2, 6], False),
        (LONG, 3, 5, [], False),
        (LONG, 3, 5, [None], False),
        (TEXT, "b", "d", ["c"], True),
        (TEXT, "b", "d", ["dd"], False),
        (TEXT, "b", "d", ["a"], False),
        (DATE, date(1970, 1, 2), date(1970, 1, 4), [1], True),
        (DATE, date(1970, 1, 2), date(1970, 1, 4), [3], True),
        (DATE, date(1970, 1, 2), date(1970, 1, 4), [4], False),
        (DECIMAL, Decimal("1.00"), Decimal("2.00"), [Decimal("1.50")], True),
        (DECIMAL, Decimal("1.00"), Decimal("2.00"), [Decimal("2.01")], False),
        (iceberg.DoubleType(), 1.0, 2.0, [9.0], True),
    ],
)
def test_summaries_tell_what_is_not_there(
    kind: Any, lower: Any, upper: Any, values: list[Any], expected: bool
) -> None:
    types = iceberg.StructType(iceberg.NestedField(1000, "p", kind, required=False))
    assert (
        may_have_partition(summary(kind, lower, upper), types, 0, FieldValues(values)) is expected
    )
    with_null = summary(kind, lower, upper, null=True)
    assert may_have_partition(with_null, types, 0, FieldValues([*values, None])) is True
    # A summary of the column before it was widened from int.
    if kind == LONG:
        older = summary(iceberg.IntegerType(), lower, upper)
        assert may_have_partition(older, types, 0, FieldValues(values)) is expected


def test_summaries_without_bounds() -> None:
    types = iceberg.StructType(iceberg.NestedField(1000, "p", LONG, required=False))
    nulls = summary(LONG, None, None, null=True)
    assert may_have_partition(nulls, types, 0, FieldValues([None]))
    assert not may_have_partition(nulls, types, 0, FieldValues([1]))
    assert not may_have_partition(summary(LONG, None, None), types, 0, FieldValues([None]))
    for summaries in (None, []):
        unknown = ManifestFile.from_args(_table_format_version=3, partitions=summaries)
        assert may_have_partition(unknown, types, 0, FieldValues([1]))
    gone = iceberg.StructType(iceberg.NestedField(1000, "p", iceberg.UnknownType(), required=False))
    assert may_have_partition(summary(LONG, 1, 1), gone, 0, [7])
