"""Simulate a shop that keeps changing, and send its changes to Kafka as Debezium does."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from examples.orders_cdc.encodings import TOPIC, Avro, Encoding, Json

Row = dict[str, Any]
KEYS = {"customers": "customer_id", "orders": "order_id", "order_items": "item_id"}
STATUSES = ("placed", "paid", "shipped", "delivered")
NAMES = ("Ada", "Bruno", "Chloé", "Dmitri", "Elena", "Farid", "Grace", "Henrik", "Ines", "Jonas")
CITIES = ("Aarhus", "Brno", "Cork", "Ghent", "Graz", "Lyon", "Osaka", "Porto", "Pune", "Umeå")
PRICES = {"tea": "4.20", "cup": "11.50", "pot": "39.00", "tray": "24.90", "spoon": "2.75"}
PARTITIONS = 3
WARNINGS = 4  # log level of Kafka's client: warnings and errors


@dataclass(frozen=True)
class Change:
    """A row before and after a change; an insert lacks the first, a delete the second."""

    table: str
    before: Row | None
    after: Row | None
    ts_ms: int

    @property
    def topic(self) -> str:
        return TOPIC.format(self.table)

    def messages(self, encoding: Encoding) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys and values; a tombstone follows a delete, so that Kafka can drop the key."""
        row, name = self.after or self.before or {}, KEYS[self.table]
        key = encoding.encode(self.table, "key", {name: row[name]})
        source = {"db": "shop", "schema": "public", "table": self.table, "ts_ms": self.ts_ms}
        op = "c" if self.before is None else "d" if self.after is None else "u"
        value = {"before": self.before, "after": self.after, "source": source, "op": op}
        value["ts_ms"] = self.ts_ms
        yield key, encoding.encode(self.table, "value", value)
        if op == "d":
            yield key, None


class Shop:
    """The shop's tables, as dicts by key; the lakehouse is compared with them.

    Attributes:
        versions: of customers; by key and beginning, the row and its end.
        newest: time of each table's last change, in milliseconds.
    """

    def __init__(self, seed: int = 7) -> None:
        self.tables: dict[str, dict[int, Row]] = {table: {} for table in KEYS}
        self.versions: dict[tuple[int, int], tuple[Row, int | None]] = {}
        self.newest = dict.fromkeys(KEYS, 0)
        self._random = random.Random(seed)
        self._last_id = dict.fromkeys(KEYS, 0)
        self._since: dict[int, int] = {}
        self._orders_of: Counter[int] = Counter()
        self._items_of: dict[int, list[int]] = {}
        self._clock = 0

    def happen(self) -> list[Change]:
        """Make one event happen, which changes some rows."""
        happenings = {
            self._order: 25,
            self._proceed: 40,
            self._change_item: 15,
            self._cancel: 6,
            self._join: 6,
            self._move: 6,
            self._leave: 2,
        }
        while True:
            (what,) = self._random.choices(list(happenings), list(happenings.values()))
            if changes := list(what()):
                return changes

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows that the lakehouse must have, sorted as text; times in milliseconds."""
        revenue: dict[str, Decimal] = {}
        orders: Counter[str] = Counter()
        for key, order in self.tables["orders"].items():
            items = [self.tables["order_items"][item] for item in self._items_of[key]]
            worth = sum((item["quantity"] * item["price"] for item in items), Decimal())
            revenue[order["status"]] = revenue.get(order["status"], Decimal()) + worth
            orders[order["status"]] += 1
        versions = [(*row.values(), at, end) for (_, at), (row, end) in self.versions.items()]
        tables = {
            "customers_history": versions,
            "orders": _in_milliseconds(self.tables["orders"]),
            "order_items": _in_milliseconds(self.tables["order_items"]),
            "revenue_by_status": [(status, orders[status], revenue[status]) for status in orders],
        }
        return {table: sorted(rows, key=repr) for table, rows in tables.items()}

    def _join(self) -> Iterator[Change]:
        name, city = self._random.choice(NAMES), self._random.choice(CITIES)
        yield self._write("customers", self._new_id("customers"), {"name": name, "city": city})

    def _move(self) -> Iterator[Change]:
        if customer := self._any("customers"):
            city = self._random.choice([city for city in CITIES if city != customer["city"]])
            yield self._write("customers", customer["customer_id"], {**customer, "city": city})

    def _leave(self) -> Iterator[Change]:
        customer = self._any("customers")
        if customer and not self._orders_of[customer["customer_id"]]:
            yield self._write("customers", customer["customer_id"], None)

    def _order(self) -> Iterator[Change]:
        if customer := self._any("customers"):
            by, key = customer["customer_id"], self._new_id("orders")
            self._orders_of[by] += 1
            self._items_of[key] = []
            yield self._write("orders", key, {"customer_id": by, "status": STATUSES[0]})
            for product in self._random.sample(list(PRICES), self._random.randint(1, 3)):
                item = {"order_id": key, "product": product, "quantity": 1}
                self._items_of[key].append(self._new_id("order_items"))
                row = {**item, "price": Decimal(PRICES[product])}
                yield self._write("order_items", self._items_of[key][-1], row)

    def _proceed(self) -> Iterator[Change]:
        order = self._any("orders")
        if order and order["status"] != STATUSES[-1]:
            status = STATUSES[STATUSES.index(order["status"]) + 1]
            yield self._write("orders", order["order_id"], {**order, "status": status})

    def _change_item(self) -> Iterator[Change]:
        if item := self._any("order_items"):
            more = {**item, "quantity": item["quantity"] + 1}
            yield self._write("order_items", item["item_id"], more)

    def _cancel(self) -> Iterator[Change]:
        order = self._any("orders")
        if order and order["status"] == STATUSES[0]:
            self._orders_of[order["customer_id"]] -= 1
            for item in self._items_of.pop(order["order_id"]):
                yield self._write("order_items", item, None)
            yield self._write("orders", order["order_id"], None)

    def _write(self, table: str, key: int, row: Row | None) -> Change:
        """Set or remove a row; no two changes have the same time."""
        self._clock = now = max(self._clock + 1, int(time.time() * 1000))
        before, after = self.tables[table].pop(key, None), None
        if row is not None:
            after = {KEYS[table]: key, **row}
            if table != "customers":
                after["updated_at"] = now * 1000
            self.tables[table][key] = after
        if table == "customers":
            self._end_version(key, before, now)
            if after is not None:
                self._since[key] = now
                self.versions[key, now] = (after, None)
        self.newest[table] = now
        return Change(table, before, after, now)

    def _end_version(self, key: int, before: Row | None, now: int) -> None:
        if before is not None:
            self.versions[key, self._since.pop(key)] = (before, now)

    def _new_id(self, table: str) -> int:
        self._last_id[table] += 1
        return self._last_id[table]

    def _any(self, table: str) -> Row | None:
        """Return a random row of a table; usually one try is enough, because most rows stay."""
        for _ in range(10):
            row = self.tables[table].get(self._random.randint(1, self._last_id[table] or 1))
            if row is not None:
                return row
        return None


def _in_milliseconds(table: dict[int, Row]) -> list[tuple[Any, ...]]:
    rows = ({**row, "updated_at": row["updated_at"] // 1000} for row in table.values())
    return [tuple(row.values()) for row in rows]


def create_topics(bootstrap: str) -> None:
    """Create the tables' topics; the changes of a key stay in order in one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": WARNINGS})
    topics = [NewTopic(TOPIC.format(table), PARTITIONS, 1) for table in KEYS]
    for made in admin.create_topics(topics).values():
        made.result()


def feed(
    shop: Shop,
    bootstrap: str,
    encoding: Encoding,
    rate: float,
    stop: threading.Event,
    most: int = 0,
) -> int:
    """Send the shop's changes at a rate per second until `stop` is set.

    Returns:
        The number of changes, all acknowledged by Kafka; at most `most`, if it is not 0.
    """
    # Without idempotence, a message that is sent again may come after later ones of its key.
    options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": WARNINGS}
    producer = Producer(options)
    began, sent = time.monotonic(), 0
    while not stop.is_set() and not (most and sent >= most):
        if sent > (time.monotonic() - began) * rate:
            producer.poll(0)
            stop.wait(0.01)
            continue
        for change in shop.happen():
            for key, value in change.messages(encoding):
                producer.produce(change.topic, key=key, value=value)
            sent += 1
    if left := producer.flush(30):
        raise RuntimeError(f"Kafka has not acknowledged {left} messages.")
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of Kafka")
    parser.add_argument("--registry", help="address of a schema registry; without, JSON is sent")
    parser.add_argument("--rate", type=float, default=50, help="changes a second")
    arguments = parser.parse_args()
    create_topics(arguments.bootstrap)
    encoding = Avro(arguments.registry) if arguments.registry else Json()
    stop = threading.Event()
    try:
        feed(Shop(), arguments.bootstrap, encoding, arguments.rate, stop)
    except KeyboardInterrupt:
        print("Stopped.")


if __name__ == "__main__":
    main()
