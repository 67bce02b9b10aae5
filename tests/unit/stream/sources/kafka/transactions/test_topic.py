"""Where batches of several topics end: at the end of a transaction in all of them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import topic as module
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import transaction_id
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.log import SETTLED_SECONDS
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    Origin,
    Transaction,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.topic import TransactionTopic
from tests.unit.stream.sources.kafka.transactions.transaction_log import (
    OWN,
    TABLES,
    Log,
    made,
    topic_of,
)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return made(monkeypatch)


def test_a_batch_ends_where_a_transaction_ends_in_all_topics(log: Log) -> None:
    log.commit(orders=1, items=2)
    log.commit(items=1, customers=3)
    log.commit(orders=2)
    log.show_all()
    assert log.at(log.plan_batch(log.start)) == [3, 3, 3]
    assert [log.at(batch) for batch in log.batches(3)] == [[1, 2, 0], [1, 3, 3], [3, 3, 3]]
    # One that is bigger than a batch.
    assert [log.at(batch) for batch in log.batches(1)] == [[1, 2, 0], [1, 3, 3], [3, 3, 3]]


def test_one_whose_end_has_not_come(log: Log) -> None:
    log.commit(orders=1, items=1)
    log.begin()
    log.change("orders")
    log.show_all()
    assert log.at(log.plan_batch(log.start)) == [1, 1, 0]
    log.change("items")
    log.end(orders=1, items=1)
    log.show_all()
    assert log.at(log.plan_batch(log.start)) == [2, 2, 0]


@pytest.mark.parametrize("late", TABLES)
def test_a_partition_that_is_seen_later(log: Log, late: str) -> None:
    log.commit(**dict.fromkeys(TABLES, 1))
    log.commit(**dict.fromkeys(TABLES, 2))
    log.show_all()
    for visible, ends in ((0, 0), (1, 1), (2, 1), (3, 3)):
        log.visible[f"{topic_of(late)}/0"] = visible
        assert log.at(log.plan_batch(log.start)) == [ends, ends, ends]


def test_a_topic_that_was_never_read_is_known_by_its_name(log: Log) -> None:
    log.commit(orders=1, customers=1)
    log.show_all()
    log.visible[f"{topic_of('customers')}/0"] = 0
    assert log.plan_batch(log.start) == log.start


def test_several_tables_in_one_topic(log: Log) -> None:
    for orders, notes in ((1, 1), (2, 3)):
        log.begin()
        for table in ["orders"] * orders + ["notes"] * notes:
            log.change(table, into="orders")
        log.end(orders=orders, notes=notes)
    log.show_all()
    for visible, ends in ((7, 7), (6, 2), (5, 2), (2, 2), (1, 0)):
        log.visible[f"{topic_of('orders')}/0"] = visible
        assert log.at(log.plan_batch(log.start), "orders") == [ends]


def test_a_table_that_is_not_seen_yet_in_a_topic_of_several(log: Log) -> None:
    log.begin()
    log.change("notes", into="orders")
    log.change("orders")
    log.end(notes=1, orders=1)
    log.show_all()
    log.visible[f"{topic_of('orders')}/0"] = 1
    assert log.at(log.plan_batch(log.start), "orders") == [0]


def test_tables_that_are_not_read(log: Log) -> None:
    log.commit(orders=1, secrets=5)
    log.commit(secrets=1)
    log.commit(orders=1)
    log.show_all()
    assert log.at(log.plan_batch(log.start)) == [2, 0, 0]


def test_transactions_of_other_tables_only(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make no batch, but are not read over and over."""
    monkeypatch.setattr(module, "RECORD_AFTER", 10)
    for _ in range(4):
        log.commit(secrets=1)
    log.show_all()
    assert log.plan_batch(log.start) == log.start
    log.commit(secrets=1)
    log.show_all()
    assert log.plan_batch(log.start) == {**log.start, OWN: 10}


def test_rows_of_a_snapshot_belong_to_no_transaction(log: Log) -> None:
    for _ in range(10):
        log.send(f"{topic_of('orders')}/0", {"op": "r"})
    log.show_all()
    assert [log.at(batch)[0] for batch in log.batches(4)] == [4, 8, 10]
    log.begin()
    log.change("orders")
    log.send(f"{topic_of('orders')}/0", {"op": "r"})
    log.show_all()
    assert log.at(log.plan_batch(log.start))[0] == 10
    log.end(orders=1)
    log.show_all()
    assert log.at(log.plan_batch(log.start))[0] == 12


def test_a_transaction_behind_many_rows_of_a_snapshot(log: Log) -> None:
    log.commit(orders=1, items=1)
    for _ in range(100):
        log.send(f"{topic_of('customers')}/0", {"op": "r"})
    log.commit(orders=1, customers=1)
    log.show_all()
    uppers = log.batches(10)
    assert log.at(uppers[-1]) == [2, 1, 101]
    assert all(log.at(upper)[0] <= 1 for upper in uppers if log.at(upper)[2] <= 100)


def test_tombstones_and_bad_records_end_nothing(log: Log) -> None:
    log.begin()
    log.change("orders")
    for _ in range(2):
        log.send(f"{topic_of('orders')}/0", None)
    log.change("orders")
    log.end(orders=2)
    log.send(f"{topic_of('orders')}/0", {})
    log.commit(items=1)
    log.show_all()
    assert [log.at(batch) for batch in log.batches(2)] == [[5, 0, 0], [5, 1, 0]]


def test_one_that_begins_amid_a_transaction(log: Log) -> None:
    """Its changes before are not to be waited for."""
    log.begin()
    log.change("orders")
    log.show_all()
    begin = dict(log.visible)
    log.change("items")
    log.end(orders=1, items=1)
    log.show_all()
    assert log.plan_batch(begin) == log.visible


def test_ends_that_are_older_than_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(monkeypatch, seconds_ago=2 * SETTLED_SECONDS)
    log.commit(orders=2, items=1)
    log.first[OWN] = len(log.kept[OWN])
    log.stamp = int(time.time() * 1000)
    log.show_all()
    assert log.at(log.plan_batch({**log.start, OWN: log.first[OWN]})) == [2, 1, 0]
    log.commit(items=1)
    log.show_all()
    assert log.at(log.plan_batch({**log.start, OWN: log.first[OWN]})) == [2, 2, 0]


def test_many_changes_whose_end_is_gone(log: Log) -> None:
    """They do not count as changes that come later, and hold nothing up."""
    log.commit(orders=module.CHUNK + 1)
    log.first[OWN] = len(log.kept[OWN])
    for _ in range(3):
        log.commit(orders=2, items=2)
    log.show_all()
    assert log.at(log.plan_batch(log.start)) == [module.CHUNK + 7, 6, 0]
    for visible in range(5):
        log.visible[f"{topic_of('orders')}/0"] = module.CHUNK + 1 + visible
        ends = visible - visible % 2
        assert log.at(log.plan_batch(log.start)) == [module.CHUNK + 1 + ends, ends, 0]


@pytest.mark.parametrize("visible", [1, 400, 700, 903, 904])
def test_a_topic_that_is_added_to_a_busy_database(log: Log, visible: int) -> None:
    """Ends of its changes are far back."""
    for _ in range(900):
        log.commit(items=1)
    lower = {**log.start, OWN: len(log.kept[OWN])}
    for _ in range(2):
        log.commit(orders=1, items=2)
    log.show_all()
    log.visible[f"{topic_of('items')}/0"] = visible
    whole = {903: 902, 1: 1}.get(visible, visible)
    assert log.at(log.plan_batch(lower)) == [max(0, (whole - 900) // 2), whole, 0]


def test_changes_that_were_left_out_are_not_waited_for_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds, ends in ((0.0, [0, 0, 0]), (2 * SETTLED_SECONDS, [1, 1, 0])):
        log = made(monkeypatch, seconds_ago=seconds)
        log.begin()
        log.change("orders")
        log.change("items")
        log.end(orders=1, items=3)
        log.show_all()
        assert log.at(log.plan_batch(log.start)) == ends
    log = made(monkeypatch)
    log.commit(orders=1)
    log.end(orders=7)
    log.commit(orders=1)
    log.show_all()
    assert log.at(log.plan_batch(log.start))[0] == 2


@pytest.mark.parametrize("payload", [{"id": 1}, {"op": "c", "transaction": None}])
def test_changes_that_do_not_name_their_transaction(log: Log, payload: Any) -> None:
    """They are told apart from those of before transactions were told of, and of snapshots."""
    for change in (payload, {"op": "r"}, {"op": "m"}, None, {}):
        log.send(f"{topic_of('orders')}/0", change)
    log.begin()
    for change in ({"op": "r"}, {"op": "m"}, None, {}):
        log.send(f"{topic_of('orders')}/0", change)
    log.end(orders=1)
    log.show_all()
    assert log.at(log.plan_batch(log.start))[0] == 9
    log.begin()
    log.send(f"{topic_of('orders')}/0", payload)
    log.end(orders=1)
    log.show_all()
    with pytest.raises(StreamError, match="in shop.public.orders do not name their transaction"):
        log.plan_batch(log.start)


def test_one_that_comes_to_where_others_are(log: Log) -> None:
    """They knew that what is missing has been left out; now it is not known."""
    for _ in range(3):
        log.begin()
        log.change("items")
        log.end(items=2)
    log.show_all()
    ahead = {**log.start, OWN: 4, f"{topic_of('items')}/0": 2}
    assert log.plan_batch(log.start, limit=ahead) == {
        **log.start,
        OWN: 2,
        f"{topic_of('items')}/0": 1,
    }
    assert log.plan_batch(log.start, limit=ahead, whole=True) == ahead
    first = log.plan_batch(log.start, 1, ahead, whole=True)
    assert (first[OWN], *log.at(first)) == (2, 0, 1, 0)


def test_several_connectors(log: Log) -> None:
    log.commit(orders=1)
    payload = {"source": {"name": "other", "db": "d", "schema": "public", "table": "items"}}
    log.send(f"{topic_of('items')}/0", payload)
    log.show_all()
    with pytest.raises(StreamError, match="changes of several connectors, shop and other"):
        log.plan_batch(log.start)


def transaction_topic(topic: str) -> TransactionTopic:
    nobody: Any = None
    return TransactionTopic(nobody, "t", [topic], lambda name: (name, 0), PayloadReader())


@pytest.mark.parametrize(
    ("topic", "collection", "is_known"),
    [
        ("shop.public.orders", "public.orders", True),
        ("shop.public.orders", "audit.orders", False),
        ("shop.public.reorders", "orders", False),
        ("public.orders", "public.orders", True),
        ("oracle.SALES.ORDERS", "PDB1.SALES.ORDERS", True),
        ("server.db.dbo.orders", "db.dbo.orders", True),
        ("server.db.dbo.orders", "other.dbo.items", False),
    ],
)
def test_names_of_tables_and_topics(topic: str, collection: str, is_known: bool) -> None:
    actual = transaction_topic(topic)._topic_of(collection)
    assert (actual == topic) is is_known


def test_names_of_tables_beside_those_that_are_known() -> None:
    ends = transaction_topic("server.db.dbo.orders")
    assert ends._topic_of("other.dbo.orders") is not None
    ends._learn("server.db.dbo.orders", Origin("server", "db", "dbo", "orders"))
    assert ends._topic_of("db.dbo.orders") is not None
    assert ends._topic_of("other.dbo.orders") is None


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("571:53195829", "571"),
        ("24bc7850-2c16-11e6-a073-0242ac110002:101", "24bc7850-2c16-11e6-a073-0242ac110002:101"),
        ("00000025:00000d08:0025", "00000025:00000d08:0025"),
        ("7", "7"),
        (7, "7"),
        (None, None),
    ],
)
def test_ids(number: Any, expected: str | None) -> None:
    assert transaction_id(Transaction(number)) == expected
