"""One engine for all tests, and one warehouse for those of a process."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

from dbt.adapters.iceberg_stream.engines.embedded import stop
from tests.servers.iceberg_parser import iceberg_parser
from tests.servers.kafka import delete_topics, kafka_server
from tests.servers.rest_catalog import RestCatalog, rest_catalog
from tests.servers.spark_cluster import TOKEN, spark_cluster

pytest_plugins = ["dbt.tests.fixtures.project"]
# The time of an example says nothing on a busy machine.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# The profile's settings of what dbt's process writes instead of Spark.
FEW_ROWS: dict[str, dict[str, object]] = {
    "default": {},
    "off": {"small_table_rows": 0},
    "forced": {"small_table_rows": 1_000_000},
}
# The official suite of dbt's adapters, and what takes little time.
IN_ALL_SHARES = ("tests/unit", "tests/functional/adapter")
ENGINE_HOME = "ICEBERG_STREAM_TEST_ENGINE"
# The optimizing compiler of Java costs tests more than it gains them, and so do the programs that
# Spark writes and compiles for each query. On a cluster it does write them.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
NO_CODEGEN = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"


def is_controller(config: pytest.Config) -> bool:
    """Whether this process runs tests itself or starts the processes that run them."""
    return not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder of the engine that all processes of tests share."""
    if is_controller(config):
        on_cluster = config.getoption("--method") == "connect"
        options = JAVA_OPTIONS if on_cluster else f"{JAVA_OPTIONS} {NO_CODEGEN}"
        os.environ.setdefault("JAVA_TOOL_OPTIONS", options)
        os.environ[ENGINE_HOME] = tempfile.mkdtemp(prefix="engine-")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the variants that are slow, and leave out what other shares run."""
    mark_slow_variants(items)
    number, shares = map(int, config.getoption("--share").split("/"))
    kept, others = [], []
    for item in items:
        (kept if share_of(item, shares) in (None, number) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def share_of(item: pytest.Item, shares: int) -> int | None:
    """The share of a test, the same for all of a file; None for tests that all shares run."""
    if item.nodeid.startswith(IN_ALL_SHARES):
        return None
    return zlib.crc32(item.nodeid.partition("::")[0].encode()) % shares


def mark_slow_variants(items: list[pytest.Item]) -> None:
    """Of a test with `variants(n)`, let all but n of its parameters be slow, always the same."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("variants") and not item.get_closest_marker("slow"):
            variants[item.nodeid.partition("[")[0]].append(item)
    for name, group in variants.items():
        mark = group[0].get_closest_marker("variants")
        assert mark is not None
        kept = Random(name).sample(range(len(group)), min(mark.args[0], len(group)))
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the engine when no process needs it any more."""
    if is_controller(config):
        home = Path(os.environ.pop(ENGINE_HOME))
        stop(home)
        # The engine's process may remove its own files at the same time.
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def folder_of_tests() -> Iterator[None]:
    """Come back from a dbt project that could not be torn down, so that only its test fails."""
    folder = Path.cwd()
    yield
    os.chdir(folder)


@pytest.fixture(scope="session")
def engine_home() -> Path:
    """The folder of the engine's state; the processes of a session share the engine."""
    return Path(os.environ[ENGINE_HOME])


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of one process of tests."""
    return tmp_path_factory.mktemp("warehouse")


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


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Kafka, which the tests of a process share."""
    with kafka_server(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(scope="module")
def bootstrap(kafka_address: str) -> Iterator[str]:
    """The address of Kafka without topics, for `bootstrap.servers`."""
    yield kafka_address
    delete_topics(kafka_address)


@pytest.fixture(scope="class")
def dbt_profile_target(request: pytest.FixtureRequest, engine_home: Path) -> dict[str, object]:
    if request.config.getoption("--method") == "connect":
        target: dict[str, object] = request.getfixturevalue("connect_target")
        return dict(target)
    return {
        "type": "iceberg_stream",
        "threads": 4,
        "warehouse": str(request.getfixturevalue("warehouse")),
        "engine_home": str(engine_home),
        "keep_alive": 120,
        "progress": False,
        **FEW_ROWS[request.config.getoption("--few-rows")],
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        default="0/1",
        help="run one share of the functional and integration tests: 1/2 is the second half",
    )
    parser.addoption(
        "--method",
        choices=("embedded", "connect"),
        default="embedded",
        help="run functional tests on the embedded engine, or on a cluster with a REST catalog",
    )
    parser.addoption(
        "--few-rows",
        choices=FEW_ROWS,
        default="default",
        help="what dbt's process writes itself in functional tests: what is small by default, "
        "nothing, or all that it can; the results must be the same",
    )
