"""Topics of changes and of their transactions, as a test wants them to be visible."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import ends, runs
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.topic import TransactionTopic
from tests.unit.stream.sources.formats.encoded_changes import Encode, Registry, encoder

TRANSACTION_TOPIC = "shop.transaction"
OWN = f"{TRANSACTION_TOPIC}/0"
# Messages that are taken together; transactions begin and end within them.
TAKEN = 5
TABLES = ("orders", "items", "customers")


def topic_of(table: str) -> str:
    return f"shop.public.{table}"


class KeptMessage:
    """A message as the Kafka client returns it."""

    def __init__(self, offset: int, value: bytes, milliseconds: int) -> None:
        self._offset, self._value, self._milliseconds = offset, value, milliseconds

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, self._milliseconds


class Log:
    """Partitions, of each of which a part is visible.

    Attributes:
        changes: of transactions by partition, with the offset behind each: whose change each is.
        encoding: the kind of schemas of the changes and of the transaction topic; None for JSON.
    """

    def __init__(
        self,
        partitions: int = 1,
        seconds_ago: float = 0.0,
        encoding: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.kept: dict[str, list[Any]] = defaultdict(list)
        self.count, self.partitions = 0, partitions
        self.stamp = int((time.time() - seconds_ago) * 1000)
        self.visible: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.names = [OWN, *(f"{topic_of(t)}/{n}" for t in TABLES for n in range(partitions))]
        self.reader: Any = None
        kinds = [kind for kind in encoding if kind]
        registry: Any = Registry(kinds[0]) if kinds else None
        self.payloads = PayloadReader(registry)
        self._encoders: list[Encode] = list(map(encoder, encoding))
        self.topics = [topic_of(table) for table in TABLES]
        self.restart()

    def restart(self) -> None:
        """Know no more than a frontier, as a run that begins anew does."""
        self.ends = TransactionTopic(
            self.reader, TRANSACTION_TOPIC, self.topics, self.place, self.payloads
        )

    def place(self, partition: str) -> tuple[str, int]:
        topic, _, number = partition.rpartition("/")
        return topic, int(number)

    def send(self, partition: str, payload: Any) -> None:
        self.stamp += 1
        self.kept[partition].append((payload, self.stamp))

    def begin(self) -> str:
        self.count += 1
        self.send(OWN, {"status": "BEGIN", "id": f"{self.count}:{self.stamp}"})
        return str(self.count)

    def change(
        self, table: str, number: int = 0, source: bool = True, into: str | None = None
    ) -> None:
        payload: dict[str, Any] = {"op": "c", "transaction": {"id": f"{self.count}:{self.stamp}"}}
        if source:
            payload["source"] = {"name": "shop", "db": "d", "schema": "public", "table": table}
        self.send(f"{topic_of(into or table)}/{number}", payload)

    def end(self, **counts: int) -> None:
        several = [
            {"data_collection": f"public.{name}", "event_count": n} for name, n in counts.items()
        ]
        payload = {"status": "END", "id": f"{self.count}:{self.stamp}", "data_collections": several}
        self.send(OWN, payload)

    def commit(self, **counts: int) -> None:
        self.begin()
        for table, count in counts.items():
            for n in range(count):
                if table in TABLES:
                    self.change(table, n % self.partitions)
        self.end(**counts)

    def show_all(self) -> None:
        self.visible = {name: len(self.kept[name]) for name in self.names}

    def encode(self, partition: str, payload: Any) -> bytes:
        return self._encoders[partition == OWN](payload)

    def read(
        self, _: Any, topic: str, number: int, low: int, high: int
    ) -> Iterator[list[KeptMessage]]:
        partition = f"{topic}/{number}"
        messages = [
            KeptMessage(offset, self.encode(partition, payload), stamp)
            for offset in range(low, min(high, self.visible.get(partition, 0)))
            for payload, stamp in [self.kept[partition][offset]]
            if payload is not None
        ]
        for place in range(0, len(messages), TAKEN):
            yield messages[place : place + TAKEN]

    def plan_batch(
        self,
        begin: dict[str, int],
        rows: int = 1000,
        limit: dict[str, int] | None = None,
        whole: bool = False,
    ) -> dict[str, int]:
        first = {name: self.first.get(name, 0) for name in self.names}
        visible = {name: self.visible.get(name, 0) for name in self.names}
        return self.ends.last_whole(begin, limit or visible, first, rows, whole)

    @property
    def start(self) -> dict[str, int]:
        return {name: self.first.get(name, 0) for name in self.names}

    def batches(self, rows: int) -> list[dict[str, int]]:
        frontiers, lower = [], self.start
        while (upper := self.plan_batch(lower, rows)) != lower:
            frontiers.append(upper)
            lower = upper
        return frontiers

    def at(self, frontier: dict[str, int], *tables: str) -> list[int]:
        return [frontier[f"{topic_of(table)}/0"] for table in tables or TABLES]


def replace_reads(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """Read the messages of a log in place of Kafka's."""
    for module in (ends, runs):
        monkeypatch.setattr(module, "read_messages", log.read)


def made(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Log:
    log = Log(**options)
    replace_reads(monkeypatch, log)
    return log
