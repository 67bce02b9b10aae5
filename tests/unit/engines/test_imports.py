"""What a process imports of Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines import imports

ROOT = Path(imports.__file__).parents[1]
THREADS = """
import sys, threading
from dbt.adapters.iceberg_stream.engines.imports import load_messages, load_pyspark

barrier, errors = threading.Barrier(8), []

def run(number):
    barrier.wait()
    try:
        if number % 2:
            load_messages()
        load_pyspark()
    except ImportError as error:
        errors.append(error)

threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(len(errors))
"""
MESSAGES = """
import sys
from dbt.adapters.iceberg_stream.engines.imports import load_messages
load_messages()
from dbt.adapters.iceberg_stream.engines.sql_client import SqlClient
from dbt.adapters.iceberg_stream.errors.spark import explain
with explain():
    pass
loaded = {"numpy", "pandas", "pyspark", "pyspark.sql", "pyspark.errors"} & sys.modules.keys()
assert not loaded, loaded
"""
# What another part of the process may do with Spark after its messages are loaded.
AFTERWARDS = {
    "the client": """
from dbt.adapters.iceberg_stream.engines.imports import load_pyspark
from pyspark.sql.connect.proto import Plan
load_pyspark()
import pyspark
import pyspark.sql.connect.client.core as core
assert core.pb2.Plan is Plan and pyspark.sql.connect.proto.Plan is Plan
""",
    "the classic client": """
import pyspark
from pyspark.sql import SparkSession, functions
assert pyspark.__version__ and SparkSession.builder and functions.col
""",
    "a module of Spark Connect": """
from pyspark.sql.connect.proto import Plan
from pyspark.sql.connect.plan import SQL
import pyspark.sql.connect.proto as proto
assert proto.Plan is Plan and SQL
""",
}


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_threads_at_the_same_time() -> None:
    """Spark's modules import each other; without a lock, one process in three failed."""
    for _ in range(4):
        assert run(THREADS) == ""


def test_messages_without_the_rest_of_spark() -> None:
    assert run(MESSAGES) == ""


@pytest.mark.parametrize("use", AFTERWARDS)
def test_spark_after_its_messages(use: str) -> None:
    assert run(MESSAGES + AFTERWARDS[use]) == ""


@pytest.mark.parametrize("package", ["engines", "materializations"])
def test_functions_load_spark_before_they_import_it(package: str) -> None:
    """Threads that import its modules in different orders would wait for each other."""
    for path in (ROOT / package).glob("*.py"):
        if path.name == "stream_model.py":
            continue  # which loads it for all of a stream
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            nodes = list(ast.walk(function))
            imported = [
                node.lineno
                for node in nodes
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspark")
            ]
            loads = [
                node.lineno
                for node in nodes
                if isinstance(node, ast.Call) and ast.unparse(node) == "load_pyspark()"
            ]
            assert not imported or (loads and min(loads) < min(imported)), (path, function.name)
