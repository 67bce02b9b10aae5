"""Random histories of a topic and of a stream that reads it, and the table that they make.

The messages change over time, and so does what computes the batches of one table: PyArrow, or Spark
after it fell back to it.
"""

from __future__ import annotations

import io
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
from confluent_kafka.admin import AdminClient, NewTopic

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.materializations.stream import run_stream, stream_columns
from dbt.adapters.iceberg_stream.materializations.stream_model import VIEW
from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition
from tests.integration import stream_writer
from tests.integration.tables import duckdb_rows
from tests.lost_files import missing_files
from tests.servers.producer import CheckedProducer

PARTITIONS = 2
IDS = 12
SINK = "model.shop.history"
MISSING = 99
LABELS = {"a": "first", "b": "second"}
NAMES = ["a", "b", "gone", "é ß", None]
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# The columns of the source's definition, before and after it was changed.
COLUMNS = (
    "id int, name string, price decimal(8,2), at timestamp",
    "id bigint, name string, price decimal(12,2), at timestamp, note string",
)
Row = dict[str, Any]


class Crash(Exception):
    """Ends a run after one of its commits."""


@dataclass(frozen=True)
class Query:
    """A model's query, and what it makes of a row: None if its filter leaves the row out."""

    sql: str
    apply: Callable[[Row], Row | None]
    config: Mapping[str, Any] = field(default_factory=dict)


def _hour(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(minute=0, second=0, microsecond=0)


def _computed(row: Row) -> Row:
    price = row["price"]
    return {
        "id": row["id"],
        "name": "-" if row["name"] is None else row["name"],
        "price": None if price is None else price * 2 + 1,
        "at": _hour(row["at"]),
    }


def _kept(row: Row) -> Row | None:
    price = row["price"]
    return row if row["name"] is None or (price is not None and price > 10) else None


QUERIES = {
    "pick": Query("select * from {view}", dict),
    "filter": Query("select * from {view} where price > 10 or name is null", _kept),
    "expression": Query(
        "select id, coalesce(name, '-') as name, cast(price * 2 + 1 as decimal(20,2)) as price, "
        "date_trunc('hour', at) as at from {view}",
        _computed,
    ),
    "join": Query(
        "select v.*, d.label from {view} v left join s.labels d on d.name = v.name",
        lambda row: {**row, "label": LABELS.get(row["name"])},
    ),
    "spark": Query(
        "select *, reverse(name) as eman from {view}",
        lambda row: {**row, "eman": None if row["name"] is None else row["name"][::-1]},
    ),
    "deletes": Query("select * from {view}", dict, {"apply_as_deletes": "name = 'gone'"}),
    "fill": Query("select * from {view}", dict, {"ignore_null_updates": True}),
}
# Those that need a key.
NEED_KEY = ("deletes", "fill")


@dataclass(frozen=True)
class Message:
    """What was sent.

    Attributes:
        row: the row that it has; None if it has none.
        deletes: whether it deletes the row.
        is_bad: whether it is a bad record, given the version of the source's columns.
    """

    value: bytes | None
    row: Row | None = None
    deletes: bool = False
    is_bad: Callable[[int], bool] = lambda version: False


def always(version: int) -> bool:
    return True


def random_row(chance: random.Random, partition: int) -> Row:
    at = EPOCH + timedelta(microseconds=chance.randrange(2 * 10**15))
    return {
        "id": chance.randrange(IDS) * PARTITIONS + partition,
        "name": chance.choice(NAMES),
        "price": chance.choice([None, Decimal(chance.randrange(-3000, 10**6)) / 100]),
        "at": chance.choice([None, at]),
        "note": chance.choice([None, "new"]),
    }


def _odd(text: str) -> str:
    """Return an object with a member that is no JSON, for which it is read value by value."""
    return f'{{"odd": NaN, {text[1:]}'


class Json:
    """Records in JSON; their columns are those of the source's definition."""

    definition: Mapping[str, Any] = {"format": "json"}
    of_rows = False
    spoiled = (b"", b"null", b"{spoiled", b'{"id": "x"}', b"\xff\xfe", b"{'id': 1}", b"{} {}")

    def columns(self, version: int) -> str:
        return COLUMNS[version]

    def declare(self, version: int) -> None:
        """Change what the messages are from now on."""

    def message(self, chance: random.Random, row: Row, kind: str) -> Message:
        if kind == "bad":
            return Message(self.spoil(chance), is_bad=always)
        if chance.random() < 0.05:
            # More than an int.
            row = {**row, "id": 2**32 * PARTITIONS + row["id"]}
        is_bad = (lambda version: version == 0) if row["id"] >= 2**31 else Message.is_bad
        return self.encode(chance, row, kind, is_bad)

    def spoil(self, chance: random.Random) -> bytes:
        return chance.choice(self.spoiled)

    def encode(
        self, chance: random.Random, row: Row, kind: str, is_bad: Callable[[int], bool]
    ) -> Message:
        return Message(self._text(chance, row, kind).encode(), row, is_bad=is_bad)

    def _text(self, chance: random.Random, row: Row, kind: str) -> str:
        values = {**row, "at": None if row["at"] is None else row["at"].isoformat()}
        if chance.random() < 0.3:
            values = {name: value for name, value in values.items() if value is not None}
        text = json.dumps(values, default=float, indent=chance.choice([None, None, 1]))
        return _odd(text) if kind == "odd" else text


class Debezium(Json):
    """Changes of rows in JSON."""

    definition = {"format": "debezium"}
    of_rows = True
    spoiled = (b"", b"null", b"{spoiled", b'{"op": "?"}', b"{}", b"\xff")

    def encode(
        self, chance: random.Random, row: Row, kind: str, is_bad: Callable[[int], bool]
    ) -> Message:
        deletes, text = chance.random() < 0.2, self._text(chance, row, "good")
        images = f'"before": {text}' if deletes else f'"before": null, "after": {text}'
        text = f'{{{images}, "op": "{"d" if deletes else chance.choice("cru")}"}}'
        # With its schema; other messages are read in another way.
        text = f'{{"schema": {{}}, "payload": {text}}}' if kind == "odd" else text
        return Message(
            _odd(text).encode() if kind == "odd" else text.encode(), row, deletes, is_bad
        )


class Avro:
    """Records in Avro, whose schemas add and widen columns."""

    definition: Mapping[str, Any] = {"format": "avro", "schema_registry": "http://registry"}
    # Of the client of the registry.
    options: Mapping[str, str] = {}
    of_rows = False

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []

    def columns(self, version: int) -> str:
        return ""

    def declare(self, version: int) -> None:
        """Register a schema; the third one has a field without values."""
        digits = 8 if version == 0 else 12
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
        time = {"type": "long", "logicalType": "timestamp-micros"}
        fields: dict[str, Any] = {
            "id": "int" if version == 0 else "long",
            "name": ["null", "string"],
            "price": ["null", decimal],
            "at": ["null", time],
        }
        fields |= {"note": ["null", "string"]} if version else {}
        fields |= {"nothing": "null"} if version == 2 else {}
        named = [{"name": name, "type": kind} for name, kind in fields.items()]
        self.schemas.append({"type": "record", "name": "Row", "fields": named})

    def message(self, chance: random.Random, row: Row, kind: str) -> Message:
        number = chance.randrange(len(self.schemas))
        schema = self.schemas[number]
        row = dict(row) if number else {**row, "note": None}
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), row)
        header = b"\0" + (number + 1).to_bytes(4, "big")
        if kind != "bad":
            return Message(header + body.getvalue(), row)
        unknown = b"\0" + MISSING.to_bytes(4, "big") + body.getvalue()
        cut = header + body.getvalue()[:-1]
        more = header + body.getvalue() + b"\1"
        return Message(chance.choice([b"", b"{}", header, unknown, more, cut]), is_bad=always)

    # What the adapter asks a registry.
    address = "registry"

    def versions(self, subject: str) -> list[RegisteredSchema]:
        return [self.by_id(number + 1) for number in range(len(self.schemas))]

    def by_id(self, number: int) -> RegisteredSchema:
        return RegisteredSchema(number, json.dumps(self.schemas[number - 1]), "AVRO")

    def find(self, number: int) -> RegisteredSchema | None:
        return self.by_id(number) if 0 < number <= len(self.schemas) else None


FORMATS: dict[str, Callable[[], Json | Avro]] = {"json": Json, "debezium": Debezium, "avro": Avro}


@dataclass
class Truth:
    """The table as a dict of rows, or a list of them without a key."""

    query: Query
    keyed: bool
    of_rows: bool
    rows: list[Row] = field(default_factory=list)
    by_key: dict[Any, Row] = field(default_factory=dict)

    def apply(self, message: Message, version: int) -> None:
        if message.row is None or message.is_bad(version):
            return
        source = message.row if version else {**message.row, "note": None}
        row = self.query.apply(source)
        if not self.keyed:
            if row is not None:
                self.rows.append(row)
            return
        deletes = message.deletes or (row is None and self.of_rows)
        if row is not None and "apply_as_deletes" in self.query.config:
            deletes = deletes or row["name"] == "gone"
        if deletes:
            self.by_key.pop(source["id"], None)
        elif row is not None:
            if "ignore_null_updates" in self.query.config:
                old = self.by_key.get(source["id"], {})
                row = {name: old.get(name) if v is None else v for name, v in row.items()}
            self.by_key[source["id"]] = row

    def counted(self, names: Sequence[str]) -> Counter[tuple[Any, ...]]:
        rows = self.by_key.values() if self.keyed else self.rows
        return Counter(tuple(row.get(name) for name in names) for row in rows)


class History:
    """A topic, and a stream of it that is stopped and started.

    Args:
        seed: of everything that is random.
        bootstrap: the address of Kafka.
        lake: the catalog.
        spark: a session of Spark.
        folder: any folder.
        use_registry: has the source use a registry.
    """

    def __init__(
        self,
        seed: int,
        bootstrap: str,
        lake: IcebergCatalog,
        spark: Session,
        folder: Path,
        use_registry: Callable[[Any], None],
    ) -> None:
        self.chance = chance = random.Random(seed)
        self.lake, self.spark, self.folder = lake, spark, folder
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        self.format_name = chance.choice(list(FORMATS))
        self.format, self.version = FORMATS[self.format_name](), 0
        self.format.declare(0)
        if isinstance(self.format, Avro):
            use_registry(self.format)
        self.query_name = chance.choice(list(QUERIES))
        query = QUERIES[self.query_name]
        keyed = self.format.of_rows or self.query_name in NEED_KEY or chance.random() < 0.6
        self.truth = Truth(query, keyed, self.format.of_rows)
        self.sent: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        self.reached = [0] * PARTITIONS
        self.crashes, self.bad = 0, set[str]()
        self.servers = {"bootstrap.servers": bootstrap}
        admin = AdminClient(self.servers)
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result()
        self._producer = CheckedProducer(self.servers)
        self._relation = IcebergStreamRelation.create(
            database="lake", schema="s", identifier=self.topic
        )
        self.delete_encoding = chance.choice(
            ["auto", "auto", "equality", "position", "copy_on_write"]
        )

    def send(self) -> None:
        """Send messages; bad and odd ones come in runs."""
        kind = self.chance.choice(["good", "good", "odd", "bad", "mixed"])
        for _ in range(self.chance.randrange(1, 30)):
            partition = self.chance.randrange(PARTITIONS)
            mixed = self.chance.choice(["good", "good", "odd", "bad"])
            message = (
                Message(None)
                if self.chance.random() < 0.05
                else self.format.message(
                    self.chance,
                    random_row(self.chance, partition),
                    mixed if kind == "mixed" else kind,
                )
            )
            self.sent[partition].append(message)
            self._producer.produce(self.topic, message.value, partition=partition)
        self._producer.deliver()

    def change_columns(self) -> None:
        """Add and widen columns: of the source's definition, or by a schema."""
        most = 2 if self.format_name == "avro" else 1
        if self.version < most:
            self.version += 1
            self.format.declare(self.version)

    def run(self, crashes: bool) -> None:
        """Run the stream to the end, or until it crashes after some commits."""
        left = self.chance.randrange(4) if crashes else 10**9

        def after_commit(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        context = self._context(after_commit)
        config = {
            "materialized": "stream",
            "unique_key": ["id"] if self.truth.keyed else None,
            "on_bad_record": "dead_letters",
            "bad_record_limit": 10**6,
            "batch_rows": self.chance.choice([5, 15, 40, 1000]),
            "commit_interval": self.chance.choice([0, 10]),
            "delete_encoding": self.delete_encoding,
            **self.truth.query.config,
        }
        model = {
            "unique_id": SINK,
            "name": self.topic,
            "config": {name: value for name, value in config.items() if value is not None},
        }
        spec = {"type": "kafka", "topic": self.topic, **self.format.definition}
        spec["bootstrap_servers"] = self.servers["bootstrap.servers"]
        if self.format.columns(self.version):
            spec["columns"] = self.format.columns(self.version)
        source = SourceDefinition(("s", "x"), "s.x", spec)
        sql = self.truth.query.sql.format(view=VIEW)
        if not self.lake.load(("s", self.topic)):
            columns = stream_columns(context, sql, model, source)
            ddl = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
            self.spark.run(f"create table s.{self.topic} ({ddl}) using iceberg")
        try:
            run_stream(context, self._relation, sql, model, source, False)
        except Crash:
            self.crashes += 1
        self._advance()

    def _context(self, after_commit: Callable[..., None]) -> Any:
        credentials = SimpleNamespace(
            ambient_credentials=False,
            catalog_settings=lambda: None,
            kafka={},
            database="lake",
            method="embedded",
        )
        return SimpleNamespace(
            catalog=self.lake,
            catalogs=SimpleNamespace(get=lambda name: self.lake),
            credentials=credentials,
            project_root=self.folder,
            principal="",
            session=lambda: self.spark,
            database_errors=lambda sql: nullcontext(),
            check_canceled=lambda: None,
            after_commit=after_commit,
            is_remote=False,
        )

    def _advance(self) -> None:
        """Apply what the stream has committed, with the columns that it had."""
        loaded = self.lake.load(("s", self.topic))
        assert loaded is not None
        reached = stream_writer.frontier(dict(loaded.metadata), SINK) or {}
        for partition, sent in enumerate(self.sent):
            end = int(reached.get(str(partition), 0))
            # A schema in the registry counts at once, a definition at the next start.
            version = 1 if self.format_name == "avro" else self.version
            for offset in range(self.reached[partition], end):
                self.truth.apply(sent[offset], version)
                if sent[offset].is_bad(version):
                    self.bad.add(f"partition {partition}, offset {offset}")
            self.reached[partition] = end

    def check(self) -> None:
        """Compare the table and the dead letters with what was sent."""
        assert self.reached == [len(sent) for sent in self.sent]
        loaded = self.lake.load(("s", self.topic))
        assert loaded is not None and missing_files(loaded) == []
        names = [field.name for field in self.lake.table(("s", self.topic)).schema().fields]
        columns = ", ".join('epoch_us("at") as "at"' if name == "at" else name for name in names)
        rows = Counter(
            tuple(_value(name, value) for name, value in zip(names, row, strict=True))
            for row in duckdb_rows(self.lake, self.topic, columns)
        )
        expected = self.truth.counted(names)
        assert rows == expected, f"more: {rows - expected}, missing: {expected - rows}"

        letters = Counter[str]()
        if self.lake.load(("s", f"{self.topic}__dead_letters")) is not None:
            places = duckdb_rows(self.lake, f"{self.topic}__dead_letters", "place, reason")
            assert all(reason for _, reason in places)
            letters.update(place.removeprefix(f"{self.topic}, ") for place, _ in places)
        if self.crashes:
            # A batch whose commit was lost was read again.
            letters = Counter(set(letters))
        bad = Counter(self.bad)
        assert letters == bad, f"more: {letters - bad}, missing: {bad - letters}"


def _value(name: str, value: Any) -> Any:
    if name == "at" and value is not None:
        return EPOCH + timedelta(microseconds=value)
    return value
