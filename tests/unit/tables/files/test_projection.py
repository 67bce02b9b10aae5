"""Files of random schemas, read with a random later schema, against a model in Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
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
    TimestampType,
    UUIDType,
)

from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.reader import read_rows

WIDER: dict[type[IcebergType], IcebergType] = {
    IntegerType: LongType(),
    FloatType: DoubleType(),
    DateType: TimestampType(),
}
PLAIN = [IntegerType(), FloatType(), DateType(), StringType()]
DEFAULTS = {LongType: 7, StringType: "it's"}


@dataclass
class Evolution:
    """Makes a schema and its next one; ids are never given twice."""

    rng: Random
    ids: Iterator[int]

    def kind(self, depth: int) -> IcebergType:
        made = self.rng.choice(["plain", "plain", "struct", "list", "map"][: 5 if depth else 2])
        if made == "struct":
            return StructType(*self.fields(depth - 1))
        if made == "list":
            return ListType(next(self.ids), self.kind(depth - 1), element_required=False)
        if made == "map":
            key, value = next(self.ids), next(self.ids)
            return MapType(key, StringType(), value, self.kind(depth - 1), value_required=False)
        return self.rng.choice(PLAIN)

    def fields(self, depth: int) -> list[NestedField]:
        names = self.rng.sample("abcdef", self.rng.randint(1, 3))
        return [
            NestedField(next(self.ids), name, self.kind(depth), required=False) for name in names
        ]

    def later(self, kind: IcebergType) -> IcebergType:
        if isinstance(kind, StructType):
            return StructType(*self.later_fields(kind.fields))
        if isinstance(kind, ListType):
            return kind.model_copy(update={"element_type": self.later(kind.element_type)})
        if isinstance(kind, MapType):
            return kind.model_copy(update={"value_type": self.later(kind.value_type)})
        return WIDER.get(type(kind), kind) if self.rng.random() < 0.4 else kind

    def later_fields(self, fields: tuple[NestedField, ...]) -> list[NestedField]:
        kept = [field for field in fields if self.rng.random() < 0.8]
        kinds = self.rng.choices([LongType(), StringType(), FloatType()], k=self.rng.randint(0, 2))
        added = [
            NestedField(
                next(self.ids),
                "x",
                kind,
                required=False,
                initial_default=self.rng.choice([None, DEFAULTS.get(type(kind))]),
            )
            for kind in [*kinds, *([] if kept or kinds else [LongType()])]
        ]
        changed = [f.model_copy(update={"field_type": self.later(f.field_type)}) for f in kept]
        # Names move from one field to another.
        every = self.rng.sample([*changed, *added], len(changed) + len(added))
        return [f.model_copy(update={"name": f"n {n}"}) for n, f in enumerate(every)]


def value(rng: Random, kind: IcebergType) -> Any:
    """A value of a type, as PyArrow takes it."""
    if rng.random() < 0.2:
        return None
    if isinstance(kind, StructType):
        return {field.name: value(rng, field.field_type) for field in kind.fields}
    if isinstance(kind, ListType):
        return [value(rng, kind.element_type) for _ in range(rng.randint(0, 2))]
    if isinstance(kind, MapType):
        return [(key, value(rng, kind.value_type)) for key in "kl"[: rng.randint(0, 2)]]
    number = rng.randint(0, 9)
    return str(number) if isinstance(kind, StringType) else number


def expected(old: Any, before: IcebergType, now: IcebergType) -> Any:
    """What a value of a file is now."""
    if old is None:
        return None
    if isinstance(before, ListType) and isinstance(now, ListType):
        return [expected(item, before.element_type, now.element_type) for item in old]
    if isinstance(before, MapType) and isinstance(now, MapType):
        return [(key, expected(item, before.value_type, now.value_type)) for key, item in old]
    if not isinstance(before, StructType) or not isinstance(now, StructType):
        is_time = isinstance(before, DateType) and isinstance(now, TimestampType)
        return old * 86_400_000_000 if is_time else old
    own = {field.field_id: field for field in before.fields}
    return {
        field.name: expected(old[own[field.field_id].name], own[field.field_id].field_type, kind)
        if field.field_id in own
        else field.initial_default
        for field in now.fields
        for kind in [field.field_type]
    }


def plain(found: Any) -> Any:
    """A value with dates and times as the numbers that files have."""
    if isinstance(found, pa.StructScalar):
        return None if not found.is_valid else {name: plain(found[name]) for name in found}
    if isinstance(found, pa.MapScalar):
        if not found.is_valid:
            return None
        return [(entry["key"].as_py(), plain(entry["value"])) for entry in found.values]
    if isinstance(found, pa.ListScalar):
        return None if not found.is_valid else [plain(item) for item in found.values]
    if isinstance(found, pa.Date32Scalar | pa.TimestampScalar):
        return found.value
    return found.as_py()


@pytest.mark.parametrize("seed", range(60))
def test_random_evolutions(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    evolution = Evolution(rng, itertools.count(1))
    before = StructType(*evolution.fields(3))
    now = evolution.later(before)
    assert isinstance(now, StructType)
    stored = file_schema(Schema(*before.fields))
    rows = [{f.name: value(rng, f.field_type) for f in before.fields} for _ in range(20)]
    pq.write_table(pa.Table.from_pylist(rows, stored), tmp_path / "f.parquet", row_group_size=7)
    schema = file_schema(Schema(*now.fields))
    with pq.ParquetFile(tmp_path / "f.parquet") as parquet:
        found = read_rows(parquet, schema)
        groups = [read_rows(parquet, schema, group) for group in range(3)]
    assert found.schema.equals(schema, check_metadata=True)
    assert found.equals(pa.concat_tables(groups).combine_chunks())
    found.validate(full=True)
    actual = [{name: plain(found[name][n]) for name in schema.names} for n in range(20)]
    assert actual == [expected(row, before, now) for row in rows]


def test_required_fields_of_absent_structs(tmp_path: Path) -> None:
    """They are written again, whatever their type: Parquet's writer refuses nulls there."""
    kinds: list[IcebergType] = [
        *(LongType(), StringType(), DateType(), UUIDType(), BooleanType(), DecimalType(9, 2)),
        ListType(20, LongType(), element_required=True),
        MapType(21, StringType(), 22, LongType(), value_required=False),
        StructType(NestedField(23, "y", StringType(), required=True)),
    ]
    inner = [
        NestedField(30 + number, f"f{number}", kind, required=True)
        for number, kind in enumerate(kinds)
    ]
    absent = Schema(NestedField(1, "s", StructType(*inner), required=False))
    stored = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "9"})])
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    pq.write_table(pa.table([[1, 2]], schema=stored), old)
    with pq.ParquetFile(old) as parquet:
        rows = read_rows(parquet, file_schema(absent))
    pq.write_table(rows, new)
    # A further field, so that the structs are made anew.
    more = Schema(
        NestedField(1, "s", StructType(*inner, NestedField(40, "z", LongType())), required=False)
    )
    with pq.ParquetFile(new) as parquet:
        again = read_rows(parquet, file_schema(more))
    pq.write_table(again, old)
    with pq.ParquetFile(old) as parquet:
        assert read_rows(parquet, file_schema(more)).to_pylist() == [{"s": None}] * 2
    conformed = conform(pa.record_batch([pa.nulls(2)], ["s"]), file_schema(more))
    pq.write_table(pa.Table.from_batches([conformed]), new)


def test_required_fields(tmp_path: Path) -> None:
    """A field may be required only where its struct is there."""
    path = tmp_path / "f.parquet"
    stored = Schema(
        NestedField(1, "s", StructType(NestedField(2, "x", LongType())), required=False)
    )
    rows = [{"s": {"x": 1}}, {"s": None}, {"s": {"x": None}}]
    inner = NestedField(2, "x", LongType(), required=True)
    now = file_schema(Schema(NestedField(1, "s", StructType(inner), required=False)))
    pq.write_table(pa.Table.from_pylist(rows[:2], file_schema(stored)), path)
    with pq.ParquetFile(path) as parquet:
        assert read_rows(parquet, now).to_pylist() == rows[:2]
    pq.write_table(pa.Table.from_pylist(rows, file_schema(stored)), path)
    with (
        pq.ParquetFile(path) as parquet,
        pytest.raises(ColumnError, match="`x` is missing or null in a"),
    ):
        read_rows(parquet, now)
