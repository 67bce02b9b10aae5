"""One engine and one warehouse for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.embedded import stop
from tests.servers.iceberg_parser import iceberg_parser
from tests.servers.rest_catalog import RestCatalog, rest_catalog
from tests.servers.spark_cluster import TOKEN, spark_cluster

pytest_plugins = ["dbt.tests.fixtures.project"]


@pytest.fixture(scope="session")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the warehouse and the engine's state; the engine stops with the session."""
    folder = tmp_path_factory.mktemp("lakehouse")
    yield folder
    stop(folder / "engine")


@pytest.fixture(scope="session")
def connect_target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    """A profile for a Spark cluster and a REST catalog, both started for the session."""
    folder = tmp_path_factory.mktemp("servers")
    with spark_cluster(folder / "spark") as spark, rest_catalog(folder / "rest") as catalog:
        yield {
            "type": "iceberg_stream",
            "threads": 4,
            "progress": False,
            "method": "connect",
            "host": "localhost",
            "port": spark.port,
            "server_token": TOKEN,
            "catalog_properties": {"type": "rest", "uri": catalog.uri},
            "token": catalog.token("tess"),
        }


@pytest.fixture(scope="session")
def parser() -> Iterator[None]:
    """Iceberg's own parser, for `refusal`."""
    with iceberg_parser():
        yield


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    """Iceberg's reference REST catalog, which knows users by their tokens."""
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="class")
def dbt_profile_target(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.config.getoption("--method") == "connect":
        target: dict[str, object] = request.getfixturevalue("connect_target")
        return dict(target)
    lakehouse: Path = request.getfixturevalue("lakehouse")
    return {
        "type": "iceberg_stream",
        "threads": 4,
        "warehouse": str(lakehouse / "warehouse"),
        "engine_home": str(lakehouse / "engine"),
        "keep_alive": 120,
        "progress": False,
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--method",
        choices=("embedded", "connect"),
        default="embedded",
        help="run functional tests on the embedded engine, or on a cluster with a REST catalog",
    )
