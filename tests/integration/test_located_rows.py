"""Rows of the table that a batch depends on: located by the key index, or scanned by Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches import located_rows
from dbt.adapters.iceberg_stream.stream.batches.located_rows import LOCATED, with_located_rows
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from tests.integration.stream_bed import Bed
from tests.integration.streams import Change as TableChange
from tests.integration.streams import commit, open_sink

VALUES = """
select id, id % 2 = 0 as flag, cast(id as int) as small, id / 3 as ratio,
  cast(id as decimal(20, 2)) as price, concat('text ', id) as name, cast(concat('b', id) as binary) as bytes,
  date '2024-02-29' as day, timestamp '2024-02-29 12:34:56.123456' as moment,
  timestamp_ntz '2024-02-29 12:34:56.123456' as local, array(id, null) as items,
  map('k', id) as pairs, named_struct('a', id, 'b', timestamp_ntz '2020-01-01 00:00:00') as part
from range(9)
"""


def located(
    lake: IcebergCatalog,
    spark: Session,
    name: str,
    keys: list[Any],
    kind: pa.DataType | None = None,
) -> tuple[StreamQuery, dict[str, Any]]:
    """A query that reads rows of a table for changes of some keys, and its views."""
    sink = Sink(lake, ("s", name), Progress("sink"), ("id",))
    sink.claim()
    sink.load_index(1000, refresh=False)
    scanned = spark.rows(f"select * from s.{name} limit 0").schema
    view = "changes"
    options = StreamOptions("sink", ("id",), ignore_null_updates=True)
    sql = get_change_sql(f"select * from {view}", view)
    query = StreamQuery(sql, view, f"s.{name}", scanned.names, options)
    changes = spark.spark.createDataFrame(pa.table({"id": pa.array(keys, kind or pa.int64())}))
    stream = "named_struct('deleted', false, 'truncated', false, 'major', 0L, 'minor', 0L)"
    others = [f"null as `{column}`" for column in scanned.names if column != "id"]
    frame = changes.selectExpr("id", *others, f"{stream} as __stream")
    views = {view: frame}
    return with_located_rows(spark, query, sink, scanned, views), views


@pytest.mark.parametrize("keys", [[3, 5, 77], [77]])
def test_values_of_all_types(lake: IcebergCatalog, spark: Session, keys: list[int]) -> None:
    name = f"located{uuid.uuid4().hex[:8]}"
    spark.run(f"create table s.{name} using iceberg as {VALUES}")
    query, views = located(lake, spark, name, keys)
    assert query.relation == LOCATED
    rows = as_rows(spark.rows(f"select * from {LOCATED} order by id", **{LOCATED: views[LOCATED]}))
    scanned = spark.rows(f"select * from s.{name} where id in (3, 5, 77) order by id")
    assert rows == (as_rows(scanned) if 3 in keys else [])
    types = [column.dataType for column in views[LOCATED].schema]
    assert types == [column.dataType for column in spark.spark.table(f"s.{name}").schema]


def test_keys_that_spark_takes_for_equal(lake: IcebergCatalog, spark: Session) -> None:
    """0.0 and -0.0 are one key for Spark, and two for the index."""
    name = f"located{uuid.uuid4().hex[:8]}"
    spark.run(f"create table s.{name} using iceberg as select -0.0D as id, 'x' as value")
    query, views = located(lake, spark, name, [0.0], pa.float64())
    assert query.relation == f"s.{name}"
    assert LOCATED not in views


def test_rows_that_equality_deletes_have_deleted(lake: IcebergCatalog, spark: Session) -> None:
    """The index does not see that they are gone; Spark does."""
    name = f"located{uuid.uuid4().hex[:8]}"
    spark.run(
        f"create table s.{name} (id bigint, part string, value string) using iceberg "
        "tblproperties ('format-version' = '2')"
    )
    sink = open_sink(lake, ("s", name))
    commit(sink, [TableChange(1, "old"), TableChange(2, "old")], 1)
    commit(sink, [TableChange(1, None)], 2)
    add_stream(lake, ("s", name), "sink")
    query, views = located(lake, spark, name, [1, 2])
    assert query.relation == f"s.{name}"
    assert LOCATED not in views


@pytest.mark.parametrize("most_keys", [0, 2, 100_000])
def test_both_ways_are_the_same(
    lake: IcebergCatalog,
    spark: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most_keys: int,
) -> None:
    monkeypatch.setattr(located_rows, "MOST_KEYS", most_keys)
    options = {"deletes": "op = 'd'", "ignore_null_updates": ("a", "b")}
    made = Bed(lake, spark, tmp_path / "landing", in_process, options)
    made.land([{"id": n, "a": "x", "b": n, "at": 1, "op": "u"} for n in range(4)])
    made.drain()
    # Another writer's row counts, too.
    spark.run(f"insert into s.{made.name} values (8, 'other', 8, 1)")
    made.land([{"id": n, "a": None, "b": None, "at": 2, "op": "u"} for n in (1, 8, 9)])
    made.land([{"id": 2, "op": "d"}, {"id": 3, "a": "y", "at": 3, "op": "u"}])
    made.drain()
    assert made.rows() == [
        (0, "x", 0, 1),
        (1, "x", 1, 2),
        (3, "y", 3, 3),
        (8, "other", 8, 2),
        (9, None, None, 2),
    ]
