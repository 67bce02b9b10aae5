"""What a stream model's query may be, and what becomes of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.picked import Picked, SparkPart
from dbt.adapters.iceberg_stream.stream.query.query import (
    StreamQuery,
    get_change_sql,
    output_columns,
)
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported
from dbt.adapters.iceberg_stream.stream.sources.source import ROW_DELETED

KEYED = StreamOptions("s", keys=("id",))


@pytest.mark.parametrize(
    ("sql", "change_sql"),
    [
        ("select * from v where a > 1", "select * from v where a > 1"),
        ("select id, a from v", "select id, a, v.__stream from v"),
        ("select id\n-- why\nfrom v w", "select id, w.__stream\n-- why\nfrom v w"),
        ("select id from v `a b`", "select id, `a b`.__stream from v `a b`"),
        ("select id from (select * from v)", "select id, __stream from (select * from v)"),
        (
            "with r as (select id from v) select r.* from r",
            "with r as (select id, v.__stream from v) select r.* from r",
        ),
        (
            "with r as (select id from v), q as (select 1 from s.c) select id from r",
            "with r as (select id, v.__stream from v), q as (select 1 from s.c) "
            "select id, r.__stream from r",
        ),
        (
            "select id from (select * from v) as x left join s.c as c on x.id = c.id",
            "select id, x.__stream from (select * from v) as x left join s.c as c on x.id = c.id",
        ),
        (
            "select c.id from s.c c join (select id from v) x on c.a is distinct from x.id",
            "select c.id, x.__stream from s.c c join (select id, v.__stream from v) x "
            "on c.a is distinct from x.id",
        ),
        (
            "select id from s.c, ((v)) where a = b",
            "select id, __stream from s.c, ((v)) where a = b",
        ),
        (
            "select id, (select max(n) from s.c) as m from v",
            "select id, (select max(n) from s.c) as m, v.__stream from v",
        ),
    ],
)
def test_the_change_comes_along(sql: str, change_sql: str) -> None:
    assert get_change_sql(sql, "v") == change_sql


@pytest.mark.parametrize(
    "expression",
    [
        "to_char(a, 'yyyy')",
        "cast(a as time)",
        "variant_get(parse_json(a), '$.b', 'int')",
        "a == r'\\d' and extract(year from b) <=> 2020",
        "array(1, 2)[0]",
        "'select x from v' || \"v\"",
    ],
)
@pytest.mark.parametrize("of_rows", [False, True])
def test_expressions_stay_as_they_are(expression: str, of_rows: bool) -> None:
    sql = f"with r as (select *, {expression} as x from v where {expression} = 1) select x from r"
    change_sql = get_change_sql(sql, "v", of_rows)
    assert change_sql.count(expression) == 2


@pytest.mark.parametrize(
    ("sql", "because"),
    [
        ("select id, count(*) from v group by id", "groups"),
        ("select max(id) from v", "MAX"),
        ("select distinct id from v", "distinct"),
        ("select id from v order by id", "ordered"),
        ("select id from v limit 3", "limit"),
        ("select id, row_number() over (order by id) as n from v", "ROW_NUMBER"),
        ("select id from v union all select id from s.c", "union"),
        ("select a.id from v as a join v as b on a.id = b.id", "reads it 2 times"),
        ("select 1 as id", "reads it 0 times"),
        ("select c.id from s.c as c left join v on c.id = v.id", "LEFT JOIN"),
        ("select v.id from v full join s.c as c on c.id = v.id", "FULL JOIN"),
        ("select id from s.c where id in (select id from v)", "outside of `from` and `join`"),
        (
            "with a as (select * from v) select * from a join a as b on a.id = b.id",
            "reads it 2 times",
        ),
        ("from v select id", "cannot follow"),
        ("select from", "cannot be parsed"),
    ],
)
def test_what_a_stream_cannot_be(sql: str, because: str) -> None:
    with pytest.raises(StreamError, match=because):
        get_change_sql(sql, "v")


def test_a_row_that_a_filter_leaves_out_is_deleted() -> None:
    change_sql = get_change_sql("select * from v where status = 'new'", "v", of_rows=True)
    assert "where" not in change_sql
    assert "* except (__stream)" in change_sql
    assert "deleted or not coalesce(status = 'new'\n, false)" in change_sql
    with pytest.raises(StreamError, match="Use a left join"):
        get_change_sql("select v.id from v join s.c as c on c.id = v.id", "v", of_rows=True)


def test_columns_of_the_table() -> None:
    names = ["id", "op", "at", "__stream", "__stream_bad", "__stream_where"]
    assert output_columns(names, KEYED) == ["id", "op", "at"]
    assert output_columns(names, StreamOptions("s", excluded=("OP",))) == ["id", "at"]
    assert output_columns(names, StreamOptions("s", columns=("at", "ID"))) == ["at", "id"]


@pytest.mark.parametrize(
    ("options", "because"),
    [
        (StreamOptions("s", keys=("key",)), "names `key`"),
        (StreamOptions("s", keys=("id",), excluded=("id",)), "key `id` is not among"),
        (StreamOptions("s", ("id",), ("at",), excluded=("at",)), "which identifies late changes"),
    ],
)
def test_columns_that_are_not_there(options: StreamOptions, because: str) -> None:
    with pytest.raises(StreamError, match=because):
        output_columns(["id", "op", "at"], options)


def picked(
    sql: str, options: StreamOptions = KEYED, partition: str = "", where: str = ""
) -> Picked | None:
    columns = ("id", "total")
    query = StreamQuery(get_change_sql(sql, "v"), "v", "s.t", columns, options, partition)
    schema = pa.schema([("id", pa.int64()), ("Total", pa.int64()), ("note", pa.string())])
    target = pa.schema([("id", pa.int64()), ("total", pa.int64())])
    with suppress(Unsupported):
        return replace(query, where=where).pick(schema, target)
    return None


def no_spark(part: SparkPart, rows: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError(part.sql("rows"))


@pytest.mark.parametrize(
    "sql",
    [
        "select * from v",
        "select id, total, note from v",
        "select v.ID, Total from v",
        "select *, note as extra from v",
        "select x.* from v as x",
        "with r as (select * from v) select * from r",
        "select id, total from (select * from v)",
        "select note as a, id, total from v",
    ],
)
def test_a_query_that_picks_columns(sql: str) -> None:
    selected = picked(sql)
    assert selected is not None
    columns = {name: value.column for name, value in selected.columns.items()}
    assert columns == {"id": "id", "total": "Total"}
    assert not selected.steps


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id, coalesce(total, 0) as total from v", [(1, 7), (2, 0), (3, 9)]),
        ("select *, note = 'a' as loud from v where id > 1", [(2, None), (3, 9)]),
        (
            "with a as (select *, nullif(total, id) as n from v), b as (select * from a where id > 1) "
            "select id, n as total from b where n < 10",
            [(3, 9)],
        ),
    ],
)
def test_a_query_that_computes(sql: str, expected: list[tuple[int, int]]) -> None:
    selected = picked(sql)
    assert selected is not None
    rows = pa.record_batch({"id": [1, 2, 3], "Total": [7, None, 9], "note": ["a", "b", "c"]})
    result = selected.select(rows, no_spark)
    assert result.schema.names == ["id", "total"]
    assert [(row["id"], row["total"]) for row in result.to_pylist()] == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select * from v where sqrt(id) > 1",
        "select id, total + total / 3 as total from v",
        "select id, length(note) as total from v",
    ],
)
def test_a_query_of_which_spark_computes_a_part(sql: str) -> None:
    selected = picked(sql)
    assert selected is not None
    assert len(selected.parts) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "select id, note from v",
        "select * except (note) from v",
        "select v.* from v join s.c as c on c.id = v.id",
        "select id, note.total from v",
        "select v.id, total from v as x",
        "with r as (select id, total from v) select id, total, note from r",
        "select id, total from (select *, id as ID from v)",
        "select * from v tablesample (10 percent)",
        "select /*+ coalesce(1) */ * from v",
        "select id, if(total > 1, 1, 0) as total from v",  # an int, not a bigint
    ],
)
def test_a_query_whose_whole_rows_spark_reads(sql: str) -> None:
    assert picked(sql) is None


def test_options_that_need_spark() -> None:
    for more in ({"deletes": "id ="}, {"truncates": "id = 1"}, {"soft_deletes": "gone"}):
        assert picked("select * from v", StreamOptions("s", keys=("id",), **more)) is None
    deletes = picked("select * from v", StreamOptions("s", keys=("id",), deletes="sqrt(id) = 1"))
    where = picked("select * from v", where="sqrt(id) = 1")
    assert deletes is not None
    assert where is not None
    assert deletes.parts[0].items == ["coalesce((sqrt(id) = 1\n), false)"]
    assert where.parts[0].where == "sqrt(id) = 1"


def test_conditions_of_options() -> None:
    """They are on the columns of the query, also on those that the table does not have."""
    options = StreamOptions("s", keys=("id",), deletes="noted = 'gone' -- a comment")
    selected = picked("select *, note as noted from v", options, where="total > 1")
    assert selected is not None
    rows = pa.record_batch({"id": [1, 2, 3], "Total": [1, 2, 3], "note": ["gone", None, "gone"]})
    result = selected.select(rows, no_spark)
    assert result["id"].to_pylist() == [2, 3]
    assert result[ROW_DELETED].to_pylist() == [False, True]
