"""Aliases that let a relation have another name in a statement."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.aliases import with_target_alias

WHEN = "when not matched then insert *"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"merge into s.t using x on t.id = x.id {WHEN}", f"merge into s.t as `t` using x on t.id = x.id {WHEN}"),
        (f"merge into `l`.s.`T` using x on L.s.t.id = x.id {WHEN}", f"merge into `l`.s.`T` as `T` using x on `T`.id = x.id {WHEN}"),
        (f"merge into s.t as d using x on d.id = x.id {WHEN}", None),
        (f"merge into s.t d using x on d.id = x.id {WHEN}", None),
        ("insert into s.t select * from s.t", None),
        ("merge not understood", None),
    ],
)  # fmt: skip
def test_target_of_a_merge(sql: str, expected: str | None) -> None:
    assert with_target_alias(sql) == (expected or sql)
