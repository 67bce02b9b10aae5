"""Whole transactions by a transaction topic, against the same changes read without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate
from tests.servers.kafka import kafka_server

from .data import PARTITIONS, as_json, truth, upserts
from .rig import DDL, Rig
from .tables import check
from .upserts import BATCH_ROWS, COMMITS, KEYS

FEW, MANY = 500_000, 2_500_000
# Changes in each transaction.
SIZES = (10, 1000)
# What a stream reached where dbt runs before the changes' transactions were read as columns.
BEFORE = 35_000
TIMES = 10
TABLE = "public.t"


def transactions(bench: Bench) -> list[Result]:
    """Debezium's changes of one table in two partitions, in small and in large transactions."""
    keys, results = bench.size(KEYS), []
    with kafka_server(bench.folder / "kafka_transactions") as server:
        rig = Rig(bench.folder / "transactions", bench.engine)
        try:
            for size in SIZES:
                results += _compare(bench, rig, server, keys, size)
        finally:
            rig.close()
    return results


def _compare(bench: Bench, rig: Rig, server: str, keys: int, size: int) -> list[Result]:
    few, many = bench.size(FEW), bench.size(MANY)
    sources: dict[tuple[int, str], dict[str, Any]] = {}
    for rows in (few, many):
        topic = f"bank{size}_{rows}"
        _fill(server, topic, rows, keys, size)
        source = {"type": "kafka", "bootstrap_servers": server, "topic": topic}
        source |= {"format": "debezium", "columns": DDL}
        sources[rows, "without"] = source
        sources[rows, "with"] = source | {"transaction_topic": f"{topic}.transaction"}

    def drained(rows: int, how: str) -> float:
        chosen = {"batch_rows": BATCH_ROWS["kafka"], **COMMITS}
        seconds, stream = rig.drained(sources[rows, how], **chosen)
        check(rig.session, ".".join(stream.tables[0].sink.name), truth(rows, keys))
        return seconds

    for how in ("with", "without"):
        drained(few, how)
    measures = {f"{how} {rows}": partial(drained, rows, how) for rows, how in sources}
    seconds = alternate(measures, bench.runs(2))
    ours, without = (
        [b - a for a, b in zip(seconds[f"{how} {few}"], seconds[f"{how} {many}"], strict=True)]
        for how in ("with", "without")
    )
    if min(*ours, *without) <= 0:
        raise BenchmarkError("More changes took less time: the machine is not quiet.")
    more = many - few
    note = (
        f"What {more:,} changes more take, in transactions of {size:,}, so that no start and no "
        f"end is in: {more / np.median(ours):,.0f} changes/s; without the transaction topic "
        f"{more / np.median(without):,.0f}."
    )
    name = f"transactions_of_{size}"
    aim = [BEFORE * TIMES * np.median(without) / more]
    peer = "the same without transaction_topic"
    return [Result.of(name, peer, ours, without, round(1 / aim[0], 2), note)]


def _fill(bootstrap: str, topic: str, rows: int, keys: int, size: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    server = {"bootstrap.servers": bootstrap}
    several = {topic: PARTITIONS, f"{topic}.transaction": 1}
    admin = AdminClient(server)
    created = admin.create_topics([NewTopic(name, count, 1) for name, count in several.items()])
    for creation in created.values():
        creation.result()
    producer = Producer({**server, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    begin = 0
    for batch in upserts(rows, keys):
        homes = (batch["id"].to_numpy() % PARTITIONS).tolist()
        for line, home in zip(_changes(batch, begin, size), homes, strict=True):
            producer.produce(topic, line, partition=home)
        begin += batch.num_rows
        producer.flush()
    for text in _log(rows, size):
        producer.produce(f"{topic}.transaction", text)
    producer.flush()


def _changes(batch: pa.RecordBatch, begin: int, size: int) -> list[bytes]:
    """The messages of rows, the first of which is the change with the number `begin`."""
    source = {"version": "3.0.0.Final", "connector": "postgresql", "name": "bank"}
    source |= {"ts_ms": 1764000000000, "db": "bank", "schema": "public", "table": "t"}
    head = f'{{"before":null,"source":{json.dumps(source)},"op":"u","ts_ms":1764000000001,"after":'
    numbers = np.arange(begin, begin + batch.num_rows)
    ids = pc.cast(pa.array(numbers // size), pa.string())
    lsn = pc.cast(pa.array(numbers), pa.string())
    order = pc.cast(pa.array(numbers % size + 1), pa.string())
    rows = pa.array([line.decode() for line in as_json(batch)])
    block = pc.binary_join_element_wise(
        '{"id":"', ids, ":", lsn, '","total_order":', order, "}", ""
    )
    texts = pc.binary_join_element_wise(head, rows, ',"transaction":', block, "}", "")
    return [text.encode() for text in texts.to_pylist()]


def _log(rows: int, size: int) -> Iterator[str]:
    """The messages of the transaction topic."""
    for number in range(-(-rows // size)):
        count = min(size, rows - number * size)
        begin = {"status": "BEGIN", "id": f"{number}:{number * size}"}
        end = {"status": "END", "id": f"{number}:{number * size + count}", "event_count": count}
        collections = [{"data_collection": TABLE, "event_count": count}]
        yield json.dumps(begin)
        yield json.dumps({**end, "data_collections": collections})
