import pytest

from dbt.adapters.iceberg_stream.sql.selects import Step, parse_select_chain


def test_a_select_of_a_select_is_two_steps() -> None:
    actual = parse_select_chain(
        "select `a b`, c + 1 as d from (select * from x as y where y.c > 1)"
    )
    assert actual is not None
    assert actual.relation == "x"
    assert actual.steps == (
        Step("y", "y.c > 1", ("*",)),
        Step("", None, ("`a b`", "c + 1 as d")),
    )


def test_expressions_stay_as_they_are() -> None:
    actual = parse_select_chain(
        "select a, to_char(b, 'yyyy') c -- last\nfrom (\nwith y as (select * from x) "
        "select *, extract(year from d) as e from y where d is not distinct from r'\\d'\n)"
    )
    assert actual is not None
    assert [step.columns for step in actual.steps] == [
        ("*",),
        ("*", "extract(year from d) as e"),
        ("a", "to_char(b, 'yyyy') c"),
    ]
    assert actual.steps[1].where == "d is not distinct from r'\\d'"


def test_a_named_part_is_a_step_by_its_name() -> None:
    actual = parse_select_chain(
        "with one as (select a from x), two as (select a as b from one o) select two.b from two"
    )
    assert actual is not None
    assert actual.relation == "x"
    assert [step.alias for step in actual.steps] == ["x", "o", "two"]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from x join y using (a)",
        "select * from x, y",
        "select * from x union all select * from y",
        "select distinct a from x",
        "select a from x group by a",
        "select a from x order by a",
        "select a from x limit 3",
        "select a from x tablesample (10 percent)",
        "select a from x version as of 3",
        "select a from x lateral view explode(b) as c",
        "select /*+ broadcast(x) */ a from x",
        "select a from x where a in (select b from y)",
        "select (select max(b) from y) as b from x",
        "select * from (select a from x) as y(b)",
        "with y(b) as (select a from x) select * from y",
        # Spark would look at what nobody reads, too.
        "with y as (select nothing from x) select * from x",
        "select * from s.x",
        "select 1",
        "select from where",
    ],
)
def test_what_is_more_is_left_to_spark(sql: str) -> None:
    actual = parse_select_chain(sql)
    assert actual is None
