"""Where batches of Kafka's topics begin and end, without Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.message_batch import MessageBatch
from dbt.adapters.iceberg_stream.stream.sources.kafka.messages import OffsetRange
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from tests.unit.stream.sources.kafka.transactions.transaction_log import (
    OWN,
    TABLES,
    TRANSACTION_TOPIC,
    Log,
    replace_reads,
    topic_of,
)

TOPICS = tuple(topic_of(table) for table in TABLES)
ORDERS, ITEMS, CUSTOMERS = (f"{topic}/0" for topic in TOPICS)


class Reader:
    """Notes which messages are read.

    Attributes:
        ranges: topics, numbers of partitions, and the offsets that a batch begins and ends at.
    """

    def __init__(self) -> None:
        self.ranges: list[tuple[str, int, int, int]] = []

    def read(
        self, ranges: Sequence[OffsetRange], kept: KeptMessages, fields: Sequence[str]
    ) -> Iterator[MessageBatch]:
        self.ranges = [astuple(own) for own in ranges]
        yield from ()


def read_of(source: Any, lower: Any, upper: Any) -> list[tuple[str, int, int, int]]:
    """The messages that a batch reads."""
    reader = Reader()
    source.__dict__["reader"] = reader
    assert list(source._messages(lower, upper, ())) == []
    return reader.ranges


class Client:
    """Tells bounds of what a log shows.

    Attributes:
        asked: topics, in their order.
    """

    def __init__(self, log: Log) -> None:
        self.log, self.asked, self.ids = log, list[str](), dict[str, str]()

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        self.asked.append(topic)
        name = f"{topic}/0"
        return {0: (self.log.first.get(name, 0), self.log.visible.get(name, 0))}

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return {topic: number for topic, number in self.ids.items() if topic in topics}

    def connect(self, defaults: Any) -> None:
        """Nobody is asked."""

    def request_leaders(self, consumer: Any, topic: str) -> None:
        """Nor here."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    replace_reads(monkeypatch, log)
    return log


def source_of(log: Log, *tables: str, **more: Any) -> Any:
    topics = tuple(topic_of(table) for table in tables or TABLES)
    plain = envelope({"format": "json", "columns": "id bigint"}, ())
    more = {"transaction_topic": TRANSACTION_TOPIC, "topics": topics} | more
    source: Any = KafkaSource(None, {"bootstrap.servers": "x"}, plain, **more)
    source.__dict__["client"] = Client(log)
    return source


def test_what_was_not_whole_when_it_is_read_again(log: Log) -> None:
    log.begin()
    log.change("items")
    log.end(items=2)
    log.show_all()
    source = source_of(log)
    begin, ahead = source.plan_batch(None, 100, dict.fromkeys(log.names, 0)), dict(log.visible)
    assert source.plan_batch(begin, 100, ahead) is None
    assert source.plan_batch(begin, 100, ahead, whole=True) == ahead
    amid = {**begin, ITEMS: 1}
    assert source.plan_batch(begin, 100, amid, whole=True) == amid
    assert source.plan_batch(amid, 100, amid, whole=True) is None


def test_nobody_is_behind_in_a_topic_that_is_not_read(log: Log) -> None:
    source = source_of(log, "orders")
    lower = {OWN: 4, ORDERS: 3}
    assert not source.is_behind(lower, {**lower, ITEMS: 7})
    assert source.is_behind(lower, {**lower, ORDERS: 4})
    assert source.is_behind(lower, {**lower, OWN: 5})
    assert source.is_behind({OWN: 4}, lower)
    assert not source_of(log, transaction_topic=None).is_behind(lower, {**lower, OWN: 5})


def test_a_transaction_topic_is_added(log: Log) -> None:
    """What has come until then is taken as before, and then ends count."""
    for _ in range(4):
        log.commit(orders=1, items=1)
    log.begin()
    log.change("orders")
    log.show_all()
    source, lower = source_of(log), {ORDERS: 1, ITEMS: 0, CUSTOMERS: 0}
    part = source.plan_batch(lower, 4)
    assert part == {ORDERS: 3, ITEMS: 2, CUSTOMERS: 0}
    until = source.present(part)
    assert source.client.asked[-1] == TRANSACTION_TOPIC
    log.change("items")
    log.end(orders=1, items=1)
    log.begin()
    log.change("orders")
    log.show_all()
    upper = source.plan_batch(part, 100, until)
    assert upper == until == {ORDERS: 5, ITEMS: 4, CUSTOMERS: 0, OWN: 9}
    others = {ORDERS: 5, ITEMS: 4, CUSTOMERS: 0}
    assert source.plan_batch(part, 100, others, whole=True) == others
    assert source.plan_batch(others, 100, others, whole=True) is None
    assert source.plan_batch(upper, 100) == {ORDERS: 5, ITEMS: 5, CUSTOMERS: 0, OWN: 10}
    assert source.plan_batch({**upper, ITEMS: 5, OWN: 10}, 100) is None


def test_a_transaction_topic_is_added_to_a_stream_that_is_idle(log: Log) -> None:
    log.commit(orders=1)
    log.show_all()
    lower = {ORDERS: 1, ITEMS: 0, CUSTOMERS: 0}
    assert source_of(log).plan_batch(lower, 100) == {**lower, OWN: 2}


def test_a_reader_asks_for_its_own_topic(log: Log) -> None:
    for _ in range(5):
        log.commit(orders=1, items=1)
    log.show_all()
    source = replace(source_of(log), topic=topic_of("orders"))
    source.__dict__["client"] = Client(log)
    lower, upper = {OWN: 2, ITEMS: 1}, {OWN: 8, ITEMS: 4, ORDERS: 4, CUSTOMERS: 0}
    assert read_of(source, lower, upper) == [(topic_of("orders"), 0, 0, 4)]
    assert source.client.asked == [topic_of("orders")]
    assert read_of(source, None, upper) == [(topic_of("orders"), 0, 0, 4)]
    log.first |= {ITEMS: 3}
    assert read_of(source, {**lower, ORDERS: 1}, upper) == [(topic_of("orders"), 0, 1, 4)]
    log.first |= {ORDERS: 2}
    with pytest.raises(StreamError, match="no longer has the offsets 1 to 1 of partition 0"):
        read_of(source, {**lower, ORDERS: 1}, upper)


@pytest.mark.parametrize("topic", [TRANSACTION_TOPIC, None])
def test_a_topic_that_is_not_listed_for_a_while(log: Log, topic: str | None) -> None:
    def commit_both() -> None:
        log.commit(orders=1, items=1)
        log.show_all()

    own = {} if topic is None else {OWN: 2}
    commit_both()
    lower = source_of(log, "orders", "items", transaction_topic=topic).plan_batch(None, 100)
    assert lower == {ORDERS: 1, ITEMS: 1, **own}
    commit_both()
    alone = source_of(log, "orders", transaction_topic=topic)
    upper = alone.plan_batch(lower, 100)
    gone = {f"not read: {ITEMS}": 1}
    assert upper == {ORDERS: 2, **gone, **{name: 4 for name in own}}
    assert alone.plan_batch(upper, 100) is None
    assert alone.lag(upper).count == 0
    assert not alone.is_behind({ORDERS: 2, **{name: 4 for name in own}}, upper)
    assert read_of(alone, lower, upper) == [(topic_of("orders"), 0, 1, 2)]
    commit_both()
    again = source_of(log, "orders", "items", transaction_topic=topic)
    assert again.plan_batch(None, 100, upper, whole=True)[ITEMS] == 1
    assert again.is_behind({ORDERS: 2, **{name: 4 for name in own}}, upper)
    assert again.plan_batch(upper, 100) == {ORDERS: 3, ITEMS: 3, **{name: 6 for name in own}}


def test_a_transaction_topic_is_left_away_for_a_while(log: Log) -> None:
    """Ends that have been read past do not hold up what comes."""
    log.commit(orders=1, items=1)
    log.show_all()
    lower = source_of(log).plan_batch(None, 100)
    log.commit(orders=1, items=1)
    log.show_all()
    lower = source_of(log, transaction_topic=None).plan_batch(lower, 100)
    assert lower == {ORDERS: 2, ITEMS: 2, CUSTOMERS: 0, f"not read: {OWN}": 2}
    log.commit(orders=1, items=1)
    log.show_all()
    assert source_of(log).plan_batch(lower, 100) == {ORDERS: 3, ITEMS: 3, CUSTOMERS: 0, OWN: 6}


def test_one_topic_of_transactions_is_read_up_to_where_others_are(log: Log) -> None:
    """Nothing may have come for a while then, which ended a transaction."""
    debezium = envelope({"format": "debezium", "columns": "id bigint"}, ())
    source: Any = KafkaSource(topic_of("orders"), {}, debezium, transactions=True)
    source.__dict__["client"] = Client(log)
    ends = SimpleNamespace(last_end=lambda begin, *_: begin)
    source.planner.__dict__["single_topic"] = ends
    log.visible[ORDERS] = 7
    assert source.plan_batch({"0": 2}, 100, {"0": 5}) is None
    assert source.plan_batch({"0": 2}, 100, {"0": 5}, whole=True) == {"0": 5}


def test_a_topic_that_was_created_again(log: Log) -> None:
    """Its offsets may be those of the stream's progress, and its messages are others."""
    log.change("orders")
    log.show_all()
    source = source_of(log, "orders", transaction_topic=None)
    begun = source.plan_batch(None, 100)
    assert "topic-ids" not in begun  # as older versions, and older servers, have it
    source.client.ids = {topic_of("orders"): "first"}
    log.change("orders")
    log.show_all()
    lower = source.plan_batch(begun, 100)
    assert lower["topic-ids"] == {topic_of("orders"): "first"}
    assert source.plan_batch(lower, 100) is None and source.lag(lower).count == 0
    source.client.ids = {topic_of("orders"): "second"}
    log.change("orders")
    log.show_all()
    with pytest.raises(StreamError, match="was deleted and created again"):
        source.plan_batch(lower, 100)
    with pytest.raises(StreamError, match="was deleted and created again"):
        read_of(source, begun, lower)
