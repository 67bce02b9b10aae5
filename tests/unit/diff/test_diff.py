"""What `diff` says of two versions, and what it reads for that."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
from dbt.adapters.iceberg_stream.diff.difference import TableDifference
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import find_versions
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.unit.local_tables import (
    NAME,
    evolve,
    insert,
    load,
    make_table,
    replace,
    set_metadata,
)

OTHER = ("s", "other")


def rows(*values: tuple[int | None, str | None]) -> pa.Table:
    ids, texts = zip(*values, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(texts, pa.string())})


def diff(
    lake: IcebergCatalog,
    before: str | None = None,
    after: str | None = None,
    key: Sequence[str] | None = None,
    **options: Any,
) -> TableDifference:
    metadata = compare_metadata(*find_versions(lake, NAME, before, after))
    return compare_rows(metadata, key, **options)


def counts(difference: TableDifference) -> tuple[int, int, int]:
    actual = difference.rows
    assert actual is not None
    return actual.added, actual.removed, actual.changed


def tag(lake: IcebergCatalog, name: str, snapshot_id: int, kind: str = "tag") -> None:
    update = SetSnapshotRefUpdate.model_validate(
        {"ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    )
    lake.commit(load(lake), (), (update,))


def field(number: int, name: str, kind: IcebergType, **more: Any) -> NestedField:
    return NestedField(number, name, kind, required=False, **more)


def test_old_and_new_values(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a"), (2, "b"), (3, None)))
    replace(lake, rows((1, "a"), (2, "c"), (4, "d")))
    actual = diff(lake, key=["id"]).rows
    assert actual is not None
    assert (actual.added_rows, actual.removed_rows) == (
        [{"id": 4, "x": "d"}],
        [{"id": 3, "x": None}],
    )
    [changed] = actual.changed_rows
    assert (changed.before, changed.after) == ({"id": 2, "x": "b"}, {"id": 2, "x": "c"})
    assert actual.columns == {"x": 1}
    assert counts(diff(lake, key=["id"], samples=0)) == (1, 1, 1)


def test_the_first_snapshot_and_none(lake: IcebergCatalog) -> None:
    make_table(lake)
    assert counts(diff(lake)) == (0, 0, 0)
    insert(lake, rows((1, "a"), (1, "a")))
    assert counts(diff(lake)) == (2, 0, 0)


def test_a_replaced_table_is_compared_with_what_was_current(lake: IcebergCatalog) -> None:
    """Spark's `create or replace table` commits a snapshot without a parent."""
    make_table(lake)
    insert(lake, rows((1, "a"), (2, "b")))
    replace(lake, rows((1, "a"), (3, "b")))
    snapshots = [dict(snapshot) for snapshot in load(lake).metadata["snapshots"]]
    del snapshots[-1]["parent-snapshot-id"]
    set_metadata(lake, snapshots=snapshots)
    assert counts(diff(lake, key=["id"])) == (1, 1, 0)


def test_names_of_versions(lake: IcebergCatalog) -> None:
    make_table(lake)
    numbers = [insert(lake, rows((n, "a"))).snapshot.snapshot_id for n in range(3)]
    tag(lake, "first", numbers[0])
    tag(lake, "work.1", numbers[1], "branch")
    log = load(lake).metadata["snapshot-log"]
    times = [datetime.fromtimestamp(e["timestamp-ms"] / 1000, timezone.utc) for e in log]
    for name in (
        "first",
        str(numbers[0]),
        times[0].isoformat(),
        f"{times[0]:%Y-%m-%dT%H:%M:%S.%f}",
    ):
        assert diff(lake, name).before.snapshot_id == numbers[0]
        assert counts(diff(lake, name)) == (2, 0, 0)
        assert counts(diff(lake, "main", name)) == (0, 2, 0)
    assert counts(diff(lake, after="work.1")) == (1, 0, 0)
    assert diff(lake, after=f"{times[1]:%Y-%m-%dT%H:%M:%S.%f}Z").after.snapshot_id == numbers[1]


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("12", "has no snapshot 12: it has expired, or the id is wrong. Its newest snapshots are"),
        ("nothing", "`nothing` is not a version of s.t. Give a snapshot id, a tag, a branch"),
        ("1999-01-01", "has no snapshot at 1999-01-01T00:00:00+00:00"),
        ("s.nothing", "There is no table s.nothing in the catalog"),
        ("s.t@nothing", "`nothing` is not a version of s.t."),
        ("a.b.c", "`a.b.c` is not a version of s.t."),
        ("", "`` is not a version of s.t."),
    ],
)
def test_unknown_versions(lake: IcebergCatalog, before: str, problem: str) -> None:
    make_table(lake)
    insert(lake, rows((1, "a")))
    with pytest.raises(DiffError) as error:
        diff(lake, before)
    assert problem in str(error.value)


def test_unknown_tables(lake: IcebergCatalog) -> None:
    with pytest.raises(DiffError, match=r"There is no table s.t in the catalog `lake`"):
        diff(lake)


def test_expired_snapshots(lake: IcebergCatalog) -> None:
    make_table(lake)
    numbers = [insert(lake, rows((n, "a"))).snapshot.snapshot_id for n in range(3)]
    metadata = load(lake).metadata
    # As Iceberg Java does it: the parent's id stays.
    kept = {
        name: [entry for entry in metadata[name] if entry["snapshot-id"] != numbers[1]]
        for name in ("snapshots", "snapshot-log")
    }
    set_metadata(lake, snapshots=kept["snapshots"], snapshot_log=kept["snapshot-log"])
    with pytest.raises(
        DiffError, match=f"The snapshot {numbers[1]}, the one before .* has expired"
    ):
        diff(lake)
    with pytest.raises(DiffError, match=f"has no snapshot {numbers[1]}: it has expired"):
        diff(lake, str(numbers[1]))
    assert counts(diff(lake, str(numbers[0]))) == (2, 0, 0)


def test_only_files_that_differ_are_read(lake: IcebergCatalog) -> None:
    make_table(lake)
    for number in range(5):
        insert(lake, rows(*((number * 1000 + n, "text") for n in range(1000))))
    insert(lake, rows((7000, "new")))
    actual = diff(lake).rows
    assert actual is not None
    assert (actual.files_read, actual.rows_read, actual.added) == (1, 1, 1)
    whole = diff(lake, str(load(lake).metadata["snapshots"][0]["snapshot-id"])).rows
    assert whole is not None
    assert (whole.files_read, whole.rows_read) == (5, 4001)
    assert actual.bytes_read < whole.bytes_read / 4


def test_a_row_that_only_moved(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a"), (2, "b")))
    replace(lake, rows((2, "b"), (1, "a")))
    assert counts(diff(lake)) == counts(diff(lake, key=["id"])) == (0, 0, 0)


def test_two_tables_are_matched_by_name(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a"), (2, "b")))
    columns = (
        field(1, "x", StringType()),
        field(2, "id", IntegerType()),
        field(3, "gone", LongType()),
    )
    make_table(lake, schema=Schema(*columns), name=OTHER)
    other = pa.table({"x": ["a", "c"], "id": pa.array([1, 2], pa.int32()), "gone": [1, 1]})
    ingest(lake, OTHER, other.to_reader(), Mode.APPEND)
    difference = diff(lake, "s.other", key=["ID"])
    assert counts(difference) == (0, 0, 1)
    assert {(c.kind, c.column) for c in difference.schema} == {
        ("widened", "id"),
        ("dropped", "gone"),
    }
    # The other way round, a column is new, and null in the older version.
    back = compare_metadata(*find_versions(lake, OTHER, "s.t"))
    actual = compare_rows(back, ["id"]).rows
    assert actual is not None
    assert actual.columns == {"x": 1, "gone": 2}


def test_nothing_in_common(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a")))
    make_table(lake, schema=Schema(field(1, "y", LongType())), name=OTHER)
    with pytest.raises(DiffError, match="have no column in common"):
        diff(lake, "s.other")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (["nothing"], "has no key column `nothing`. It has `id`, `x`, `new`."),
        (["new"], "has no key column `new`, so its rows cannot be matched."),
        (["x"], "The key `x` is not unique in s.t at snapshot"),
        (["x", "id"], "2 rows have x='a', id=1."),
    ],
)
def test_keys_that_are_none(lake: IcebergCatalog, key: list[str], problem: str) -> None:
    make_table(lake)
    insert(lake, rows((0, "a")))
    new = field(3, "new", LongType())
    evolve(lake, Schema(*load_fields(lake), new, schema_id=1))
    insert(lake, pa.table({"id": [1, 1], "x": ["a", "a"], "new": [1, 2]}))
    with pytest.raises(DiffError) as error:
        diff(lake, key=key)
    assert problem in str(error.value)


def load_fields(lake: IcebergCatalog) -> list[NestedField]:
    return list(Schema.model_validate(load(lake).metadata["schemas"][-1]).fields)


def test_the_identifier_columns_are_the_key(lake: IcebergCatalog) -> None:
    identifier = NestedField(1, "id", LongType(), required=True)
    make_table(
        lake, schema=Schema(identifier, field(2, "x", StringType()), identifier_field_ids=[1])
    )
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
    insert(lake, rows((1, "a")).cast(required))
    replace(lake, rows((1, "b")).cast(required))
    assert counts(diff(lake)) == (0, 0, 1)
    assert counts(diff(lake, key=[])) == (1, 1, 0)


DEEP = StructType(field(11, "a", IntegerType()), field(12, "b", StringType()))


def evolved(kind: IcebergType, new_id: int) -> StructType:
    """DEEP with a renamed, a widened and a new field, in another order."""
    assert isinstance(kind, StructType)
    first, second = (item.field_id for item in kind.fields)
    text, number = field(second, "renamed", StringType()), field(first, "a", LongType())
    return StructType(text, number, field(new_id, "c", DoubleType()))


VALUE = uuid.UUID(int=7)


def test_evolved_columns(lake: IcebergCatalog) -> None:
    """Renamed, reordered, widened and new columns, nested ones included, are the same columns."""
    old = (
        field(1, "id", IntegerType()),
        field(2, "s", DEEP),
        field(3, "l", ListType(31, DEEP, False)),
        field(4, "m", MapType(41, StringType(), 42, DEEP, False)),
        field(5, "f", FloatType()),
        field(6, "d", DecimalType(5, 2)),
        field(7, "u", UUIDType()),
    )
    make_table(lake, schema=Schema(*old))
    deep = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    data = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "s": pa.array(deep, kind),
            "l": pa.array([deep, None, []], pa.list_(kind)),
            "m": pa.array([[("k", deep[0])], None, []], pa.map_(pa.string(), kind)),
            "f": pa.array([1.5, None, float("nan")], pa.float32()),
            "d": pa.array([1, 2, None], pa.decimal128(5, 2)),
            "u": pa.array([VALUE.bytes, None, VALUE.bytes], pa.binary(16)).cast(pa.uuid()),
        }
    )
    insert(lake, data)
    own = {item.name: item.field_type for item in load_fields(lake)}
    listed, mapped = own["l"], own["m"]
    assert isinstance(listed, ListType) and isinstance(mapped, MapType)
    element, value = evolved(listed.element_type, 101), evolved(mapped.value_type, 102)
    new = (
        field(7, "u", UUIDType()),
        field(1, "key", LongType()),
        field(2, "s", evolved(own["s"], 100)),
        field(3, "l", ListType(listed.element_id, element, False)),
        field(4, "m", MapType(mapped.key_id, StringType(), mapped.value_id, value, False)),
        field(5, "f", DoubleType()),
        field(6, "d", DecimalType(9, 2)),
    )
    evolve(lake, Schema(*new, schema_id=1))
    deeper = [{"renamed": "x", "a": 1, "c": None}, None, {"renamed": "y", "a": None, "c": 2.5}]
    kind = pa.struct([("renamed", pa.string()), ("a", pa.int64()), ("c", pa.float64())])
    data = pa.table(
        {
            "u": data["u"],
            "key": pa.array([1, 2, 3], pa.int64()),
            "s": pa.array(deeper, kind),
            "l": pa.array([[*deeper[:2], {"renamed": "y"}], None, []], pa.list_(kind)),
            "m": pa.array([[("k", deeper[0])], None, []], pa.map_(pa.string(), kind)),
            "f": data["f"].cast(pa.float64()),
            "d": data["d"].cast(pa.decimal128(9, 2)),
        }
    )
    replace(lake, data)
    difference = diff(lake, key=["key"])
    assert difference.rows is not None
    assert (counts(difference), difference.rows.columns) == ((0, 0, 1), {"s": 1})
    assert difference.rows.changed_rows[0].before["u"] == VALUE
    assert {(change.kind, change.column) for change in difference.schema} == {
        *(("renamed", "key"), ("widened", "key"), ("widened", "f"), ("widened", "d")),
        *(
            (kind, f"{path}.{column}")
            for path in ("s", "l.element", "m.value")
            for kind, column in (("renamed", "renamed"), ("widened", "a"), ("added", "c"))
        ),
    }
    # Back in time, with the older names and still the wider types.
    first = str(load(lake).metadata["snapshots"][0]["snapshot-id"])
    assert counts(diff(lake, "main", first, key=["id"])) == (0, 0, 0)
    insert(lake, data.slice(0, 1).set_column(1, "key", pa.array([2**40])))
    assert counts(diff(lake, "main", first, key=["id"])) == (0, 1, 0)


def test_columns_that_cannot_be_compared(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a")))
    make_table(
        lake, schema=Schema(field(1, "id", LongType()), field(2, "x", LongType())), name=OTHER
    )
    ingest(lake, OTHER, pa.table({"id": [1], "x": [7]}).to_reader(), Mode.APPEND)
    difference = diff(lake, "s.other", key=["id"])
    assert difference.rows is not None
    assert (counts(difference), difference.rows.excluded) == ((0, 0, 0), ["x"])
    assert [change.kind for change in difference.schema] == ["type changed"]
    with pytest.raises(DiffError, match="The key column `x` has types that cannot be compared"):
        diff(lake, "s.other", key=["x"])


def test_initial_defaults(lake: IcebergCatalog) -> None:
    make_table(lake, version=3)
    insert(lake, rows((1, "a"), (2, "b")))
    new = (
        field(3, "n", LongType(), initial_default=5, write_default=5),
        field(4, "day", DateType(), initial_default="2026-01-31", write_default="2026-01-31"),
    )
    evolve(lake, Schema(*load_fields(lake), *new, schema_id=1))
    day = pa.array([datetime(2026, 1, 31, tzinfo=timezone.utc).date()] * 2)
    replace(lake, pa.table({"id": [1, 2], "x": ["a", "b"], "n": [5, 6], "day": day}))
    difference = diff(lake, key=["id"])
    assert difference.rows is not None
    assert (counts(difference), difference.rows.columns) == ((0, 0, 1), {"n": 1})


def test_metadata_alone(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, rows((1, "a"), (2, "b")))
    replace(lake, rows((1, "a")))
    files = compare_metadata(*find_versions(lake, NAME)).files
    assert (files.rows_before, files.rows_after) == (2, 1)
    assert (files.removed.files, files.removed.rows) == (1, 2)
    assert (files.added.files, files.added.rows, files.added.bytes > 0) == (1, 1, True)


def test_a_dropped_column_back_in_time(lake: IcebergCatalog) -> None:
    """It has the values of the files, read or not."""
    make_table(lake)
    first = insert(lake, rows((1, "a"), (2, "b"))).snapshot.snapshot_id
    evolve(lake, Schema(load_fields(lake)[0], schema_id=1))
    insert(lake, pa.table({"id": [3]}))
    assert counts(diff(lake, key=["id"])) == (1, 0, 0)
    assert counts(diff(lake, "main", str(first), key=["id"])) == (0, 1, 0)
