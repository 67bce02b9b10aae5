"""Random histories of a table, on a SQLite catalog and on REST; `make test-slow` has many more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from tests.integration.own_writes_machine import DuckDB, OwnWrites, Place, run_machine
from tests.integration.table_machine import TableMachine
from tests.integration.writers import open_catalog

# The first history of a run is the simplest one, over and over the same step.
HISTORIES, STEPS = 2, 30
SLOW_HISTORIES, SLOW_STEPS = 5, 50
SEEDS = range(100, 200)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("rest", marks=pytest.mark.slow)])
def machines(
    request: pytest.FixtureRequest, engine_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A catalog, and a session of the shared engine in it."""
    folder = tmp_path_factory.mktemp("machines")
    if request.param == "sqlite":
        place = {"folder": str(folder / "warehouse")}
        settings = spark_settings("lake", folder / "warehouse")
    else:
        place = request.getfixturevalue("rest_place")
        properties = {"type": "rest", "uri": place["uri"]}
        settings = CatalogSettings("lake", properties).spark(place["token"])
    engine = EmbeddedEngine(EngineSettings(engine_home, keep_alive=120))
    with closing(open_catalog(place)) as lake, closing(DuckDB()) as duckdb:
        lake.create_namespace("s")
        session = Session(engine.endpoint(), settings)
        yield Place(lake, session, folder / "landing", duckdb)
        session.close()
    engine.release()


def test_histories_of_our_own_writers(machines: Place) -> None:
    run_machine(OwnWrites, machines, 1, STEPS, HISTORIES)


def test_histories_with_streams_and_spark(machines: Place) -> None:
    run_machine(TableMachine, machines, 1, STEPS, HISTORIES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", SEEDS)
def test_many_histories(machines: Place, number: int) -> None:
    run_machine(OwnWrites, machines, number, SLOW_STEPS, SLOW_HISTORIES)
    run_machine(TableMachine, machines, number, SLOW_STEPS, SLOW_HISTORIES)
