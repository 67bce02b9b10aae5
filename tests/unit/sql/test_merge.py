"""MERGE statements, as Spark's parser understands them."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from dbt.adapters.iceberg_stream.sql.merge import (
    MergeClauses,
    as_operand,
    is_changed_sql,
    keys_match_sql,
    merge_sql,
)


def clauses_of(sql: str) -> list[str]:
    """The WHEN clauses of a statement that can be parsed, each as `condition: action`."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    assert isinstance(tree, exp.Merge)
    return [when.sql("spark").lower() for when in tree.args["whens"].expressions]


def test_every_clause() -> None:
    clauses = MergeClauses(
        on="t.id = s.id",
        target="t",
        source="s",
        updates=("a", "b`c"),
        update_when=is_changed_sql([("a", "int"), ("b", "int")], "t", "s"),
        inserts=("id", "a"),
        insert_when=as_operand("s.a > 0 or s.b"),
        source_action="delete",
        source_when=as_operand("t.a < 0"),
    )
    sql = merge_sql("`x`.`t`", "(\nselect 1 -- comment\n)", clauses)
    assert clauses_of(sql) == [
        "when matched and (not (t.`a` is not distinct from s.`a`) or not (t.`b` is not distinct from s.`b`))"
        " then update set `a` = s.`a`, `b``c` = s.`b``c`",
        "when not matched and (s.a > 0 or s.b) then insert (`id`, `a`) values (s.`id`, s.`a`)",
        "when not matched by source and (t.a < 0) then delete",
    ]


def test_only_what_is_asked_for() -> None:
    assert clauses_of(merge_sql("t", "s", MergeClauses("true", deletes=True, updates=("a",)))) == [
        "when matched then delete"
    ]
    assert clauses_of(merge_sql("t", "s", MergeClauses("true", inserts=("a",)))) == [
        "when not matched then insert (`a`) values (dbt_internal_source.`a`)"
    ]


def test_keys_that_are_null_match() -> None:
    assert keys_match_sql(["a", "b"], "t", "s") == "t.`a` <=> s.`a` and t.`b` <=> s.`b`"


def test_a_row_without_other_columns_never_changes() -> None:
    assert is_changed_sql([], "t", "s") == "false"


def test_an_operand_may_end_with_a_comment() -> None:
    assert as_operand("a or b -- c") == "(a or b -- c\n)"
    assert as_operand(None) == as_operand("") == ""
