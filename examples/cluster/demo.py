"""Run the shop on a cluster with two users: one builds it, the other may only read it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.servers.rest_catalog import RestCatalog, rest_catalog
from tests.servers.spark_cluster import TOKEN, SparkCluster, spark_cluster

HERE = Path(__file__).parent
SHOP = HERE.parent / "shop"
DATA = HERE / ".data"


def main() -> int:
    # Keeps the lines of this program and of dbt in order, also in a file.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print("Starting a Spark cluster (a master, two workers, Spark Connect) and a REST catalog …")
    with spark_cluster(DATA / "spark") as spark, rest_catalog(DATA / "catalog") as catalog:
        print("\nwanda, a writer, builds the shop:\n")
        built = _dbt(spark, catalog, catalog.token("wanda"), "build")
        print("\nrita, a reader, looks at it:\n")
        look = ["show", "--inline", "select * from {{ ref('customers') }}", "--limit", "3"]
        seen = _dbt(spark, catalog, catalog.token("rita", "reader"), *look)
        print("\nand tries to rebuild a table:\n")
        refused = _dbt(
            spark, catalog, catalog.token("rita", "reader"), "run", "--select", "customers"
        )
        print("\nWhat the catalog was asked, by whom, and what it said:\n")
        counts = Counter((who, method, status) for who, method, _, status in catalog.requests())
        for (who, method, status), count in sorted(counts.items()):
            print(f"  {who:8} {method:6} {status}  {count:4} times")
    return 0 if (built, seen) == (0, 0) and refused != 0 else 1


def _dbt(spark: SparkCluster, catalog: RestCatalog, token: str, *arguments: str) -> int:
    environment = os.environ | {
        "SPARK_CONNECT_PORT": str(spark.port),
        "DBT_ENV_SECRET_SPARK_TOKEN": TOKEN,
        "CATALOG_URI": catalog.uri,
        "DBT_ENV_SECRET_CATALOG_TOKEN": token,
        "SHOP_TODAY": "2026-03-31",
    }
    command = [str(Path(sys.executable).with_name("dbt")), *arguments]
    command += ["--project-dir", str(SHOP), "--profiles-dir", str(HERE)]
    command += ["--target-path", str(DATA / "target"), "--log-path", str(DATA / "logs")]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
