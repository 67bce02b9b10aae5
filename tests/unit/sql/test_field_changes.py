"""How the fields within types change."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.field_changes import FieldChanges, field_changes

SAME = FieldChanges()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("struct<a:int,b:string>", "struct<B:string,A:int>", SAME),
        ("decimal(9,2)", "decimal(9,2)", SAME),
        ("int", "bigint", FieldChanges(retyped=True)),
        ("struct<a:int>", "struct<b:decimal(9,2),a:int>", FieldChanges([(("b",), "decimal(9,2)")])),
        (
            "struct<S:array<struct<a:int>>>",
            "struct<s:array<struct<a:int,b:c:map<int,int>>>>",
            FieldChanges([(("S", "element", "b:c"), "map<int,int>")]),
        ),
        (
            "map<string,struct<a:int,b:int>>",
            "map<string,struct<a:int,c:int>>",
            FieldChanges([(("value", "c"), "int")], [("value", "b")]),
        ),
        ("map<int,int>", "map<string,int>", FieldChanges(retyped=True)),
        ("struct<a:int>", "struct<a:array<int>>", FieldChanges(retyped=True)),
    ],
)
def test_changes(old: str, new: str, expected: FieldChanges) -> None:
    assert field_changes(old, new) == expected
