"""Stream models that read Kafka."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows, snapshot_ids, summary
from tests.servers.producer import CheckedProducer

PARTITIONS = 3
TOPICS = {
    "plain": "format: json, tombstones: delete",
    "debezium": "format: debezium",
    "truncated": "format: debezium",
    "changed": "format: debezium",
    "maxwell": "format: maxwell, table: orders",
    "spoiled": "format: json",
    "raw": "format: raw",
    "transactions": "format: raw",
    "numbers": "format: json",
    "mixed": "format: debezium, table_column: kind",
}
COLUMNS = "columns: 'id bigint, status string, amount decimal(10,2)'"
PLAIN_COLUMNS = "columns: 'id bigint, status string'"
ALL = "select id, status, amount from {schema}.%s order by id"
RENAMED = """
{{ config(materialized='stream', unique_key='order_id') }}
select id as order_id, status from {{ stream(source('kafka', 'maxwell'), key=var('key', none)) }}
"""


@pytest.fixture(scope="module", autouse=True)
def topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics(
        [NewTopic(topic, 1 if topic == "truncated" else PARTITIONS, 1) for topic in TOPICS]
    )
    for topic in TOPICS:
        made[topic].result()


def sources(bootstrap: str) -> str:
    tables = "".join(
        f"""
      - name: {topic}
        config:
          meta:
            stream: {{type: kafka, bootstrap_servers: '{bootstrap}', topic: {topic}, {form},
                     {PLAIN_COLUMNS if topic in ("numbers", "changed") else COLUMNS}}}
"""
        for topic, form in TOPICS.items()
    )
    return f"sources:\n  - name: kafka\n    tables:{tables}".replace(
        f"format: raw,\n                     {COLUMNS}", "format: raw"
    )


def model(topic: str, **config: Any) -> str:
    said = ", ".join(f"{k}={v!r}" for k, v in {"materialized": "stream", **config}.items())
    return f"{{{{ config({said}) }}}}\nselect * from {{{{ stream(source('kafka', '{topic}')) }}}}"


class TestKafka:
    @pytest.fixture(scope="class")
    def models(self, bootstrap: str) -> dict[str, str]:
        return {
            "sources.yml": sources(bootstrap),
            "plain.sql": model("plain", unique_key="id"),
            "debezium.sql": model("debezium", unique_key="id"),
            "truncated.sql": model("truncated", unique_key="id"),
            "changed.sql": model("changed", unique_key="id"),
            "computed.sql": model("changed", unique_key="id").replace(
                "select *", "select id, concat(status, '') as status"
            ),
            # PyArrow does not compute this.
            "by_spark.sql": model("changed", unique_key="id").replace(
                "select *", "select id, reverse(reverse(status)) as status"
            ),
            "parted.sql": model(
                "changed", unique_key="id", partition_by=["status", "bucket(3, id)"]
            ),
            "parted_by_spark.sql": model(
                "changed", unique_key="id", partition_by=["status", "bucket(3, id)"]
            ).replace("select *", "select id, reverse(reverse(status)) as status"),
            "kept.sql": model("changed", unique_key="id") + " where status <> 'new'",
            "kept_by_spark.sql": model("changed", unique_key="id")
            + " where reverse(reverse(status)) <> 'new'",
            "maxwell.sql": model("maxwell", unique_key="id"),
            "renamed.sql": RENAMED,
            "spoiled.sql": model("spoiled"),
            "letters.sql": model("spoiled", on_bad_record="dead_letters", bad_record_limit=3),
            "raw.sql": model("raw"),
            "transactions.sql": model("transactions"),
            "mixed.sql": model("mixed", unique_key="id", route_by="kind", create_tables=True),
            "places.sql": model("numbers", unique_key="id", delete_encoding="position"),
            "numbers.sql": model("numbers", unique_key="id", batch_rows=10).replace(
                "select *", "select id, status as state"
            ),
        }

    @pytest.fixture(scope="class")
    def send(self, bootstrap: str) -> Any:
        producer = CheckedProducer({"bootstrap.servers": bootstrap})

        def sent(topic: str, *messages: tuple[Any, Any]) -> None:
            for key, value in messages:
                text = None if value is None else value if isinstance(value, str) else None
                text = json.dumps(value) if text is None and value is not None else text
                producer.produce(topic, key=json.dumps({"id": key}), value=text)
            producer.deliver()

        return sent

    def test_records_and_tombstones(self, project: Any, send: Any) -> None:
        new = [(n, {"id": n, "status": "new", "amount": 1.5}) for n in range(10)]
        send("plain", *new, (3, {"id": 3, "status": "paid", "amount": 2}), (4, None))
        run_dbt(["run", "-s", "plain"])
        actual = rows(project, ALL % "plain")
        assert [row[0] for row in actual] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert [str(value) for value in actual[3]] == ["3", "paid", "2.00"]
        before = snapshot_ids(project, "plain")
        run_dbt(["run", "-s", "plain"])
        assert snapshot_ids(project, "plain") == before
        send("plain", (5, {"id": 5, "status": "sent", "amount": 9}))
        run_dbt(["run", "-s", "plain"])
        assert rows(project, ALL % "plain")[4][1] == "sent"

    def test_debezium(self, project: Any, send: Any) -> None:
        def changed(op: str, before: Any, after: Any, wrapped: bool = False) -> Any:
            body = {"op": op, "before": before, "after": after, "ts_ms": 1}
            return {"schema": {}, "payload": body} if wrapped else body

        one, two = {"id": 1, "status": "new", "amount": 1}, {"id": 2, "status": "new", "amount": 2}
        paid = {**one, "status": "paid"}
        send("debezium", (1, changed("c", None, one)), (2, changed("r", None, two, wrapped=True)))
        send("debezium", (1, changed("u", one, paid)), (2, changed("d", two, None)), (2, None))
        run_dbt(["run", "-s", "debezium"])
        assert [row[:2] for row in rows(project, ALL % "debezium")] == [(1, "paid")]
        for topic in ("debezium", "truncated"):
            send(topic, (5, changed("c", None, {"id": 5, "status": "old", "amount": 5})))
            send(topic, (0, {"op": "t", "before": None, "after": None}))
            send(topic, (7, changed("c", None, {"id": 7, "status": "new", "amount": 7})))
        run_dbt(["run", "-s", "truncated"])
        assert [row[0] for row in rows(project, ALL % "truncated")] == [7]
        # Of several partitions it is not known what came before the truncate.
        _, said = run_dbt_and_capture(["run", "-s", "debezium"], expect_pass=False)
        assert "a truncate, and 3 partitions, between which the order is not known" in said
        assert [row[:2] for row in rows(project, ALL % "debezium")] == [(1, "paid")]

    def test_debezium_with_spark_and_without(self, project: Any, send: Any) -> None:
        def changed(op: str, before: Any, after: Any) -> Any:
            return {"op": op, "before": before, "after": after, "ts_ms": 1, "source": {"lsn": 7}}

        def row(number: int, status: str | None) -> Any:
            return {"id": number, "status": status, "other": [1]}

        logged = {"op": "m", "message": {"prefix": "p"}}
        batches = (
            [(n, changed("c", None, row(n, "new"))) for n in range(6)],
            [
                (1, changed("u", None, row(1, "paid"))),
                (2, changed("d", row(2, "new"), None)),
                (2, None),
            ],
            [
                (3, changed("d", {"id": 3}, None)),
                (3, changed("c", None, row(3, None))),
                (4, logged),
            ],
            [(1, changed("u", None, row(1, "new"))), (0, changed("u", None, row(0, "paid")))],
            [(4, {"schema": {}, "payload": changed("d", row(4, "new"), None)})],
        )
        tables = ("changed", "computed", "by_spark", "parted", "parted_by_spark")
        for batch in batches:
            send("changed", *batch)
            run_dbt(["run", "-s", *tables])
            if batch in batches[2:4]:
                run_dbt(["run", "-s", "kept", "kept_by_spark"])
        expected = [(0, "paid"), (1, "new"), (3, None), (5, "new")]
        for table in tables:
            assert rows(project, f"select * from {{schema}}.{table} order by id") == expected
        sql = "select id, _partition, _deleted from {schema}.%s order by id, _deleted"
        assert rows(project, sql % "parted") == rows(project, sql % "parted_by_spark")
        for table in ("kept", "kept_by_spark"):
            assert rows(project, f"select * from {{schema}}.{table}") == [(0, "paid")]

    def test_tables_of_a_topic(self, project: Any, send: Any) -> None:
        """Each goes to a table of its own, updates and deletes included."""

        def changed(op: str, table: str, id: int, status: str) -> Any:
            row = {"id": id, "status": status, "amount": 1}
            images = {"before": row} if op == "d" else {"after": row}
            return {"op": op, "source": {"table": table}, **images}

        send("mixed", (1, changed("c", "Orders", 1, "new")), (1, changed("c", "items", 1, "in")))
        send("mixed", (2, changed("c", "Orders", 2, "new")), (1, changed("u", "Orders", 1, "paid")))
        run_dbt(["run", "-s", "mixed"])
        send("mixed", (2, changed("d", "Orders", 2, "new")), (2, changed("c", "items", 2, "in")))
        run_dbt(["run", "-s", "mixed"])
        assert [row[:2] for row in rows(project, ALL % "mixed__orders")] == [(1, "paid")]
        assert [row[:2] for row in rows(project, ALL % "mixed__items")] == [(1, "in"), (2, "in")]
        assert rows(project, ALL % "mixed") == []

    def test_maxwell(self, project: Any, send: Any) -> None:
        def changed(kind: str, table: str = "orders", old: Any = None, **data: Any) -> Any:
            said = {"type": kind, "table": table, "database": "shop", "data": data}
            return said if old is None else said | {"old": old}

        send("maxwell", (1, changed("insert", id=1, status="new", amount=1)))
        send("maxwell", (2, changed("insert", id=2, status="new", amount=1)))
        send("maxwell", (9, changed("insert", table="people", id=9)))
        send("maxwell", (1, changed("update", id=1, status="paid", amount=1)))
        send("maxwell", (2, changed("delete", id=2, status="new", amount=1)))
        run_dbt(["run", "-s", "maxwell"])
        assert [row[:2] for row in rows(project, ALL % "maxwell")] == [(1, "paid")]
        # The key is changed: in a later run, and twice in one.
        moved = changed("update", old={"id": 1, "status": "paid"}, id=5, status="moved", amount=1)
        send("maxwell", (1, moved))
        run_dbt(["run", "-s", "maxwell"])
        assert [row[:2] for row in rows(project, ALL % "maxwell")] == [(5, "moved")]
        there = changed("update", old={"id": 5}, id=6, status="moved", amount=1)
        back = changed("update", old={"id": 6}, id=5, status="back", amount=1)
        paid = changed("update", old={"status": "back"}, id=5, status="paid", amount=None)
        send("maxwell", (1, there), (1, back), (1, paid))
        run_dbt(["run", "-s", "maxwell"])
        assert [row[:2] for row in rows(project, ALL % "maxwell")] == [(5, "paid")]

    def test_a_maxwell_source_whose_key_has_another_name(self, project: Any, send: Any) -> None:
        misspelled = ["run", "-s", "renamed", "--vars", "key: order_id"]
        _, said = run_dbt_and_capture(misspelled, expect_pass=False)
        assert "The key order_id is not among the columns of the Maxwell source" in said
        run_dbt(["run", "-s", "renamed"])
        sql = "select order_id, status from {schema}.renamed"
        assert rows(project, sql) == rows(project, "select id, status from {schema}.maxwell")

    def test_a_bad_record_stops_the_stream(self, project: Any, send: Any) -> None:
        send("spoiled", (1, {"id": 1, "status": "a", "amount": 1}), (2, "{spoiled"))
        _, said = run_dbt_and_capture(["run", "-s", "spoiled"], expect_pass=False)
        assert "1 record cannot be read" in said and "offset 0: {spoiled" in said
        assert rows(project, ALL % "spoiled") == []

    def test_bad_records_go_to_a_table(self, project: Any, send: Any) -> None:
        run_dbt(["run", "-s", "letters"])
        assert [row[0] for row in rows(project, ALL % "letters")] == [1]
        letters = rows(project, "select place, record from {schema}.letters__dead_letters")
        assert [record for _, record in letters] == ["{spoiled"]
        send("spoiled", *((n, "{") for n in range(4)))
        _, said = run_dbt_and_capture(["run", "-s", "letters"], expect_pass=False)
        assert "and `bad_record_limit` allows 3" in said

    def test_messages_as_they_are(self, project: Any, send: Any) -> None:
        send("raw", (1, "one"), (2, "two"))
        run_dbt(["run", "-s", "raw"])
        sql = "select cast(value as string) from {schema}.raw order by 1"
        assert rows(project, sql) == [("one",), ("two",)]

    def test_what_transactions_have_not_committed(
        self, project: Any, send: Any, bootstrap: str
    ) -> None:
        producer = CheckedProducer({"bootstrap.servers": bootstrap, "transactional.id": "tests"})
        producer.init_transactions(30)
        for text, ends in (
            ("aborted", producer.abort_transaction),
            ("committed", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce("transactions", value=text)
            producer.deliver()
            ends(30)
        run_dbt(["run", "-s", "transactions"])
        run_dbt(["run", "-s", "transactions"])
        sql = "select cast(value as string) from {schema}.transactions"
        assert rows(project, sql) == [("committed",)]

    def test_columns_as_they_are(self, project: Any, send: Any) -> None:
        """Without a decimal and with columns only, Spark decodes what is odd, and nothing else."""
        send("numbers", *((n % 20, {"id": n % 20, "status": f"s{n}"}) for n in range(100)))
        run_dbt(["run", "-s", "numbers"])
        sql = "select id, state from {schema}.numbers order by id"
        assert rows(project, sql) == [(n, f"s{80 + n}") for n in range(20)]
        run_dbt(["run", "-s", "places"])
        send("numbers", (1, {"id": 1, "status": "s81"}))
        run_dbt(["run", "-s", "places"])
        assert rows(project, sql.replace("state", "status").replace("numbers", "places")) == rows(
            project, sql
        )
        assert "total-equality-deletes" not in summary(project, "places") or (
            summary(project, "places")["total-equality-deletes"] == "0"
        )
        send("numbers", (1, {"id": 1, "status": "odd"}), (2, {"id": 2, "status": 5}), (3, None))
        run_dbt(["run", "-s", "numbers"])
        assert rows(project, sql)[1:4] == [(1, "odd"), (2, "5"), (3, "s83")]
        send("numbers", (4, {"id": 4, "status": "late"}), (5, "null"))
        _, said = run_dbt_and_capture(["run", "-s", "numbers"], expect_pass=False)
        assert "1 record cannot be read" in said and "null" in said

    def test_offsets_that_are_gone(self, project: Any, send: Any, bootstrap: str) -> None:
        from confluent_kafka import TopicPartition

        send("plain", *((n, {"id": n, "status": "x", "amount": 1}) for n in range(10)))
        admin = AdminClient({"bootstrap.servers": bootstrap})
        gone = [TopicPartition("plain", n, -1) for n in range(PARTITIONS)]
        for done in admin.delete_records(gone).values():
            done.result()
        _, said = run_dbt_and_capture(["run", "-s", "plain"], expect_pass=False)
        assert "Kafka no longer has the offsets" in said

    def test_a_topic_that_is_created_again(self, project: Any, bootstrap: str) -> None:
        """It has more messages than the stream has read of the one before."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["raw"])["raw"].result()
        deadline = time.monotonic() + 30
        while "raw" in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
            time.sleep(0.1)
        admin.create_topics([NewTopic("raw", PARTITIONS, 1)])["raw"].result()
        # A producer that knows the old topic refuses messages until it hears of the new one.
        producer = CheckedProducer({"bootstrap.servers": bootstrap})
        for n in range(100):
            producer.produce("raw", value=str(n))
        producer.deliver()
        _, said = run_dbt_and_capture(["run", "-s", "raw"], expect_pass=False)
        assert "The topic raw was deleted and created again" in said
        run_dbt(["run", "-s", "raw", "--full-refresh"])
        assert rows(project, "select count(*) from {schema}.raw") == [(100,)]
