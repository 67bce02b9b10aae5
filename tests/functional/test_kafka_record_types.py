"""Stream models that read one of several record types in a topic of Kafka."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, Protocol

import fastavro
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    read_files,
)
from tests.functional.kafka_registry import Shop, header, model, shop_servers, sources
from tests.functional.lake import rows, table
from tests.functional.stream_service import service, wait_for

TOPICS = ("events", "late", "by_topic", "unnamed", "mixed", "keyed", "twins", "odd", "served")
UNION_TOPICS = ("unions", "union_keys", "union_changes", "bad_unions")
JSON_TOPICS = ("json_types", "json_unions", "json_twins")
STRATEGIES = {
    "record": "{record}",
    "topic_record": "{topic}-{record}",
    "topic": "{topic}-{part}",
}
# Names and types of the fields of records, by versions of the records.
Fields = dict[str, str]
ORDER: Fields = {"id": "int", "status": "string"}
ORDER_2: Fields = {"id": "long", "status": "string", "total": "double"}
PAYMENT: Fields = {"id": "int", "amount": "double"}
KEY: Fields = {"id": "int"}


class Encoding(Protocol):
    """A format of messages, whose records have a package of their own in the registry."""

    kind: str
    package: str

    def schema(self, name: str, fields: Fields) -> str: ...

    def encode(self, name: str, fields: Fields, value: dict[str, Any]) -> bytes: ...


class Avro:
    kind = "AVRO"

    def __init__(self, package: str = "shop") -> None:
        self.package = package

    def schema(self, name: str, fields: Fields) -> str:
        named = [{"name": field, "type": kind} for field, kind in fields.items()]
        return json.dumps(
            {"type": "record", "name": name, "namespace": self.package, "fields": named}
        )

    def encode(self, name: str, fields: Fields, value: dict[str, Any]) -> bytes:
        written = io.BytesIO()
        schema = fastavro.parse_schema(json.loads(self.schema(name, fields)))
        fastavro.schemaless_writer(written, schema, value)
        return written.getvalue()


class Protobuf:
    kind, package = "PROTOBUF", "store"

    def schema(self, name: str, fields: Fields) -> str:
        kinds = {"int": "int32", "long": "int64"}
        declared = (
            f"{kinds.get(kind, kind)} {field} = {number};"
            for number, (field, kind) in enumerate(fields.items(), 1)
        )
        return (
            f'syntax = "proto3"; package {self.package}; message {name} {{ {" ".join(declared)} }}'
        )

    def encode(self, name: str, fields: Fields, value: dict[str, Any]) -> bytes:
        _, pool = read_files(compiled_files(self.schema(name, fields)))
        message = GetMessageClass(pool.FindMessageTypeByName(f"{self.package}.{name}"))(**value)
        return b"\0" + message.SerializeToString()


class Producer:
    """A producer that registers schemas by a strategy of Confluent's serializers."""

    def __init__(self, shop: Shop, encoding: Encoding, topic: str, strategy: str) -> None:
        self.shop, self.encoding = shop, encoding
        self.topic = f"{encoding.kind.lower()}.{topic}"
        self.strategy = strategy

    def message(self, name: str, fields: Fields, part: str = "value", **value: Any) -> bytes:
        template = STRATEGIES[self.strategy]
        subject = template.format(
            topic=self.topic, record=f"{self.encoding.package}.{name}", part=part
        )
        schema = self.encoding.schema(name, fields)
        number = self.shop.registry.register(subject, schema, self.encoding.kind)
        return header(number) + self.encoding.encode(name, fields, value)

    def send(self, name: str, fields: Fields, **value: Any) -> None:
        self.shop.send_bytes(self.topic, self.message(name, fields, **value))

    def delete(self, name: str, **key: Any) -> None:
        key_bytes = self.message(name, KEY, part="key", **key)
        self.shop.send_bytes(self.topic, None, key=key_bytes)


@pytest.fixture(scope="module")
def shop(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    topics = [f"{kind}.{topic}" for kind in ("avro", "protobuf") for topic in TOPICS]
    topics += [*UNION_TOPICS, *JSON_TOPICS]
    with shop_servers(bootstrap, tmp_path_factory.mktemp("registry"), topics) as servers:
        yield servers


@pytest.fixture(scope="class")
def dbt_profile_target(dbt_profile_target: dict[str, object], shop: Shop) -> dict[str, object]:
    return {**dbt_profile_target, "kafka": shop.connections}


def run(*names: str) -> dict[str, str]:
    """Run models; returns what dbt says of each."""
    results = run_dbt(["run", "-s", *names])
    return {r.node.name: r.adapter_response["_message"] for r in results}


def failure(name: str) -> str:
    _, output = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
    return " ".join(output.split())


class RecordTypes:
    """What each format does."""

    encoding: Encoding

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        kind, package = self.encoding.kind.lower(), self.encoding.package
        order, payment = f"record: {package}.Order", f"record: {package}.Payment"
        keyed = f"tombstones: delete, key_record: {package}."
        settings = {
            "orders": f"topic: {kind}.events, {order}",
            "payments": f"topic: {kind}.events, {payment}",
            "coupons": f"topic: {kind}.late, record: {package}.Coupon",
            "named": f"topic: {kind}.late, subject: {package}.Order",
            "by_topic": f"topic: {kind}.by_topic, {order}",
            "unnamed": f"topic: {kind}.unnamed",
            "mixed": f"topic: {kind}.mixed",
            "odd": f"topic: {kind}.odd, record: {package}.Odd",
            "keyed_orders": f"topic: {kind}.keyed, {order}, {keyed}OrderKey",
            "keyed_payments": f"topic: {kind}.keyed, {payment}, {keyed}PaymentKey",
            "any_key": f"topic: {kind}.keyed, {order}, tombstones: delete",
            "served": f"topic: {kind}.served, {order}",
            "twin_orders": f"topic: {kind}.twins, {order}",
            "twin_payments": f"topic: {kind}.twins, {payment}",
        }
        definitions = {name: f"format: {kind}, {keys}" for name, keys in settings.items()}
        group = {"commit_group": "twins"}
        configs: dict[str, dict[str, Any]] = {
            **dict.fromkeys(("keyed_orders", "keyed_payments"), {}),
            "served": {"unique_key": "id", "commit_interval": 0.5},
            **dict.fromkeys(("twin_orders", "twin_payments"), {"unique_key": "id", **group}),
        }
        models = {
            f"{name}.sql": model(name, **configs.get(name, {"unique_key": "id"}))
            for name in settings
        }
        by_spark = model("orders", unique_key="id").replace("*", "*, initcap(status) as title")
        return {"sources.yml": sources(definitions), "by_spark.sql": by_spark, **models}

    def test_two_models_of_a_topic(self, project: Any, shop: Shop) -> None:
        """Each has its own type, with its newer schemas; a third type belongs to no model."""
        producer = Producer(shop, self.encoding, "events", "record")
        producer.send("Order", ORDER, id=1, status="new")
        producer.send("Payment", PAYMENT, id=7, amount=0.5)
        producer.send("Order", ORDER, id=2, status="new")
        names = ("orders", "payments", "by_spark")
        assert run(*names) == {
            "orders": "STREAM 2 changes, 1 commits, 1 skipped",
            "payments": "STREAM 1 changes, 1 commits, 2 skipped",
            "by_spark": "STREAM 2 changes, 1 commits, 1 skipped",
        }
        producer.send("Refund", {"reason": "string"}, reason="broken")
        producer.send("Order", ORDER_2, id=2**40, status="paid", total=1.5)
        producer.send("Order", ORDER, id=1, status="paid")
        assert run(*names) == {
            "orders": "STREAM 2 changes, 1 commits, 1 skipped",
            "payments": "STREAM 0 changes, 0 commits, 3 skipped",
            "by_spark": "STREAM 2 changes, 1 commits, 1 skipped",
        }
        orders = [(1, "paid", None), (2, "new", None), (2**40, "paid", 1.5)]
        for name in ("orders", "by_spark"):
            actual = table(project, name).scan().to_arrow().sort_by("id").to_pylist()
            assert [(row["id"], row["status"], row["total"]) for row in actual] == orders
        kinds = {f.name: str(f.field_type) for f in table(project, "orders").schema().fields}
        assert kinds == {"id": "long", "status": "string", "total": "double"}
        assert table(project, "payments").scan().to_arrow().to_pylist() == [
            {"id": 7, "amount": 0.5}
        ]

    def test_a_type_that_comes_late(self, project: Any, shop: Shop) -> None:
        """Until it is registered, its model fails and names what the topic has."""
        producer = Producer(shop, self.encoding, "late", "record")
        producer.send("Order", ORDER, id=1, status="new")
        output, package = failure("coupons"), self.encoding.package
        words = f"no schema of the record type `{package}.Coupon` yet under the subjects"
        assert f"{words} {producer.topic}-{package}.Coupon, {package}.Coupon, " in output
        assert f"are of the record type `{package}.Order`. Correct `record`" in output
        producer.send("Coupon", {"id": "int"}, id=5)
        assert run("coupons") == {"coupons": "STREAM 1 changes, 1 commits, 1 skipped"}
        assert rows(project, "select * from {schema}.coupons") == [(5,)]
        assert run("named") == {"named": "STREAM 1 changes, 1 commits, 1 skipped"}

    def test_subjects_of_a_topic_and_a_type(self, project: Any, shop: Shop) -> None:
        producer = Producer(shop, self.encoding, "by_topic", "topic_record")
        producer.send("Payment", PAYMENT, id=7, amount=0.5)
        producer.send("Order", ORDER, id=1, status="new")
        assert run("by_topic") == {"by_topic": "STREAM 1 changes, 1 commits, 1 skipped"}
        assert rows(project, "select id, status from {schema}.by_topic") == [(1, "new")]

    def test_without_a_record_type(self, project: Any, shop: Shop) -> None:
        """The message lists the types, also if the topic's own subject has one of them."""
        producer = Producer(shop, self.encoding, "unnamed", "record")
        producer.send("Payment", PAYMENT, id=7, amount=0.5)
        producer.send("Order", ORDER, id=1, status="new")
        package = self.encoding.package
        types = f"The messages are of the record types `{package}.Order`, `{package}.Payment`."
        advice = "Set the source's `record` to the one to read, and others are skipped"
        output = failure("unnamed")
        assert f"has no subject {producer.topic}-value yet, so the columns are not known" in output
        assert f"{types} {advice}" in output
        producer = Producer(shop, self.encoding, "mixed", "topic")
        producer.send("Order", ORDER, id=1, status="new")
        producer.strategy = "record"
        producer.send("Payment", PAYMENT, id=7, amount=0.5)
        output = failure("mixed")
        words = f"of the record type `{package}.Payment`, which is not under the subject"
        assert words in output
        assert f"{types} {advice}" in output

    def test_a_subject_with_another_name(self, project: Any, shop: Shop) -> None:
        producer = Producer(shop, self.encoding, "odd", "record")
        producer.send("Odd", {"id": "int"}, id=1)
        number = shop.registry.register(
            f"{producer.topic}.custom",
            self.encoding.schema("Odd", {"number": "int"}),
            self.encoding.kind,
        )
        body = self.encoding.encode("Odd", {"number": "int"}, {"number": 2})
        shop.send_bytes(producer.topic, header(number) + body, header(99999) + body)
        output = failure("odd")
        assert f"2 records cannot be read, the first at {producer.topic}, partition 0" in output
        name = f"{self.encoding.package}.Odd"
        assert f"the schema {number} of the record type `{name}`, which is not under" in output
        assert "Set the source's `subject` to the subject of the schema" in output

    def test_keys(self, project: Any, shop: Shop) -> None:
        """A message without a value deletes the row of its key, if it is a key of the type."""
        producer = Producer(shop, self.encoding, "keyed", "record")
        for number in (1, 2, 3):
            producer.send("Order", ORDER, id=number, status="new")
            producer.send("Payment", PAYMENT, id=number, amount=0.5)
        producer.delete("OrderKey", id=1)
        producer.delete("PaymentKey", id=2)
        assert run("keyed_orders", "keyed_payments") == {
            "keyed_orders": "STREAM 4 changes, 1 commits, 4 skipped",
            "keyed_payments": "STREAM 4 changes, 1 commits, 4 skipped",
        }
        for name, ids in {"keyed_orders": [2, 3], "keyed_payments": [1, 3]}.items():
            assert rows(project, f"select id from {{schema}}.{name} order by id") == [
                (number,) for number in ids
            ]
        output = failure("any_key")
        assert "has no value, and a key with the schema" in output
        assert "Set the source's `key_record` to the record type of its keys" in output

    def test_models_that_are_committed_together(self, project: Any, shop: Shop) -> None:
        producer = Producer(shop, self.encoding, "twins", "record")
        producer.send("Order", ORDER, id=1, status="new")
        producer.send("Payment", PAYMENT, id=7, amount=0.5)
        names = ("twin_orders", "twin_payments")
        for _ in range(2):
            run(*names)
            producer.send(
                "Payment", {**PAYMENT, "currency": "string"}, id=8, amount=1, currency="€"
            )
            producer.send("Order", ORDER_2, id=2, status="paid", total=1)
        run(*names)
        orders, payments = (
            table(project, name).scan().to_arrow().sort_by("id").to_pylist() for name in names
        )
        assert [row["total"] for row in orders] == [None, 1.0]
        assert [row["currency"] for row in payments] == [None, "€"]


class TestAvro(RecordTypes):
    encoding = Avro()

    @pytest.mark.slow
    def test_a_type_that_appears_while_a_service_runs(self, project: Any, shop: Shop) -> None:
        producer = Producer(shop, self.encoding, "served", "record")
        producer.send("Order", ORDER, id=1, status="new")
        with service(project, "served", "-s", "served") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            producer.send("Voucher", {"code": "string"}, code="x")
            producer.send("Order", ORDER_2, id=2, status="new", total=0.5)
            wait_for(lambda: table(project, "served").scan().to_arrow().num_rows == 2)
            skipped = 'iceberg_stream_skipped_records_total{model="served"} 1.0'
            assert skipped in running.ask("metrics")
            assert running.stop() == 0


@pytest.mark.slow
class TestProtobuf(RecordTypes):
    encoding = Protobuf()


class UnionProducer:
    """A producer of events, whose schemas are under their names, and in a union of the topic."""

    encoding = Avro("market")

    def __init__(self, shop: Shop, topic: str) -> None:
        self.shop, self.topic = shop, topic
        self.versions: dict[str, int] = {}
        self.fields: dict[str, Fields] = {}
        self.members: list[str] = []

    def define(self, name: str, fields: Fields) -> None:
        """Register the next version of a record."""
        full = f"{self.topic}.{name}"
        self.shop.registry.register(full, self.encoding.schema(name, fields))
        self.versions[name] = self.versions.get(name, 0) + 1
        self.fields[name] = fields

    def register(self, *members: str) -> None:
        """Register the next version of the union; its null comes first."""
        names = [f"{self.encoding.package}.{name}" for name in members]
        references = [
            {"name": name, "subject": f"{self.topic}.{member}", "version": self.versions[member]}
            for name, member in zip(names, members, strict=True)
        ]
        schema = json.dumps(["null", *names])
        subject = f"{self.topic}-value"
        self.header = header(
            self.shop.registry.register(subject, schema, references=references)  # type: ignore[arg-type]
        )
        self.members = list(members)

    def message(self, name: str, **value: Any) -> bytes:
        index = bytes([2 * (self.members.index(name) + 1)])
        return self.header + index + self.encoding.encode(name, self.fields[name], value)

    def send(self, name: str, **value: Any) -> None:
        self.shop.send_bytes(self.topic, self.message(name, **value))


@pytest.mark.slow
class TestUnions:
    """The schema of a topic is a union of records."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        settings = {
            "orders": "topic: unions, record: market.Order",
            "payments": "topic: unions, record: market.Payment",
            "any": "topic: unions",
            "keyed": "topic: union_keys, record: market.Order, tombstones: delete",
            "bad": "topic: bad_unions, record: market.Order",
        }
        definitions = {name: f"format: avro, {keys}" for name, keys in settings.items()}
        changes = (
            "format: debezium, encoding: avro, topic: union_changes, record: db.orders.Envelope"
        )
        definitions |= {"changes": changes}
        configs: dict[str, dict[str, Any]] = {"keyed": {}}
        models = {
            f"{name}.sql": model(name, **configs.get(name, {"unique_key": "id"}))
            for name in settings
        }
        computed = model("orders", unique_key="id").replace("*", "*, initcap(status) as title")
        models |= {"computed.sql": computed, "changes.sql": model("changes", unique_key="id")}
        models["by_spark.sql"] = models["changes.sql"].replace("*", "*, initcap(status) as title")
        return {"sources.yml": sources(definitions), **models}

    def test_debezium(self, project: Any, shop: Shop) -> None:
        """The changes of two tables are in a topic; null is a tombstone, which has no effect."""

        def envelope(table: str, fields: Fields) -> Any:
            space = f"db.{table}"
            row = json.loads(Avro(space).schema("Value", fields))
            kinds = {"before": ["null", row], "after": ["null", f"{space}.Value"], "op": "string"}
            named = [{"name": name, "type": kind} for name, kind in kinds.items()]
            return {"type": "record", "name": "Envelope", "namespace": space, "fields": named}

        members = ["null", envelope("orders", ORDER), envelope("items", PAYMENT)]
        number = shop.registry.register("union_changes-value", json.dumps(members))

        def message(index: int, **change: Any) -> bytes:
            written = io.BytesIO()
            value = {"before": None, "after": None, **change}
            fastavro.schemaless_writer(written, fastavro.parse_schema(members[index]), value)
            return header(number) + bytes([2 * index]) + written.getvalue()

        one, two = ({"id": n, "status": "new"} for n in (1, 2))
        shop.send_bytes(
            "union_changes",
            message(1, op="c", after=one),
            message(2, op="c", after={"id": 7, "amount": 1}),
            message(1, op="c", after=two),
            message(1, op="u", before=two, after={**two, "status": "paid"}),
            message(1, op="d", before=one),
            header(number) + b"\0",
        )
        for name in ("changes", "by_spark"):
            assert run(name) == {name: "STREAM 4 changes, 1 commits, 1 skipped"}
            assert rows(project, f"select id, status from {{schema}}.{name}") == [(2, "paid")]

    def test_two_models_of_a_union(self, project: Any, shop: Shop) -> None:
        producer = UnionProducer(shop, "unions")
        producer.define("Order", ORDER)
        producer.define("Payment", PAYMENT)
        producer.register("Order", "Payment")
        producer.send("Order", id=1, status="new")
        producer.send("Payment", id=7, amount=0.5)
        producer.send("Order", id=2, status="new")
        shop.send_bytes("unions", producer.header + b"\0")
        names = ("orders", "payments", "computed")
        assert run(*names) == {
            "orders": "STREAM 2 changes, 1 commits, 1 skipped",
            "payments": "STREAM 1 changes, 1 commits, 2 skipped",
            "computed": "STREAM 2 changes, 1 commits, 1 skipped",
        }
        output = failure("any")
        types = "is a union of the record types `market.Order`, `market.Payment`"
        assert f"{types}. Set the source's `record` to the one to read" in output
        # A record is added, and a field to another one.
        producer.define("Refund", {"reason": "string"})
        producer.define("Order", ORDER_2)
        producer.register("Refund", "Order", "Payment")
        producer.send("Refund", reason="broken")
        producer.send("Order", id=2**40, status="paid", total=1.5)
        assert run(*names) == {
            "orders": "STREAM 1 changes, 1 commits, 1 skipped",
            "payments": "STREAM 0 changes, 0 commits, 2 skipped",
            "computed": "STREAM 1 changes, 1 commits, 1 skipped",
        }
        orders = [(1, "new", None), (2, "new", None), (2**40, "paid", 1.5)]
        for name in ("orders", "computed"):
            written = table(project, name).scan().to_arrow().sort_by("id").to_pylist()
            assert [(row["id"], row["status"], row["total"]) for row in written] == orders
        assert rows(project, "select id, amount from {schema}.payments") == [(7, 0.5)]

    def test_null_deletes_the_row_of_the_key(self, project: Any, shop: Shop) -> None:
        producer = UnionProducer(shop, "union_keys")
        producer.define("Order", ORDER)
        producer.define("Payment", PAYMENT)
        producer.register("Order", "Payment")
        key_schema = json.dumps(["null", json.loads(producer.encoding.schema("Key", KEY))])
        key_header = header(shop.registry.register("union_keys-key", key_schema))
        for number in (1, 2, 3):
            producer.send("Order", id=number, status="new")
            producer.send("Payment", id=number, amount=1)
        for number, value in {1: producer.header + b"\0", 3: None}.items():
            key = producer.encoding.encode("Key", KEY, {"id": number})
            shop.send_bytes("union_keys", value, key=key_header + b"\2" + key)
        assert run("keyed") == {"keyed": "STREAM 5 changes, 1 commits, 3 skipped"}
        assert rows(project, "select id, status from {schema}.keyed") == [(2, "new")]

    def test_bad_messages(self, project: Any, shop: Shop) -> None:
        producer = UnionProducer(shop, "bad_unions")
        producer.define("Order", ORDER)
        producer.register("Order")
        producer.send("Order", id=1, status="new")
        shop.send_bytes("bad_unions", producer.header + b"\4\2")
        number = int.from_bytes(producer.header[1:], "big")
        output = failure("bad")
        assert "1 record cannot be read, at bad_unions, partition 0, offset 1" in output
        assert f"has the schema {number}, whose union has no record with the index of" in output
        assert "Check that its producer sends the id of the schema" in output


class TestJson:
    """The title of a JSON Schema is the name of a record type."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        settings = {
            "orders": "topic: json_types, record: shop.JsonOrder, columns: 'id int, status string'",
            "payments": "topic: json_types, record: JsonPayment, columns: 'id int, amount double'",
            "union": "topic: json_unions, record: Cat, columns: 'id int'",
            "animals": "topic: json_unions, columns: 'id int, barks boolean'",
            "twin_cats": "topic: json_twins, record: Cat, columns: 'id int'",
            "twin_dogs": "topic: json_twins, record: Dog, columns: 'id int'",
            "twin_all": "topic: json_twins, columns: 'id int'",
        }
        definitions = {name: f"format: json, {keys}" for name, keys in settings.items()}
        twins = {name: {"commit_group": "json"} for name in settings if "twin" in name}
        models = {
            f"{name}.sql": model(name, unique_key="id", **twins.get(name, {})) for name in settings
        }
        computed = model("orders", unique_key="id").replace("*", "*, initcap(status) as title")
        return {"sources.yml": sources(definitions), "computed.sql": computed, **models}

    def send(self, shop: Shop, topic: str, subject: str, schema: Any, **value: Any) -> None:
        described = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        number = shop.registry.register(subject, json.dumps(described), "JSON")
        shop.send_bytes(topic, header(number) + json.dumps(value).encode())

    @pytest.mark.slow
    def test_two_models_of_a_topic(self, project: Any, shop: Shop) -> None:
        order, payment = (
            {"title": name, "type": "object"} for name in ("shop.JsonOrder", "JsonPayment")
        )
        topic, subject = "json_types", "json_types-shop.JsonOrder"
        for number in (1, 2):
            self.send(shop, topic, subject, order, id=number, status="new")
            self.send(shop, topic, "JsonPayment", payment, id=number, amount=0.5)
            self.send(shop, topic, "Refund", {"title": "Refund"}, reason="broken")
        for name in ("orders", "computed", "payments"):
            assert run(name) == {name: "STREAM 2 changes, 1 commits, 4 skipped"}
        for name in ("orders", "computed"):
            sql = f"select id, status from {{schema}}.{name} order by id"
            assert rows(project, sql) == [(1, "new"), (2, "new")]
        shop.send_bytes(topic, b'{"id": 3}')
        output = failure("orders")
        assert "is JSON without the id of a schema, so that its record type is unknown" in output

    def test_unions_are_refused(self, project: Any, shop: Shop) -> None:
        members = [{"title": name, "type": "object"} for name in ("Cat", "Dog")]
        self.send(shop, "json_unions", "json_unions-value", {"oneOf": members}, id=1, barks=True)
        output = failure("union")
        assert "which is a union of the record types `Cat`, `Dog`, and JSON does not say" in output
        assert "choose rows by a field in the model's query" in output
        run("animals")
        assert rows(project, "select id, barks from {schema}.animals") == [(1, True)]

    def test_models_that_are_committed_together(self, project: Any, shop: Shop) -> None:
        """One of them reads all record types, and has no schemas in its progress."""
        names = ("twin_cats", "twin_dogs", "twin_all")
        for number in range(0, 6, 2):
            for place, name in enumerate(("Cat", "Dog")):
                schema = {"title": name, "type": "object", "description": str(number)}
                self.send(shop, "json_twins", "json_twins-value", schema, id=number + place)
            run(*names)
        ids = [rows(project, f"select id from {{schema}}.{name} order by id") for name in names]
        assert [[row[0] for row in own] for own in ids] == [[0, 2, 4], [1, 3, 5], [*range(6)]]
