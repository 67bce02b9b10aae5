"""Which types store values of which others as they are."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.type_changes import may_lose

STORED = [
    ("int", "bigint"),
    ("tinyint", "int"),
    ("smallint", "double"),
    ("float", "double"),
    ("decimal(5,2)", "decimal(9,2)"),
    ("decimal(5,2)", "decimal(9,4)"),
    ("int", "decimal(10,0)"),
    ("date", "timestamp"),
    ("varchar(3)", "string"),
    ("string collate UTF8_LCASE", "string"),
    ("array<string collate UTF8_LCASE>", "array<string>"),
    ("array<smallint>", "array<int>"),
    ("array<int>", "array<bigint>"),
    ("struct<A:tinyint,`b c`:date>", "struct<a:int,`b c`:date>"),
    ("map<string,smallint>", "map<string,int>"),
    ("void", "int"),
    ("variant", "variant"),
    ("interval day to second", "string"),
    ("double", "string"),
    ("timestamp_ntz", "string"),
    ("timestamp_ltz", "timestamp"),
]
LOST = [
    ("bigint", "int"),
    ("bigint", "double"),
    ("int", "float"),
    ("double", "float"),
    ("double", "int"),
    ("decimal(9,2)", "decimal(5,2)"),
    ("decimal(9,4)", "decimal(9,2)"),
    ("decimal(10,2)", "int"),
    ("timestamp", "date"),
    ("timestamp", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp"),
    ("timestamp", "string"),
    ("float", "string"),
    ("binary", "string"),
    ("string", "date"),
    ("string", "int"),
    ("struct<a:int,b:int>", "struct<a:int>"),
    ("struct<a:int>", "struct<a:int,b:int>"),
    ("struct<b:int,a:int>", "struct<a:int,b:int>"),
    ("struct<a:bigint>", "struct<a:int>"),
    ("array<double>", "array<int>"),
    ("array<int>", "string"),
    ("string", "array<string>"),
]


@pytest.mark.parametrize(("queried", "stored"), STORED)
def test_values_that_are_stored_as_they_are(queried: str, stored: str) -> None:
    assert not may_lose(queried, stored)
    assert not may_lose(queried, queried)


@pytest.mark.parametrize(("queried", "stored"), LOST)
def test_values_that_are_not(queried: str, stored: str) -> None:
    assert may_lose(queried, stored)
