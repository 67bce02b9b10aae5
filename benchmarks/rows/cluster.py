"""The same merges on a cluster: two workers of one core, and Iceberg's REST server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.connect.overhead import OursConnect
from benchmarks.contenders import CATALOG, Files, Peer
from benchmarks.harness import Result
from benchmarks.rows.layouts import compare, project
from tests.servers.rest_catalog import RestCatalog, rest_catalog
from tests.servers.spark_cluster import TOKEN, SparkCluster, spark_cluster

AIM = 1.5


class PeerConnect(Peer):
    """dbt-spark, unmodified, on the same cluster with the same catalog."""

    label = "dbt-spark on a cluster"

    def __init__(self, root: Path, files: Files, spark: SparkCluster, catalog: RestCatalog) -> None:
        self._spark, self._catalog = spark, catalog
        self._token = catalog.token("peer")
        super().__init__(root, files)

    def profile(self) -> dict[str, Any]:
        name = f"spark.sql.catalog.{CATALOG}"
        return self._spark_profile(
            {
                name: "org.apache.iceberg.spark.SparkCatalog",
                f"{name}.type": "rest",
                f"{name}.uri": self._catalog.uri,
                f"{name}.token": self._token,
                "spark.sql.defaultCatalog": CATALOG,
            }
        )

    def environment(self) -> dict[str, str]:
        remote = f"sc://localhost:{self._spark.port}/;token={TOKEN}"
        return super().environment() | {"SPARK_REMOTE": remote}


def merges(bench: Bench, layout: str, rows: int, label: str) -> list[Result]:
    """Merge into a table of a layout on a cluster."""
    rows = bench.size(rows)
    files, root = project(layout, rows), bench.folder / f"rows_cluster_{layout}"
    with (
        spark_cluster(root / "spark") as spark,
        rest_catalog(root / "rest_ours") as mine,
        rest_catalog(root / "rest_peer") as others,
    ):
        ours = OursConnect(root / "ours", files, spark, mine)
        peer = PeerConnect(root / "peer", files, spark, others)
        return compare(bench, ours, peer, layout, rows, f"cluster_{label}", AIM)
