"""Calls of a project's functions: what replaces them, and which are refused."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.functions import (
    FunctionError,
    Parameter,
    Signature,
    expand_calls,
    mentioned,
    parse_expression,
)
from dbt.adapters.iceberg_stream.sql.repeatable import VOLATILE_MARK, normal_form

PRICE = Parameter("price", "double")
RATE = Parameter("rate", "double", "0.25")


def sql_function(name: str, sql: str, *parameters: Parameter, volatile: bool = False) -> Signature:
    expression = parse_expression(sql, parameters)
    return Signature(name, parameters, "double", expression, volatile)


TAXED = sql_function("s.taxed", "select price * (1 + rate) as result -- with tax", PRICE, RATE)
TWICE = sql_function("s.twice", "`s.taxed`(price, 1)", PRICE)
DOUBLED = sql_function("s.doubled", "price + price", PRICE)
VOLATILE = sql_function("s.volatile", "price", PRICE, volatile=True)
SLUG = Signature("s.slug", (Parameter("name", "string"), RATE), "string", None)
MEAN = sql_function("s.mean", "sum(price) / count(price)", PRICE)
FUNCTIONS = {f.name: f for f in (TAXED, TWICE, DOUBLED, VOLATILE, SLUG, MEAN)}

EXPANDED = {
    "select `s.taxed`(x) from t": (
        "select cast((cast((x) as double) * (1 + cast((0.25) as double))) as double) from t"
    ),
    "select `s.slug`(a, rate => b[1, 2])": (
        "select `s.slug`(cast((a) as string), cast((b[1, 2]) as double))"
    ),
    "select `s.twice` (x)": (
        "select cast((cast((cast((cast((x) as double)) as double) * (1 + cast((1) as double)))"
        " as double)) as double)"
    ),
    "select `s.slug`(`s.slug`(a))": (
        "select `s.slug`(cast((`s.slug`(cast((a) as string), cast((0.25) as double))) as string),"
        " cast((0.25) as double))"
    ),
    # No calls.
    "select '`s.slug`(1)', `s.slug` from t -- `s.slug`(2)": None,
    "select t.`s.slug`(1)": None,
    "select `s.slug`(1) from 'unclosed": None,
}


@pytest.mark.parametrize("sql", EXPANDED)
def test_what_replaces_a_call(sql: str) -> None:
    assert expand_calls(sql, FUNCTIONS) == (EXPANDED[sql] or sql)


WRONG_CALLS = {
    "`s.taxed`()": "`s.taxed` takes (price double, rate double default 0.25); `price` is missing",
    "`s.taxed`(1, 2, 3)": "got 3: 1, 2, 3. Correct the call.",
    "`s.taxed`(1, price => 2)": "got 2: 1, price => 2",
    "`s.taxed`(1, tax => 2)": "not `tax`",
    "`s.taxed`(rate => 2, 1)": "got 2: rate => 2, 1",
    "`s.taxed`(1": "has no closing parenthesis",
    "`s.mean`(distinct x)": "`s.mean` is an aggregate function in SQL and cannot be called with",
    "`s.mean`(x) over (partition by y)": "cannot be called with `over`",
    "`s.mean`(x) filter (where y)": "Put the clause into the function's SQL.",
    "`s.doubled`(RAND())": "each use of a random value would get another one",
    "`s.doubled`(`s.volatile`(1))": "each use of a random value would get another one",
}


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_wrong_calls(call: str) -> None:
    with pytest.raises(FunctionError) as raised:
        expand_calls(f"select {call}", FUNCTIONS)
    assert WRONG_CALLS[call] in str(raised.value)


def test_a_random_argument_that_is_used_once() -> None:
    assert "rand()" in expand_calls("select `s.taxed`(rand())", FUNCTIONS)


def test_a_comment_at_the_end_of_an_argument() -> None:
    assert "x -- the price\n)" in expand_calls("select `s.taxed`(x -- the price\n)", FUNCTIONS)


def test_a_comment_before_an_argument() -> None:
    call = "`s.taxed`(/* net */ x, -- the rate\n rate => 0.5)"
    assert expand_calls(call, FUNCTIONS) == expand_calls("`s.taxed`(x, rate => 0.5)", FUNCTIONS)


def test_variables_of_a_lambda_get_names_that_no_column_has() -> None:
    prices = Parameter("prices", "array<double>")
    sql = "transform(prices, x -> x + x.rate + rate)"
    function = sql_function("s.all", sql, prices, RATE)
    assert expand_calls("`s.all`(x, x)", {"s.all": function}) == (
        "cast((transform(cast((x) as array<double>), `s$all$x` -> `s$all$x` + `s$all$x`.rate"
        " + cast((x) as double))) as double)"
    )


def test_a_parameter_is_no_type_and_no_unit() -> None:
    day = Parameter("day", "date")
    function = sql_function("s.f", "extract(day from day) + year(cast('1-1-1' as date))", day)
    assert "extract(day from cast((d) as date)) + year(cast('1-1-1' as date))" in expand_calls(
        "`s.f`(d)", {"s.f": function}
    )


def test_a_parameter_with_the_name_of_a_word_of_sql() -> None:
    date = Parameter("current_date", "date")
    with pytest.raises(FunctionError, match="`current_date` has another meaning in its SQL"):
        parse_expression("year(current_date)", [date])
    function = sql_function("s.f", "year(`current_date`)", date)
    assert "year(cast((d) as date))" in expand_calls("`s.f`(d)", {"s.f": function})
    assert parse_expression("price + s.current_date", [PRICE, date, Parameter("s", "struct<>")])


def test_a_function_without_arguments_may_read_tables() -> None:
    function = sql_function("s.f", "select max(x) from t")
    assert expand_calls("`s.f`()", {"s.f": function}) == "cast((select max(x) from t) as double)"
    # Spark has these words without parentheses.
    assert sql_function("s.g", "current_catalog").expression is not None


WRONG_SQL = {
    "select max(x) from t where y = price": "its SQL reads tables",
    "price + (select 1)": "its SQL reads tables",
    "select price union select 1": "its SQL reads tables",
    "prize": "its SQL uses `prize`, which is not one of its arguments: price",
    "select price, 1": "its SQL must be one expression",
    "price +": "its SQL is not an expression",
    "": "its SQL is empty",
    "-- price": "its SQL is empty",
    "price; price": "its SQL must be one expression without `;`, got 2 statements",
    "'price": "its SQL is not an expression",
    "price:amount": "its SQL is not an expression: Spark has no `:` in expressions",
}


@pytest.mark.parametrize("sql", WRONG_SQL)
def test_wrong_sql(sql: str) -> None:
    with pytest.raises(FunctionError) as raised:
        parse_expression(sql, [PRICE])
    assert WRONG_SQL[sql] in str(raised.value)


def test_comments_around_the_sql() -> None:
    sql = "/* a price */ -- with tax\n select price; -- the end"
    assert parse_expression(sql, [PRICE]).sql == " price"


def test_aggregates() -> None:
    assert parse_expression("power(sum(price), 2)", [PRICE]).aggregates
    assert not parse_expression("power(price, 2);", [PRICE]).aggregates


def test_which_functions_a_text_mentions() -> None:
    assert mentioned("select `s.taxed`(1), '`s.slug`'", FUNCTIONS) == ["s.taxed", "s.slug"]
    assert mentioned("select s.taxed(1)", FUNCTIONS) == []


def test_what_may_be_cached() -> None:
    queries = [f"select `{name}`(x) from s.t" for name in ("s.twice", "s.volatile", "s.slug")]
    forms = [normal_form(expand_calls(query, FUNCTIONS)) for query in queries]
    assert forms[0] is not None and forms[1:] == [None, None]
    assert VOLATILE_MARK in expand_calls(queries[1], FUNCTIONS)
