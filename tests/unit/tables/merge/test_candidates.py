"""Which manifests and files a merge reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit import manifests
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries, live_files
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.candidates import (
    PartitionsOfRows,
    may_hold,
    may_satisfy,
)
from dbt.adapters.iceberg_stream.tables.merge.conditions import Comparison, Condition
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from tests.unit.local_tables import (
    NAME,
    SCHEMA,
    commit,
    data_file,
    evolve,
    insert,
    live,
    load,
    make_table,
    rows,
    write,
)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Locations of the manifests that are read."""
    actual: list[str] = []
    original = manifests.read_manifest

    def noting(io: FileIO, manifest: ManifestFile) -> Any:
        actual.append(manifest.manifest_path)
        return original(io, manifest)

    monkeypatch.setattr(manifests, "read_manifest", noting)
    return actual


def table(
    lake: IcebergCatalog, transform: Transform[Any, Any], *ids: int | None, source: int = 1
) -> None:
    """A manifest for each id."""
    make_table(lake, spec=PartitionSpec(PartitionField(source, 1000, transform, "p")))
    for number in ids:
        insert(lake, pa.table({"id": pa.array([number], pa.int64()), "x": [f"x{number}"]}))


def merge(lake: IcebergCatalog, ids: list[int | None], keys: tuple[str, ...] = ("id",)) -> None:
    source = pa.table({"id": pa.array(ids, pa.int64()), "x": ["new"] * len(ids)})
    updates = tuple(name for name in ("x", "id") if name not in keys)
    plan = MergePlan(keys, updates, True)
    RewriteMerge(lake, NAME, Source(source, keys), plan, lambda _: None, "w", {}).run(load(lake))


@pytest.mark.parametrize(
    ("transform", "distinct"),
    [(IdentityTransform(), 1), (TruncateTransform(10), 1), (BucketTransform(1000), 1)],
)
def test_a_merge_reads_manifests_of_its_partitions(
    lake: IcebergCatalog, read: list[str], transform: Any, distinct: int
) -> None:
    table(lake, transform, 5, 15, 25, 35, None)
    merge(lake, [15])
    # To find the file, and from memory to say that it is gone.
    assert len(read) == distinct
    assert (15, "new") in rows(lake)
    assert len(rows(lake)) == 5


def above(least: int) -> Condition:
    return Comparison("id", ">", (pa.scalar(least),))


@pytest.mark.parametrize("transform", [IdentityTransform(), TruncateTransform(10)])
def test_a_condition_leaves_out_manifests(
    lake: IcebergCatalog, read: list[str], transform: Any
) -> None:
    """Keys that partition nothing, as they often are."""
    table(lake, transform, 5, 15, 25, 35, None)
    source = Source(pa.table({"id": [15, 25], "x": ["x15", "x25"]}), ("x",))
    plan = MergePlan(("x",), ("id",), True, condition=above(19))
    RewriteMerge(lake, NAME, source, plan, lambda _: None, "w", {}).run(load(lake))
    assert len(set(read)) == 2
    # The row 15 matches none of those that the condition leaves.
    assert sorted(map(str, rows(lake))) == sorted(
        map(str, [(5, "x5"), (15, "x15"), (15, "x15"), (25, "x25"), (35, "x35"), (None, "xNone")])
    )


@pytest.mark.parametrize(("lower", "upper"), [("\ufffd", "z"), ("a", "b\ufffd"), ("a", "z")])
def test_bounds_that_java_replaced_leave_out_nothing(lower: str, upper: str) -> None:
    bounds = {"lower_bounds": {2: lower.encode()}, "upper_bounds": {2: upper.encode()}}
    condition = Comparison("x", "=", (pa.scalar("f"),))
    assert may_satisfy(condition, SCHEMA)(data_file("a", **bounds))
    bounds["upper_bounds"] = {2: b"e"}
    bounds["lower_bounds"] = {2: b"a"}
    assert not may_satisfy(condition, SCHEMA)(data_file("a", **bounds))


@pytest.mark.parametrize("transform", [YearTransform(), DayTransform(), IdentityTransform()])
def test_years_that_python_does_not_have(lake: IcebergCatalog, transform: Any) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "d", DateType(), required=False),
    )
    make_table(lake, schema=schema, spec=PartitionSpec(PartitionField(2, 1000, transform, "p")))
    insert(lake, pa.table({"id": [1], "d": pa.array([20000], pa.date32())}))
    day = pa.scalar(4_000_000, pa.int32()).cast(pa.date32())
    new = Source(pa.table({"id": [1], "d": pa.array([20001], pa.date32())}), ("id",))
    plan = MergePlan(("id",), ("d",), True, condition=Comparison("d", "<", (day,)))
    merged = RewriteMerge(lake, NAME, new, plan, lambda _: None, "w", {}).run(load(lake))
    assert (merged.updated, merged.inserted) == (1, 0)


@pytest.mark.parametrize("properties", [{}, {"write.merge.mode": "merge-on-read"}])
def test_rows_that_satisfy_a_condition_are_replaced(
    lake: IcebergCatalog, properties: dict[str, str]
) -> None:
    make_table(lake, properties=properties)
    ids = [1, 20, None, 30, 20]
    insert(lake, pa.table({"id": pa.array(ids, pa.int64()), "x": list("abcde")}))
    insert(lake, pa.table({"id": [40], "x": ["f"]}))
    for again in range(2):
        new = Source(pa.table({"id": [20, 20, 1], "x": ["g", "h", str(again)]}), ("id",))
        plan = MergePlan(("id",), (), True, Deletes.SATISFYING, above(10))
        merged = RewriteMerge(lake, NAME, new, plan, lambda _: None, f"w{again}", {}).run(
            load(lake)
        )
        assert (merged.deleted, merged.inserted) == ((2, 3) if again else (4, 3))
    rest = [(1, "a"), (None, "c"), (1, "0"), (1, "1")]
    assert sorted(map(str, rows(lake))) == sorted(map(str, [*rest, (20, "g"), (20, "h")]))


def test_null_keys_are_in_the_partition_of_nulls(lake: IcebergCatalog, read: list[str]) -> None:
    table(lake, IdentityTransform(), 5, None)
    merge(lake, [None])
    assert len(set(read)) == 1
    assert rows(lake) == [(5, "x5"), (None, "new")]


def test_new_keys_read_nothing(lake: IcebergCatalog, read: list[str]) -> None:
    table(lake, IdentityTransform(), 5, 15)
    merge(lake, [7])
    assert read == []
    assert len(rows(lake)) == 3


def test_keys_that_partition_nothing_leave_out_nothing(
    lake: IcebergCatalog, read: list[str]
) -> None:
    table(lake, IdentityTransform(), 5, 15)
    source = pa.table({"id": [5], "x": ["x5"]})
    possible = PartitionsOfRows(source, ("x",), load(lake).metadata).may_be_in
    base = load(lake)
    actual = live_files(base.io, base.metadata, manifests=possible)
    assert len(actual) == len(set(read)) == 2


def test_each_spec_is_looked_at_by_itself(lake: IcebergCatalog, read: list[str]) -> None:
    table(lake, IdentityTransform(), 5, 15)
    evolve(
        lake, spec=PartitionSpec(PartitionField(1, 1001, TruncateTransform(100), "q"), spec_id=1)
    )
    insert(lake, pa.table({"id": [15, 250], "x": ["again", "other"]}))
    evolve(lake, spec=PartitionSpec(spec_id=2))
    insert(lake, pa.table({"id": [5], "x": ["everywhere"]}))
    base, source = load(lake), pa.table({"id": [5]})
    actual = live_files(
        base.io,
        base.metadata,
        manifests=PartitionsOfRows(source, ("id",), base.metadata).may_be_in,
    )
    # The partition of 5, that of 0 to 99 with the one of 250 in its manifest, and no partition.
    assert len(set(read)) == 3
    assert sorted(file.spec_id for file in actual) == [0, 1, 1, 2]
    assert SCHEMA.find_field("id").field_id == 1


def test_files_that_fail_their_test_are_left_out(lake: IcebergCatalog) -> None:
    table(lake, IdentityTransform(), 5, 15)
    base = load(lake)
    every = live_files(base.io, base.metadata)
    assert [file.file_path for file in every] == [file.file_path for file in live(lake)]
    one = live_files(base.io, base.metadata, test=lambda f: f.file_path == every[1].file_path)
    assert [file.file_path for file in one] == [every[1].file_path]
    assert live_entries(base.io, base.metadata, ManifestContent.DELETES) == []
    assert live_files(base.io, base.metadata, branch="none") == []


def test_a_commit_reads_manifests_of_the_partitions_it_changes(
    lake: IcebergCatalog, read: list[str]
) -> None:
    table(lake, IdentityTransform(), 5, 15, None, 25)
    old = [file for file in live(lake) if file.partition[0] in (15, None)]
    new = write(lake, pa.table({"id": [35], "x": ["y"]}))
    commit(lake, Change(Operation.OVERWRITE, (AddedFiles(tuple(new)),), removed=tuple(old)))
    assert len(read) == len(set(read)) == 2
    assert [row[0] for row in rows(lake)] == [25, 35, 5]


def test_a_table_without_snapshots(lake: IcebergCatalog) -> None:
    base = make_table(lake)
    assert live_files(base.io, base.metadata) == []


def test_bounds_of_values_that_are_not_utf8() -> None:
    """Java writes replacement characters, which are greater than the bytes."""
    field = NestedField(1, "k", StringType(), required=False)
    bounds = {"lower_bounds": {1: b"A"}, "upper_bounds": {1: "\ufffd".encode()}}
    keys = pa.table({"k": ["\U0001f600"]})
    assert may_hold(keys, ["k"], Schema(field))(data_file("s3://b/f.parquet", **bounds))


@pytest.mark.parametrize(("nans", "may"), [(0, False), (1, True), (None, True)])
def test_bounds_do_not_include_nan(nans: int | None, may: bool) -> None:
    bounds = {
        "lower_bounds": {1: struct.pack("<d", -0.0)},
        "upper_bounds": {1: struct.pack("<d", 2)},
    }
    counts = {} if nans is None else {"nan_value_counts": {1: nans}}
    file = data_file("f", 2, **bounds, null_value_counts={1: 0}, **counts)
    schema = Schema(NestedField(1, "d", DoubleType(), required=False))

    def holds(*values: float) -> bool:
        return may_hold(pa.table({"d": values}), ["d"], schema)(file)

    assert (holds(float("nan")), holds(0.0), holds(3.0), holds(1.0, 9.0)) == (
        may,
        True,
        False,
        True,
    )


KINDS: dict[str, tuple[PrimitiveType, Callable[[Random], Any]]] = {
    "long": (LongType(), lambda random: random.randrange(-5, 9)),
    "double": (DoubleType(), lambda random: random.choice([-1.5, -0.0, 0.0, 2.0, 7.5])),
    "boolean": (BooleanType(), lambda random: random.random() < 0.5),
    "decimal": (DecimalType(9, 2), lambda random: Decimal(random.randrange(-300, 300)).scaleb(-2)),
    "date": (DateType(), lambda random: random.randrange(-400, 400)),
    "timestamp": (TimestampType(), lambda random: random.randrange(-(10**9), 10**9)),
    "string": (StringType(), lambda random: random.choice(["a", "b", "é", "\ue000", "😀"])),
    "binary": (BinaryType(), lambda random: bytes([random.randrange(256)])),
}


@pytest.mark.parametrize("seed", range(30))
def test_random_bounds(seed: int) -> None:
    """A file may hold a row exactly if each of its key columns is within the bounds that hold."""
    random = Random(f"bounds {seed}")
    kinds = [KINDS[random.choice(list(KINDS))] for _ in range(random.randrange(1, 4))]
    fields = [
        NestedField(number, f"k{number}", kind, required=False)
        for number, (kind, _) in enumerate(kinds, 1)
    ]
    schema = Schema(*fields)

    def value(make: Callable[[Random], Any]) -> Any:
        found = None if random.random() < 0.15 else make(random)
        return float("nan") if isinstance(found, float) and random.random() < 0.15 else found

    for _ in range(40):
        count = random.randrange(1, 7)
        columns = [[value(make) for _ in range(count)] for _, make in kinds]
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        keys = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow
        )
        file, holds = _file_with_bounds(random, kinds)
        wanted = any(
            all(hold(item) for hold, item in zip(holds, row, strict=True))
            for row in zip(*columns, strict=True)
        )
        assert may_hold(keys, keys.schema.names, schema)(file) is wanted, (columns, file)


def _file_with_bounds(
    random: Random, kinds: Sequence[tuple[PrimitiveType, Callable[[Random], Any]]]
) -> tuple[DataFile, list[Callable[[Any], bool]]]:
    """A file, and for each column what a value must be for the file to hold it."""
    statistics: dict[str, dict[int, Any]] = {
        name: {}
        for name in ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts")
    }
    holds = []
    for number, (kind, make) in enumerate(kinds, 1):
        lower, upper = sorted([make(random), make(random)])
        nulls, nans = random.choice([None, 0, 1]), random.choice([None, 0, 1])
        has_bounds = random.random() < 0.8
        if has_bounds:
            statistics["lower_bounds"][number] = to_bytes(kind, lower)
            statistics["upper_bounds"][number] = to_bytes(kind, upper)
        if nulls is not None:
            statistics["null_value_counts"][number] = nulls
        if nans is not None:
            statistics["nan_value_counts"][number] = nans

        def hold(
            item: Any,
            bounds: tuple[Any, Any] | None = (lower, upper) if has_bounds else None,
            nulls: int | None = nulls,
            nans: int | None = nans,
        ) -> bool:
            if bounds is None:
                return True
            if item is None:
                return nulls != 0
            return nans != 0 if item != item else bool(bounds[0] <= item <= bounds[1])

        holds.append(hold)
    return data_file("f", 2, **statistics), holds
