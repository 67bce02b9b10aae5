from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.stored_types import stored_type


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("tinyint", "int"),
        ("bigint", "bigint"),
        ("array<smallint>", "array<int>"),
        ("map<tinyint,array<smallint>>", "map<int,array<int>>"),
        ("struct<tinyint:tinyint,smallint:string>", "struct<tinyint:int,smallint:string>"),
    ],
)
def test_the_type_that_iceberg_stores(kind: str, stored: str) -> None:
    assert stored_type(kind) == stored
