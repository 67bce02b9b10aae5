"""Filters that PyArrow computes, and those that are left to Spark."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query import picked as queries
from dbt.adapters.iceberg_stream.stream.query.picked import Picked
from dbt.adapters.iceberg_stream.stream.query.query import get_change_sql
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported
from dbt.adapters.iceberg_stream.stream.sources.source import ROW_DELETED

ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4, None], pa.int64()),
        "small": pa.array([5, 4, 3, 2, 1], pa.int32()),
        "other": pa.array([1, 4, 3, 2, 1], pa.int64()),
        "Name": pa.array(["a", "b", None, "é", ""], pa.string()),
        "amount": pa.array([1.5, -0.0, 1e300, None, 2], pa.float64()),
        "done": pa.array([True, False, None, True, False]),
        "day": pa.array([0, 1, 2, 3, 4], pa.date32()),
        "wide": pa.array(map(Decimal, ("0.5", "1.5", "2.5", "-0.5", "9")), pa.decimal128(20, 1)),
        "nested": pa.array([{"a": {"b": 1}}, {"a": None}, None, {"a": {"b": None}}, None]),
        "many": pa.array([[7], [8], [9, 10], [-1], [11]]),
    }
)


def pick(sql: str, view: str, schema: pa.Schema) -> Picked | None:
    """Return what a query selects; None if Spark has to compute it."""
    with suppress(Unsupported):
        return queries.pick(sql, view, schema)
    return None


def selected(condition: str, rows: pa.RecordBatch = ROWS) -> list[int] | None:
    """Return `small` of the rows that a condition selects; None if Spark has to compute it."""
    picked = pick(f"select small from v where {condition}", "v", rows.schema)
    if picked is None:
        return None
    read = pa.record_batch({name: rows[column] for name, column in picked.columns.items()})
    filtered = picked.select(read)
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
        ("amount > 1.25e0 and (amount < 1.0e5)", [5, 1]),
        ("done", [5, 2]),
        ("not done", [4, 1]),
        ("done = false or small = 3", [4, 3, 1]),
        ("small < 9999999999", [5, 4, 3, 2, 1]),
        ("true = done", [5, 2]),
        ("id > 1.5", [4, 3, 2]),
        ("id > 1.5e0", [4, 3, 2]),
        ("name like '_%' and not name like 'a%'", [4, 2]),
        ("id % 2 = 1", [5, 3]),
        ("day > date '1970-01-02'", [3, 2, 1]),
        ("date_add(day, 1) = date '1970-01-03' or day(day) > 4", [4, 1]),
        ("trunc(day, 'mm') < date '1970-01-02'", [5, 4, 3, 2, 1]),
        ("wide * 2 > 0.5 and round(wide) < 3", [5, 4]),
        ("wide + id in (3.5, 5)", [4, 2]),
        ("nested.a.b = 1", [5]),
        ("v.nested.A.`B` is null", [4, 3, 2, 1]),
        ("many[0] >= 7", [5, 4, 3, 1]),
        ("size(many) > 1", [3]),
    ],
)
def test_conditions(condition: str, expected: list[int]) -> None:
    assert selected(condition) == expected


@pytest.mark.parametrize(
    "condition",
    [
        "id = '1'",
        "name = 1",
        "id > 99999999999999999999",
        "amount = 9007199254740993",  # no double has this value
        "id in (1, null)",
        "id in (select 1)",
        "id = null",
        "name like concat('a', name)",
        "name like '%\U0001f600'",
        "id % 2 > 1e0 % 2",
        r"name = 'a\\b'",
        'name = "a"',
        "day > '1970-01-02'",  # depends on settings
        "day > timestamp '1970-01-02'",
        "year(day, 1) > 1",
        "date_trunc('w', day) > day",
        "date_trunc(name, day) > day",
        "date_add(day, id) > day",
        "nested.absent = 1",
        "nested.a = 1",
        "w.nested.a.b = 1",
        "many[id] = 1",
        "element_at(many, 1) = 1",
        "wide * wide * wide > 1",
        "round(wide, id) > 1",
        "wide > 0.1234567890123456789012345",
        "absent > 1",
        "other.id > 1",
        "name > 'a' collate utf8_lcase",
        "done = 1",
        "id <=> 1",
        "1 = 1",
    ],
)
def test_conditions_that_are_left_to_spark(condition: str) -> None:
    assert selected(condition) is None


def deletes(condition: str, rows: pa.RecordBatch) -> list[bool] | None:
    """Return which changes of rows delete the row; None if Spark has to compute it."""
    sql = get_change_sql(f"select small from v where {condition}", "v", of_rows=True)
    picked = pick(sql, "v", rows.schema)
    if picked is None:
        return None
    read = {name: rows[column] for name, column in picked.columns.items()}
    if ROW_DELETED in rows.schema.names:
        read[ROW_DELETED] = rows[ROW_DELETED]
    selected = picked.select(pa.record_batch(read))
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
        ("sqrt(id) > 2", None),
        ("id > 1.5", [True, False, False, False, True]),
        ("name = 'a' and exists (select 1 from w)", None),
    ],
)
def test_changes_of_rows_that_a_filter_leaves_out(
    condition: str, expected: list[bool] | None
) -> None:
    assert deletes(condition, ROWS) == expected


def test_a_row_that_is_deleted_stays_deleted() -> None:
    rows = ROWS.append_column(ROW_DELETED, pa.array([True, False, False, False, True]))
    assert deletes("id < 3 and small > 0", rows) == [True, False, True, True, True]
    with pytest.raises(ArrowFallback):
        deletes("amount > 0", rows.set_column(4, "amount", pa.array([float("nan")] * 5)))


def test_a_change_that_is_written_otherwise() -> None:
    sql = get_change_sql("select small from v where id > 2", "v", of_rows=True)
    assert pick(sql, "v", ROWS.schema) is not None
    for part, other in (("or not", "and not"), ("false)", "true)"), (".minor", ".major")):
        assert pick(sql.replace(part, other), "v", ROWS.schema) is None
    assert pick(f"{sql} where small = 1", "v", ROWS.schema) is None


def test_nan_is_left_to_spark() -> None:
    rows = ROWS.set_column(4, "amount", pa.array([1.0, float("nan"), 1, 1, 1]))
    assert selected("id = 1", rows) == [5]
    with pytest.raises(ArrowFallback):
        selected("amount > 0", rows)


def test_columns_of_the_condition_are_read_once() -> None:
    picked = pick("select id, amount from v where id = 1 and ID < 5", "v", ROWS.schema)
    assert picked is not None
    assert picked.columns == {"id": "id", "amount": "amount", "__computed_with_id": "id"}


def test_the_change_is_no_column_of_the_row() -> None:
    for star in ("*", "* except (__stream)"):
        picked = pick(f"select {star}, v.__stream as __stream from v", "v", ROWS.schema)
        assert picked is not None
        assert list(picked.columns.values()) == ROWS.schema.names
    assert pick("select * except (id), v.__stream as __stream from v", "v", ROWS.schema) is None


def test_texts_and_numbers_as_spark_reads_them() -> None:
    """Once, `'it''s'` was `its`, and the lowest integer no integer."""
    values = ["'it''s'", "''''", "'a' 'b'", "-2147483648", "-2147483649"]
    columns = [f"{value} as c{number}" for number, value in enumerate(values)]
    picked = pick(f"select id, {', '.join(columns)} from v", "v", ROWS.schema)
    assert picked is not None
    [row] = picked.select(pa.record_batch({"id": [1]})).to_pylist()
    assert list(row.values()) == [1, "it's", "'", "ab", -(2**31), -(2**31) - 1]
    assert [picked.computed[name].type for name in ("c3", "c4")] == [pa.int32(), pa.int64()]


def test_types_that_pyarrow_cannot_compute_with() -> None:
    """Texts of UUIDs are an extension type, for which PyArrow has few functions."""
    ids = pa.array([b"\0" * 16], pa.binary(16)).cast(pa.uuid())
    schema = pa.schema([("one", pa.uuid()), ("other", pa.uuid())])
    picked = pick("select coalesce(one, other) as x from v", "v", schema)
    assert picked is not None
    rows = pa.record_batch(dict.fromkeys(picked.columns, ids))
    with pytest.raises(ArrowFallback):
        picked.select(rows)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select id, upper(substr(name, id)) as x from v", "`SUBSTRING(name, id)`"),
        ("select wide / wide as x from v", "`wide / wide`"),
        ("select nested.a.c as x from v", "`nested.a.c`"),
        ("select cast(day as string) as x, hour(day) as y from v", "`HOUR(day)`"),
        ("select id, sqrt(id) from v", "`SQRT(id)`, which has no name"),
        ("select id, day as id from v", "id, which is selected twice"),
        ("select absent from v", "`absent`"),
        ("select v.* from v as w", "`v.*`"),
        ("select id from v where name = 'a\\b'", "a query with a backslash or a double quote"),
        (
            "select cast(name as string collate utf8_lcase) = 'a' as x from v",
            "`CAST(name AS STRING COLLATE utf8_lcase)`",
        ),
        ("select name collate utf8_lcase = 'a' as x from v", "`name COLLATE utf8_lcase`"),
        ("select id from v limit 1", queries.MORE),
    ],
)
def test_what_spark_has_to_compute(sql: str, said: str) -> None:
    with pytest.raises(Unsupported) as raised:
        queries.pick(sql, "v", ROWS.schema)
    assert str(raised.value) == said
