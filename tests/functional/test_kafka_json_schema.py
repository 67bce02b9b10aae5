"""Stream models that read JSON from Kafka, whose columns are those of schemas in a registry."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.kafka_registry import Shop, header, model, shop_servers, sources
from tests.functional.lake import rows, table
from tests.unit.stream.sources.formats.json_schema_rows import connect

TOPICS = ("typed", "mapped", "grown", "bad", "cdc", "keyed", "events", "linked", "free", "picked")
SETTINGS = {
    "cdc": "topic: cdc, format: debezium",
    "named": "topic: cdc, format: debezium, table: orders, table_column: origin, "
    "metadata_columns: {place: offset}",
    "linked": "topic: linked, format: json, metadata_columns: [topic]",
    "keyed": "topic: keyed, format: json, tombstones: delete",
    "orders": "topic: events, format: json, record: Order",
    "chosen": "topic: free, format: json, columns: 'id bigint, more string'",
}
NULL = {"type": "null"}
TEXT, INTEGER, NUMBER = ({"type": kind} for kind in ("string", "integer", "number"))
INT32 = {**INTEGER, "connect.type": "int32"}
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc)
MILLIS = int(MOMENT.timestamp() * 1000)
Schema = dict[str, Any]


def record(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


def optional(kind: Any) -> Schema:
    """A type that may be null, as Connect's converter and Java's generator write it."""
    return {"oneOf": [NULL, kind]}


def decimal(precision: int, scale: int) -> Schema:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    title = "org.apache.kafka.connect.data.Decimal"
    return connect("bytes", title, "number", **{"connect.parameters": parameters})


def octets(number: int) -> str:
    """A decimal's number as Connect's converter writes it by default."""
    return base64.b64encode(number.to_bytes(4, "big", signed=True)).decode()


def envelope(**columns: Any) -> Schema:
    """Return the schema of Debezium's messages about rows."""
    row = optional({**record(**columns), "title": "shop.Value"})
    source = record(table=TEXT, sequence=optional(TEXT))
    return {**record(before=row, after=row, source=source, op=TEXT, ts_ms=optional(INTEGER))}


def change(op: str, before: Any = None, after: Any = None) -> Any:
    source = {"table": "orders", "sequence": None}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


class JsonShop(Shop):
    """A shop that sends messages in JSON."""

    def send(self, topic: str, schema: Schema, *values: Any, **more: Any) -> int:
        """Send values; returns the id of their schema."""
        number = self.registry.register(f"{topic}-value", json.dumps(schema), "JSON", **more)
        self.send_bytes(topic, *(None if v is None else framed(number, v) for v in values))
        return number


def framed(number: int, value: Any) -> bytes:
    return header(number) + json.dumps(value).encode()


def failure(name: str) -> str:
    _, output = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
    return " ".join(output.split())


@pytest.fixture(scope="module")
def shop(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonShop]:
    with shop_servers(bootstrap, tmp_path_factory.mktemp("registry"), TOPICS) as servers:
        yield JsonShop(servers.bootstrap, servers.registry, servers.proxy)


@pytest.fixture(scope="class")
def dbt_profile_target(dbt_profile_target: dict[str, object], shop: JsonShop) -> dict[str, object]:
    return {**dbt_profile_target, "kafka": shop.connections}


class TestJsonSchema:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        definitions = {topic: f"topic: {topic}, format: json" for topic in TOPICS} | SETTINGS
        return {
            "sources.yml": sources(definitions),
            **{
                f"{name}.sql": model(name, unique_key="id")
                for name in ("typed", "mapped", "grown", "keyed", "linked", "free", "chosen")
            },
            "orders.sql": model("orders", unique_key="id"),
            "picked.sql": model("picked"),
            "bad.sql": model("bad"),
            "letters.sql": model("bad", on_bad_record="dead_letters"),
            "cdc.sql": model("cdc"),
            "named.sql": model("named"),
            "computed.sql": model("cdc").replace("*", "*, bit_count(id) as bits"),
        }

    def test_types(self, project: Any, shop: JsonShop) -> None:
        """Each becomes a column, which a second reader reads; Spark decodes maps."""
        address = optional({"$ref": "#/definitions/Address"})
        definitions = {"Address": record(city=TEXT, zip=optional(INT32))}
        rome = {"city": "Rome", "zip": None}
        debezium = "io.debezium.time."
        fields: dict[str, tuple[Any, Any, Any]] = {
            "id": (INT32, 1, 1),
            "big": (INTEGER, 2**60, 2**60),
            "ratio": ({**NUMBER, "connect.type": "float32"}, 0.5, 0.5),
            "exact": (NUMBER, 0.1, 0.1),
            "yes": ({"type": "boolean"}, True, True),
            "text": (optional(TEXT), "é", "é"),
            "nothing": ({"type": ["null", "string"]}, None, None),
            "raw": ({**TEXT, "connect.type": "bytes"}, "AAE=", b"\0\1"),
            "kind": ({"enum": ["A", "B"]}, "B", "B"),
            "price": (optional(decimal(10, 2)), octets(-1), Decimal("-0.01")),
            "whole": (decimal(38, 0), octets(5), Decimal(5)),
            "day": ({**TEXT, "format": "date"}, "2026-01-02", date(2026, 1, 2)),
            "at": ({**TEXT, "format": "date-time"}, "2026-01-02T04:04:05.678+01:00", MOMENT),
            "java": ({**INTEGER, "format": "utc-millisec"}, MILLIS, MOMENT),
            "days": (connect("int32", f"{debezium}Date"), 20455, date(2026, 1, 2)),
            "micros": (
                connect("int64", f"{debezium}MicroTimestamp"),
                MILLIS * 1000,
                MOMENT.replace(tzinfo=None),
            ),
            "before_1970": (
                connect("int64", f"{debezium}NanoTimestamp"),
                -1,
                datetime(1969, 12, 31, 23, 59, 59, 999999),
            ),
            "home": (address, rome, rome),
            "others": ({"type": "array", "items": address}, [rome, None], [rome, None]),
        }
        counts = {"type": "object", "additionalProperties": INTEGER}
        expected = {name: column for name, (_, _, column) in fields.items()}
        for topic in ("typed", "mapped"):
            if topic == "mapped":
                fields["counts"] = (counts, {"a": 1}, [("a", 1)])
                expected["counts"] = [("a", 1)]
            schema = record(**{name: kind for name, (kind, _, _) in fields.items()})
            value = {name: value for name, (_, value, _) in fields.items()}
            shop.send(topic, {**schema, "definitions": definitions}, value)
            run_dbt(["run", "-s", topic])
            assert table(project, topic).scan().to_arrow().to_pylist() == [expected]
        # The converter may write decimals as numbers instead.
        shop.send(topic, {**schema, "definitions": definitions}, value | {"price": 1.5, "whole": 7})
        run_dbt(["run", "-s", topic])
        [written] = table(project, topic).scan().to_arrow().to_pylist()
        assert written == expected | {"price": Decimal("1.50"), "whole": Decimal(7)}

    def test_several_schemas(self, project: Any, shop: JsonShop) -> None:
        first, later = record(id=INT32, at=optional(TEXT)), record(id=INTEGER, name=TEXT)
        shop.send("picked", first, {"id": 1, "at": "x"})
        shop.send("picked", later, {"name": "é", "id": 2**40}, None)
        shop.send("picked", first, {"id": 3})
        run_dbt(["run", "-s", "picked"])
        written = table(project, "picked").scan().to_arrow().sort_by("id")
        assert written.select(["id", "name", "at"]).to_pylist() == [
            {"id": 1, "name": None, "at": "x"},
            {"id": 3, "name": None, "at": None},
            {"id": 2**40, "name": "é", "at": None},
        ]

    def test_newer_schemas(self, project: Any, shop: JsonShop) -> None:
        """They add and widen columns, also in objects, between two runs and within one."""
        first = record(id=INT32, part=record(a=INT32))
        shop.send("grown", first, {"id": 1, "part": {"a": 1}})
        run_dbt(["run", "-s", "grown"])
        wider = record(id=INTEGER, part=record(a=INTEGER, b=TEXT), more=NUMBER)
        shop.send("grown", first, {"id": 2, "part": None})
        shop.send("grown", wider, {"id": 2**40, "part": {"a": 2**40, "b": "x"}, "more": 0.5})
        shop.send("grown", record(id=INTEGER), {"id": 3}, None)
        run_dbt(["run", "-s", "grown"])
        actual = table(project, "grown").scan().to_arrow().sort_by("id").to_pylist()
        assert actual == [
            {"id": 1, "part": {"a": 1, "b": None}, "more": None},
            {"id": 2, "part": None, "more": None},
            {"id": 3, "part": None, "more": None},
            {"id": 2**40, "part": {"a": 2**40, "b": "x"}, "more": 0.5},
        ]
        number = shop.send("grown", record(id=TEXT), {"id": "x"})
        output = failure("grown")
        assert 'at grown, partition 0, offset 5: {"id": "x"}' in output
        words = "which has `id` as string, which is bigint in the other schemas. Set the source's"
        assert f"it has the schema {number}, {words} `columns` to choose its type" in output
        assert table(project, "grown").scan().to_arrow().num_rows == 4

    def test_bad_messages(self, project: Any, shop: JsonShop) -> None:
        """They stop a stream, or go to a table with the reason."""
        at = connect("int64", "io.debezium.time.Timestamp")
        schema = record(id=INTEGER, at=at, price=decimal(4, 2))
        good = {"id": 1, "at": 0, "price": octets(9999)}
        number = shop.send("bad", schema, good, good | {"price": -1.5})
        foreign = shop.registry.register("other-value", json.dumps(record(x=TEXT)), "JSON")
        bad = [
            framed(number, {"id": "1"}),
            framed(number, good | {"price": octets(10000)}),
            framed(number, good | {"at": 2**62}),
            header(number) + b"[1]",
            header(number) + b'{"id": "\xff"}',
            b'{"id": 1}',
            framed(foreign, good),
            b"text",
        ]
        shop.send_bytes("bad", *bad, framed(number, good))
        place = 'the first at bad, partition 0, offset 2: {"id": "1"}'
        output = failure("bad")
        assert f"8 records cannot be read, {place}" in output
        field = (
            f"has the schema {number}, whose field `{{}}` has a value that is not of its type. Set "
            "the source's `columns` to choose another type"
        )
        assert field.format("id") in output
        run_dbt(["run", "-s", "letters"])
        actual = rows(project, "select id, price from {schema}.letters order by price")
        assert actual == [(1, Decimal("-1.50")), (1, Decimal("99.99")), (1, Decimal("99.99"))]
        letters = "select record, reason from {schema}.letters__dead_letters order by place"
        # Places are texts: that of the offset 10 would come first.
        records, reasons = zip(*rows(project, letters), strict=True)
        assert records[0] == '{"id": "1"}'
        assert reasons[:3] == tuple(map(field.format, ("id", "price", "at")))
        assert reasons[3:6] == (
            f"is not JSON of its schema {number}",
            "is not UTF-8",
            "is JSON without the id of a schema. Set the source's `columns`",
        )
        assert "which is not under the subject bad-value. Set the source's `subject`" in reasons[6]
        assert "does not begin with a byte 0" in reasons[7]

    @pytest.mark.slow
    def test_debezium(self, project: Any, shop: JsonShop) -> None:
        """The key of the rows is in the registry, too; Spark computes a column of one model."""
        at = connect("int64", "io.debezium.time.MicroTimestamp")
        columns = {"id": INT32, "price": optional(decimal(8, 2)), "at": optional(at)}
        shop.registry.register("cdc-key", json.dumps(record(id=INT32)), "JSON")
        first = envelope(**columns)

        def row(number: int, cents: int | None, **more: Any) -> dict[str, Any]:
            price = None if cents is None else octets(cents)
            return {"id": number, "price": price, "at": 10**6, **more}

        shop.send("cdc", first, change("r", after=row(1, 100)), change("c", after=row(2, 200)))
        shop.send("cdc", first, change("d", before=row(2, 200)), None, change("m"))
        run_dbt(["run", "-s", "cdc", "computed"])
        later = envelope(**columns, note=optional(TEXT))
        shop.send("cdc", first, change("c", after=row(3, None)))
        shop.send("cdc", later, change("u", row(1, 100, note=None), row(1, -1, note="paid")))
        run_dbt(["run", "-s", "cdc", "computed"])
        at_1970 = datetime(1970, 1, 1, 0, 0, 1)
        for name in ("cdc", "computed"):
            sql = f"select id, price, at, note from {{schema}}.{name} order by id"
            assert rows(project, sql) == [
                (1, Decimal("-0.01"), at_1970, "paid"),
                (3, None, at_1970, None),
            ]
        run_dbt(["run", "-s", "named"])
        sql = "select id, price, origin, place from {schema}.named order by id"
        assert rows(project, sql) == [(1, Decimal("-0.01"), "orders", 6), (3, None, "orders", 5)]

    def test_tombstones(self, project: Any, shop: JsonShop) -> None:
        """Their keys are JSON, too, with schemas of another subject."""
        shop.send("keyed", record(id=INTEGER, name=TEXT), *({"id": n, "name": "a"} for n in (1, 2)))
        number = shop.registry.register("keyed-key", json.dumps(record(id=INT32)), "JSON")
        shop.send_bytes("keyed", None, key=framed(number, {"id": 2}))
        run_dbt(["run", "-s", "keyed"])
        assert rows(project, "select id, name from {schema}.keyed") == [(1, "a")]
        shop.send_bytes("keyed", None, key=framed(number, {"id": 1}))
        run_dbt(["run", "-s", "keyed"])
        assert rows(project, "select id, name from {schema}.keyed") == []

    def test_a_record_type(self, project: Any, shop: JsonShop) -> None:
        """Messages of other types are skipped, and need no columns."""
        ids = {
            name: shop.registry.register(name, json.dumps({**record(**of), "title": name}), "JSON")
            for name, of in {
                "Order": {"id": INTEGER, "status": TEXT},
                "Payment": {"id": INTEGER, "amount": {"type": "object"}},
            }.items()
        }
        shop.send_bytes(
            "events",
            framed(ids["Payment"], {"id": 1, "amount": {}}),
            framed(ids["Order"], {"id": 1, "status": "new"}),
        )
        [result] = run_dbt(["run", "-s", "orders"])
        assert result.adapter_response["_message"] == "STREAM 1 changes, 1 commits, 1 skipped"
        assert rows(project, "select id, status from {schema}.orders") == [(1, "new")]

    def test_references(self, project: Any, shop: JsonShop) -> None:
        """A schema may refer to schemas of other subjects."""
        shop.registry.register("address", json.dumps(record(city=TEXT)), "JSON")
        reference = {"name": "address.json", "subject": "address", "version": 1}
        schema = record(id=INTEGER, home={"$ref": "address.json"})
        shop.send("linked", schema, {"id": 1, "home": {"city": "Bonn"}}, references=[reference])
        run_dbt(["run", "-s", "linked"])
        sql = "select id, home.city, topic from {schema}.linked"
        assert rows(project, sql) == [(1, "Bonn", "linked")]

    def test_columns_of_the_definition(self, project: Any, shop: JsonShop) -> None:
        """A field without a type is refused, and the definition is the cure."""
        number = shop.send(
            "free", record(id=INTEGER, more={"type": "object"}), {"id": 1, "more": {"a": 1}}
        )
        output = failure("free")
        words = (
            f"The topic has the schema {number}, which has `more` as an object without `properties`"
        )
        assert words in output
        assert "Set the source's `columns`, without the field or with it as string" in output
        run_dbt(["run", "-s", "chosen"])
        assert rows(project, "select id, more from {schema}.chosen") == [(1, '{"a":1}')]
