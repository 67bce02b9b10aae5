"""What `method: connect` costs over `method: embedded`, both warm and on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import CATALOG, Contender, Files, Ours, require_same_rows
from benchmarks.harness import Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from tests.servers.rest_catalog import RestCatalog, rest_catalog
from tests.servers.spark_cluster import TOKEN, SparkCluster, spark_cluster

PEER = "iceberg_stream, method: embedded with SQLite"
COMMANDS = {
    "select_1": ["show", "--inline", "select 1 as id"],
    "one_model": ["run", "--select", "table_001"],
    "tables_100": ["run"],
}
NOTE = "Whole command. Ours: a master, two workers of one core, and Iceberg's REST server"


class OursConnect(Contender):
    """iceberg_stream on a cluster with a REST catalog."""

    label = "iceberg_stream, method: connect"

    def __init__(self, root: Path, files: Files, spark: SparkCluster, catalog: RestCatalog) -> None:
        self._spark = spark
        self._catalog = catalog
        self._token = catalog.token("bench")
        super().__init__(root, files)

    def profile(self) -> dict[str, Any]:
        return {
            "type": "iceberg_stream",
            "method": "connect",
            "host": "localhost",
            "port": self._spark.port,
            "server_token": TOKEN,
            "catalog_properties": {"uri": self._catalog.uri},
            "token": self._token,
        }

    def lake(self) -> IcebergCatalog:
        settings = CatalogSettings(CATALOG, {"type": "rest", "uri": self._catalog.uri})
        return IcebergCatalog(CATALOG, RemoteBackend(settings, Identity(LiteralToken(self._token))))


def overhead(bench: Bench) -> list[Result]:
    """`select 1`, a small model, a hundred of them."""
    files = projects.tables(bench.size(100))
    folder = bench.folder / "connect"
    with spark_cluster(folder / "spark") as spark, rest_catalog(folder / "rest") as catalog:
        ours = OursConnect(folder / "ours", files, spark, catalog)
        peer = Ours(folder / "peer", files, bench.engine)
        for contender in (ours, peer):
            contender.dbt("build")
        return [
            _compare(name, ours, peer, bench.runs(2 if name == "tables_100" else 5))
            for name in COMMANDS
        ]


def _compare(name: str, ours: OursConnect, peer: Ours, runs: int) -> Result:
    command = COMMANDS[name]
    seconds = alternate(
        {"connect": lambda: ours.seconds(*command), "embedded": lambda: peer.seconds(*command)},
        runs,
        lambda: require_same_rows([ours, peer]),
    )
    return Result.of(name, PEER, seconds["connect"], seconds["embedded"], None, f"{NOTE}.")
