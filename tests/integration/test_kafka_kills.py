"""Streams of Kafka that are killed at random moments, or overtaken: each message counts once."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import remove_orphans, unreferenced_files
from tests.integration import stream_writer
from tests.integration.kafka_writer import SCHEMAS, Messages, drain
from tests.integration.processes import forkserver
from tests.integration.streams import NAME, SINK, make_table
from tests.integration.tables import LATER, duckdb_rows
from tests.integration.writers import open_catalog
from tests.servers.producer import CheckedProducer
from tests.servers.schema_registry import Registry, schema_registry

PARTITIONS = 3
KILLS, SOAK_KILLS = 3, 100
# Messages that are sent before each kill.
SENT = 600
# Formats of messages, and the columns that identify a row.
SHORT = [("json", ()), ("avro", ("id",)), ("debezium", ("id",))]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def messages(request: pytest.FixtureRequest, bootstrap: str) -> Messages:
    """A new topic of messages in a format."""
    topic = f"t{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    if request.param == "json":
        return Messages(topic, bootstrap)
    registry: Registry = request.getfixturevalue("registry")
    number = registry.register(f"{topic}-value", json.dumps(SCHEMAS[request.param]))
    return Messages(topic, bootstrap, request.param, registry.url, number)


class Topic:
    """Sends random rows, and knows what a stream of them has written.

    Attributes:
        rows: of each partition, in their order, only with their id if they are deleted; those of
            an id are in one partition.
    """

    def __init__(self, messages: Messages, seed: int) -> None:
        self.messages, self.random = messages, random.Random(seed)
        self.rows: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self._producer = CheckedProducer({"bootstrap.servers": messages.bootstrap})

    def send(self, count: int) -> None:
        for _ in range(count):
            id = self.random.randrange(60)
            row = {"id": id, "part": "a", "value": uuid.UUID(int=self.random.getrandbits(128)).hex}
            deletes = self.messages.format == "debezium" and self.random.random() < 0.2
            self.rows[id % PARTITIONS].append({"id": id} if deletes else row)
            value = self.messages.encode(row, deletes)
            self._producer.produce(self.messages.topic, value, partition=id % PARTITIONS)
        self._producer.deliver()

    def written(self, lake: IcebergCatalog, keys: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
        """Return the rows of the messages up to where the table's stream has come."""
        loaded = lake.load(NAME)
        assert loaded is not None
        reached = stream_writer.frontier(dict(loaded.metadata), SINK) or {}
        rows = [row for n, sent in enumerate(self.rows) for row in sent[: reached.get(str(n), 0)]]
        last = {row["id"]: row for row in rows} if keys else dict(enumerate(rows))
        return Counter(tuple(row.values()) for row in last.values() if "value" in row)


def run_and_kill(
    place: dict[str, str], lake: IcebergCatalog, topic: Topic, keys: tuple[str, ...], kills: int
) -> int:
    """Run streams that are killed, now and then while another one takes over.

    Returns:
        How many were killed at work.
    """
    context, killed = forkserver(), 0
    for number in range(kills):
        topic.send(SENT)
        outcomes = context.SimpleQueue()
        arguments = (place, topic.messages, keys, outcomes)
        streams = [
            context.Process(target=drain, args=arguments)
            for _ in range(2 if number % 3 == 2 else 1)
        ]
        for stream in streams:
            stream.start()
            stream.join(0.1 + topic.random.random() * 0.7)
        killed += streams[0].is_alive()
        streams[0].kill()
        for stream in streams:
            stream.join()
        while not outcomes.empty():
            assert outcomes.get() in ("done", "Fenced")
        assert Counter(duckdb_rows(lake, "t")) == topic.written(lake, keys)
    return killed


def require_all(lake: IcebergCatalog, topic: Topic, keys: tuple[str, ...]) -> None:
    """Check that the table has all messages, and that only orphan files are left besides."""
    loaded = lake.load(NAME)
    assert loaded is not None
    reached = stream_writer.frontier(dict(loaded.metadata), SINK) or {}
    assert [reached[str(n)] for n in range(PARTITIONS)] == [len(sent) for sent in topic.rows]
    expected = topic.written(lake, keys)
    orphans = unreferenced_files(loaded, LATER)
    assert remove_orphans(loaded, orphans) == len(orphans)
    assert Counter(duckdb_rows(lake, "t")) == expected
    findings = check_table(loaded, data=True).findings
    assert [finding for finding in findings if finding.severity != "note"] == []


def killed_at_random_moments(
    messages: Messages, tmp_path: Path, keys: tuple[str, ...], kills: int
) -> int:
    place = {"folder": str(tmp_path / "warehouse")}
    lake = open_catalog(place)
    lake.create_namespace("s")
    make_table(lake)
    topic = Topic(messages, kills)
    killed = run_and_kill(place, lake, topic, keys, kills)
    drain(place, messages, keys)
    require_all(lake, topic, keys)
    lake.close()
    return killed


@pytest.mark.parametrize(
    "messages, keys",
    [
        SHORT[1],
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SHORT if each != SHORT[1]),
    ],
    indirect=["messages"],
)
@pytest.mark.slow
def test_killed_at_random_moments(
    messages: Messages, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    assert killed_at_random_moments(messages, tmp_path, keys, KILLS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "messages, keys",
    [*SHORT, ("json", ("id",)), ("avro", ())],
    indirect=["messages"],
)
def test_killed_many_times(messages: Messages, tmp_path: Path, keys: tuple[str, ...]) -> None:
    assert killed_at_random_moments(messages, tmp_path, keys, SOAK_KILLS) > SOAK_KILLS / 10
