"""Names of views in the text of a query."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.engines.session import renamed


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select v.a, `v`.b from v as w", "select v_1.a, `v_1`.b from v_1 as w"),
        ("select 'v', 'it''s v', 'a\\'v' from v", "select 'v', 'it''s v', 'a\\'v' from v_1"),
        ('select "v" from v', 'select "v" from v_1'),
        ("select r'\\', 'v' from v", "select r'\\', 'v' from v_1"),
        ("select 1 -- of v\nfrom v", "select 1 -- of v\nfrom v_1"),
        ("select /* it's v */ 1 from v", "select /* it's v */ 1 from v_1"),
        ("select `it's v`, `a``v` from v", "select `it's v`, `a``v` from v_1"),
        ("select vv, v2 from s.av", "select vv, v2 from s.av"),
    ],
)
def test_names_are_replaced(sql: str, expected: str) -> None:
    assert renamed(sql, {"v": "v_1"}) == expected


def test_no_name_is_replaced_twice() -> None:
    assert renamed("select * from a join b", {"a": "b", "b": "c"}) == "select * from b join c"
