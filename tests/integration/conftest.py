"""A SQLite catalog written to without dbt, and Spark and DuckDB as its readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.lake import Lake
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteNames, spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    names = SqliteNames("lake", tmp_path_factory.mktemp("written"))
    names.create_namespace("s")
    lake = Lake("lake", names)
    yield lake
    lake.close()


@pytest.fixture(scope="module")
def spark(lake: Lake, lakehouse: Path) -> Iterator[Session]:
    """A session on the engine that functional tests use, in this module's catalog."""
    engine = EmbeddedEngine(EngineSettings(lakehouse / "engine", keep_alive=120))
    warehouse = Path(str(lake.catalog.properties["warehouse"]).removeprefix("file://"))
    session = Session(engine.endpoint().url, spark_settings("lake", warehouse))
    yield session
    session.close()
    engine.release()
