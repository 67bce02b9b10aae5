"""Messages that are read in this process: what they are, what they become, and what stops them."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import Fallbacks
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.batches.runners import Runner, in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.partition_values import (
    partition_sql,
    partition_values,
)
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka import messages as kafka_messages
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.messages import MessageReader, OffsetRange
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from tests.servers.kafka import kafka_server
from tests.servers.ports import free_port
from tests.servers.producer import CheckedProducer
from tests.unit.stream.sources.formats.json_texts import ORDINARY, array, record

TenMessages = Callable[..., tuple[list[Any], list[Any]]]
PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPUTED = (
    "select id + 0 as id, case when name = 'a' then 'one' else coalesce(trim(name), '-') end as name "
    "from (select * from v where id > 5) as w"
)
REVERSED = "select id, reverse(name) as name from v"
JOINED = (
    "select v.id, concat(v.name, coalesce(l.mark, '')) as name "
    "from v left join (select id, '*' as mark from range(3)) l on l.id = v.id"
)
FILTERED = "select * from v where id > 20 and (name is null or name <> 'a')"
DDL = "id bigint, name string"
HEADER = b"\0\0\0\0\7"
# No value is a tombstone; the last ones are no records, or not one record.
VALUES: list[bytes | None] = [
    b'{"id": %d, "name": "a"}',
    b'{"id": %d, "name": "\xc3\xa9", "more": {"id": [1]}}',
    HEADER + b'{"id": %d, "name": "b"}',
    b'{\n  "id": %d,\n  "name": "pretty"\n}\n',
    None,
]
BAD: list[bytes | None] = [
    b"",
    b"null",
    b"{spoiled",
    b'{"id": %d} {"id": 8}',
    b"\xff\xfe",
    HEADER,
    b'{"id": %d, "name": "c"',
]


class Broker:
    """A server that can go away and come back with all that it had."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._running = ExitStack()
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._running.enter_context(kafka_server(self._folder, self._port))

    def stop(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


class Topic:
    """A topic of its own, and a source that reads it."""

    def __init__(self, broker: Broker, partitions: int = 1, ddl: str = DDL, **config: str) -> None:
        self.name, self.ddl = f"t{uuid.uuid4().hex[:8]}", ddl
        self.servers = {"bootstrap.servers": broker.address}
        self.admin = AdminClient(self.servers)
        topic = NewTopic(self.name, partitions, 1, config=config)
        self.admin.create_topics([topic])[self.name].result()
        self.source = self.source_of()

    def source_of(self, **options: str) -> KafkaSource:
        return KafkaSource(self.name, {**self.servers, **options}, Envelope("json", self.ddl))

    def send(
        self, *values: bytes | None, ends: str = "", codec: str = "none", partition: int = 0
    ) -> None:
        """Send messages, in a transaction that ends so, if it is said."""
        options = {**self.servers, "compression.type": codec, "linger.ms": "5"}
        if ends:
            options["transactional.id"] = uuid.uuid4().hex
        producer = CheckedProducer(options)
        if ends:
            producer.init_transactions(30)
            producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(self.name, value, key=str(number), partition=partition)
        producer.deliver()
        if ends:
            (producer.commit_transaction if ends == "commit" else producer.abort_transaction)(30)

    def delete_before(self, offset: int) -> None:
        place = TopicPartition(self.name, 0, offset)
        for done in self.admin.delete_records([place]).values():
            done.result()

    def read(self, begin: int, end: int, **options: str) -> list[tuple[int, bytes | None]]:
        """The offsets and values of a range of the first partition."""
        reader = self.source_of(**options).reader
        table = read_all(reader, [OffsetRange(self.name, 0, begin, end)])
        reader.close()
        return table


def read_all(
    reader: MessageReader, ranges: Sequence[OffsetRange]
) -> list[tuple[int, bytes | None]]:
    return [
        message
        for batch in reader.read(ranges, KeptMessages())
        for message in zip(batch.all_offsets().tolist(), batch.values, strict=True)
    ]


def consumed(topic: Topic, partition: int, end: int) -> list[tuple[int, bytes | None]]:
    """The offsets and values of a partition, as a consumer of librdkafka gets them."""
    options = {"group.id": "second", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer = Consumer({**topic.servers, **options})
    consumer.assign([TopicPartition(topic.name, partition, 0)])
    messages = list[tuple[int, bytes | None]]()
    while (message := consumer.poll(30)) is not None and message.error() is None:
        messages.append((message.offset(), message.value()))
    assert message is not None and message.offset() == end
    consumer.close()
    return messages


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark computes all queries."""
    monkeypatch.setattr(Fallbacks, "allow_arrow", lambda fallbacks: False)


def drained(
    topic: Topic,
    lake: IcebergCatalog,
    spark: Session,
    runner: Runner,
    sql: str = "select * from v",
    layout: str = "",
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The rows of a table that a stream has written with their partitions, and what was bad."""
    name, bad, source = f"t{uuid.uuid4().hex[:8]}", list[Any](), topic.source_of()
    spark.run(f"create table s.{name} ({topic.ddl}) using iceberg {layout}")
    schema = source.envelope.declared(spark.spark)
    chosen = StreamOptions(f"sink.{name}", **options)
    table = lake.table(("s", name))
    partition = partition_sql("lake", table.spec(), table.schema())
    change_sql = get_change_sql(sql, "v")
    query = StreamQuery(change_sql, "v", f"s.{name}", schema.names, chosen, partition)
    writer = BatchWriter(
        source=source,
        query=query,
        sink=Sink(lake, ("s", name), Progress(chosen.sink_id), query.keys),
        options=chosen,
        runner=runner,
        bad_records=BadRecords(lambda rows: bad.extend(rows.to_pylist()), "", 10**10),
        schema=schema,
        partitions=partial(partition_values, spec=table.spec(), schema=table.schema()),
    )
    Stream(lambda: spark, [TableStream(writer, StreamStatus(name))], window=2).drain()
    names = ", ".join([*schema.names, *(["cast(_partition as string)"] if layout else [])])
    rows = as_rows(spark.query(f"select {names} from s.{name} order by 1, 2"))
    return rows, sorted((row["place"], row["record"], row["reason"]) for row in bad)


@pytest.fixture
def ten_messages(broker: Broker, lake: IcebergCatalog, spark: Session) -> TenMessages:
    """What a stream with a query, a layout and options writes of ten messages."""
    topic = Topic(broker, 1)
    topic.send(*(b'{"id": %d, "name": "n%d"}' % (n, n % 2) for n in range(10)))
    return partial(drained, topic, lake, spark, in_process)


def filled(value: bytes | None, number: int) -> bytes | None:
    return value.replace(b"%d", b"%d" % number) if value is not None else None


def fill_at_random(topic: Topic, chance: random.Random, values: Sequence[bytes | None]) -> None:
    """Send messages with and without transactions; those of an id are in one partition."""
    for _ in range(8):
        partition = chance.randrange(PARTITIONS)
        ids = [chance.randrange(20) * PARTITIONS + partition for _ in range(chance.randint(1, 60))]
        messages = [filled(chance.choice(values), id) for id in ids]
        ends = chance.choice(["", "", "commit", "abort"])
        topic.send(*messages, ends=ends, codec=chance.choice(CODECS), partition=partition)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_same_messages_as_another_consumer(broker: Broker, seed: int) -> None:
    topic, chance = Topic(broker, PARTITIONS), random.Random(seed)
    fill_at_random(topic, chance, [*VALUES, *BAD])
    end = topic.source.present(None)
    assert end is not None
    expected = [consumed(topic, number, end[str(number)]) for number in range(PARTITIONS)]
    assert sum(map(len, expected)) > 50
    begin: Mapping[str, Any] = {**end, **dict.fromkeys(map(str, range(PARTITIONS)), 0)}
    while begin != end:
        limit = {p: min(end[p], begin[p] + chance.randint(0, 120)) for p in begin if p.isdigit()}
        upper = {**end, **limit}
        for number, messages in enumerate(expected):
            wanted = OffsetRange(topic.name, number, begin[str(number)], upper[str(number)])
            assert read_all(topic.source.reader, [wanted]) == [
                message for message in messages if wanted.begin <= message[0] < wanted.end
            ]
        begin = upper
    topic.source.close()


def slow(options: dict[str, Any]) -> Any:
    return pytest.param(options, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "options",
    [
        slow({}),
        slow({"keys": ("id",), "sql": FILTERED}),
        {"keys": ("id",), "sql": COMPUTED, "layout": "partitioned by (bucket(3, id), name)"},
        slow(
            {"keys": ("id",), "sql": COMPUTED, "sequence_by": ("name",)}
            | {"layout": "partitioned by (truncate(1, name))"}
        ),
        # Only Spark computes these.
        slow({"sql": JOINED}),
        slow({"keys": ("id",), "sql": REVERSED, "layout": "partitioned by (name)"}),
        slow({"keys": ("id",), "ignore_null_updates": True}),
        slow({"keys": ("id",), "delete_encoding": "copy_on_write"}),
    ],
)
def test_the_same_table_as_spark_makes(
    broker: Broker,
    lake: IcebergCatalog,
    spark: Session,
    request: pytest.FixtureRequest,
    options: dict[str, Any],
) -> None:
    topic, chance = Topic(broker, PARTITIONS), random.Random(7)
    for values in (VALUES, [*VALUES, *BAD], VALUES):
        fill_at_random(topic, chance, values)
    options = {"batch_rows": 200, **options}
    rows, bad = drained(topic, lake, spark, in_process, **options)
    assert rows and bad
    request.getfixturevalue("by_spark")
    assert (rows, bad) == drained(topic, lake, spark, in_process, **options)


@pytest.mark.parametrize(
    ("sql", "layout", "options", "expected"),
    [
        (
            "select id, name from v where name = 'n1' and id < 8",
            "",
            {},
            [(n, "n1") for n in (1, 3, 5, 7)],
        ),
        (
            "select 7L as id, concat(name, cast(9 - id as string)) as name from v",
            "",
            {"keys": ("id",), "sequence_by": ("name",)},
            [(7, "n18")],
        ),
        (
            "select id, name from v where id > 5",
            "",
            {"keys": ("id",), "deletes": "name = 'n1'"},
            [(6, "n0"), (8, "n0")],
        ),
        (
            "with shouted as (select id * 10 as id, upper(name) as name from v where id > 6) "
            "select * from shouted where id <> 80",
            "partitioned by (name)",
            {},
            [(70, "N1", "{N1}"), (90, "N1", "{N1}")],
        ),
    ],
)
def test_filters_expressions_and_partitions_do_not_send_whole_rows(
    ten_messages: TenMessages,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    layout: str,
    options: dict[str, Any],
    expected: list[Any],
) -> None:
    monkeypatch.setattr(MessageRecords, "frame", None)
    assert ten_messages(sql, layout, **options) == (expected, [])


@pytest.mark.parametrize(
    ("sql", "layout", "options", "expected"),
    [
        (JOINED, "", {}, [(n, f"n{n % 2}*" if n < 3 else f"n{n % 2}") for n in range(10)]),
        (
            "select id % 4 as id, nullif(name, 'n1') as name from v",
            "partitioned by (id)",
            {"keys": ("id",), "ignore_null_updates": True},
            [(0, "n0", "{0}"), (1, None, "{1}"), (2, "n0", "{2}"), (3, None, "{3}")],
        ),
        (
            "select id % 4 as id, name from v",
            "",
            {"keys": ("id",), "deletes": "name = 'n1'", "delete_encoding": "copy_on_write"},
            [(0, "n0"), (2, "n0")],
        ),
    ],
)
def test_queries_that_only_spark_computes(
    ten_messages: TenMessages,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    layout: str,
    options: dict[str, Any],
    expected: list[Any],
) -> None:
    monkeypatch.setattr(BatchWriter, "_write_arrow", None)
    assert ten_messages(sql, layout, batch_rows=4, **options) == (expected, [])


def test_columns_of_other_types_need_no_spark(
    broker: Broker, lake: IcebergCatalog, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"n": ORDINARY["smallint"], "price": ORDINARY["decimal(4,2)"]}
    members = {
        "size": ORDINARY["tinyint"],
        "price": ORDINARY["decimal(38,9)"],
        "at": ORDINARY["timestamp"],
        "seen": ORDINARY["timestamp_ntz"],
        "day": ORDINARY["date"],
        "lines": array(lambda chance: record(chance, line)),
    }
    ddl = (
        "id bigint, size tinyint, price decimal(38,9), at timestamp, seen timestamp_ntz, day date, "
        "lines array<struct<n: smallint, price: decimal(4,2)>>"
    )
    topic, chance = Topic(broker, 1, ddl), random.Random(17)
    texts = [record(chance, members).replace("{", f'{{"id": {n}, ', 1) for n in range(100)]
    topic.send(*(text.replace(", }", "}").encode() for text in texts))
    for options in ({}, {"keys": ("id",)}):
        with monkeypatch.context() as patch:
            patch.setattr(MessageRecords, "frame", None)
            rows, bad = drained(topic, lake, spark, in_process, **options)
        assert len(rows) == 100 and not bad
        with monkeypatch.context() as patch:
            patch.setattr(BatchWriter, "_write_arrow", None)
            patch.setattr(Fallbacks, "allow_arrow", lambda fallbacks: False)
            assert drained(topic, lake, spark, in_process, **options) == (rows, [])
            assert drained(topic, lake, spark, in_tasks, **options) == (rows, [])


@pytest.mark.parametrize("runner", [in_process, in_tasks])
@pytest.mark.parametrize("status", ["__status", "reverse(reverse(__status)) as __status"])
def test_columns_with_names_that_others_use(
    broker: Broker, lake: IcebergCatalog, spark: Session, runner: Runner, status: str
) -> None:
    """Debezium's ExtractNewRecordState adds such columns to records."""
    ddl = "id bigint, __deleted boolean, __op string, __major bigint, __where string, __bad string"
    topic = Topic(broker, 1, f"{ddl}, __status string")
    rows = [(n, n % 2 == 0, "u", 7, "here", "not", "new") for n in range(4)]
    names = [part.split()[0] for part in topic.ddl.split(", ")]
    topic.send(*(json.dumps(dict(zip(names, row, strict=True))).encode() for row in rows))
    sql = f"select {', '.join(names[:-1])}, {status} from v"
    assert drained(topic, lake, spark, runner, sql, keys=("id",)) == (rows, [])


def test_times_do_not_depend_on_how_spark_reads_them(broker: Broker, spark: Session) -> None:
    topic, name = Topic(broker, 1, "id bigint, at timestamp"), "spark.sql.legacy.timeParserPolicy"
    topic.send(b'{"id": 1, "at": "2026-11-26"}')
    upper = topic.source.present(None)
    assert upper is not None
    spark.spark.conf.set(name, "LEGACY")
    try:
        [records] = topic.source_of().decode(spark, None, upper)
    finally:
        spark.spark.conf.unset(name)
    assert records.rows["at"].to_pylist() == [datetime(2026, 11, 26, tzinfo=timezone.utc)]


def test_transactions_leave_gaps(broker: Broker) -> None:
    topic = Topic(broker)
    topic.send(b"0", b"1", b"2", ends="commit")  # its end is offset 3
    topic.send(b"4", b"5", ends="abort")  # 6
    topic.send(b"7", ends="commit")  # 8
    began = time.monotonic()
    offsets = [0, 1, 2, 7]
    for begin in range(9):
        for end in range(begin, 10):
            expected = [(n, b"%d" % n) for n in offsets if begin <= n < end]
            assert topic.read(begin, min(end, 9)) == expected
    assert time.monotonic() - began < 10
    uncommitted = {"isolation.level": "read_uncommitted"}
    assert [n for n, _ in topic.read(0, 9, **uncommitted)] == [0, 1, 2, 4, 5, 7]


def test_a_compacted_topic(broker: Broker) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = Topic(broker, **config)
    wait = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    everywhere = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[wait])
    for done in topic.admin.incremental_alter_configs([everywhere]).values():
        done.result()
    for _ in range(5):
        topic.send(*(b"%d" % n for n in range(100)))
        time.sleep(0.2)
    deadline = time.monotonic() + 30
    while len(topic.read(0, 400)) > 100 and time.monotonic() < deadline:
        topic.send(b"0")  # a new segment
        time.sleep(0.3)
    assert topic.read(0, 300) == []
    assert [value for _, value in topic.read(300, 500)][-100:] == [b"%d" % n for n in range(100)]


def test_messages_of_all_codecs_and_several_topics(broker: Broker) -> None:
    topics = [Topic(broker, PARTITIONS) for _ in range(2)]
    values = [b"%d" % n * 50 for n in range(3000)]
    ranges = []
    for number, topic in enumerate(topics):
        for partition in range(PARTITIONS):
            codec = CODECS[(number * PARTITIONS + partition) % len(CODECS)]
            topic.send(*values, codec=codec, partition=partition)
            ranges.append(OffsetRange(topic.name, partition, 10, 2990))
    read = read_all(topics[0].source.reader, ranges)
    assert sorted(read) == sorted([*enumerate(values)][10:2990] * len(ranges))


def test_offsets_that_are_gone(broker: Broker, spark: Session) -> None:
    """Before a batch is read, and while it is read."""
    topic = Topic(broker)
    text = b'{"id": %%d, "name": "%s"}' % (b"x" * 2000)
    topic.send(*(filled(text, n) for n in range(10_000)))
    upper = topic.source.present(None)
    assert upper is not None
    records = topic.source.decode(spark, None, upper)
    assert next(records).rows.num_rows
    topic.delete_before(10_000)
    for begin in ({**upper, "0": 0}, {**upper, "0": 9_000}):
        with pytest.raises(StreamError, match="Kafka no longer has the offsets"):
            list(topic.source.decode(spark, begin, upper))
    with pytest.raises(StreamError, match="cannot be read"):
        topic.read(0, 10_000)
    # The batch began at the first offset that Kafka had.
    with pytest.raises(StreamError, match="cannot be read|no longer has"):
        list(records)


def test_a_partition_that_ends_before_the_batch(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a broker has lost messages that others had seen."""
    topic = Topic(broker)
    topic.send(*(b"%d" % n for n in range(10)))
    monkeypatch.setattr(kafka_messages, "READ_SECONDS", 0.3)
    with pytest.raises(StreamError, match="not read to the batch's end: 0 up to offset 11"):
        topic.read(0, 11)


def test_nothing_is_left_after_many_batches(broker: Broker) -> None:
    topic = Topic(broker, PARTITIONS)
    for partition in range(PARTITIONS):
        topic.send(*(b"%d" % n for n in range(100)), partition=partition)
    process = psutil.Process()

    def resources() -> tuple[int, int]:
        return process.num_threads(), len(process.net_connections())

    before, reader = resources(), MessageReader(topic.source.client)

    def read(begin: int) -> int:
        places = range(PARTITIONS)
        ranges = [OffsetRange(topic.name, p, begin % 90, begin % 90 + 10) for p in places]
        return len(read_all(reader, ranges))

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(read, range(20))) == {30}
        few = resources()
        assert set(threads.map(read, range(500))) == {30}
        assert resources() <= few
    # A batch that is not read to its end.
    abandoned = reader.read([OffsetRange(topic.name, 0, 0, 100)], KeptMessages())
    next(abandoned)
    abandoned.close()
    reader.close()
    deadline = time.monotonic() + 10
    while resources() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert resources() <= before


@pytest.mark.slow
def test_a_broker_that_is_away_for_some_seconds(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker)
    topic.send(*(b"%d" % n for n in range(100)))
    reader = topic.source_of(**{"reconnect.backoff.max.ms": "500"}).reader
    assert len(read_all(reader, [OffsetRange(topic.name, 0, 0, 50)])) == 50
    broker.stop()
    with monkeypatch.context() as patch:
        patch.setattr(kafka_messages, "READ_SECONDS", 1.0)
        with pytest.raises(StreamError, match="does not answer for the topic"):
            topic.read(50, 100)
    returns = threading.Timer(2, broker.start)
    returns.start()
    assert len(read_all(reader, [OffsetRange(topic.name, 0, 50, 100)])) == 50
    returns.join()
    reader.close()
