"""Stream models that read Avro, whose schemas are in a registry, from Kafka."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.file_contents import file_contents
from tests.functional.kafka_registry import (
    PASSWORD,
    Shop,
    header,
    model,
    shop_servers,
    sources,
)
from tests.functional.lake import rows, table
from tests.functional.stream_service import service, wait_for
from tests.unit.stream.sources.formats.encoded_changes import SCHEMAS, encoder

TOPICS = (
    "a",
    "b",
    "json",
    "served",
    "keyed",
    "typed",
    "grown",
    "bad",
    "other",
    "cast",
    "cdc",
    "changed",
    "by_key",
    "proto",
    "empty",
    "picked",
    "lasting",
    *(f"{kind}.{name}" for kind in ("avro", "protobuf") for name in ("a", "b", "transaction")),
)
SETTINGS = {
    "keyed": "topic: keyed, format: avro, tombstones: delete",
    "json": "topic: json, format: json, tombstones: delete, columns: 'id bigint, name string'",
    "fast": "topic: json, format: json, columns: 'id bigint, name string'",
    "cdc": "topic: cdc, format: debezium, encoding: avro",
    "changed": "topic: changed, format: debezium, encoding: avro",
    "by_key": "topic: by_key, format: debezium, encoding: avro",
    "cast": "topic: cast, format: avro, columns: 'id bigint, amount decimal(10,2), at timestamp'",
    "brief": "topic: lasting, format: avro, columns: 'id int'",
    "refused": "format: avro, connection: mistyped, topic: grown",
    "leaking": "topic: grown, format: avro, schema_registry: 'http://alice:secret@127.0.0.1/'",
}
Schema = dict[str, Any]


def record(*fields: Any, name: str = "Row") -> Schema:
    named = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "namespace": "shop", "fields": named}


class AvroShop(Shop):
    """A shop that sends messages in Avro."""

    def send(self, topic: str, schema: Schema, *values: Any) -> int:
        """Send values; returns the id of their schema."""
        number = self.registry.register(f"{topic}-value", json.dumps(schema))
        self.send_bytes(topic, *(None if v is None else framed(number, schema, v) for v in values))
        return number


def envelope(*fields: Any) -> Schema:
    """Return the schema of Debezium's messages about rows."""
    source = record(("table", "string"), ("lsn", ["null", "long"]), name="Source")
    return record(
        ("before", ["null", record(*fields, name="Value")]),
        ("after", ["null", "shop.Value"]),
        ("source", source),
        ("op", "string"),
        ("ts_ms", ["null", "long"]),
        name="Envelope",
    )


def change(op: str, before: Any = None, after: Any = None) -> Any:
    """Return a message of Debezium."""
    source = {"table": "orders", "lsn": None}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}


def framed(number: int, schema: Schema, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return header(number) + written.getvalue()


@pytest.fixture(scope="module")
def shop(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AvroShop]:
    with shop_servers(bootstrap, tmp_path_factory.mktemp("registry"), TOPICS) as servers:
        yield AvroShop(servers.bootstrap, servers.registry, servers.proxy)


@pytest.fixture(scope="class")
def dbt_profile_target(dbt_profile_target: dict[str, object], shop: AvroShop) -> dict[str, object]:
    return {**dbt_profile_target, "kafka": shop.connections}


class TestAvro:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        definitions = {topic: f"topic: {topic}, format: avro" for topic in TOPICS} | SETTINGS
        return {
            "sources.yml": sources(definitions),
            "typed.sql": model("typed", unique_key="id"),
            "grown.sql": model("grown", unique_key="id"),
            "bad.sql": model("bad"),
            "letters.sql": model("bad", on_bad_record="dead_letters"),
            "cast.sql": model("cast", unique_key="id"),
            "keyed.sql": model("keyed", unique_key="id"),
            "served.sql": model("served", unique_key="id", commit_interval=0.5),
            "json.sql": model("json", unique_key="id"),
            "fast.sql": model("fast", unique_key="id"),
            "cdc.sql": model("cdc", unique_key="id"),
            "changed.sql": model("changed", unique_key="id"),
            "filtered.sql": f"{model('changed', unique_key='id')} where id in (0, 2, 3, 4, 5)"
            " and (id <> 3)",
            "computed.sql": model("changed", unique_key="id").replace(
                "*", "*, bit_count(id) as bits"
            )
            + " where price >= 0 and id < 6",
            "by_key.sql": model("by_key", soft_deletes="deleted_at"),
            "changes.sql": model("by_key", unique_key=[]),
            "renamed.sql": model("by_key").replace("*", "id as number, note"),
            **{
                f"{name}.sql": model(name)
                for name in (
                    "other",
                    "proto",
                    "empty",
                    "refused",
                    "leaking",
                    "picked",
                    "lasting",
                    "brief",
                )
            },
        }

    def test_types(self, project: Any, shop: AvroShop) -> None:
        """Each becomes a column, which a second reader reads."""
        moment = datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc)
        micros = int(moment.timestamp()) * 10**6 + 678000
        address = record(("city", "string"), ("zip", ["null", "int"]), name="Address")
        connect = "org.apache.kafka.connect.data.Decimal"
        fields: dict[str, tuple[Any, Any, Any]] = {
            "id": ("int", 1, 1),
            "big": ("long", 2**60, 2**60),
            "ratio": ("float", 0.5, 0.5),
            "exact": ("double", 0.1, 0.1),
            "yes": ("boolean", True, True),
            "text": (["null", "string"], "é", "é"),
            "nothing": (["null", "string"], None, None),
            "raw": ("bytes", b"\0\1", b"\0\1"),
            "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
            "kind": ({"type": "enum", "name": "K", "symbols": ["A", "B"]}, "B", "B"),
            "uuid": ({"type": "string", "logicalType": "uuid"}, "0-0", "0-0"),
            "price": (
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
                Decimal("12.34"),
                Decimal("12.34"),
            ),
            "connected": (
                {"type": "bytes", "connect.name": connect, "connect.parameters": {"scale": "2"}},
                (-1).to_bytes(1, "big", signed=True),
                Decimal("-0.01"),
            ),
            "day": ({"type": "int", "logicalType": "date"}, date(2026, 1, 2), date(2026, 1, 2)),
            "millis": ({"type": "long", "logicalType": "timestamp-millis"}, moment, moment),
            "micros": ({"type": "long", "logicalType": "timestamp-micros"}, moment, moment),
            "local": (
                {"type": "long", "logicalType": "local-timestamp-micros"},
                moment.replace(tzinfo=None),
                moment.replace(tzinfo=None),
            ),
            "nanos": (
                {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"},
                micros * 1000 + 999,
                moment.replace(tzinfo=None),
            ),
            "before_1970": (
                {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"},
                -1,
                datetime(1969, 12, 31, 23, 59, 59, 999999),
            ),
            "zoned": (
                {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
                "2026-01-02T04:04:05.678+01:00",
                moment,
            ),
            "address": (
                ["null", address],
                {"city": "Rome", "zip": None},
                {"city": "Rome", "zip": None},
            ),
            "others": (
                {"type": "array", "items": "shop.Address"},
                [{"city": "Bonn", "zip": 5}],
                [{"city": "Bonn", "zip": 5}],
            ),
            "counts": ({"type": "map", "values": ["null", "long"]}, {"a": 1}, [("a", 1)]),
            "either": (["null", "int", "string"], "x", {"member0": None, "member1": "x"}),
        }
        schema = record(*((name, kind) for name, (kind, _, _) in fields.items()))
        shop.send("typed", schema, {name: value for name, (_, value, _) in fields.items()})
        run_dbt(["run", "-s", "typed"])
        (actual,) = table(project, "typed").scan().to_arrow().to_pylist()
        assert actual == {name: expected for name, (_, _, expected) in fields.items()}

    def test_newer_schemas(self, project: Any, shop: AvroShop) -> None:
        """They add and widen columns, between two runs and within one."""
        first = record(("id", "int"), ("name", "string"))
        shop.send("grown", first, {"id": 1, "name": "a"})
        run_dbt(["run", "-s", "grown"])
        wider = record(("id", "long"), ("name", "string"), ("ratio", "float"))
        without = record(("id", "long"), ("ratio", "double"), ("note", ["null", "string"]))
        shop.send("grown", first, {"id": 2, "name": "b"})
        shop.send(
            "grown",
            wider,
            {"id": 2**40, "name": "c", "ratio": 0.5},
            {"id": 1, "name": "d", "ratio": 1.5},
        )
        shop.send("grown", without, {"id": 3, "ratio": 0.1, "note": "new"})
        shop.send_bytes("grown", None)
        run_dbt(["run", "-s", "grown"])
        actual = rows(project, "select id, name, ratio, note from {schema}.grown order by id")
        assert actual == [
            (1, "d", 1.5, None),
            (2, "b", None, None),
            (3, None, Decimal("0.1"), "new"),
            (2**40, "c", 0.5, None),
        ]
        kinds = {f.name: str(f.field_type) for f in table(project, "grown").schema().fields}
        assert kinds == {"id": "long", "name": "string", "ratio": "double", "note": "string"}

    def test_newer_schemas_of_nested_records(self, project: Any, shop: AvroShop) -> None:
        """Fields are added to and widened in records, arrays and maps, too."""

        def nested(*fields: Any) -> Schema:
            part = record(*fields, name="Part")
            items = {"type": "array", "items": "shop.Part"}
            return record(("id", "int"), ("part", part), ("parts", items))

        first, later = nested(("a", "int")), nested(("a", "long"), ("b", ["null", "string"]))
        shop.send("other", first, {"id": 1, "part": {"a": 1}, "parts": [{"a": 1}]})
        run_dbt(["run", "-s", "other"])
        part = {"a": 2**40, "b": "x"}
        shop.send("other", later, {"id": 2, "part": part, "parts": [part]})
        run_dbt(["run", "-s", "other"])
        actual = table(project, "other").scan().to_arrow().sort_by("id").to_pylist()
        old = {"a": 1, "b": None}
        assert actual == [
            {"id": 1, "part": old, "parts": [old]},
            {"id": 2, "part": part, "parts": [part]},
        ]

    def test_several_schemas(self, project: Any, shop: AvroShop) -> None:
        at = {"type": "long", "logicalType": "timestamp-millis"}
        token = {"type": "fixed", "name": "Token", "size": 16, "logicalType": "uuid"}
        first = record(("id", "int"), ("at", at), ("token", token))
        later = record(("id", "long"), ("name", "string"))
        moments = [datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2)]
        octets = bytes(range(16))
        shop.send("picked", first, {"id": 1, "at": moments[0], "token": octets})
        shop.send("picked", later, {"id": 2**40, "name": "é"}, None)
        shop.send("picked", first, {"id": 3, "at": moments[1], "token": octets})
        text = str(uuid.UUID(bytes=octets))
        expected = [
            {"id": 1, "name": None, "at": moments[0], "token": text},
            {"id": 2**40, "name": "é", "at": None, "token": None},
            {"id": 3, "name": None, "at": moments[1], "token": text},
        ]
        run_dbt(["run", "-s", "picked"])
        written = table(project, "picked").scan().to_arrow().sort_by("id").to_pylist()
        assert written == sorted(expected, key=lambda row: row["id"])

    @pytest.mark.slow
    def test_a_newer_schema_while_a_service_runs(self, project: Any, shop: AvroShop) -> None:
        first = record(("id", "int"))
        shop.send("served", first, {"id": 1})
        with service(project, "served", "-s", "served") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            shop.send("served", record(("id", "long"), ("more", "int")), {"id": 2**40, "more": 7})
            shop.send("served", first, {"id": 3})

            def is_there() -> bool:
                actual = table(project, "served").scan().to_arrow().to_pylist()
                return {"id": 2**40, "more": 7} in actual and {"id": 3, "more": None} in actual

            wait_for(is_there)
            assert running.stop() == 0

    def test_a_schema_that_does_not_fit(self, project: Any, shop: AvroShop) -> None:
        text = record(("id", "string"), ("name", "string"))
        number = shop.send("grown", text, {"id": "x", "name": "x"})
        _, said = run_dbt_and_capture(["run", "-s", "grown"], expect_pass=False)
        said = " ".join(said.split())
        assert "at grown, partition 0, offset 6: 00" in said
        assert f"it has the schema {number}, which has `id` as string, which is bigint" in said
        assert rows(project, "select count(*) from {schema}.grown") == [(4,)]

    def test_bad_messages(self, project: Any, shop: AvroShop) -> None:
        """They stop a stream, or go to a table with the reason."""
        schema = record(("id", "int"), ("name", "string"))
        number = shop.send("bad", schema, {"id": 1, "name": "good"})
        good = framed(number, schema, {"id": 2, "name": "good"})
        foreign = shop.registry.register("other-value", json.dumps(record(("x", "int"))))
        shop.send_bytes("bad", good[:-2], good + b"more", b'{"id": 3}', b"", b"\x03\0" + bytes(17))
        shop.send_bytes("bad", b"\0" + foreign.to_bytes(4, "big") + b"\2", good)
        _, said = run_dbt_and_capture(["run", "-s", "bad"], expect_pass=False)
        assert "6 records cannot be read, the first at bad, partition 0, offset 1: 00" in said
        assert f"is not Avro of its schema {number}" in said
        run_dbt(["run", "-s", "letters"])
        assert rows(project, "select * from {schema}.letters order by id") == [
            (1, "good"),
            (2, "good"),
        ]
        letters = "select record, reason from {schema}.letters__dead_letters order by place"
        records, reasons = zip(*rows(project, letters), strict=True)
        assert [bytes.fromhex(r) for r in records[:3]] == [good[:-2], good + b"more", b'{"id": 3}']
        assert reasons[:2] == (f"is not Avro of its schema {number}",) * 2
        assert "is JSON without the id of a schema" in reasons[2]
        assert "does not begin with a byte 0" in reasons[3]
        assert reasons[3].endswith(
            "If no message of the topic does, set the source's `schema_file`"
        )
        assert "AWS Glue" in reasons[4]
        assert reasons[5] == (
            f"has the schema {foreign} of the record type `shop.Row`, which is not under the subject "
            "bad-value. Set the source's `subject` to the subject of the schema"
        )

    def test_columns_of_the_definition(self, project: Any, shop: AvroShop) -> None:
        """They choose fields and cast them; what cannot be cast is bad."""
        schema = record(("ID", "int"), ("amount", "string"), ("at", "string"), ("more", "int"))
        row = {"ID": 1, "amount": "1.5", "at": "2026-01-02 00:00:00Z", "more": 1}
        shop.send("cast", schema, row)
        run_dbt(["run", "-s", "cast"])
        assert rows(project, "select id, amount, date(at) from {schema}.cast") == [
            (1, Decimal("1.50"), date(2026, 1, 2))
        ]
        shop.send("cast", schema, {**row, "amount": "none"})
        _, said = run_dbt_and_capture(["run", "-s", "cast"], expect_pass=False)
        assert "whose field `amount` has a value that its column cannot take" in said

    def test_debezium(self, project: Any, shop: AvroShop) -> None:
        at = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
        first = envelope(("id", "int"), ("at", at))
        one, two, three = ({"id": n, "at": n * 10**6} for n in (1, 2, 3))
        shop.send("cdc", first, change("r", after=one), change("c", after=two))
        shop.send("cdc", first, change("c", after=three), change("d", before=two), None)
        run_dbt(["run", "-s", "cdc"])
        later = envelope(("id", "int"), ("at", at), ("note", ["null", "string"]))
        noted = {**one, "note": "paid"}
        shop.send("cdc", first, change("u", before=three, after={"id": 3, "at": 0}))
        shop.send("cdc", later, change("u", before={**one, "note": None}, after=noted))
        run_dbt(["run", "-s", "cdc"])
        assert rows(project, "select * from {schema}.cdc order by id") == [
            (1, datetime(1970, 1, 1, 0, 0, 1), "paid"),
            (3, datetime(1970, 1, 1), None),
        ]

    def test_queries_of_changes(self, project: Any, shop: AvroShop) -> None:
        """Also a query with a filter; Spark computes the column of the third model."""
        price = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
        zoned = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
        schema = envelope(("id", "int"), ("price", ["null", price]), ("at", zoned))
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

        def row(number: int, cents: int | None) -> dict[str, Any]:
            value = None if cents is None else Decimal(cents).scaleb(-2)
            return {"id": number, "price": value, "at": "2026-01-02T03:04:05Z"}

        batches = (
            [*(change("c", after=row(n, 100 * n)) for n in range(6))],
            [change("u", row(1, 100), row(1, None)), change("d", row(2, 200)), None],
            [change("d", row(3, 300)), change("c", after=row(3, -1)), change("m")],
            [change("u", row(4, 400), row(4, 9)), change("u", row(0, 0), row(6, 99999999))],
        )
        for batch in batches:
            shop.send("changed", schema, *batch)
            run_dbt(["run", "-s", "changed", "filtered", "computed"])
        # The last update changes the key of row 0.
        prices = {1: None, 3: "-0.01", 4: "0.09", 5: "5.00", 6: "999999.99"}
        expected = {
            number: (number, None if text is None else Decimal(text), moment)
            for number, text in prices.items()
        }
        sql = "select id, price, at from {schema}.%s order by id"
        assert rows(project, sql % "changed") == [*expected.values()]
        for name in ("filtered", "computed"):
            assert rows(project, sql % name) == [expected[number] for number in (4, 5)]

    def test_the_key_in_the_registry(self, project: Any, shop: AvroShop) -> None:
        """Its fields are the key of a model that names none."""
        one, two = ({"id": n, "note": "new"} for n in (1, 2))
        schema = envelope(("id", "int"), ("note", "string"))
        shop.send("by_key", schema, change("c", after=one), change("c", after=two))
        _, said = run_dbt_and_capture(["run", "-s", "by_key"], expect_pass=False)
        assert "has no subject by_key-key, whose fields would be the key" in " ".join(said.split())
        shop.registry.register("by_key-key", json.dumps(record(("id", "int"), name="Key")))
        run_dbt(["run", "-s", "by_key"])
        shop.send("by_key", schema, change("u", one, {**one, "note": "paid"}), change("d", two))
        run_dbt(["run", "-s", "by_key", "changes"])
        sql = "select id, note, deleted_at is null from {schema}.by_key order by id"
        assert rows(project, sql) == [(1, "paid", True), (2, "new", False)]
        assert rows(project, "select count(*) from {schema}.changes") == [(4,)]
        _, said = run_dbt_and_capture(["run", "-s", "renamed"], expect_pass=False)
        said = " ".join(said.split())
        assert "keys identify its rows: id. The query does not return id; it returns: " in said

    def test_tombstones(self, project: Any, shop: AvroShop) -> None:
        """Their keys are Avro, too, with schemas of another subject."""
        row, key = record(("id", "long"), ("name", "string")), record(("id", "int"), name="Key")
        shop.send("keyed", row, *({"id": n, "name": "a"} for n in (1, 2, 3)))
        number = shop.registry.register("keyed-key", json.dumps(key))
        shop.send_bytes("keyed", None, key=framed(number, key, {"id": 2}))
        run_dbt(["run", "-s", "keyed"])
        shop.send_bytes("keyed", None, key=framed(number, key, {"id": 3}))
        run_dbt(["run", "-s", "keyed"])
        assert rows(project, "select id, name from {schema}.keyed") == [(1, "a")]

    def test_json_with_a_schema(self, project: Any, shop: AvroShop) -> None:
        """The serializer of JSON Schema puts the same header before a message and its key."""
        header = b"\0\0\0\0\1"
        shop.send_bytes("json", header + b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "b"}')
        shop.send_bytes("json", None, key=header + b'{"id": 2}')
        for name in ("json", "fast"):
            run_dbt(["run", "-s", name])
        assert rows(project, "select id, name from {schema}.json") == [(1, "a")]
        shop.send_bytes("json", header + b'{"id": 3, "name": "c"}')
        run_dbt(["run", "-s", "fast"])
        assert rows(project, "select id from {schema}.fast order by id") == [(1,), (2,), (3,)]

    def test_durations(self, project: Any, shop: AvroShop) -> None:
        """No column has a type for them, but a definition may leave them out."""
        duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
        shop.send(
            "lasting", record(("id", "int"), ("lasts", duration)), {"id": 1, "lasts": bytes(12)}
        )
        _, said = run_dbt_and_capture(["run", "-s", "lasting"], expect_pass=False)
        assert "which has `lasts` as a duration, for which no column has" in " ".join(
            said.split()
        ), said
        run_dbt(["run", "-s", "brief"])
        assert rows(project, "select * from {schema}.brief") == [(1,)]

    def test_what_cannot_be_read(self, project: Any, shop: AvroShop) -> None:
        proto = 'syntax = "proto3"; message Row { int32 id = 1; }'
        shop.registry.register("proto-value", proto, "PROTOBUF")
        for name, words in {
            "proto": "which is Protobuf and not Avro. Set `format: protobuf`",
            "empty": "has no subject empty-value yet, so the columns are not known",
            "leaking": "`schema_registry` holds a login, and dbt writes sources into its artifacts",
        }.items():
            _, said = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
            assert words in " ".join(said.split())

    def test_a_registry_that_is_away(self, project: Any, shop: AvroShop) -> None:
        """It is asked again until it is back."""
        shop.registry.register("empty-value", json.dumps(record(("id", "int"))))
        shop.proxy.cut()
        timer = threading.Timer(4, shop.proxy.mend)
        timer.start()
        run_dbt(["run", "-s", "empty"])
        timer.join()
        assert rows(project, "select * from {schema}.empty") == []

    def test_a_wrong_password(self, project: Any, shop: AvroShop) -> None:
        _, said = run_dbt_and_capture(["run", "-s", "refused"], expect_pass=False)
        said = " ".join(said.split())
        assert f"registry at http://127.0.0.1:{shop.proxy.port}/apis/ccompat/v7 refuses" in said
        assert "401 Unauthorized. Check the login in the profile's `kafka` connection" in said

    def test_no_secret_is_shown(self, project: Any) -> None:
        for file, content in file_contents(Path(project.project_root)):
            assert PASSWORD.encode() not in content, file
            assert b"mistyped-password" not in content, file


GROUP = "topics: [a, b], format: avro"


class TestTopicsOfAGroup:
    """Each has a subject of its own."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        models = {f"{n}.sql": model(n, unique_key="id", commit_group="ab") for n in "ab"}
        return {"sources.yml": sources({n: f"topic: {n}, {GROUP}" for n in "ab"}), **models}

    def test_newer_schemas(self, project: Any, shop: AvroShop) -> None:
        for topic in "ab":
            shop.send(topic, record(("id", "int"), (topic, "string")), {"id": 1, topic: "x"})
        run_dbt(["run"])
        wider = record(("id", "long"), ("b", "string"), ("more", ["null", "int"]))
        shop.send("b", wider, {"id": 2**40, "b": "y", "more": 1})
        run_dbt(["run"])
        assert rows(project, "select * from {schema}.a") == [(1, "x")]
        actual = rows(project, "select id, b, more from {schema}.b order by id")
        assert actual == [(1, "x", None), (2**40, "y", 1)]
        assert [str(f.field_type) for f in table(project, "a").schema().fields] == ["int", "string"]


class TestWholeTransactions:
    """Debezium's changes and its transaction topic are in Avro, or in Protobuf."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        names = [(kind, table) for kind in ("avro", "protobuf") for table in "ab"]
        settings = "format: debezium, topics: [{0}.a, {0}.b], transaction_topic: {0}.transaction"
        definitions = {
            f"{kind}_{table}": f"topic: {kind}.{table}, encoding: {kind}, {settings.format(kind)}"
            for kind, table in names
        }
        models = {
            f"{kind}_{table}.sql": model(f"{kind}_{table}", unique_key="id", commit_group=kind)
            for kind, table in names
        }
        return {"sources.yml": sources(definitions), **models}

    @pytest.mark.parametrize("kind", [pytest.param("avro", marks=pytest.mark.slow), "protobuf"])
    def test_no_part_of_a_transaction_is_written(
        self, project: Any, shop: AvroShop, kind: str
    ) -> None:
        change, transaction = SCHEMAS[kind.upper()]
        [*ids, number] = [
            shop.registry.register(f"{kind}.{topic}-value", schema, kind.upper())
            for topic, schema in (("a", change), ("b", change), ("transaction", transaction))
        ]
        encode = encoder(kind.upper(), ids[0], number)

        def send(table: str, transaction: int, key: int) -> None:
            source = {"name": kind, "db": "shop", "schema": kind, "table": table}
            block = {"id": f"{transaction}:{key}"}
            row = {"id": key, "amount": transaction}
            message = {"op": "c", "after": row, "source": source, "transaction": block}
            shop.send_bytes(f"{kind}.{table}", encode(message))

        def report(status: str, transaction: int, **counts: int) -> None:
            several = [
                {"data_collection": f"{kind}.{table}", "event_count": count}
                for table, count in counts.items()
            ]
            message = {"status": status, "id": f"{transaction}:0", "data_collections": several}
            shop.send_bytes(f"{kind}.transaction", encode(message))

        def tables() -> list[Any]:
            run_dbt(["run", "-s", f"config.commit_group:{kind}"])
            sql = f"select id, amount from {{schema}}.{kind}_%s order by id"
            return [rows(project, sql % table) for table in "ab"]

        report("BEGIN", 1)
        send("a", 1, 1)
        send("b", 1, 1)
        send("b", 1, 2)
        report("END", 1, a=1, b=2)
        report("BEGIN", 2)
        send("a", 2, 1)
        send("b", 2, 3)
        assert tables() == [[(1, 1)], [(1, 1), (2, 1)]]
        report("END", 2, a=1, b=2)
        assert tables() == [[(1, 1)], [(1, 1), (2, 1)]]
        send("b", 2, 2)
        assert tables() == [[(1, 2)], [(1, 1), (2, 2), (3, 2)]]
