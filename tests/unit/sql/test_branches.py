"""Branches in the names of tables."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.queries import reads
from dbt.adapters.iceberg_stream.sql.statements import classify
from dbt.adapters.iceberg_stream.sql.versions import tables_without_version

TABLE = ("l", "s", "t")


@pytest.mark.parametrize(
    "sql",
    [
        "insert into `l`.`s`.`t`.`branch_it's` select * from l.s.t.`branch_it's`",
        "merge into l.s.t.`branch_it's` x using l.s.t.`branch_it's` y on x.a = y.a"
        " when matched then delete",
        "insert overwrite table l.s.t.`branch_it's` (a) select a from l.s.t version as of 'it\\'s'",
    ],
)
def test_writes_and_reads(sql: str) -> None:
    statement, read = classify(sql), reads(sql)
    assert (statement.target, statement.branch) == (TABLE, "it's")
    assert read is not None
    assert (read.relations, read.versions) == ({TABLE}, {TABLE: {"it's"}})


def test_a_table_whose_name_begins_with_branch() -> None:
    statement, read = classify("delete from l.s.branch_a"), reads("select * from s.branch_a")
    assert (statement.target, statement.branch) == (("l", "s", "branch_a"), None)
    assert read is not None and read.versions == {}


def test_a_branch_is_a_version() -> None:
    assert tables_without_version("select * from l.s.t.branch_a, l.s.t") == {TABLE: [35]}
