"""A SQLite catalog written to without dbt, and Spark and DuckDB as its readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from tests.servers.rest_catalog import rest_catalog


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path_factory.mktemp("written"))
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    yield lake
    lake.close()


@pytest.fixture(scope="module")
def spark(lake: IcebergCatalog, engine_home: Path) -> Iterator[Session]:
    """A session on the engine that functional tests use, in this module's catalog."""
    engine = EmbeddedEngine(EngineSettings(engine_home, keep_alive=120))
    warehouse = Path(str(lake.pyiceberg.properties["warehouse"]).removeprefix("file://"))
    session = Session(engine.endpoint(), spark_settings("lake", warehouse))
    yield session
    session.close()
    engine.release()


@pytest.fixture(scope="module")
def rest_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield {"uri": server.uri, "token": server.token("tess")}


@pytest.fixture(params=["sqlite", "rest"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where `writers.open_catalog` finds a catalog: a SQLite file, then a REST server."""
    if request.param == "sqlite":
        return {"folder": str(tmp_path / "warehouse")}
    actual: dict[str, str] = request.getfixturevalue("rest_place")
    return actual
