"""Batches of whole transactions, from a real topic."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient, NewTopic

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import KafkaClient
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import ends
from dbt.adapters.iceberg_stream.stream.sources.source import MINOR
from tests.servers.producer import CheckedProducer
from tests.unit.stream.sources.formats.encoded_changes import Registry, encoder


def registry_of(kind: str | None) -> Any:
    return Registry(kind) if kind else None


class Topic:
    """A topic with transactions of so many changes each."""

    def __init__(
        self, bootstrap: str, form: str, partitions: int = 1, kind: str | None = None
    ) -> None:
        self.name, self.form = f"t{uuid.uuid4().hex[:8]}", form
        self.encode, registry = encoder(kind), registry_of(kind)
        self.count, self._servers = 0, {"bootstrap.servers": bootstrap}
        admin = AdminClient(self._servers)
        admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result()
        self.source = KafkaSource(
            self.name,
            self._servers,
            Envelope(form, "id bigint"),
            transactions=True,
            registry=registry,
        )

    def send(self, *values: Any, seconds_ago: float = 0.0) -> None:
        producer = CheckedProducer(self._servers)
        stamp = int((time.time() - seconds_ago) * 1000)
        for value in values:
            text = self.encode(value) if isinstance(value, dict) else value
            producer.produce(self.name, value=text, timestamp=stamp)
        producer.deliver()

    def commit(self, changes: int, ends: bool = True, seconds_ago: float = 0.0) -> None:
        self.count += 1
        if self.form == "maxwell":
            sent: list[Any] = [{"type": "insert", "xid": self.count, "data": {}}] * changes
            if ends:
                sent[-1] = {**sent[-1], "commit": True}
        else:
            sent = [{"op": "c", "transaction": {"id": str(self.count)}}] * changes
        self.send(*sent, seconds_ago=seconds_ago)

    def frontier(self, offset: int) -> dict[str, Any]:
        ids = self.source.present(None)
        assert ids is not None
        return {**ids, "0": offset}

    def batches(self, rows: int) -> Sequence[int]:
        """Where batches of about so many rows end."""
        ends: list[int] = []
        lower = {"0": 0}
        while (upper := self.source.plan_batch(lower, rows)) is not None:
            ends.append(upper["0"])
            lower = dict(upper)
        return ends


@pytest.fixture(params=["maxwell", "debezium"])
def topic(request: pytest.FixtureRequest, bootstrap: str) -> Topic:
    return Topic(bootstrap, request.param)


def test_batches_end_where_transactions_end(topic: Topic) -> None:
    for size in (3, 4, 2, 1):
        topic.commit(size, seconds_ago=60)
    assert topic.batches(5) == [3, 7, 10]
    assert topic.batches(3) == [3, 7, 10]
    assert topic.batches(100) == [10]


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_changes_of_a_schema_registry(bootstrap: str, kind: str) -> None:
    topic = Topic(bootstrap, "debezium", kind=kind)
    topic.commit(3, seconds_ago=60)
    topic.send(None, "no record", {"op": "r"}, seconds_ago=60)
    topic.commit(2)
    assert topic.batches(2) == [3, 6]
    topic.commit(1)
    assert topic.batches(100) == [8]


def test_one_that_is_longer_than_a_batch(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "CHUNK", 4)
    topic.commit(2, seconds_ago=60)
    topic.commit(30, seconds_ago=60)
    topic.commit(1, seconds_ago=60)
    assert topic.batches(10) == [2, 32, 33]


def test_one_that_is_not_over(topic: Topic) -> None:
    topic.commit(2)
    topic.commit(3, ends=False)
    assert topic.batches(100) == [2]
    topic.count -= 1
    topic.commit(1)
    topic.commit(1, ends=False)
    assert topic.batches(100) == [6]


def test_the_last_one_of_a_silent_topic(bootstrap: str) -> None:
    topic = Topic(bootstrap, "debezium")
    topic.commit(2, seconds_ago=60)
    topic.commit(2)
    assert topic.batches(100) == [2]
    quiet = Topic(bootstrap, "debezium")
    quiet.commit(2, seconds_ago=ends.QUIET_SECONDS + 1)
    assert quiet.batches(100) == [2]


def test_an_end_of_the_run_within_one(bootstrap: str) -> None:
    """What has come since then tells that it is not whole; Maxwell marks the last change itself."""
    topic = Topic(bootstrap, "debezium")
    for size in (1, 3, 1):
        topic.commit(size, seconds_ago=60)
    upper = topic.source.plan_batch(topic.frontier(0), 100, topic.frontier(3))
    assert upper == topic.frontier(1)


def test_one_that_ends_after_the_run(topic: Topic) -> None:
    """It is left to the next run: a batch ends no later than its run."""
    for size in (1, 3, 1):
        topic.commit(size, seconds_ago=60)
    first, third, fourth = map(topic.frontier, (1, 3, 4))
    assert topic.source.plan_batch(first, 100, third) is None
    assert topic.source.plan_batch(first, 1, third) is None
    assert topic.source.plan_batch(first, 1, fourth) == fourth


def test_tombstones_and_bad_records_end_nothing(bootstrap: str) -> None:
    topic = Topic(bootstrap, "debezium")
    change = {"op": "d", "transaction": {"id": "long"}}
    topic.send(change, None, {"payload": change}, "{spoiled", change, None, seconds_ago=60)
    topic.commit(1, seconds_ago=60)
    assert topic.batches(2) == [5, 7]


def test_ids_of_postgres(bootstrap: str) -> None:
    """Each has the place of its change behind it."""
    topic = Topic(bootstrap, "debezium")
    topic.send(*({"transaction": {"id": f"7:{n}"}} for n in range(3)), seconds_ago=60)
    topic.send(*({"transaction": {"id": f"8:{n}"}} for n in range(3, 6)), seconds_ago=60)
    assert topic.batches(2) == [3, 6]


def test_changes_without_a_transaction(topic: Topic) -> None:
    """Rows of a snapshot or a bootstrap."""
    topic.send(*({"op": "r", "type": "bootstrap-insert", "data": {}} for _ in range(5)))
    assert topic.batches(2) == [2, 4, 5]


def test_others_ask_for_offsets_meanwhile(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no message from the one who looks for ends."""
    topic.commit(5, seconds_ago=60)
    take = Consumer.consume

    class Asked(Consumer):
        def consume(self, *arguments: Any, **named: Any) -> list[Message]:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                topic.source.present(None)
            return take(self, *arguments, **named)

    monkeypatch.setattr(confluent_kafka, "Consumer", Asked)
    monkeypatch.setattr(ends, "READ_SECONDS", 4.0)
    assert topic.batches(100) == [5]


def test_one_that_begins_with_the_latest(bootstrap: str) -> None:
    """It begins no later than where the others of its group are."""
    topic = Topic(bootstrap, "maxwell")
    source = replace(topic.source, starting="latest", transactions=False)
    topic.commit(2)
    until = source.present(None)
    topic.commit(3)
    assert source.plan_batch(None, 100, until) == until == topic.frontier(2)
    assert source.plan_batch(None, 100) == topic.frontier(5)


def test_several_partitions_are_refused(bootstrap: str) -> None:
    topic = Topic(bootstrap, "maxwell", partitions=2)
    topic.commit(2)
    with pytest.raises(StreamError, match="a topic of one partition"):
        topic.source.plan_batch({"0": 0, "1": 0}, 10)


class Topics:
    """Topics of two tables, and that of their transactions; each has other changes than ENDs."""

    def __init__(
        self, bootstrap: str, partitions: int = 1, kind: str | None = None, **options: Any
    ) -> None:
        self.encode, self._registry = encoder(kind), registry_of(kind)
        self.name, self._servers = f"t{uuid.uuid4().hex[:8]}", {"bootstrap.servers": bootstrap}
        self.topics = [f"{self.name}.public.{table}" for table in "ab"]
        self.count = self.changes = 0
        admin = AdminClient(self._servers)
        several = dict.fromkeys(self.topics, partitions) | {f"{self.name}.transaction": 1}
        for made in admin.create_topics([NewTopic(t, n, 1) for t, n in several.items()]).values():
            made.result()
        self._options = {"linger.ms": "0", **options}
        self.producer = CheckedProducer({**self._servers, **self._options})
        self.source = self.anew()

    def anew(self, **options: Any) -> KafkaSource:
        """As a run has it that begins."""
        envelope = Envelope("debezium", "id bigint")
        said = {"topics": tuple(self.topics), "transaction_topic": f"{self.name}.transaction"}
        return KafkaSource(
            None, self._servers, envelope, **said, registry=self._registry, **options
        )

    def change(self, table: str, count: int = 1) -> None:
        payload = {"op": "c", "transaction": {"id": str(self.count)}}
        for n in range(count):
            topic = f"{self.name}.public.{table}"
            self.changes += 1
            message = self.encode({**payload, "after": {"id": self.changes}})
            self.producer.produce(topic, message, key=str(n))
        self.producer.deliver()

    def begin(self) -> None:
        self.count += 1
        self._tell(status="BEGIN", id=str(self.count))

    def end(self, **counts: int) -> None:
        collections = [
            {"data_collection": f"public.{t}", "event_count": n} for t, n in counts.items()
        ]
        self._tell(status="END", id=str(self.count), data_collections=collections)

    def _tell(self, **payload: Any) -> None:
        self.producer.produce(f"{self.name}.transaction", self.encode(payload))
        self.producer.deliver()

    def commit(self, **counts: int) -> None:
        self.begin()
        for table, count in counts.items():
            self.change(table, count)
        self.end(**counts)

    def at(self, frontier: Any) -> list[int]:
        """Changes of each table before the frontier."""
        offsets = {topic: 0 for topic in self.topics}
        for partition, offset in frontier.items():
            topic = partition.rpartition("/")[0]
            offsets |= {topic: offsets[topic] + offset} if topic in offsets else {}
        return list(offsets.values())


@pytest.mark.parametrize(
    ("partitions", "kind"), [(1, None), (3, None), (1, "AVRO"), (3, "PROTOBUF")]
)
def test_transactions_over_several_topics(
    bootstrap: str, partitions: int, kind: str | None
) -> None:
    topics = Topics(bootstrap, partitions, kind)
    assert topics.at(topics.source.plan_batch(None, 100)) == [0, 0]
    topics.commit(a=3, b=4)
    topics.commit(b=5, secrets=0)
    topics.begin()
    topics.change("a", 6)
    topics.end(a=6, b=1)
    first = topics.source.plan_batch(None, 1)
    assert topics.at(first) == [3, 4]
    second = topics.anew().plan_batch(first, 100)
    assert topics.at(second) == [3, 9]
    assert topics.anew().plan_batch(second, 100) is None
    assert topics.source.lag(second).count == 6
    topics.change("b")
    assert topics.at(topics.anew().plan_batch(second, 100)) == [9, 10]


def test_the_end_of_a_run_within_a_transaction(bootstrap: str) -> None:
    topics = Topics(bootstrap)
    topics.commit(a=1, b=1)
    topics.begin()
    topics.change("a")
    until = topics.source.present(None)
    topics.change("b")
    topics.end(a=1, b=1)
    upper = topics.source.plan_batch(None, 100, until)
    assert topics.at(upper) == [1, 1]
    assert topics.source.plan_batch(upper, 100, until) is None


def test_several_topics_from_the_latest_on(bootstrap: str) -> None:
    topics = Topics(bootstrap)
    topics.commit(a=1, b=1)
    topics.begin()
    topics.change("a")
    source = topics.anew(starting="latest")
    lower = source.plan_batch(None, 100)
    assert topics.at(lower) == [2, 1]
    topics.change("b")
    assert source.plan_batch(lower, 100) is None
    topics.end(a=1, b=1)
    assert topics.at(source.plan_batch(lower, 100)) == [2, 2]


def test_a_topic_that_is_added(bootstrap: str) -> None:
    """What it has had is read, though its transactions are long over."""
    topics = Topics(bootstrap)
    alone = replace(topics.source, topics=(topics.topics[0],))
    for _ in range(3):
        topics.commit(a=1, b=1)
    lower = alone.plan_batch(None, 100)
    assert topics.at(lower) == [3, 0]
    assert topics.at(topics.source.plan_batch(lower, 100)) == [3, 3]


def test_connectors_that_write_in_transactions_of_kafka(bootstrap: str) -> None:
    """They leave gaps between offsets, which do not make a look slow."""
    topics = Topics(bootstrap, **{"transactional.id": uuid.uuid4().hex})
    topics.producer.init_transactions(30)
    for _ in range(5):
        topics.producer.begin_transaction()
        topics.commit(a=1, b=2)
        topics.producer.commit_transaction(30)
    began = time.monotonic()
    upper = topics.source.plan_batch(None, 100)
    assert topics.at(upper) == [10, 15]
    assert time.monotonic() - began < 3


def rows_of(spark: Session, source: KafkaSource, lower: Any, upper: Any) -> list[tuple[int, int]]:
    """The rows of a batch with their places, as a stream decodes them."""
    rows = [
        row for records in source.decode(spark, lower, upper) for row in records.rows.to_pylist()
    ]
    return sorted((row["id"], row[MINOR]) for row in rows)


@pytest.mark.parametrize("options", [{}, {"transactional.id": "random"}])
def test_a_batch_has_the_same_rows_from_memory(
    bootstrap: str, spark: Session, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """What planning has read is not read from Kafka again, unless there are gaps."""
    if options:
        options = {name: uuid.uuid4().hex for name in options}
    topics, chance = Topics(bootstrap, 2, **options), random.Random(7)
    if options:
        topics.producer.init_transactions(30)
    for _ in range(20):
        if options:
            topics.producer.begin_transaction()
        topics.commit(a=chance.randrange(4), b=chance.randrange(1, 4))
        if options:
            topics.producer.commit_transaction(30)
    lower, rows = None, []
    # Another table of the same stream.
    other = replace(topics.source, topic=topics.topics[0])
    topics.source.share_reads(other)
    alone = topics.anew()
    while (upper := topics.source.plan_batch(lower, chance.choice([1, 20]))) is not None:
        again = rows_of(spark, alone, lower, upper)
        if chance.random() < 0.3:
            assert set(rows_of(spark, other, lower, upper)) < set(again)
            lower, rows = upper, rows + again
            continue
        with monkeypatch.context() as patch:
            if not options:
                patch.setattr(KafkaClient, "connect", None)
            assert rows_of(spark, topics.source, lower, upper) == again
        lower, rows = upper, rows + again
    assert sorted(number for number, _ in rows) == list(range(1, topics.changes + 1))


def test_records_that_tell_of_no_transactions() -> None:
    with pytest.raises(StreamError, match="debezium, maxwell"):
        KafkaSource("t", {}, Envelope("json", "id bigint"), transactions=True)
