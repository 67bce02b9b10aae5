"""Partitions that a topic gets while a stream is idle."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.offsets import OffsetPlanner
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics

Bounds = dict[int, tuple[int, int]]


class Client:
    """A client of a Kafka that has some messages."""

    def __init__(self, topics: dict[str, Bounds]) -> None:
        self.topics = topics

    def bounds(self, topic: str) -> Bounds:
        return self.topics[topic]


def planner(topics: dict[str, Bounds]) -> OffsetPlanner:
    alone = len(topics) == 1
    followed = FollowedTopics(
        next(iter(topics)) if alone else None, () if alone else (*topics,), None
    )
    client = cast(Any, Client(topics))
    return OffsetPlanner(followed, client, "earliest", False, "json", None, KeptMessages())


@pytest.mark.parametrize("lower", [{"0": 5}, {"0": 5, "1": 5}])
def test_messages_that_have_expired_unread(lower: dict[str, int]) -> None:
    bounds = {0: (0, 5), 1: (100, 150)}
    with pytest.raises(StreamError, match=f"no longer has the offsets {lower.get('1', 0)} to 99"):
        planner({"t": bounds}).plan(lower, 1000, None, False)


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert planner({"t": {0: (3, 5), 1: (0, 7)}}).plan({"0": 5}, 9, None, False) == {"0": 5, "1": 7}


def test_a_new_topic_is_read_from_the_messages_that_it_has() -> None:
    topics = {"a": {0: (0, 5)}, "b": {0: (100, 150)}}
    upper = planner(topics).plan({"a/0": 5}, 1000, None, False)
    assert upper == {"a/0": 5, "b/0": 150}
