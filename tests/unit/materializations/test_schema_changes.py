"""How an increment's columns differ from its table's."""

from __future__ import annotations

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.column import IcebergStreamColumn as Column
from dbt.adapters.iceberg_stream.materializations.schema_changes import (
    check_fields,
    schema_changes,
)

OLD = [Column("id", "int"), Column("S", "struct<a:int,b:string>")]


def test_new_fields_are_new_columns() -> None:
    new = [Column("ID", "int"), Column("s", "struct<b:string,`odd`:int,a:int>")]
    changes = schema_changes(new, OLD)
    (added,) = changes["source_not_in_target"]
    assert (added.quoted, added.data_type) == ("`S`.```odd```", "int")
    assert (changes["target_not_in_source"], changes["new_target_types"]) == ([], [])


def test_new_fields_beside_one_of_a_narrower_type() -> None:
    old = [Column("s", "struct<a:bigint>")]
    changes = schema_changes([Column("s", "struct<a:int,b:int>")], old)
    assert [column.name for column in changes["source_not_in_target"]] == ["s.b"]


def test_another_order_of_fields_is_no_change() -> None:
    new = [Column("id", "int"), Column("s", "struct<b:string,a:int>")]
    assert not schema_changes(new, OLD)["schema_changed"]


def test_fields_that_are_replaced() -> None:
    """Nothing is added for a column that cannot be written anyway."""
    changes = schema_changes([OLD[0], Column("s", "struct<a:int,c:int>")], OLD)
    assert changes["source_not_in_target"] == []
    assert [change["column_name"] for change in changes["new_target_types"]] == ["S"]


@pytest.mark.parametrize(
    ("kind", "on_change", "message"),
    [
        ("struct<a:int,b:string,c:int>", "ignore", "returns `S.c`, which its table does not have"),
        ("struct<a:int,c:int>", "append_new_columns", "does not return `S.b`, which its table has"),
        ("struct<a:int,b:string,c:int>", "append_new_columns", None),
        ("struct<b:string>", "fail", None),
    ],
)
def test_fields_that_cannot_be_written(kind: str, on_change: str, message: str | None) -> None:
    model = {"unique_id": "model.p.m", "config": {"on_schema_change": on_change}}
    if message is None:
        check_fields(model, [Column("s", kind)], OLD)
    else:
        with pytest.raises(CompilationError, match=message):
            check_fields(model, [Column("s", kind)], OLD)
