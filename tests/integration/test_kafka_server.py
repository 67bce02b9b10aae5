"""Spark's Kafka source on the local engine, against a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, stop
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import (
    Endpoint,
    EngineSettings,
)
from tests.servers.producer import CheckedProducer

PARTITIONS = 3
# From the first (-2) to the last (-1) message of each partition.
EVERYTHING = dict.fromkeys(range(PARTITIONS), -2), dict.fromkeys(range(PARTITIONS), -1)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    home = tmp_path_factory.mktemp("project") / ".iceberg_stream"
    engine = EmbeddedEngine(EngineSettings(home, driver_memory="1g"))
    yield engine.endpoint()
    stop(home)


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()


def fill(bootstrap: str, topic: str, numbers: range, codec: str = "none") -> None:
    producer = CheckedProducer({"bootstrap.servers": bootstrap, "compression.type": codec})
    for number in numbers:
        producer.produce(topic, json.dumps({"id": number}), partition=number % PARTITIONS)
    producer.deliver()


def read(session: Session, bootstrap: str, topic: str, start: Any, end: Any) -> list[int]:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: start}),
        "endingOffsets": json.dumps({topic: end}),
    }
    session.spark.read.format("kafka").options(**options).load().createOrReplaceTempView("k")
    rows = session.query("select from_json(string(value), 'id bigint').id from k order by 1")
    ids: list[int] = rows.column(0).to_pylist()
    return ids


@pytest.mark.slow
def test_every_session_reads_between_offsets(bootstrap: str, endpoint: Endpoint) -> None:
    # Jars that a session adds by itself serve the first session of a server only.
    create(bootstrap, "numbers")
    fill(bootstrap, "numbers", range(30))
    for _ in range(2):
        session = Session(endpoint, {})
        actual = read(session, bootstrap, "numbers", {0: 0, 1: 9, 2: -2}, {0: 2, 1: -1, 2: 0})
        assert actual == [0, 3, 28]
        session.renew({})
        assert read(session, bootstrap, "numbers", *EVERYTHING) == list(range(30))
        session.close()


def test_reads_what_producers_compress(bootstrap: str, endpoint: Endpoint) -> None:
    create(bootstrap, "compressed")
    for index, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        fill(bootstrap, "compressed", range(index * 300, (index + 1) * 300), codec)
    session = Session(endpoint, {})
    assert read(session, bootstrap, "compressed", *EVERYTHING) == list(range(1200))
    session.close()
