"""Schemas that change along with rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    evolution_updates,
    replacement_updates,
    requirements,
    schemas_changed,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.unit.local_tables import NAME, SCHEMA, load, make_table

LONG, TEXT = iceberg.LongType(), iceberg.StringType()


def field(number: int, name: str, kind: Any = LONG, required: bool = False) -> iceberg.NestedField:
    return iceberg.NestedField(number, name, kind, required=required)


def metadata(*schemas: Schema, current: int = 0, version: int = 2, last: int = 9) -> dict[str, Any]:
    return {
        "schemas": [s.model_dump(by_alias=True, mode="json") for s in schemas],
        "current-schema-id": current,
        "last-column-id": last,
        "format-version": version,
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
    }


def added(updates: Any) -> Schema:
    """The schema that is added and made the current one."""
    add, current = updates
    assert isinstance(add, AddSchemaUpdate)
    assert isinstance(current, SetCurrentSchemaUpdate)
    assert current.schema_id == -1
    return add.schema_


def columns(schema: Schema) -> list[tuple[int, str, str, bool]]:
    return [(f.field_id, f.name, str(f.field_type), f.required) for f in schema.fields]


class TestReplacing:
    def test_the_same_columns_change_nothing(self) -> None:
        arrow = pa.schema([("id", pa.int64()), ("x", pa.string())])
        assert replacement_updates(metadata(SCHEMA), arrow, "s.t") == ()

    def test_columns_keep_their_ids(self) -> None:
        arrow = pa.schema([("new", pa.int64()), ("x", pa.int64()), ("id", pa.int64())])
        actual = added(replacement_updates(metadata(SCHEMA), arrow, "s.t"))
        # The column x has another type: it is another column.
        assert columns(actual) == [
            (10, "new", "long", False),
            (11, "x", "long", False),
            (1, "id", "long", False),
        ]
        assert actual.schema_id == 1

    def test_a_schema_that_the_table_has_had_is_named(self) -> None:
        ab = Schema(field(1, "a"), field(2, "b"), schema_id=4)
        only_a = Schema(field(1, "a"), schema_id=7)
        base = metadata(ab, only_a, current=4)
        (update,) = replacement_updates(base, pa.schema([("a", pa.int64())]), "s.t")
        assert isinstance(update, SetCurrentSchemaUpdate)
        assert update.schema_id == 7

    def test_one_with_other_identifiers_is_another(self) -> None:
        ab = Schema(field(1, "a"), field(2, "b"), schema_id=0)
        keyed = Schema(field(1, "a", required=True), schema_id=1, identifier_field_ids=[1])
        actual = replacement_updates(metadata(ab, keyed), pa.schema([("a", pa.int64())]), "s.t")
        assert added(actual).identifier_field_ids == []

    def test_the_number_is_above_all_others(self) -> None:
        base = metadata(SCHEMA, Schema(field(5, "y"), schema_id=8))
        assert (
            added(replacement_updates(base, pa.schema([("n", pa.int64())]), "s.t")).schema_id == 9
        )

    def test_identifiers_stay_with_their_columns(self) -> None:
        keyed = Schema(field(1, "id", required=True), field(2, "x"), identifier_field_ids=[1])
        arrow = pa.schema([("id", pa.int64()), ("y", pa.int64())])
        actual = added(replacement_updates(metadata(keyed), arrow, "s.t"))
        assert actual.identifier_field_ids == [1]
        assert columns(actual) == [(1, "id", "long", True), (11, "y", "long", False)]
        same = pa.schema([("id", pa.int64()), ("x", pa.int64())])
        assert replacement_updates(metadata(keyed), same, "s.t") == ()

    @pytest.mark.parametrize("lost", [("other", pa.int64()), ("id", pa.string())])
    def test_identifiers_go_with_their_columns(self, lost: tuple[str, pa.DataType]) -> None:
        keyed = Schema(
            field(1, "id", required=True), field(2, "x", required=True), identifier_field_ids=[1, 2]
        )
        actual = added(
            replacement_updates(metadata(keyed), pa.schema([lost, ("x", pa.int64())]), "s.t")
        )
        assert actual.identifier_field_ids == []
        assert not any(f.required for f in actual.fields)

    def test_a_column_that_partitions_must_stay(self) -> None:
        base = metadata(SCHEMA)
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
        base["partition-specs"] = [spec.model_dump(by_alias=True, mode="json")]
        with pytest.raises(ColumnError, match="`x` is missing or has another type"):
            replacement_updates(base, pa.schema([("id", pa.int64())]), "s.t")
        assert replacement_updates(base, pa.schema([("x", pa.string())]), "s.t")

    def test_columns_that_sort_keep_their_wider_type(self) -> None:
        base = metadata(SCHEMA)
        by_id = {"transform": "identity", "source-id": 1, "direction": "asc"}
        base["sort-orders"] = [{"order-id": 3, "fields": [{**by_id, "null-order": "nulls-first"}]}]
        base["default-sort-order-id"] = 3
        narrow = pa.schema([("id", pa.int32()), ("x", pa.string())])
        assert replacement_updates(base, narrow, "s.t") == ()
        keyed = Schema(field(1, "id", required=True), field(2, "x", TEXT), identifier_field_ids=[1])
        assert replacement_updates(base | metadata(keyed), narrow, "s.t") == ()
        lost = replacement_updates(base, pa.schema([("x", pa.string())]), "s.t")
        assert isinstance(lost[1], SetDefaultSortOrderUpdate)


class TestEvolving:
    def test_nothing_new_changes_nothing(self) -> None:
        arrow = pa.schema([("x", pa.string()), ("id", pa.int64())])
        assert evolution_updates(metadata(SCHEMA), arrow, "s.t") == ()

    def test_new_columns_come_last(self) -> None:
        arrow = pa.schema([("n", pa.int32()), ("x", pa.string()), ("id", pa.int64())])
        actual = added(evolution_updates(metadata(SCHEMA), arrow, "s.t"))
        assert columns(actual)[-1] == (10, "n", "int", False)
        assert actual.schema_id == 1

    def test_missing_columns_become_optional(self) -> None:
        base = metadata(Schema(field(1, "id", required=True), field(2, "x")))
        actual = added(evolution_updates(base, pa.schema([("x", pa.int64())]), "s.t"))
        assert columns(actual) == [(1, "id", "long", False), (2, "x", "long", False)]

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            (iceberg.IntegerType(), pa.int64(), "long"),
            (iceberg.FloatType(), pa.float64(), "double"),
            (iceberg.DecimalType(9, 2), pa.decimal128(10, 2), "decimal(10, 2)"),
        ],
    )
    def test_types_grow(self, old: Any, new: pa.DataType, expected: str) -> None:
        base = metadata(Schema(field(1, "v", old)))
        actual = added(evolution_updates(base, pa.schema([("v", new)]), "s.t"))
        assert columns(actual) == [(1, "v", expected, False)]

    def test_fields_within_columns(self) -> None:
        """They are added, widened and made optional, and keep their ids."""
        number = iceberg.IntegerType()
        part = iceberg.StructType(field(4, "a", number), field(5, "b", TEXT, required=True))
        value = iceberg.StructType(field(9, "a", number))
        base = metadata(
            Schema(
                field(1, "s", part),
                field(2, "l", iceberg.ListType(6, number, element_required=False)),
                field(3, "m", iceberg.MapType(7, TEXT, 8, value, value_required=False)),
            )
        )
        new = pa.struct([("c", pa.string()), ("a", pa.int64())])
        arrow = pa.schema(
            [
                ("s", new),
                ("l", pa.list_(pa.int64())),
                ("m", pa.map_(pa.string(), new)),
                ("n", pa.int32()),
            ]
        )
        actual = added(evolution_updates(base, arrow, "s.t"))
        names = [actual.find_column_name(number) for number in range(1, 10)]
        nested = ["s.a", "s.b", "l.element", "m.key", "m.value", "m.value.a"]
        assert names == ["s", "l", "m", *nested]
        kinds = {n: str(actual.find_type(n)) for n in ("s.a", "l.element", "m.value.a", "s.c")}
        assert kinds == {"s.a": "long", "l.element": "long", "m.value.a": "long", "s.c": "string"}
        assert not actual.find_field("s.b").required
        new_ids = {actual.find_field(name).field_id for name in ("n", "s.c", "m.value.c")}
        assert len(new_ids) == 3 and min(new_ids) == 10
        assert evolution_updates(metadata(actual, current=1), arrow, "s.t") == ()

    def test_other_types_within_columns_stay(self) -> None:
        part = iceberg.StructType(field(2, "a", iceberg.DoubleType()))
        base, new = metadata(Schema(field(1, "s", part))), pa.struct([("a", pa.int32())])
        assert evolution_updates(base, pa.schema([("s", new)]), "s.t") == ()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (iceberg.LongType(), pa.int32()),
            (iceberg.DoubleType(), pa.float32()),
            (iceberg.DecimalType(10, 2), pa.decimal128(10, 2)),
            (iceberg.DecimalType(10, 2), pa.decimal128(9, 2)),
        ],
    )
    def test_wider_ones_stay(self, old: Any, new: pa.DataType) -> None:
        assert (
            evolution_updates(metadata(Schema(field(1, "v", old))), pa.schema([("v", new)]), "s.t")
            == ()
        )

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (iceberg.LongType(), pa.string()),
            (iceberg.IntegerType(), pa.float64()),
            (iceberg.DecimalType(9, 2), pa.decimal128(9, 3)),
            (iceberg.DecimalType(9, 2), pa.decimal128(20, 1)),
            (iceberg.StringType(), pa.binary()),
        ],
    )
    def test_others_are_refused(self, old: Any, new: pa.DataType) -> None:
        with pytest.raises(ColumnError, match=f"`v` is {old.__str__().split('(')[0]}"):
            evolution_updates(metadata(Schema(field(1, "v", old))), pa.schema([("v", new)]), "s.t")

    def test_identifiers_stay(self) -> None:
        keyed = Schema(
            field(1, "id", iceberg.IntegerType(), True), field(2, "x"), identifier_field_ids=[1]
        )
        arrow = pa.schema([("id", pa.int64()), ("y", pa.int64())])
        actual = added(evolution_updates(metadata(keyed), arrow, "s.t"))
        assert actual.identifier_field_ids == [1]
        assert columns(actual)[0] == (1, "id", "long", True)

    def test_an_identifier_may_not_be_missing(self) -> None:
        keyed = Schema(field(1, "id", required=True), field(2, "x"), identifier_field_ids=[1])
        with pytest.raises(ColumnError, match="`id` is missing, but is an identifier field of s.t"):
            evolution_updates(metadata(keyed), pa.schema([("x", pa.int64())]), "s.t")

    def test_a_nested_identifier_is_in_its_column(self) -> None:
        struct = iceberg.StructType(field(2, "n", required=True))
        keyed = Schema(field(1, "s", struct, True), identifier_field_ids=[2])
        arrow = pa.schema([("s", pa.struct([("n", pa.int64())])), ("y", pa.int64())])
        assert added(evolution_updates(metadata(keyed), arrow, "s.t")).identifier_field_ids == [2]
        with pytest.raises(ColumnError, match="is an identifier field"):
            evolution_updates(metadata(keyed), pa.schema([("y", pa.int64())]), "s.t")


class TestRequirements:
    def test_of_a_change_of_the_schema(self) -> None:
        base = metadata(SCHEMA, last=17)
        updates = evolution_updates(base, pa.schema([("id", pa.int64()), ("y", pa.int64())]), "s.t")
        assert requirements(base, updates) == (
            AssertCurrentSchemaId.model_validate({"current-schema-id": 0}),
            AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": 17}),
        )
        assert requirements(base, updates[1:]) == requirements(base, updates)

    def test_of_other_changes(self) -> None:
        assert requirements(metadata(SCHEMA), (SetPropertiesUpdate(updates={"a": "b"}),)) == ()

    def test_what_others_have_changed(self) -> None:
        before = metadata(SCHEMA)
        assert not schemas_changed(before, metadata(SCHEMA))
        assert schemas_changed(before, metadata(SCHEMA, last=10))
        assert schemas_changed(before, metadata(SCHEMA, Schema(field(5, "y"), schema_id=8)))
        assert schemas_changed(before, before | {"current-schema-id": 1})


def test_back_and_forth_is_read_at_each_snapshot(lake: IcebergCatalog) -> None:
    for names in ("ab", "a", "ab", "a"):
        data = pa.table({name: [1] for name in names})
        ingest(lake, NAME, data.to_reader(), Mode.REPLACE)
    table = lake.pyiceberg.load_table(NAME)
    actual = [
        table.scan(snapshot_id=s.snapshot_id).to_arrow().column_names for s in table.snapshots()
    ]
    assert actual == [["a", "b"], ["a"], ["a", "b"], ["a"]]
    # The second b is another column; the two of a alone are one schema.
    assert [s.schema_id for s in table.snapshots()] == [0, 1, 2, 1]
    assert sorted(table.schemas()) == [0, 1, 2]


def test_a_replacement_keeps_what_identifies_rows(lake: IcebergCatalog) -> None:
    keyed = Schema(field(1, "id", required=True), field(2, "x"), identifier_field_ids=[1])
    make_table(lake, schema=keyed)
    ingest(lake, NAME, pa.table({"id": [1], "y": [2]}).to_reader(), Mode.REPLACE)
    assert lake.pyiceberg.load_table(NAME).schema().identifier_field_names() == {"id"}
    with pytest.raises(ColumnError, match="`id` has nulls, but the table requires it"):
        ingest(lake, NAME, pa.table({"id": pa.array([None], pa.int64())}).to_reader(), Mode.REPLACE)
    assert current_schema(load(lake).metadata).identifier_field_ids == [1]
