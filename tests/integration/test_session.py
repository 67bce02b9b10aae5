"""Queries of which only few rows are wanted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.python_functions import PythonFunction
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.errors.spark import StatementError


@pytest.fixture
def other_session(spark: Session, engine_home: Path) -> Iterator[Session]:
    """A second session on the engine."""
    engine = EmbeddedEngine(EngineSettings(engine_home, keep_alive=120))
    session = Session(engine.endpoint(), {})
    yield session
    session.close()
    engine.release()


def test_few_rows(spark: Session) -> None:
    rows, schema = spark.few_rows("select id, 'x' as text from range(3)", 3, 10_000) or (None, None)
    assert rows is not None and rows.to_pylist() == [{"id": i, "text": "x"} for i in range(3)]
    assert schema is not None and [field.name for field in schema.fields] == ["id", "text"]


def test_no_rows_have_columns(spark: Session) -> None:
    rows, _ = spark.few_rows("select id, concat('a', id) as text from range(0)", 3, 1) or (
        None,
        None,
    )
    assert rows is not None and rows.column_names == ["id", "text"] and not rows.num_rows


@pytest.mark.parametrize(("most_rows", "most_bytes"), [(1_000, 1 << 40), (10_000, 100_000)])
def test_more_rows_are_not_fetched(spark: Session, most_rows: int, most_bytes: int) -> None:
    # The engine does not have the memory for all of them.
    endless = "select id, concat('a', id) as text from range(1000000000000)"
    assert spark.few_rows(endless, most_rows, most_bytes) is None
    assert spark.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_a_stream_that_is_not_read_to_its_end_is_ended(spark: Session) -> None:
    rows = spark.stream("select id, concat('a', id) as text from range(0, 2000000000, 1, 20000)")
    next(rows)
    assert next(rows).num_rows
    rows.close()  # type: ignore[attr-defined]
    time.sleep(3)
    assert not spark.interrupt()  # whether statements were running
    assert spark.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_a_stream_goes_on_after_a_renewal_and_can_be_canceled(spark: Session) -> None:
    slow = "java_method('java.lang.Thread', 'sleep', 200L)"
    rows = spark.stream(f"select id, {slow} as slept from range(0, 400, 1, 400)")
    next(rows)
    spark.renew({"spark.sql.session.timeZone": "UTC"})
    assert next(rows).num_rows
    assert spark.interrupt()  # whether statements were running
    with pytest.raises(StatementError, match="OPERATION_CANCELED"):
        list(rows)


def test_errors_are_explained(spark: Session) -> None:
    with pytest.raises(StatementError, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.few_rows("select * from lake.s.nothing", 10, 10)


def test_rows_that_arrive_in_pieces(spark: Session) -> None:
    spark.configure({"spark.connect.session.resultChunking.maxChunkSize": "100000"})
    rows = spark.query("select id, repeat('x', 1000000 + cast(id as int)) as text from range(2)")
    assert [len(text) for text in rows["text"].to_pylist()] == [1_000_000, 1_000_001]


def test_names_of_types(spark: Session) -> None:
    types = ["decimal(7,2)", "array<map<string,struct<a:date>>>", "interval day to second", "void"]
    columns = ", ".join(f"cast(null as {name}) as c{i}" for i, name in enumerate(types))
    assert spark.schema(f"select {columns}") == [(f"c{i}", name) for i, name in enumerate(types)]


def test_a_setting_with_a_type(spark: Session) -> None:
    assert int(spark.setting("spark.sql.shuffle.partitions")) > 0
    assert spark.setting("spark.no.such.setting") == ""


def test_both_clients_share_the_session(spark: Session) -> None:
    spark.run("create temporary view one as select 1 as one")
    assert spark.spark.table("one").toArrow().to_pylist() == [{"one": 1}]
    spark.spark.range(2).createOrReplaceTempView("two")
    spark.renew({"spark.sql.session.timeZone": "America/Lima"})
    assert spark.query("select count(*) as n from one, two").to_pylist() == [{"n": 2}]
    assert spark.setting("spark.sql.session.timeZone") == "America/Lima"


@pytest.mark.parametrize("name", ["elsewhere", "`else-where`.`and``here`"])
def test_a_renewed_session_keeps_its_schema(
    spark: Session, other_session: Session, name: str
) -> None:
    # While anything is cached, some of Spark's commands fail in all sessions.
    other_session.run("cache table cached as select 1 as one")
    spark.run(f"create namespace if not exists lake.{name.split('.')[0]}")
    spark.run(f"create namespace if not exists lake.{name}")
    spark.run(f"use lake.{name}")
    spark.run("create or replace table one as select 1 as one")
    spark.renew({"spark.sql.session.timeZone": "America/Lima"})
    assert spark.query("select * from one").to_pylist() == [{"one": 1}]
    spark.run("use spark_catalog.default")
    spark.renew({"spark.sql.session.timeZone": "UTC"})
    assert spark.query("select current_catalog() as name").to_pylist() == [
        {"name": "spark_catalog"}
    ]
    spark.run("use lake")
    other_session.run("uncache table cached")


READ_FILE = """
from pyspark import SparkFiles

def read(name):
    with open(SparkFiles.get(name)) as file:
        return file.read()
"""


def test_files_of_a_python_program_stay_in_its_session(
    spark: Session, other_session: Session, tmp_path: Path
) -> None:
    read = PythonFunction("read", "read.py", READ_FILE, "read")
    for name, session in (("one", spark), ("other", other_session)):
        session.register_function("read", read, "string", deterministic=False)
        session.run(f"create temporary view own as select '{name}' as name")
        file = tmp_path / name / "name.txt"
        file.parent.mkdir()
        file.write_text(name)
        session.activate()
        session.spark.addArtifacts(str(file), file=True)
    for name, session in (("one", spark), ("other", other_session)):
        rows = session.query("select read('name.txt') as file, name from own")
        assert rows.to_pylist() == [{"file": name, "name": name}]


def test_rows_of_a_command(spark: Session) -> None:
    assert spark.fetch(spark.run("show user functions like 'nothing'")).num_rows == 0
    assert "spark_catalog" in spark.fetch(spark.run("show catalogs"))["catalog"].to_pylist()


@pytest.fixture
def handled_interrupts() -> Iterator[None]:
    """Handle SIGINT as Python does, also where the tests' own process ignores it (`pytest &`)."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("handled_interrupts")
def test_an_interrupted_process_ends_its_query(spark: Session) -> None:
    interrupts = iter([signal.SIGINT])

    def interrupt(inflight_tasks: int, **_: Any) -> None:
        # While Spark plans a query, it may miss an interrupt.
        if inflight_tasks and (number := next(interrupts, None)):
            signal.raise_signal(number)

    spark.on_progress(interrupt)
    with pytest.raises(KeyboardInterrupt):
        spark.query("select count(*) from range(100000000000) a where hash(a.id) % 3 = 0")
    time.sleep(2)
    assert not spark.interrupt()  # whether statements were running
