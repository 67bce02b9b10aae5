"""Keys that a query passes on as its source has them."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.stream.query.key_lineage import source_key_columns


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from v", ("id",)),
        ("select v.* from v where x > 1", ("id",)),
        ("select s.* from v as s", ("id",)),
        ("select a as id, b from v", ("a",)),
        ("select *, upper(b) as id from v", ()),
        ("select * except (id), a as id from v", ("a",)),
        ("select * except (id) from v", ()),
        ("select * except (other) from v", ("id",)),
        ("select v.* except (Id, other) from v", ()),
        ("select coalesce(id, other) as id from v", ()),
        ("select v.* from v left join t on v.a = t.a", ("id",)),
        ("select v.code as id, t.name from v left join t on v.a = t.a", ("code",)),
        ("select t.id, v.name from v join t on v.a = t.a", ()),
        ("select id, name from v join t using (id)", ("id",)),
        ("with x as (select * from v) select * from x", ("id",)),
        (
            "with x as (select a as b from v), y as (select b as c from x) select c as ID from y",
            ("a",),
        ),
        ("with x as (select a + 1 as id from v) select * from x", ()),
        ("with v as (select * from t) select * from v", ()),
        ("select * from (select a as id from v) as q", ("a",)),
        ("select * from (select q.id, other from v as q) as q", ("id",)),
        ("select * from other.v", ()),
        ("select b from v", ()),
        ("select id from t where a in (select id from v)", ()),
        ("select * from v union all select * from v", ()),
        ("select from where", ()),
    ],
)
def test_keys_that_are_not_computed(sql: str, expected: tuple[str, ...]) -> None:
    assert source_key_columns(sql, "v", ["id"]).passed_on == expected


def test_several_keys() -> None:
    sql = "with x as (select a, upper(b) as b, c as d from v) select a, b, d from x"
    assert source_key_columns(sql, "v", ["a", "b", "d"]).passed_on == ("a", "c")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select lower(email) as id from v", ("email",)),
        ("select *, concat(a, b) as id from v", ("a", "b")),
        ("with x as (select upper(a) as b, c from v) select b || c as id from x", ("a", "c")),
        ("select v.a + t.b as id from v left join t on v.a = t.a", ("a",)),
        ("select uuid() as id from v", ()),
        ("select doc.id from v", ("doc",)),
        ("select s.doc.deep.id as id from v as s", ("doc",)),
        ("select * replace (lower(email) as id) from v", ("email",)),
        ("with x as (select * replace (a || b as a) from v) select a as id from x", ("a", "b")),
        ("select id from v", ("id",)),
    ],
)
def test_columns_that_keys_are_computed_from(sql: str, expected: tuple[str, ...]) -> None:
    assert source_key_columns(sql, "v", ["id"]).read == expected
