"""Whatever the engine starts listens on this machine only."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, status, stop
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / ".iceberg_stream"
    stop(tmp_path / ".iceberg_stream")


def addresses(pid: int) -> set[tuple[str, int]]:
    """Where a process and its children accept connections."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return {
        (connection.laddr.ip, connection.laddr.port)
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)  # of a socket for both versions of IP
    return (mapped or address).is_loopback


def test_an_engine_with_web_pages(home: Path) -> None:
    conf = (("spark.ui.enabled", "true"), ("spark.ui.port", "0"))
    settings = EngineSettings(home, driver_memory="1g", keep_alive=60.0, spark_conf=conf)
    engine = EmbeddedEngine(settings)
    session = Session(engine.endpoint(), {})
    spark = session.spark
    spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()  # a Python worker
    server = status(home)
    assert server is not None
    listening = addresses(server.jvm.pid)
    assert len(listening) > 2
    assert [address for address in listening if not is_loopback(address[0])] == []
    session.close()
    engine.release()
