"""Stream models that read Protobuf, whose schemas are in a registry, from Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import Reference
from tests.functional.kafka_registry import Shop, header, model, shop_servers, sources
from tests.functional.lake import rows, table

FIRST = b"\0"
SETTINGS = {
    "typed": "format: protobuf",
    "grown": "format: protobuf",
    "bad": "format: protobuf",
    "second": "format: protobuf, message: shop.Out.In",
    "cast": "format: protobuf, columns: 'id bigint, amount decimal(10,2)'",
    "keyed": "format: protobuf, tombstones: delete",
    "cdc": "format: debezium, encoding: protobuf",
    "avro": "format: protobuf",
    "tree": "format: protobuf",
    "crossed": "format: avro",
    "older": "format: protobuf",
}
ADDRESS = 'syntax = "proto3"; package shop; message Address { string city = 1; }'


class ProtobufShop(Shop):
    """A shop that sends messages in Protobuf."""

    def register(self, subject: str, text: str, *names: str) -> int:
        """Register a schema; returns its id.

        Args:
            subject: the subject.
            text: the schema without its syntax.
            names: of the files that it imports; their subjects have `-` for `/`.
        """
        references = [
            {"name": name, "subject": name.replace("/", "-"), "version": 1} for name in names
        ]
        kind = f'syntax = "proto3"; {text}'
        return self.registry.register(subject, kind, "PROTOBUF", references=references)

    def send(self, topic: str, text: str, *values: dict[str, Any]) -> int:
        """Send values of a schema's message `Row`; returns the id of the schema."""
        number = self.register(f"{topic}-value", text)
        self.send_bytes(topic, *(framed(number, text, value) for value in values))
        return number


def framed(
    number: int, text: str, value: dict[str, Any], message: str = "Row", index: bytes = FIRST
) -> bytes:
    """Return a message with the id of its schema and its index."""
    references = (Reference("shop/address.proto", ADDRESS),)
    _, pool = read_files(compiled_files(f'syntax = "proto3"; {text}', references))
    body = GetMessageClass(pool.FindMessageTypeByName(message))(**value).SerializeToString()
    return header(number) + index + body


@pytest.fixture(scope="module")
def shop(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtobufShop]:
    with shop_servers(bootstrap, tmp_path_factory.mktemp("registry"), list(SETTINGS)) as servers:
        yield ProtobufShop(servers.bootstrap, servers.registry, servers.proxy)


@pytest.fixture(scope="class")
def dbt_profile_target(
    dbt_profile_target: dict[str, object], shop: ProtobufShop
) -> dict[str, object]:
    return {**dbt_profile_target, "kafka": shop.connections}


class TestProtobuf:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        keyed = ("grown", "cast", "keyed", "cdc")
        others = ("typed", "second", "avro", "tree", "crossed")
        definitions = {name: f"topic: {name}, {keys}" for name, keys in SETTINGS.items()}
        return {
            "sources.yml": sources(definitions),
            **{f"{name}.sql": model(name, unique_key="id") for name in keyed},
            **{f"{name}.sql": model(name) for name in others},
            "older.sql": model("older"),
            "by_spark.sql": model("older").replace("*", "*, bit_count(id) as bits"),
            "letters.sql": model("bad", on_bad_record="dead_letters"),
        }

    def test_types(self, project: Any, shop: ProtobufShop) -> None:
        """Each becomes a column, which a second reader reads; imports are references."""
        moment = datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc)
        decimal = '[(confluent.field_meta) = {params: [{key: "precision", value: "10"}, {key: "scale", value: "2"}]}]'
        fields = (
            ("int32 id", 1, 1),
            ("uint32 large", 2**32 - 1, 2**32 - 1),
            ("uint64 largest", 2**64 - 1, Decimal(2**64 - 1)),
            ("double exact", 0.1, 0.1),
            ("bytes raw", b"\0\1", b"\0\1"),
            ("Kind kind", 1, "B"),
            ("google.protobuf.Timestamp at", moment, moment),
            ("google.protobuf.StringValue wrapped", None, None),
            ("google.protobuf.Int64Value zero", {"value": 0}, 0),
            ("Address address", {"city": "Rome"}, {"city": "Rome"}),
            ("repeated Address others", [{"city": "Bonn"}], [{"city": "Bonn"}]),
            ("map<string, int64> counts", {"a": 1}, [("a", 1)]),
            ("string no_text", None, ""),
            ("optional string no_value", None, None),
            ("google.protobuf.Struct json", {"a": [1]}, '{"a": [1]}'),
            (f"confluent.type.Decimal price {decimal}", {"value": b"\4\xd2", "scale": 2}, "12.34"),
        )
        names = [declared.split(" [")[0].split()[-1] for declared, _, _ in fields]
        body = "".join(
            f"{declared.split(' [')[0]} = {number}{declared[len(declared.split(' [')[0]) :]};"
            for number, (declared, _, _) in enumerate(fields, 1)
        )
        imports = ("google/protobuf/timestamp", "google/protobuf/wrappers")
        imports += ("google/protobuf/struct", "confluent/meta", "confluent/type/decimal")
        imports += ("shop/address",)
        head = "".join(f'import "{name}.proto"; ' for name in imports)
        text = f"package shop; {head} enum Kind {{ A = 0; B = 1; }} message Row {{ {body} }}"
        shop.registry.register("shop-address.proto", ADDRESS, "PROTOBUF")
        number = shop.register("typed-value", text, "shop/address.proto")
        value = {
            name: sent for name, (_, sent, _) in zip(names, fields, strict=True) if sent is not None
        }
        shop.send_bytes("typed", framed(number, text, value, "shop.Row"))
        run_dbt(["run", "-s", "typed"])
        (row,) = table(project, "typed").scan().to_arrow().to_pylist()
        assert {**row, "price": str(row["price"])} == {
            name: expected for name, (_, _, expected) in zip(names, fields, strict=True)
        }

    def test_newer_schemas(self, project: Any, shop: ProtobufShop) -> None:
        """They add and widen columns, within messages, too; rows are read with their own schema."""
        part = "message Part { int32 a = 1; }"
        first = f"message Row {{ int32 id = 1; string name = 2; Part part = 3; {part} }}"
        shop.send("grown", first, {"id": 1, "name": "a", "part": {"a": 1}})
        run_dbt(["run", "-s", "grown"])
        wider = part.replace("int32 a = 1;", "int64 a = 1; optional string b = 2;")
        later = f"message Row {{ int64 id = 1; Part part = 3; repeated int32 more = 4; {wider} }}"
        shop.send("grown", later, {"id": 2**40, "part": {"a": 2**40, "b": "x"}, "more": [1]})
        shop.send("grown", first, {"id": 3, "name": "c"})
        run_dbt(["run", "-s", "grown"])
        records = table(project, "grown").scan().to_arrow().sort_by("id").to_pylist()
        assert records == [
            {"id": 1, "name": "a", "part": {"a": 1, "b": None}, "more": None},
            {"id": 3, "name": "c", "part": None, "more": None},
            {"id": 2**40, "name": None, "part": {"a": 2**40, "b": "x"}, "more": [1]},
        ]

    def test_a_schema_that_does_not_fit(self, project: Any, shop: ProtobufShop) -> None:
        number = shop.send("grown", "message Row { string id = 1; }", {"id": "x"})
        _, output = run_dbt_and_capture(["run", "-s", "grown"], expect_pass=False)
        words = f"it has the schema {number}, which has `id` as string, which is bigint"
        assert words in " ".join(output.split())
        assert rows(project, "select count(*) from {schema}.grown") == [(3,)]

    def test_bad_messages(self, project: Any, shop: ProtobufShop) -> None:
        """They go to a table with the reason, and the others are written."""
        text = "message Row { int32 id = 1; string name = 2; } message Other { int32 x = 1; }"
        number = shop.send("bad", text, {"id": 1, "name": "good"})
        good = framed(number, text, {"id": 2, "name": "good"})
        foreign = shop.register("other-value", "message Row { int32 x = 1; }")
        bad = {
            good[:-2]: f"is not Protobuf of its schema {number}",
            header(number): f"is not Protobuf of its schema {number}",
            header(number) + b"\2\2\x08\1": "is a message `Other` of its schema",
            header(number) + b"\2\x0e\x08\1": "has the message index [7], which its schema",
            b'{"id": 3}': "is JSON without the id of a schema",
            b"text": "does not begin with a byte 0",
            header(foreign) + b"\0\x08\1": "type `Row`, which is not under the subject bad-value",
            header(99_999) + b"\0\x08\1": "the schema id 99999, which the registry does not have",
        }
        shop.send_bytes("bad", *bad, good)
        run_dbt(["run", "-s", "letters"])
        good_rows = rows(project, "select * from {schema}.letters order by id")
        assert good_rows == [(1, "good"), (2, "good")]
        letters = rows(
            project,
            "select record, reason from {schema}.letters__dead_letters order by place",
        )
        assert [bytes.fromhex(record) for record, _ in letters] == list(bad)
        assert all(
            words in reason for (_, reason), words in zip(letters, bad.values(), strict=True)
        )

    def test_a_message_that_is_not_the_first(self, project: Any, shop: ProtobufShop) -> None:
        text = "package shop; message Row { int32 a = 1; } message Out { message In { int32 id = 1; } In i = 1; }"
        number = shop.register("second-value", text)
        shop.send_bytes("second", framed(number, text, {"id": 7}, "shop.Out.In", b"\4\2\0"))
        run_dbt(["run", "-s", "second"])
        assert rows(project, "select * from {schema}.second") == [(7,)]

    def test_columns_of_the_definition(self, project: Any, shop: ProtobufShop) -> None:
        text = "message Row { int32 ID = 1; string amount = 2; bool more = 3; }"
        shop.send("cast", text, {"ID": 1, "amount": "1.5", "more": True})
        run_dbt(["run", "-s", "cast"])
        assert rows(project, "select * from {schema}.cast") == [(1, Decimal("1.50"))]

    def test_proto2(self, project: Any, shop: ProtobufShop) -> None:
        """With presence, maps, groups and numbers that are not packed; also computed by Spark."""
        text = (
            'syntax = "proto2"; message Row { required int32 id = 1; '
            "optional string name = 2 [default = 'x']; map<string, int64> counts = 3; "
            "repeated int32 few = 4; optional group Part = 5 { optional bool ok = 1; } }"
        )
        number = shop.registry.register("older-value", text, "PROTOBUF")
        _, pool = read_files(compiled_files(text))
        row_type = GetMessageClass(pool.FindMessageTypeByName("Row"))
        values = (
            {"id": 1},
            {"id": 2, "name": "", "counts": {"": 0, "a": 5}, "few": [1, 2], "part": {"ok": False}},
        )
        for value in values:
            shop.send_bytes("older", header(number) + FIRST + row_type(**value).SerializeToString())
        run_dbt(["run", "-s", "older", "by_spark"])
        for name in ("older", "by_spark"):
            actual = (
                table(project, name)
                .scan()
                .to_arrow()
                .sort_by("id")
                .drop_columns(["bits"] if name == "by_spark" else [])
            )
            first, second = actual.to_pylist(maps_as_pydicts="strict")
            assert first == {"id": 1, "name": None, "counts": {}, "few": [], "part": None}
            assert second == values[1]
        shop.send_bytes("older", header(number) + FIRST)
        _, output = run_dbt_and_capture(["run", "-s", "older"], expect_pass=False)
        assert f"lacks a required field of its schema {number}" in " ".join(output.split())

    @pytest.mark.slow
    def test_debezium(self, project: Any, shop: ProtobufShop) -> None:
        def envelope(fields: str) -> str:
            source = "message Source { string table = 1; }"
            images = "Value before = 1; Value after = 2; Source source = 3; string op = 4;"
            return f"message Row {{ {images} {source} message Value {{ {fields} }} }}"

        def change(op: str, **images: Any) -> dict[str, Any]:
            return {"op": op, "source": {"table": "orders"}, **images}

        first = envelope("int32 id = 1; optional string name = 2;")
        one, two, three = ({"id": n, "name": "a"} for n in (1, 2, 3))
        changes = change("r", after=one), change("c", after=two), change("c", after=three)
        shop.send("cdc", first, *changes, change("d", before=two))
        shop.send_bytes("cdc", None)
        later = envelope("int32 id = 1; optional string name = 2; int32 count = 3;")
        shop.send("cdc", later, change("u", before=one, after={"id": 1, "count": 5}))
        run_dbt(["run", "-s", "cdc"])
        records = rows(project, "select id, name, count from {schema}.cdc order by id")
        assert records == [(1, None, 5), (3, "a", None)]

    def test_tombstones(self, project: Any, shop: ProtobufShop) -> None:
        """Their keys are Protobuf, too, with schemas of another subject."""
        key = "message Key { int32 id = 1; }"
        shop.send("keyed", "message Row { int64 id = 1; string name = 2; }", {"id": 1}, {"id": 2})
        number = shop.register("keyed-key", key)
        shop.send_bytes("keyed", None, key=framed(number, key, {"id": 2}, "Key"))
        run_dbt(["run", "-s", "keyed"])
        assert rows(project, "select id, name from {schema}.keyed") == [(1, "")]

    def test_what_cannot_be_read(self, project: Any, shop: ProtobufShop) -> None:
        avro = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
        shop.registry.register("avro-value", json.dumps(avro))
        shop.register("crossed-value", "message Row { int32 id = 1; }")
        shop.register("tree-value", "message Tree { Tree left = 1; int32 id = 2; }")
        for name, words in {
            "avro": "which is Avro and not Protobuf. Set `format: avro`",
            "crossed": "which is Protobuf and not Avro. Set `format: protobuf`",
            "tree": "has the message `Tree` within itself, which no column can have",
        }.items():
            _, output = run_dbt_and_capture(["run", "-s", name], expect_pass=False)
            assert words in " ".join(output.split())
