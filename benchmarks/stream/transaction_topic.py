"""Whole transactions of two topics, against the same topics read without `transaction_topic`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.bench import Bench
from benchmarks.harness import Result, alternate, steady
from tests.servers.kafka import kafka_server

from .data import as_json, truth, upserts
from .rig import DDL, Rig
from .tables import check

FEW, MANY = 500_000, 2_500_000
KEYS = 100_000
# Changes in each transaction.
SIZES = (10, 100, 10_000)
TABLES = ("orders", "items")
PEER = "the same topics without transaction_topic"
OPTIONS: dict[str, Any] = {"batch_rows": 300_000, "commit_interval": 1.0}


@dataclass(frozen=True)
class Input:
    """The same changes, with their transactions or without."""

    rows: int
    with_transactions: dict[str, Any]

    @property
    def without_transactions(self) -> dict[str, Any]:
        return {k: v for k, v in self.with_transactions.items() if k != "transaction_topic"}


def transaction_topic(bench: Bench) -> list[Result]:
    """Up to the end of the topics, with small and with large transactions."""
    results = []
    with kafka_server(bench.folder / "kafka") as server:
        rig = Rig(bench.folder / "transaction_topic", bench.engine)
        try:
            for size in SIZES:
                results += _compare(bench, rig, server, size)
        finally:
            rig.close()
    return results


def _compare(bench: Bench, rig: Rig, server: str, size: int) -> list[Result]:
    few, many = (_fill(server, bench, rows, size) for rows in (FEW, MANY))

    def drain(rows: int, source: dict[str, Any]) -> float:
        seconds, stream = rig.drained(source, **OPTIONS)
        check(rig.session, ".".join(stream.tables[0].sink.name), truth(rows, bench.size(KEYS)))
        return seconds

    sides = ("with_transactions", "without_transactions")
    measures: dict[str, Callable[[], float]] = {
        f"{side} {part.rows:,}": partial(drain, part.rows, getattr(part, side))
        for part in (few, many)
        for side in sides
    }
    for side in sides:
        drain(few.rows, getattr(few, side))
    seconds = alternate(measures, bench.runs(2))
    ours, theirs = (
        steady(seconds[f"{side} {few.rows:,}"], seconds[f"{side} {many.rows:,}"]) for side in sides
    )
    more = many.rows - few.rows
    our_rate, their_rate = (more / statistics.median(side) for side in (ours, theirs))
    note = (
        f"What {more:,} changes more take, in transactions of {size:,}, so that no start and no "
        f"end is in. With the transactions {our_rate:,.0f} changes/s, without {their_rate:,.0f}."
    )
    return [Result.of(f"transaction_topic_{size}_steady", PEER, ours, theirs, None, note)]


def _fill(server: str, bench: Bench, full: int, size: int) -> Input:
    """New topics with the upserts, half of the keys in each, and their transactions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    rows = bench.size(full)
    prefix = f"bank{size}x{rows}"
    topics = [f"{prefix}.public.{table}" for table in TABLES]
    log = f"{prefix}.transaction"
    admin = AdminClient({"bootstrap.servers": server})
    created = admin.create_topics([NewTopic(topic, 1, 1) for topic in (*topics, log)])
    for future in created.values():
        future.result()
    options = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": server, **options})
    counts = np.zeros((-(-rows // size), len(TABLES)), dtype=np.int64)
    for batch in upserts(rows, bench.size(KEYS)):
        numbers = batch["at"].to_numpy() // size
        homes = batch["id"].to_numpy() % len(TABLES)
        np.add.at(counts, (numbers, homes), 1)
        for message, home in zip(_envelopes(batch, prefix, numbers, homes), homes, strict=True):
            producer.produce(topics[home], message)
        producer.flush()
    for number, message in enumerate(_transactions(counts)):
        producer.produce(log, message)
        if number % 100_000 == 0:
            producer.flush()
    producer.flush()
    source = {"type": "kafka", "bootstrap_servers": server, "format": "debezium", "columns": DDL}
    return Input(rows, {**source, "topics": topics, "transaction_topic": log})


def _envelopes(
    batch: pa.RecordBatch, prefix: str, numbers: np.ndarray, homes: np.ndarray
) -> list[bytes]:
    """Debezium's messages of PostgreSQL, some 600 bytes each."""
    lsn = pc.add(batch["at"], 24_023_128).cast(pa.string())
    source = (
        f'"source":{{"version":"3.0.0.Final","connector":"postgresql","name":"{prefix}",'
        '"ts_ms":1764000000000,"snapshot":"false","db":"bank","sequence":"[null,\\"24023128\\"]",'
        '"schema":"public","table":"'
    )
    tables = pa.array(np.array(TABLES)[homes])
    ids = pa.array(numbers).cast(pa.string())
    return [
        text.encode()
        for text in pc.binary_join_element_wise(
            '{"before":null,"after":',
            pa.array([line.decode() for line in as_json(batch)]),
            f",{source}",
            tables,
            '","txId":',
            ids,
            ',"lsn":',
            lsn,
            ',"xmin":null},"transaction":{"id":"',
            ids,
            ":",
            lsn,
            '","total_order":1,"data_collection_order":1},"op":"u","ts_ms":1764000000100,'
            '"ts_us":1764000000100123,"ts_ns":1764000000100123456}',
            "",
        ).to_pylist()
    ]


def _transactions(counts: np.ndarray) -> Iterator[bytes]:
    """The BEGIN and the END of each transaction."""
    for number, of_tables in enumerate(counts.tolist()):
        name = f"{number}:{24_023_128 + number}"
        yield json.dumps({"status": "BEGIN", "id": name, "ts_ms": 1_764_000_000_000}).encode()
        collections = [
            {"data_collection": f"public.{table}", "event_count": count}
            for table, count in zip(TABLES, of_tables, strict=True)
        ]
        end = {"status": "END", "id": name, "ts_ms": 1_764_000_000_100}
        end |= {"event_count": sum(of_tables), "data_collections": collections}
        yield json.dumps(end).encode()
