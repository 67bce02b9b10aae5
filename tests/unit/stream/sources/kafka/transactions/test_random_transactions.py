"""Whatever is visible when, batches of several topics hold whole transactions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import topic as module
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import transaction_id
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    Origin,
    Transaction,
)
from tests.unit.stream.sources.kafka.transactions.transaction_log import (
    OWN,
    TABLES,
    Log,
    made,
    topic_of,
)

# The encodings of the changes and of the transaction topic.
ENCODINGS = [("AVRO", "AVRO"), ("PROTOBUF", "PROTOBUF"), ("AVRO", None), (None, "PROTOBUF")]


@pytest.mark.parametrize(
    ("seed", "encoding"),
    [
        *((seed, (None, None)) for seed in range(100)),
        *((seed, encoding) for encoding in ENCODINGS for seed in range(10)),
    ],
)
def test_whatever_is_visible_batches_hold_whole_transactions(
    monkeypatch: pytest.MonkeyPatch, seed: int, encoding: tuple[str | None, str | None]
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(module, "CHUNK", chance.choice([1, 3, 10, 500]))
    log = made(monkeypatch, partitions=chance.choice([1, 2, 3]), encoding=encoding)
    totals = random_transactions(log, chance)
    lower, rows, adds = log.start, chance.choice([1, 5, 1000]), chance.randrange(60)
    for turn in range(10_000):
        if all(lower[name] == len(log.kept[name]) for name in log.names[1:]):
            return
        for name in log.names:
            seen = log.visible.get(name, 0)
            log.visible[name] = min(len(log.kept[name]), seen + chance.choice([0, 0, 1, 7]))
        # A run that begins anew knows the frontier only.
        if chance.random() < 0.3 or turn == 0:
            restart_progress(log)
        if turn == adds:
            check_that_another_comes_there(log, lower, rows, totals)
            lower, totals = add_a_topic(log, chance, lower, totals)
        if (upper := log.plan_batch(lower, rows)) != lower:
            assert all(upper[name] >= lower[name] for name in log.names)
            check_whole(log, upper, totals)
            lower = upper
    pytest.fail("it does not come to the end")


def restart_progress(log: Log) -> None:
    log.restart()
    # Nothing but a change tells that a topic has this table, too.
    for table in ("notes", "orders"):
        log.ends._learn(topic_of("orders"), Origin("shop", "d", "public", table))


def check_that_another_comes_there(
    log: Log, ahead: dict[str, int], rows: int, totals: Counter[str]
) -> None:
    """It knows no more than the frontier of the first one."""
    restart_progress(log)
    lower = log.start
    while (upper := log.plan_batch(lower, rows, ahead, whole=True)) != lower:
        assert all(lower[name] <= upper[name] <= ahead[name] for name in log.names)
        check_whole(log, upper, totals)
        lower = upper
    # The rest is one batch; here nothing is amid a transaction that has ended since.
    assert all(lower[name] == ahead[name] for name in log.names[1:])


def add_a_topic(
    log: Log, chance: random.Random, lower: dict[str, int], totals: Counter[str]
) -> tuple[dict[str, int], Counter[str]]:
    """What it had until then comes as it stands, and Kafka may not have the ends any more."""
    added = {name: 0 for name in log.names[1:] if topic_of("customers") in name}
    log.first[OWN] = chance.choice([0, min(lower[OWN], len(log.kept[OWN]) - 2)])
    ends = [
        transaction_id(Transaction(payload["id"])) for payload, _ in log.kept[OWN][lower[OWN] :]
    ]
    return {**lower, **added}, Counter(
        {transaction: totals[transaction] for transaction in ends if transaction}
    )


def random_transactions(log: Log, chance: random.Random) -> Counter[str]:
    totals = Counter[str]()
    for _ in range(chance.randint(1, 40)):
        transaction, counts = log.begin(), Counter[str]()
        for _ in range(chance.choice([0, 1, 2, 20])):
            table = chance.choice([*TABLES, "notes", "secrets"])
            counts[table] += 1
            if table != "secrets":
                totals[transaction] += 1
                number = chance.randrange(log.partitions)
                into = "orders" if table == "notes" else table
                log.change(table, number, chance.random() < 0.8, into)
                if chance.random() < 0.2:
                    log.send(f"{topic_of(into)}/{number}", chance.choice([None, {"op": "r"}]))
        log.end(**counts)
    return totals


def check_whole(log: Log, upper: dict[str, int], totals: Counter[str]) -> None:
    actual = Counter[str]()
    for name in log.names[1:]:
        for payload, _ in log.kept[name][: upper[name]]:
            if block := (payload or {}).get("transaction"):
                actual[str(transaction_id(Transaction(block["id"])))] += 1
    assert all(
        count == totals[transaction]
        for transaction, count in actual.items()
        if transaction in totals
    )
