"""Flink, which writes tables of a lake and reads them, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError

import pytest

from benchmarks.stream.flink import python_of_flink
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.jars import resolve_packages
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES

SCRIPT = Path(__file__).with_name("flink_script.py")


def run_flink(
    lake: IcebergCatalog, tables: Mapping[str, Mapping[str, str]], statements: Sequence[str] = ()
) -> dict[str, list[list[object]]]:
    """Run statements, then read tables of the namespace `s`: their rows.

    Args:
        lake: a SQLite catalog, which Flink has as `lake`.
        tables: which ones to read, each with Flink's settings for that.
        statements: run one after the other, each until its job has ended.
    """
    try:
        python = python_of_flink()
    except (URLError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Flink cannot be fetched: {error}")
    java = find_java()
    jars = resolve_packages(DEFAULT_PACKAGES, java, None)
    (driver,) = (jar for jar in jars if "sqlite-jdbc" in jar.name)
    warehouse = Path(str(lake.pyiceberg.properties["warehouse"]).removeprefix("file://"))
    prefix = "spark.sql.catalog.lake."
    catalog = {
        key.removeprefix(prefix): value
        for key, value in spark_settings("lake", warehouse).items()
        if key.startswith(prefix) and key != f"{prefix}type"
    }
    catalog["catalog-impl"] = "org.apache.iceberg.jdbc.JdbcCatalog"
    asked = {"catalog": catalog, "statements": list(statements)}
    asked["tables"] = {name: dict(settings) for name, settings in tables.items()}
    home = java.executable.resolve().parent.parent
    given = {"JAVA_HOME": str(home), "HADOOP_CLASSPATH": str(driver)}
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(SCRIPT), json.dumps(asked)],
        env=inherited | given,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {answer["table"]: answer["rows"] for answer in answers}
