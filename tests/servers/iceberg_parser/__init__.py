"""Iceberg's own parser of metadata, as a process of its own: what every Java engine reads with."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.jars import resolve_packages, spark_jars
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES

SOURCE = Path(__file__).with_name("IcebergParser.java")
# Where a process that is running listens, for those that this one starts.
PORT = "ICEBERG_PARSER_PORT"


@contextlib.contextmanager
def iceberg_parser() -> Iterator[None]:
    """Run the parser, for this process and those it starts, unless it runs."""
    if PORT in os.environ:
        yield
        return
    java = find_java()
    jars = [*resolve_packages(DEFAULT_PACKAGES, java, None), *spark_jars()]
    command = [str(java.executable), "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp"]
    process = subprocess.Popen(
        [*command, ":".join(map(str, jars)), str(SOURCE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        os.environ[PORT] = process.stdout.readline().strip()
        yield
    finally:
        os.environ.pop(PORT, None)
        process.kill()
        process.communicate()


def refusal(metadata_location: str) -> str | None:
    """Why Iceberg cannot read a table's metadata, manifest lists or manifests; None if it can."""
    with socket.create_connection(("127.0.0.1", int(os.environ[PORT]))) as connection:
        connection.sendall(f"{metadata_location}\n".encode())
        answer = connection.makefile().readline().strip()
    return None if answer == "ok" else answer
