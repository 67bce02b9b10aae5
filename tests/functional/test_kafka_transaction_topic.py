"""Transactions over several topics become visible as a whole, whenever their parts do in Kafka."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from dbt.tests.util import run_dbt, run_dbt_and_capture
from pyiceberg.table import StaticTable

from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import IDS
from tests.functional.lake import rows, snapshot_ids, summary
from tests.functional.shop_streams import FRONTIER, WRITE_ID
from tests.functional.stream_service import DEADLINE, service, wait_for
from tests.servers.producer import CheckedProducer

TABLES = {"accounts": 2, "savings": 3, "transfers": 1}
ACCOUNTS, MONEY = 10, 1000
SOURCES = """
sources:
  - name: bank
    config:
      meta:
        stream:
          type: kafka
          bootstrap_servers: '%s'
          format: debezium
          topics: [bank.public.accounts, bank.public.savings, bank.public.transfers]
          transaction_topic: bank.transaction
          columns: id bigint, amount bigint
    tables:
      - name: accounts
        config: {meta: {stream: {topic: bank.public.accounts}}}
      - name: savings
        config: {meta: {stream: {topic: bank.public.savings}}}
      - name: transfers
        config: {meta: {stream: {topic: bank.public.transfers}}}
      - name: messages
        config: {meta: {stream: {format: raw}}}
      - name: kinds
        config: {meta: {stream: {table_column: kind}}}
      - name: strange
        config: {meta: {stream: {topic: bank.public.people}}}
      - name: half
        config: {meta: {stream: {transaction_topic: null, transactions: true}}}
      - name: scattered
        config: {meta: {stream: {transaction_topic: bank.public.savings, topics: null,
                                 topic: bank.public.accounts}}}
      - name: unknown
        config: {meta: {stream: {transaction_topic: bank.transactions}}}
      - name: alone
        config: {meta: {stream: {topics: null, topic: bank.public.accounts}}}
"""
GROUP = """
{{ config(materialized='stream', commit_group='bank', unique_key='id', batch_interval=0.1,
          commit_interval=0.2, delete_encoding='copy_on_write') }}
select id, amount from {{ stream(source('bank', '%s')) }}
"""
ALL = "select id, amount from {schema}.%s order by id"


class Bank:
    """Money that moves from accounts to savings, and what Debezium tells of it.

    Attributes:
        tables: as they are, by key.
    """

    def __init__(self, bootstrap: str, name: str = "bank") -> None:
        self.name, self.tells = name, f"{name}.transaction"
        servers = {"bootstrap.servers": bootstrap}
        admin = AdminClient(servers)
        several = {f"{name}.public.{table}": count for table, count in TABLES.items()}
        several[self.tells] = 1
        made = admin.create_topics([NewTopic(topic, n, 1) for topic, n in several.items()])
        for topic in made.values():
            topic.result()
        self.tables: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        self._producer = CheckedProducer(servers)
        self._random, self._count = random.Random(3), 0
        self._waiting: dict[tuple[str, int], deque[str]] = {}
        for account in range(ACCOUNTS):
            self._write("accounts", account, MONEY, snapshot=True)
            self._write("savings", account, 0, snapshot=True)

    def transfer(self, secretly: bool = False) -> None:
        """One transaction: what leaves an account goes to another's savings, and is noted."""
        self._count += 1
        self._send(
            self.tells, 0, {"status": "BEGIN", "id": f"{self._count}:1", "event_count": None}
        )
        giver, taker = self._random.randrange(ACCOUNTS), self._random.randrange(ACCOUNTS)
        amount = self._random.randint(1, 9)
        self._write("accounts", giver, self.tables["accounts"][giver] - amount)
        self._write("savings", taker, self.tables["savings"][taker] + amount)
        self._write("transfers", self._count, amount)
        names = [*TABLES, "secrets"] if secretly else list(TABLES)
        several = [{"data_collection": f"public.{name}", "event_count": 1} for name in names]
        end = {"status": "END", "event_count": len(names), "data_collections": several}
        self._send(self.tells, 0, {**end, "id": f"{self._count}:9"})

    def show(self, pause: float = 0.0) -> None:
        """Have all that waits become visible, each partition at its own pace."""
        while places := [place for place, waiting in self._waiting.items() if waiting]:
            topic, partition = place = self._random.choice(places)
            for _ in range(self._random.randint(1, 4)):
                if self._waiting[place]:
                    text = self._waiting[place].popleft()
                    self._producer.produce(topic, text, partition=partition)
            self._producer.deliver()
            time.sleep(pause)

    def _write(self, table: str, key: int, amount: int, snapshot: bool = False) -> None:
        exists = key in self.tables[table]
        self.tables[table][key] = amount
        source = {"name": "bank", "db": "bank", "schema": "public", "table": table}
        payload = {"op": "r" if snapshot else "u" if exists else "c", "source": source}
        payload |= {"before": None, "after": {"id": key, "amount": amount}}
        if not snapshot:
            payload["transaction"] = {"id": f"{self._count}:{len(self.tables[table]) + key}"}
        self._send(f"{self.name}.public.{table}", key % TABLES[table], payload)

    def _send(self, topic: str, partition: int, payload: Any) -> None:
        self._waiting.setdefault((topic, partition), deque()).append(json.dumps(payload))


class Reader:
    """Reads all tables as they stood at one moment, over and over."""

    def __init__(self, catalog: Path, schema: str) -> None:
        self._catalog, self._schema = catalog, schema
        self.states: set[int] = set()
        self.faults: list[str] = []

    def look(self) -> dict[str, dict[int, int]] | None:
        sql = "select table_name, metadata_location from iceberg_tables where table_namespace = ?"
        with closing(sqlite3.connect(self._catalog, timeout=30)) as catalog:
            places = dict(catalog.execute(sql, (self._schema,)).fetchall())
        if not TABLES.keys() <= places.keys():
            return None
        actual = {}
        for name in TABLES:
            table = StaticTable.from_metadata(places[name]).scan().to_arrow()
            actual[name] = dict(
                zip(*table.select(["id", "amount"]).to_pydict().values(), strict=True)
            )
        return actual

    @contextmanager
    def looking(self) -> Iterator[None]:
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                if (actual := self.look()) is not None:
                    self._check(actual)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _check(self, actual: dict[str, dict[int, int]]) -> None:
        accounts, savings, transfers = (actual[name] for name in TABLES)
        moved = sum(transfers.values())
        self.states.add(len(transfers))
        # Rows that a snapshot has read come one by one.
        if len(transfers) and sum(accounts.values()) != ACCOUNTS * MONEY - moved:
            self.faults.append(f"{accounts} after {len(transfers)} transfers of {moved}")
        if len(transfers) and sum(savings.values()) != moved:
            self.faults.append(f"{savings} after {len(transfers)} transfers of {moved}")


@pytest.fixture
def reader(project: Any, dbt_profile_target: dict[str, Any]) -> Reader:
    if dbt_profile_target.get("catalog_properties"):
        pytest.skip(
            "the reader finds the metadata of both tables in one query of the SQLite catalog"
        )
    return Reader(Path(dbt_profile_target["warehouse"]) / "catalog.db", project.test_schema)


class TestGroup:
    @pytest.fixture(scope="class")
    def models(self, bootstrap: str) -> dict[str, str]:
        members = {f"{table}.sql": GROUP % table for table in TABLES}
        return {"sources.yml": SOURCES % bootstrap, **members}

    @pytest.fixture(scope="class")
    def bank(self, bootstrap: str) -> Bank:
        return Bank(bootstrap)

    def check_all(self, project: Any, bank: Bank) -> None:
        for table, expected in bank.tables.items():
            assert rows(project, ALL % table) == sorted(expected.items())

    def go_on(self, bank: Bank, reader: Reader, states: int) -> None:
        """Money moves until the reader has seen so many states."""
        end = time.monotonic() + DEADLINE
        while len(reader.states) < states:
            assert time.monotonic() < end
            for _ in range(5):
                bank.transfer(secretly=True)
            bank.show(pause=0.02)

    def test_no_half_of_a_transaction_is_seen(
        self, project: Any, bank: Bank, reader: Reader
    ) -> None:
        bank.show()
        run_dbt(["run"])
        self.check_all(project, bank)
        with reader.looking():
            for name, states in (("first", 2), ("second", 4)):
                with service(project, name) as running:
                    self.go_on(bank, reader, states)
                    if name == "first":
                        running.process.kill()
                        continue
                    wait_for(lambda: reader.look() == bank.tables)
                    assert running.stop() == 0
        assert reader.faults == []
        self.check_all(project, bank)
        assert len({summary(project, table)[FRONTIER] for table in TABLES}) == 1

    def test_what_has_not_ended_waits(self, project: Any, bank: Bank) -> None:
        before = [snapshot_ids(project, table) for table in TABLES]
        bank.transfer()
        end = bank._waiting[bank.tells, 0].pop()
        bank.show()
        run_dbt(["run"])
        assert [snapshot_ids(project, table) for table in TABLES] == before
        bank._waiting[bank.tells, 0].append(end)
        bank.show()
        run_dbt(["run"])
        self.check_all(project, bank)
        assert len({summary(project, table)[WRITE_ID] for table in TABLES}) == 1

    def test_full_refresh(self, project: Any, bank: Bank) -> None:
        run_dbt(["run", "--full-refresh"])
        self.check_all(project, bank)


@pytest.mark.slow
class TestWithoutGroup:
    @pytest.fixture(scope="class")
    def models(self, bootstrap: str) -> dict[str, str]:
        def model(source: str, **config: Any) -> str:
            settings = "".join(f", {name}={value!r}" for name, value in config.items())
            start = f"{{{{ config(materialized='stream'{settings}) }}}}\n"
            return f"{start}select * from {{{{ stream(source('bank', '{source}')) }}}}"

        return {
            "sources.yml": SOURCES.replace("bank.", "till.") % bootstrap,
            "messages.sql": model("messages"),
            "kinds.sql": model("kinds", unique_key="id", route_by="kind", create_tables=True),
            "alone.sql": model("alone", unique_key="id"),
            **{
                f"{name}.sql": model(name, unique_key="id")
                for name in ("strange", "half", "scattered", "unknown")
            },
        }

    @pytest.fixture(scope="class")
    def bank(self, bootstrap: str) -> Bank:
        bank = Bank(bootstrap, "till")
        for _ in range(20):
            bank.transfer()
        bank.show()
        return bank

    def test_all_topics_as_they_are(self, project: Any, bank: Bank) -> None:
        run_dbt(["run", "-s", "messages"])
        actual = rows(
            project, "select topic, count(*) from {schema}.messages group by 1 order by 1"
        )
        counts = {"accounts": ACCOUNTS + 20, "savings": ACCOUNTS + 20, "transfers": 20}
        assert actual == [(f"till.public.{table}", count) for table, count in counts.items()]

    def test_a_table_for_each_topic(self, project: Any, bank: Bank) -> None:
        run_dbt(["run", "-s", "kinds"])
        bank.transfer()
        bank.show()
        run_dbt(["run", "-s", "kinds"])
        for table, expected in bank.tables.items():
            assert rows(project, ALL % f"kinds__{table}") == sorted(expected.items())

    def test_one_topic_of_several_partitions(self, project: Any, bank: Bank) -> None:
        run_dbt(["run", "-s", "alone"])
        assert rows(project, ALL % "alone") == sorted(bank.tables["accounts"].items())
        offsets = set(json.loads(summary(project, "alone")[FRONTIER])) - {IDS}
        assert offsets == {"0", "1", f"{bank.tells}/0"}

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            ("strange", "`topic` must be one of"),
            (
                "half",
                "Set `transaction_topic` to the topic to which Debezium reports",
            ),
            (
                "scattered",
                "`transaction_topic: till.public.savings` must have one partition, got 3",
            ),
            ("unknown", "The topic till.transactions cannot be read"),
        ],
    )
    def test_what_is_refused(self, project: Any, bank: Bank, model: str, words: str) -> None:
        _, said = run_dbt_and_capture(["run", "-s", model], expect_pass=False)
        assert words in said

    def test_progress_of_one_topic_does_not_do_for_several(self, project: Any, bank: Bank) -> None:
        model = Path(project.project_root) / "models" / "alone.sql"
        model.write_text(model.read_text().replace("'alone'", "'accounts'"))
        _, said = run_dbt_and_capture(["run", "-s", "alone"], expect_pass=False)
        assert "The stream's progress has the partitions" in said
        run_dbt(["run", "-s", "alone", "--full-refresh"])
        assert rows(project, ALL % "alone") == sorted(bank.tables["accounts"].items())
