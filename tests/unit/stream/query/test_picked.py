"""What of a query PyArrow computes, and what is left to Spark."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dbt.adapters.iceberg_stream.stream.query import picked as queries
from dbt.adapters.iceberg_stream.stream.query.picked import SparkPart, pick
from dbt.adapters.iceberg_stream.stream.query.query import get_change_sql
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported
from dbt.adapters.iceberg_stream.stream.sources.source import ROW_DELETED

NAN = float("nan")
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4, None], pa.int64()),
        "small": pa.array([5, 4, 3, 2, 1], pa.int32()),
        "other": pa.array([1, 4, 3, 2, 1], pa.int64()),
        "Name": pa.array(["a", "b", None, "é", ""], pa.string()),
        "amount": pa.array([1.5, -0.0, 1e300, None, NAN], pa.float64()),
        "done": pa.array([True, False, None, True, False]),
        "day": pa.array([0, 1, 2, 3, 4], pa.date32()),
        "wide": pa.array(map(Decimal, ("0.5", "1.5", "2.5", "-0.5", "9")), pa.decimal128(20, 1)),
        "nested": pa.array([{"a": {"b": 1}}, {"a": None}, None, {"a": {"b": None}}, None]),
        "many": pa.array([[7], [8], [9, 10], [-1], [11]]),
    }
)


def no_spark(part: SparkPart, rows: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError(part.sql("rows"))


def selected(condition: str, rows: pa.RecordBatch = ROWS) -> list[int]:
    """Return `small` of the rows that a condition selects."""
    picked = pick(f"select small from v where {condition}", "v", rows.schema)
    filtered = picked.select(rows, no_spark)
    assert filtered.schema.names == ["small"]
    return filtered["small"].to_pylist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id > 2", [3, 2]),
        ("2 < v.ID", [3, 2]),
        ("not id > 2", [5, 4]),
        ("id is null or id = 1", [5, 1]),
        ("id is not null and name is null", [3]),
        ("id between 2 and 3", [4, 3]),
        ("id not in (1, 2)", [3, 2]),
        ("id in (-1, 4)", [2]),
        ("id <> other", [4, 2]),
        ("id >= other", [5, 3, 2]),
        ("name = 'é'", [2]),
        ("name >= 'b'", [4, 2]),
        ("name <> ''", [5, 4, 2]),
        ("amount = 0", [4]),
        ("amount > 1.25", [5, 3, 1]),
        ("amount <= 1.5", [5, 4]),
        ("amount between 0.0 and 2", [5, 4]),
        ("amount = amount", [5, 4, 3, 1]),
        ("amount not in (1.5, id)", [4, 3]),
        ("done", [5, 2]),
        ("not done", [4, 1]),
        ("done = false or small = 3", [4, 3, 1]),
        ("small < 9999999999", [5, 4, 3, 2, 1]),
        ("true = done", [5, 2]),
        ("1 = 1", [5, 4, 3, 2, 1]),
        ("wide > 1", [4, 3, 1]),
        ("(id > 2) = done", [4, 2]),
        ("day > cast(null as date) or day is not null and id = 1L", [5]),
        ("nested.a.b = 1", [5]),
        ("v.nested.A.`B` is null", [4, 3, 2, 1]),
        ("case when id > 2 then name else 'z' end <> 'é'", [5, 4, 1]),
        ("case id when 1 then 10 when 2 then 20 end = 20", [4]),
        ("coalesce(id, small, 0) = 1", [5, 1]),
        ("if(done, 1.5, amount) = 1.5 and nullif(id, 1) is null", [5]),
        ("cast(small as double) < amount", [3, 1]),
        ("coalesce(amount, 2.5d) > 2", [3, 2, 1]),
    ],
)
def test_conditions(condition: str, expected: list[int]) -> None:
    assert selected(condition) == expected


@pytest.mark.parametrize(
    "condition",
    [
        "id = '1'",
        "name = 1",
        "id > 1.5",
        "amount > 1e2",
        "amount = 9007199254740993",  # no double has this value
        "wide > 0.12",
        "wide in (0.5, -0.50)",
        "done = small > 2",
        "done between false and true = true",
        "name = 'it''s'",
        "name = '${x}'",
        "wide = id",
        "coalesce(wide, 0) > 1",
        "if(done, 100., 1) > 2",
        "id in (1, null)",
        "id = null",
        "id <=> 1",
        "id % 2 = 1",
        "id + 1 > 2",
        "name like 'a%'",
        "upper(name) = 'A'",
        r"name = 'a\\b'",
        'name = "a"',
        "day > '1970-01-02'",
        "day > date '1970-01-02'",
        "name > 'a' collate utf8_lcase",
        "cast(id as int) = 1",
        "many[0] = 1",
        "id > 99999999999999999999",
        "done = 1",
        "small between symmetric 3 and 1",
        "id in (select 1)",
        "nested.absent = 1",
        "v.absent > 1",
        "exists (select 1 from w)",
    ],
)
def test_conditions_that_are_left_to_spark(condition: str) -> None:
    try:
        picked = pick(f"select small from v where {condition}", "v", ROWS.schema)
    except Unsupported:
        assert "absent" in condition or "select" in condition
        return
    [part] = picked.parts
    assert part.where == condition
    assert picked.steps == [part]
    names = {name for name in part.columns if name in condition.lower()}
    assert names == set(part.columns)


def deletes(condition: str, rows: pa.RecordBatch) -> list[bool]:
    """Return which changes of rows delete the row."""
    sql = get_change_sql(f"select small from v where {condition}", "v", of_rows=True)
    picked = pick(sql, "v", rows.schema)
    selected = picked.select(rows, no_spark)
    assert selected.schema.names == ["small", ROW_DELETED]
    assert selected["small"].equals(rows["small"])
    return selected[ROW_DELETED].to_pylist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id > 2", [True, True, False, False, True]),
        ("id is null or name = 'b'", [True, False, True, True, False]),
        ("id > 0 -- and a comment", [False, False, False, False, True]),
        ("coalesce(id, 3) > 2", [True, True, False, False, False]),
        ("amount > 1", [False, True, False, True, False]),
    ],
)
def test_changes_of_rows_that_a_filter_leaves_out(condition: str, expected: list[bool]) -> None:
    assert deletes(condition, ROWS) == expected


def test_a_row_that_is_deleted_stays_deleted() -> None:
    rows = ROWS.append_column(ROW_DELETED, pa.array([True, False, False, False, True]))
    assert deletes("id < 3 and small > 0", rows) == [True, False, True, True, True]


def test_a_filter_on_changes_of_rows_that_spark_computes() -> None:
    sql = "select small, upper(name) as n from v as w where sqrt(w.id) > 1 -- why"
    picked = pick(get_change_sql(sql, "v", of_rows=True), "v", ROWS.schema)
    [part] = picked.parts
    assert part.items == ["upper(name)", "sqrt(w.id) > 1"]
    assert part.columns == {"name": "Name", "id": "id"}
    assert not part.where


def test_a_change_that_is_written_otherwise() -> None:
    sql = get_change_sql("select small from v where id > 2", "v", of_rows=True)
    pick(sql, "v", ROWS.schema)
    for part, other in (("or not", "and not"), ("false)", "true)"), (".minor", ".major")):
        with pytest.raises(Unsupported):
            pick(sql.replace(part, other), "v", ROWS.schema)


def test_what_spark_gets_and_returns() -> None:
    sql = (
        "with r as (select id as Number, Name, amount from v), "
        "q as (select r.number, upper(name) as loud, amount from r "
        "where small_udf(number, amount) -- mine\n) "
        "select number, loud, length(number) as digits from q where loud <> ''"
    )
    picked = pick(sql, "v", ROWS.schema)
    one, other = picked.parts
    assert one.columns == {"name": "Name", "number": "id", "amount": "amount"}
    assert one.sql("rows") == (
        "select __stream_row_number,\nupper(name)\n from rows as `r` where small_udf(number, amount)\n"
    )
    assert other.columns == {"number": "id", "loud": one.names[0]}
    assert other.sql("rows") == (
        "select __stream_row_number,\nlength(number)\n from rows as `q` where loud <> ''\n"
    )
    assert picked.source_columns == {"id", "Name", "amount"}

    def compute(part: SparkPart, rows: pa.RecordBatch) -> pa.RecordBatch:
        if part is one:
            loud = pc.utf8_upper(rows["Name"])
            return rows.append_column(part.names[0], loud).slice(1, 2)
        return rows.append_column(part.names[0], pa.array([1] * rows.num_rows, pa.int32()))

    types = pa.schema([("Loud", pa.string()), ("digits", pa.int32()), ("number", pa.int64())])
    result = picked.only(types.names, types).select(ROWS, compute)
    assert result.to_pylist() == [
        {"Loud": "B", "digits": 1, "number": 2},
        {"Loud": None, "digits": 1, "number": 3},
    ]


def test_values_of_another_type_than_spark_has_said() -> None:
    picked = pick("select upper(name) as n from v", "v", ROWS.schema)
    [part] = picked.parts
    wanted = picked.only(["n"], pa.schema([("n", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid):
        wanted.select(ROWS, lambda _, rows: rows.append_column(part.names[0], rows["Name"]))
    with pytest.raises(Unsupported, match="`x` as int64"):
        pick("select 1 as x from v", "v", ROWS.schema).only(["x"], pa.schema([("x", pa.int64())]))


def test_the_change_is_no_column_of_the_row() -> None:
    for star in ("*", "* except (__stream)"):
        picked = pick(f"select {star}, v.__stream as __stream from v", "v", ROWS.schema)
        assert [value.column for value in picked.columns.values()] == ROWS.schema.names


def test_strings_and_numbers_as_spark_reads_them() -> None:
    """Once, the lowest integer was no integer."""
    values = ["'its'", "''", "-2147483648", "-2147483649"]
    columns = [f"{value} as c{number}" for number, value in enumerate(values)]
    picked = pick(f"select id, {', '.join(columns)} from v", "v", ROWS.schema)
    [row] = picked.select(pa.record_batch({"id": [1]}), no_spark).to_pylist()
    assert list(row.values()) == [1, "its", "", -(2**31), -(2**31) - 1]
    assert [picked.columns[name].type for name in ("c2", "c3")] == [pa.int32(), pa.int64()]


def test_types_that_pyarrow_does_not_compute_with() -> None:
    """UUIDs are an extension type, for which PyArrow has few functions."""
    schema = pa.schema([("one", pa.uuid()), ("other", pa.uuid())])
    picked = pick("select coalesce(one, other) as x from v", "v", schema)
    assert picked.parts[0].items == ["coalesce(one, other)"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select nested.a.c as x from v", "`nested.a.c`"),
        ("select id, sqrt(id) from v", "`SQRT(id)`, which has no name"),
        ("select id, day as id from v", "id, which is selected twice"),
        ("select absent from v", "`absent`"),
        ("select upper(absent) as x from v", "`absent`"),
        ("select upper(name) as x, length(x) as y from v", "`x`"),
        ("select length(x) as y from (select coalesce(name, '') as x from v)", "`x`"),
        ("select hash(*) as x from v", "`HASH(*)`"),
        ("select (select max(a) from w) as x from v", "`(SELECT MAX(a) FROM w)`"),
        ("select cast(name as string collate utf8_lcase) as x from v", "`utf8_lcase`"),
        ("select v.* from v as w", "`v.*`"),
        (
            "select * except (id), v.__stream as __stream from v",
            "`* EXCEPT (id)`, which has no name",
        ),
        ("select id, now() as t from v", "`now`"),
        ("select id, current_date as t from v", "`current_date`"),
        (
            "select id, upper(name) as __stream_part_0 from v",
            "a name with __stream_row_number or __stream_part_",
        ),
        (
            "select length(c) as d from (select upper(b) as c from (select lower(name) as b from v))",
            "a query that computes in several selects",
        ),
        ("select id from v limit 1", queries.MORE),
        ("select id from v join w using (id)", queries.MORE),
    ],
)
def test_queries_whose_whole_rows_spark_reads(sql: str, said: str) -> None:
    with pytest.raises(Unsupported) as raised:
        pick(sql, "v", ROWS.schema)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # Other items must not be taken for what is not sent.
        (
            "select a as id, a + 1 as b, b + 0 as c from (select id as a, id as b from v)",
            {"a": "id", "b": "id"},
        ),
        (
            "select 'year' || '' as name, trunc(day, name) as d from v",
            {"name": "Name", "day": "day"},
        ),
    ],
)
def test_names_that_stand_for_two_things(sql: str, expected: dict[str, str]) -> None:
    [part] = pick(sql, "v", ROWS.schema).parts
    assert part.columns == expected
    assert not any(" as " in item for item in part.items)


def test_filters_come_where_the_query_has_them() -> None:
    """A row that Spark refuses is refused, whether or not a later filter leaves it out."""
    sql = "select id, x from (select id, small, 10 / small as x from v where done) where small > 0"
    done, part, positive = pick(sql, "v", ROWS.schema).steps
    assert isinstance(part, SparkPart)
    assert not isinstance(done, SparkPart)
    assert not isinstance(positive, SparkPart)
