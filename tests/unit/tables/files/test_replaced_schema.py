"""Ids of columns when a table's rows are replaced: time travel finds its values by them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.tables.files.arrow_types import new_schema, replaced_schema

NESTED = (
    pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))]),
    pa.list_(pa.int64()),
    pa.map_(pa.string(), pa.struct([("n", pa.float64())])),
)


def replaced(old: pa.Schema, new: pa.Schema) -> tuple[Schema, Schema]:
    before = new_schema(old, 2)
    return before, replaced_schema(before, new, before.highest_field_id, 2)


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_columns_keep_all_their_ids(kind: pa.DataType) -> None:
    arrow = pa.schema([("id", pa.int64()), ("nested", kind)])
    before, after = replaced(arrow, arrow)
    assert after.as_struct() == before.as_struct()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.struct([("x", pa.int32())]), pa.struct([("y", pa.int32())])),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())])),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.string())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.int32(), pa.int64())),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.struct([("x", pa.int32())]), pa.int32()),
        (pa.int32(), pa.struct([("x", pa.int32())])),
        (pa.map_(pa.string(), pa.int64()), pa.int64()),
    ],
    ids=str,
)
def test_another_type_is_another_column(old: pa.DataType, new: pa.DataType) -> None:
    before, after = replaced(pa.schema([("nested", old)]), pa.schema([("nested", new)]))
    ids = {field_id for field_id in after._lazy_id_to_name}
    assert ids.isdisjoint(before._lazy_id_to_name)
