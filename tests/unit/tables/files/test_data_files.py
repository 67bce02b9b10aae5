"""Descriptors of data files: bounds and counts by which engines leave files out."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.data_files import Describer
from dbt.adapters.iceberg_stream.tables.files.parquet import RollingWriter, WrittenFile
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import insert, live, make_table, write

UTC = timezone.utc
NANOS = 1_700_000_000_123_456_789
# An Iceberg type, rising values of its column, and lower and upper bound as the table stores them.
EXACT: dict[str, tuple[iceberg.IcebergType, list[Any], tuple[Any, Any]]] = {
    "boolean": (iceberg.BooleanType(), [False, True], (False, True)),
    "int": (iceberg.IntegerType(), [-(2**31), 2**31 - 1], (-(2**31), 2**31 - 1)),
    "long": (iceberg.LongType(), [-(2**63), 2**63 - 1], (-(2**63), 2**63 - 1)),
    "float": (iceberg.FloatType(), [-1.5, 2.25], (-1.5, 2.25)),
    "double": (iceberg.DoubleType(), [-1e300, 1e300], (-1e300, 1e300)),
    "date": (iceberg.DateType(), [date(1969, 12, 31), date(2026, 1, 1)], (-1, 20454)),
    "time": (iceberg.TimeType(), [time(0), time(23, 59, 59, 999999)], (0, 86_399_999_999)),
    "timestamp": (
        iceberg.TimestampType(),
        [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1, 0, 0, 1)],
        (-1, 1_000_000),
    ),
    "timestamptz": (iceberg.TimestamptzType(), [datetime(1970, 1, 1, tzinfo=UTC)] * 2, (0, 0)),
    "nanoseconds": (iceberg.TimestampNanoType(), [NANOS - 1, NANOS], (NANOS - 1, NANOS)),
    "nanoseconds before 1970": (iceberg.TimestamptzNanoType(), [-1_001, -1], (-1_001, -1)),
    "small decimal": (
        iceberg.DecimalType(9, 2),
        [Decimal("-0.01"), Decimal("1.00")],
        (Decimal("-0.01"), Decimal("1.00")),
    ),
    "large decimal": (
        iceberg.DecimalType(38, 0),
        [Decimal(-(10**37)), Decimal(10**37)],
        (Decimal(-(10**37)), Decimal(10**37)),
    ),
    "string": (iceberg.StringType(), ["", "zoë"], ("", "zoë")),
    "binary": (iceberg.BinaryType(), [b"", b"\xff\xff"], (b"", b"\xff\xff")),
    "fixed": (iceberg.FixedType(2), [b"\x00\x01", b"\xff\xff"], (b"\x00\x01", b"\xff\xff")),
}


def column(kind: iceberg.IcebergType, values: list[Any]) -> pa.Table:
    schema = file_schema(Schema(iceberg.NestedField(1, "v", kind, required=False)))
    stored = schema.field("v").type
    if stored == pa.uuid():
        array = pa.array(values, pa.binary(16)).cast(stored)
    elif pa.types.is_timestamp(stored) and any(isinstance(v, int) for v in values):
        array = pa.array(values, pa.int64()).cast(stored)
    else:
        array = pa.array(values, stored)
    return pa.table({"v": array})


def described(
    lake: IcebergCatalog, kind: iceberg.IcebergType, rows: pa.Table, **properties: str
) -> DataFile:
    make_table(
        lake, 3, Schema(iceberg.NestedField(1, "v", kind, required=False)), properties=properties
    )
    (file,) = write(lake, rows)
    return file


def bounds(file: DataFile, kind: iceberg.IcebergType) -> tuple[Any, Any]:
    lower, upper = (
        from_bytes(kind, each[1]) if 1 in each else None
        for each in (file.lower_bounds, file.upper_bounds)
    )
    return lower, upper


def test_uuids_have_no_statistics(lake: IcebergCatalog, caplog: pytest.LogCaptureFixture) -> None:
    """Spark would not find them: Iceberg Java compares UUIDs in another order."""
    kind = iceberg.UUIDType()
    file = described(lake, kind, column(kind, [uuid.UUID(int=n).bytes for n in (1, 1 << 127)]))
    assert bounds(file, kind) == (None, None)
    with pq.ParquetFile(file.file_path.removeprefix("file://")) as parquet:
        assert not parquet.metadata.row_group(0).column(0).is_stats_set
    assert caplog.text == ""


def test_text_that_is_not_utf_8_has_counts_and_no_bounds(lake: IcebergCatalog) -> None:
    stored = pa.array([b"a", None, b"\xff"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, stored.buffers(), 1)
    file = described(lake, iceberg.StringType(), pa.table({"v": texts}))
    assert bounds(file, iceberg.StringType()) == (None, None)
    assert (file.value_counts[1], file.null_value_counts[1]) == (3, 1)


@pytest.mark.parametrize("name", EXACT)
def test_bounds_are_the_least_and_the_greatest_value(lake: IcebergCatalog, name: str) -> None:
    kind, values, expected = EXACT[name]
    file = described(lake, kind, column(kind, [*reversed(values), None]))
    assert bounds(file, kind) == expected
    assert (file.record_count, file.value_counts[1]) == (len(values) + 1, len(values) + 1)
    assert file.null_value_counts[1] == 1


@pytest.mark.parametrize("name", EXACT)
def test_bounds_are_of_all_row_groups(lake: IcebergCatalog, name: str) -> None:
    kind, values, expected = EXACT[name]
    schema = Schema(iceberg.NestedField(1, "v", kind, required=False))
    base = make_table(lake, 3, schema)
    target = WriteTarget.of(base.metadata, base.io)
    writer = RollingWriter(
        target.filesystem(),
        target.file_schema,
        target.options,
        lambda: f"{target.location}/x.parquet",
        target.path_of,
    )
    for value in [values[-1], *values[:-1], None]:
        writer.write(column(kind, [value]).cast(target.file_schema))
    (made,) = writer.close()
    file = Describer(schema, {}, 0).describe(made, None)
    assert len(file.split_offsets) == len(values) + 1
    assert bounds(file, kind) == expected
    assert (file.value_counts[1], file.null_value_counts[1]) == (len(values) + 1, 1)


@pytest.mark.parametrize("name", EXACT)
def test_no_bounds_of_nulls(lake: IcebergCatalog, name: str) -> None:
    kind, _, _ = EXACT[name]
    file = described(lake, kind, column(kind, [None, None]))
    assert bounds(file, kind) == (None, None)
    assert file.null_value_counts[1] == 2


@pytest.mark.parametrize("mode", ["counts", "none"])
@pytest.mark.parametrize("name", EXACT)
def test_no_bounds_where_the_table_wants_none(lake: IcebergCatalog, name: str, mode: str) -> None:
    kind, values, _ = EXACT[name]
    wanted = {"write.metadata.metrics.default": mode}
    file = described(lake, kind, column(kind, values), **wanted)
    assert bounds(file, kind) == (None, None)
    assert (1 in (file.value_counts or {})) == (mode == "counts")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (iceberg.TimestampType(), [-(2**63), 2**63 - 1]),
        (iceberg.TimestampNanoType(), [-(2**63), 2**63 - 1]),
        (iceberg.DateType(), [-(2**31), 2**31 - 1]),
    ],
)
def test_times_that_python_does_not_have(
    lake: IcebergCatalog, kind: iceberg.IcebergType, values: list[int]
) -> None:
    number = pa.int32() if isinstance(kind, iceberg.DateType) else pa.int64()
    stored = column(kind, []).schema.field("v").type
    rows = pa.table({"v": pa.array(values, number).cast(stored)})
    assert bounds(described(lake, kind, rows), kind) == tuple(values)


@pytest.mark.parametrize(
    ("value", "lower", "upper"),
    [
        ("a" * 16, "a" * 16, "a" * 16),
        ("a" * 17, "a" * 16, "a" * 15 + "b"),
        ("a" * 15 + "\U0010ffff" * 2, "a" * 15 + "\U0010ffff", "a" * 14 + "b\U0010ffff"),
        ("\U0010ffff" * 17, "\U0010ffff" * 16, None),
        # U+D800 to U+DFFF are no characters.
        ("a" * 15 + "\ud7ff" * 2, "a" * 15 + "\ud7ff", "a" * 15 + "\ue001"),
    ],
)
def test_long_texts(lake: IcebergCatalog, value: str, lower: str, upper: str | None) -> None:
    kind = iceberg.StringType()
    actual = bounds(described(lake, kind, column(kind, [value])), kind)
    assert actual == (lower, upper)
    assert upper is None or upper.encode() >= value.encode()


def test_nanoseconds_as_a_reader_finds_them(lake: IcebergCatalog) -> None:
    kind = iceberg.TimestampNanoType()
    make_table(lake, 3, Schema(iceberg.NestedField(1, "v", kind, required=False)))
    insert(lake, column(kind, [NANOS]))
    # As read from the manifest by PyIceberg's parser.
    (file,) = live(lake)
    assert from_bytes(kind, file.upper_bounds[1]) == NANOS


def test_nested_columns_have_no_wrong_bounds(lake: IcebergCatalog) -> None:
    struct = iceberg.StructType(
        iceberg.NestedField(2, "t", iceberg.TimestampNanoType(), required=False)
    )
    items = iceberg.ListType(4, iceberg.LongType(), element_required=False)
    schema = Schema(
        iceberg.NestedField(1, "s", struct, required=False),
        iceberg.NestedField(3, "l", items, required=False),
    )
    make_table(lake, 3, schema)
    stored = file_schema(schema)
    times = pa.array([NANOS, None], pa.int64()).cast(pa.timestamp("ns"))
    rows = pa.table(
        [
            pa.StructArray.from_arrays([times], fields=list(stored.field("s").type)),
            pa.array([[1, 2], []], stored.field("l").type),
        ],
        schema=stored,
    )
    (file,) = write(lake, rows)
    assert all(value == NANOS.to_bytes(8, "little") for value in file.upper_bounds.values())
    assert 4 not in file.upper_bounds


def written(folder: Path, rows: pa.Table) -> WrittenFile:
    pq.write_table(rows, folder / "file")
    content = (folder / "file").read_bytes()
    size = int.from_bytes(content[-8:-4], "little") + 8
    return WrittenFile("file", len(content), content[-size:], 1)


def test_columns_that_have_changed_since_the_file_was_written(tmp_path: Path) -> None:
    """Two columns have swapped their names, and two are new under a name that the file has."""

    def fields(*names: tuple[int, str], nested: int) -> Schema:
        struct = iceberg.StructType(
            iceberg.NestedField(nested, "n", iceberg.LongType(), required=False)
        )
        columns = [
            iceberg.NestedField(key, name, iceberg.LongType(), required=False)
            for key, name in names
        ]
        return Schema(*columns, iceberg.NestedField(4, "s", struct, required=False))

    stored = file_schema(fields((1, "a"), (2, "b"), (3, "c"), nested=5))
    rows = pa.table(
        [pa.array([number, number + 1]) for number in (10, 20, 30)]
        + [pa.array([{"n": 50}, None], stored.field("s").type)],
        schema=stored,
    )
    now = fields((2, "a"), (1, "b"), (6, "c"), nested=7)
    described = Describer(now, {}, 0).describe(written(tmp_path, rows), None)
    lower = {k: from_bytes(iceberg.LongType(), v) for k, v in described.lower_bounds.items()}
    assert lower == {1: 10, 2: 20}
    assert set(described.null_value_counts) == {1, 2}


@pytest.mark.parametrize("kind", [iceberg.FloatType(), iceberg.DoubleType()])
def test_no_bounds_of_keys_that_may_be_nan(kind: iceberg.IcebergType, tmp_path: Path) -> None:
    """Engines compare the bounds of a delete file with those of data files, which leave out NaN."""
    file = written(tmp_path, column(kind, [7.0, float("nan")]))
    describer = Describer(Schema(iceberg.NestedField(1, "v", kind, required=False)), {}, 0)
    assert bounds(describer.describe(file, None), kind) == (7.0, 7.0)
    deletes = DataFileContent.EQUALITY_DELETES
    described = describer.describe(file, None, content=deletes, equality_ids=[1])
    assert bounds(described, kind) == (None, None)


@pytest.mark.parametrize("values", [["v" * 5000], ["v" * 5000, "a"], ["v" * 5000, None]])
def test_texts_that_arrow_gives_no_bounds_of(
    lake: IcebergCatalog, values: list[str | None]
) -> None:
    kind = iceberg.StringType()
    actual = described(
        lake, kind, column(kind, values), **{"write.metadata.metrics.default": "full"}
    )
    assert bounds(actual, kind) == (None, None)
    assert actual.null_value_counts[1] == values.count(None)
