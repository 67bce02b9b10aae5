"""Kafka topics, read by ranges of offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.arrow_json import (
    MESSAGES_SQL,
    MESSAGES_VIEW,
    decode_messages,
    json_arrow_schema,
)
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka_client import KafkaClient
from dbt.adapters.iceberg_stream.stream.sources.kafka_frontiers import (
    offsets_of,
    require_same,
    shares,
    with_ids,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka_options import hide_secrets, java_options
from dbt.adapters.iceberg_stream.stream.sources.kafka_transaction_topic import TransactionTopic
from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import ENDS, Transactions
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Lag, Pick

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

GONE = "not read: "
MESSAGES = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


@dataclass
class KafkaSource:
    """Topics; a frontier is the next offset of each partition.

    A partition is known by its number as text; where there are several topics, and in the topic of
    transactions, by topic and number: `shop.public.orders/0`. Those of topics that are not listed
    any more stay in frontiers, marked. Ids of topics are beside.

    Attributes:
        topic: whose messages are read; None for those of all topics.
        options: of Kafka's clients, as librdkafka names them: bootstrap.servers, …
        envelope: what the messages are.
        starting: `earliest` or `latest`, for a stream that begins.
        transactions: whether a batch holds whole transactions of the database.
        topics: which frontiers are of, where there are several.
        transaction_topic: where Debezium tells of transactions, which batches hold as a whole then.
    """

    topic: str | None
    options: Mapping[str, str] = field(repr=False)
    envelope: Envelope
    starting: str = "earliest"
    transactions: bool = False
    topics: tuple[str, ...] = ()
    transaction_topic: str | None = None
    ordered: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.transaction_topic is not None:
            self._check_transaction_topic()
        elif self.transactions and self.envelope.name not in ENDS:
            raise StreamError(
                f"`transactions: true` needs a `format` that tells of them: {', '.join(ENDS)}."
            )
        elif self.transactions and self.topics:
            raise StreamError(
                "`transactions: true` needs one topic of one partition. Between several the order "
                "of transactions is not known: name the topic in which Debezium tells of them by "
                "`transaction_topic`."
            )
        if self.topics and self.topic is not None and self.topic not in self.topics:
            raise StreamError(
                f"{must_be_one_of('topic', self.topic, self.topics)}. These are the `topics` that "
                "the stream reads."
            )

    def _check_transaction_topic(self) -> None:
        if self.envelope.name == "maxwell":
            raise StreamError(
                "`transaction_topic` is what Debezium has. Maxwell marks the last change of a "
                "transaction: `transactions: true` reads that, in a topic of one partition."
            )
        if self.transaction_topic in self._followed:
            raise StreamError(
                f"`transaction_topic: {self.transaction_topic}` is one of the topics whose changes "
                "are read. It is that in which Debezium tells of transactions, "
                "`<topic.prefix>.transaction`."
            )

    @property
    def has_bad(self) -> bool:
        return self.envelope.name != "raw"

    @property
    def has_truncates(self) -> bool:
        return self.envelope.name == "debezium"

    @property
    def of_rows(self) -> bool:
        return self.envelope.name in ("debezium", "maxwell")

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        return self.envelope.unpack(spark, spark.createDataFrame([], MESSAGES))

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        return ""  # the definition says what the columns are

    def present(self, lower: Frontier | None) -> Frontier | None:
        ids, lower = self._topic_ids(lower), offsets_of(lower)
        first, last = self._bounds(lower)
        self._begin(lower, first, last)
        return with_ids(last, ids)

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        ids = self._topic_ids(lower)
        upper = self._next(offsets_of(lower), rows, offsets_of(until), whole)
        return None if upper is None else with_ids(upper, ids)

    def _topic_ids(self, frontier: Frontier | None) -> Mapping[str, str]:
        """Of the topics as they are now, which must be those of the frontier."""
        ids = self._client.topic_ids(self._followed)
        require_same(frontier, ids)
        return ids

    def _next(
        self, lower: Frontier | None, rows: int, until: Frontier | None, whole: bool
    ) -> Frontier | None:
        first, last = self._bounds(lower)
        begin = self._begin(lower, first, last)
        limit = last
        if until is not None:
            # Partitions that came up since then begin at their first offset, later.
            known = self._known(until)
            limit = {p: min(offset, known.get(p, first[p])) for p, offset in last.items()}
        if lower is None:
            begin = {p: min(offset, limit[p]) for p, offset in begin.items()}
        elif self._comes_to_ends(lower):
            return self._up_to_ends(lower, begin, limit, until, rows)
        limit = {p: max(offset, begin[p]) for p, offset in limit.items()}
        if self.transaction_topic is not None:
            upper = self._transaction_ends.last_whole(begin, limit, first, rows, whole)
        else:
            upper = shares(begin, limit, rows)
        if self.transactions and self.transaction_topic is None and upper != begin:
            # What comes after the limit tells whether a transaction ends before it.
            ended = self._whole_transactions(begin, upper, last)
            upper = ended if all(ended[p] <= limit[p] for p in ended) else begin
        if whole and upper == begin:
            upper = limit  # where others have come to, whatever they knew then
        return self._with_gone(lower, upper) if upper != begin or lower is None else None

    def _with_gone(self, lower: Frontier | None, upper: Frontier) -> Frontier:
        """Topics that are not listed any more are read on from there once they are again."""
        names = {name.removeprefix(GONE): offset for name, offset in (lower or {}).items()}
        gone = {GONE + p: offset for p, offset in names.items() if not self._is_followed(p)}
        return {**gone, **upper}

    def _known(self, frontier: Frontier) -> dict[str, int]:
        """Where a frontier stands in what is followed now."""
        names = {name: name.removeprefix(GONE) for name in frontier}
        # Past ends that have come in the meantime the changes have been read without them.
        return {
            p: int(frontier[name])
            for name, p in names.items()
            if self._is_followed(p) and (name == p or p != self._own)
        }

    def _comes_to_ends(self, lower: Frontier | None) -> bool:
        """Whether it has gone without the topic of transactions until now."""
        return lower is not None and self.transaction_topic is not None and self._own not in lower

    def _up_to_ends(
        self,
        lower: Frontier | None,
        begin: Mapping[str, int],
        limit: Mapping[str, int],
        until: Frontier | None,
        rows: int,
    ) -> Frontier | None:
        """What has come is taken as without the topic of transactions, whose ends count then."""
        begin = {p: offset for p, offset in begin.items() if p != self._own}
        limit = {p: max(offset, begin.get(p, 0)) for p, offset in limit.items()}
        upper = shares(begin, limit, rows)
        if all(upper[p] == limit[p] for p in begin) and (until is None or self._own in until):
            return self._with_gone(lower, {**upper, self._own: limit[self._own]})
        return self._with_gone(lower, upper) if upper != begin else None

    def _whole_transactions(
        self, begin: Mapping[str, int], upper: Mapping[str, int], last: Mapping[str, int]
    ) -> dict[str, int]:
        if len(upper) > 1:
            raise StreamError(
                f"{self.topic} has {len(upper)} partitions, between which the order of "
                "transactions is not known: `transactions: true` needs a topic of one partition. "
                "Of Debezium's topics `transaction_topic` tells the order."
            )
        ends = self._transactions
        return {p: ends.last_end(begin[p], upper[p], last[p]) for p in upper}

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        known, others = (self._known(offsets_of(one) or {}) for one in (lower, other))
        return any(known.get(p, 0) < offset for p, offset in others.items())

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        envelope = replace(self.envelope, of_topics=self.topic is None)
        return envelope.unpack(spark, self.messages(spark, lower, upper))

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        if not self.envelope.has_only_records:
            return None
        fields = self.envelope.fields(session.spark)
        schema = json_arrow_schema({field.name: field.dataType.simpleString() for field in fields})
        columns = None if schema is None else pick(schema.names)
        if schema is None or columns is None:
            return None
        frame = self.messages(session.spark, lower, upper)
        messages = session.stream(MESSAGES_SQL, **{MESSAGES_VIEW: frame})
        next(messages)  # the schema
        return decode_messages(
            messages, schema, columns, self.envelope.required_columns(schema.names)
        )

    def partitions(self, upper: Frontier) -> int:
        names = [p for p in offsets_of(upper) or {} if not p.startswith(GONE)]
        return sum(self._place(p)[0] in self._read for p in names)

    def messages(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """The batch as Kafka has it."""
        self._topic_ids(upper)
        lower, upper, read = offsets_of(lower), offsets_of(upper) or {}, self._read
        begin = self._begin_of_batch(lower, upper, read)
        hide_secrets(spark)
        reader = spark.read.format("kafka").option("subscribe", ",".join(read))
        for name, value in java_options(self.options).items():
            reader = reader.option(f"kafka.{name}", value)
        reader = reader.option("startingOffsets", self._offsets(begin, read))
        reader = reader.option("endingOffsets", self._offsets(upper, read))
        reader = reader.option("failOnDataLoss", "true")
        reader = reader.option("includeHeaders", str(self.envelope.name == "raw").lower())
        return reader.load()

    def _begin_of_batch(
        self, lower: Frontier | None, upper: Frontier, read: Sequence[str]
    ) -> dict[str, int]:
        """Where what is read begins, which Kafka has to have; others ask for the other topics."""
        first, last = self._bounds_of(read)
        begin = self._begin(lower, first, last)
        # What is the latest of a topic may have come since.
        return {p: min(begin.get(p, 0), int(upper[p])) for p in upper if self._place(p)[0] in read}

    def lag(self, frontier: Frontier | None) -> Lag:
        frontier = offsets_of(frontier)
        first, last = self._bounds(frontier)
        begin = self._begin(frontier, first, last)
        waiting = (last[p] - begin[p] for p in last if self._place(p)[0] != self.transaction_topic)
        return Lag(sum(waiting), "rows")

    @property
    def _read(self) -> tuple[str, ...]:
        """Topics whose messages are rows."""
        return self._followed if self.topic is None else (self.topic,)

    @property
    def _followed(self) -> tuple[str, ...]:
        return self.topics or (str(self.topic),)

    def _is_followed(self, partition: str) -> bool:
        return self._place(partition)[0] in (*self._followed, self.transaction_topic)

    @property
    def _own(self) -> str:
        """The partition of the topic of transactions."""
        return f"{self.transaction_topic}/0"

    @cached_property
    def _client(self) -> KafkaClient:
        return KafkaClient(self.options)

    # Both with a consumer of their own: writers that ask for offsets would take its messages.

    @cached_property
    def _transactions(self) -> Transactions:
        return Transactions(self._client.connect(), str(self.topic), self.envelope.name)

    @cached_property
    def _transaction_ends(self) -> TransactionTopic:
        return TransactionTopic(
            self._client.connect(much=True),
            str(self.transaction_topic),
            self._followed,
            self._place,
        )

    def _partition(self, topic: str, number: int) -> str:
        """How a frontier names it."""
        alone = not self.topics and topic == self.topic
        return str(number) if alone else f"{topic}/{number}"

    def _place(self, partition: str) -> tuple[str, int]:
        topic, _, number = partition.rpartition("/")
        return topic or str(self.topic), int(number)

    def _bounds(self, lower: Frontier | None) -> tuple[dict[str, int], dict[str, int]]:
        """The first offset and the one behind the last, of each partition."""
        asked = list(self._followed)
        if self.transaction_topic is not None:
            # What a transaction has changed is sent before its end. One that begins with the latest
            # asks for ends after changes, so that it knows which transactions it comes amid.
            begins = lower is None and self.starting == "latest"
            amid = begins or self._comes_to_ends(lower)
            asked.insert(len(asked) if amid else 0, self.transaction_topic)
        first, last = self._bounds_of(asked)
        self._check_same(lower, first)
        return first, last

    def _bounds_of(self, asked: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        first, last = {}, {}
        for topic in asked:
            bounds = self._client.bounds(topic)
            if topic == self.transaction_topic and len(bounds) > 1:
                raise StreamError(
                    f"`transaction_topic: {topic}` has {len(bounds)} partitions, between which the "
                    "order of transactions is not known: it needs to have one."
                )
            for number, (low, high) in bounds.items():
                partition = self._partition(topic, number)
                first[partition], last[partition] = low, high
        return first, last

    def _check_same(self, lower: Frontier | None, first: Mapping[str, int]) -> None:
        changes = [p for p in first if self._place(p)[0] != self.transaction_topic]
        known = self._known(lower or {})
        if lower and not any(p in known for p in changes):  # one topic has become several, or back
            raise StreamError(
                f"The stream's progress is that of other topics, {', '.join(lower)}, and it reads "
                f"{', '.join(changes)} now. Rebuild the table with --full-refresh."
            )

    def _begin(
        self, lower: Frontier | None, first: Mapping[str, int], last: Mapping[str, int]
    ) -> dict[str, int]:
        """Where to read on; partitions that are new begin at their first offset."""
        if lower is None:
            return dict(last if self.starting == "latest" else first)
        begin = {**first, **{p: at for p, at in self._known(lower).items() if p in first}}
        for partition, offset in begin.items():
            topic, number = self._place(partition)
            if topic == self.transaction_topic:
                # Ends are missed less than changes. A stream that has gone without them goes on
                # with those to come.
                begin[partition] = max(offset, first[partition])
                if partition not in lower:
                    begin[partition] = last[partition]
            elif offset < first[partition]:
                raise StreamError(
                    f"Kafka no longer has the offsets {offset} to {first[partition] - 1} of "
                    f"partition {number} of {topic}: they are older than its retention. "
                    "What they held is lost to this stream; rebuild the table with --full-refresh "
                    "if the topic holds all rows, else load them from where they come from."
                )
            if offset > last[partition]:
                raise StreamError(
                    f"Partition {number} of {topic} ends at {last[partition]}, before the "
                    f"stream's progress {offset}: the topic was created again. Use --full-refresh."
                )
        return begin

    def _offsets(self, frontier: Frontier, topics: Sequence[str]) -> str:
        told: dict[str, dict[str, int]] = {}
        for partition, offset in frontier.items():
            topic, number = self._place(partition)
            if topic in topics:
                told.setdefault(topic, {})[str(number)] = int(offset)
        return json.dumps(told)
