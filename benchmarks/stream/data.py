"""Upserts as files and as Kafka's messages, and the table that they come to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyruhvro import serialize_record_batch

from tests.servers.schema_registry import Registry

PER_FILE = 100_000
PARTITIONS = 2
STATUSES = np.array(["new", "paid", "sent", "back"])


def changes(ids: np.ndarray, seed: int, begin: int = 0) -> pa.RecordBatch:
    """A row for each id. Amounts are quarters, so that their sum is the same in any order."""
    random = np.random.default_rng((seed, begin))
    count = len(ids)
    return pa.record_batch(
        {
            "id": ids.astype(np.int64),
            "customer": random.integers(0, 100_000, count),
            "status": pa.array(STATUSES[random.integers(0, 4, count)]),
            "amount": random.integers(0, 40_000, count) / 4,
            "at": np.arange(begin, begin + count, dtype=np.int64),
        }
    )


def upserts(rows: int, keys: int, per_batch: int = PER_FILE) -> Iterator[pa.RecordBatch]:
    """Changes of random keys, the same for each call, however they are cut into batches."""
    for begin in range(0, rows, PER_FILE):
        count = min(PER_FILE, rows - begin)
        ids = np.random.default_rng((1, begin)).integers(0, keys, count)
        made = changes(ids, 2, begin)
        for place in range(0, count, per_batch):
            yield made.slice(place, per_batch)


def write_files(folder: Path, batches: Iterator[pa.RecordBatch]) -> Path:
    """A Parquet file for each batch, in their order."""
    folder.mkdir(parents=True)
    for number, batch in enumerate(batches):
        table = pa.Table.from_batches([batch])
        pq.write_table(table, folder / f"{number:06}.parquet", compression="snappy")
    return folder


def truth(rows: int, keys: int) -> tuple[int, float]:
    """How many rows are left in the end, and the sum of their amounts."""
    amounts = np.full(keys, np.nan)
    for batch in upserts(rows, keys):
        amounts[batch["id"].to_numpy()] = batch["amount"].to_numpy()
    return int((~np.isnan(amounts)).sum()), float(np.nansum(amounts))


def as_json(batch: pa.RecordBatch) -> list[bytes]:
    """A line of JSON for each row."""
    parts: list[pa.Array | str] = []
    for number, name in enumerate(batch.schema.names):
        quotes = '"' if batch[name].type == pa.string() else ""
        parts += [f'{"," if number else "{"}"{name}":{quotes}', batch[name].cast(pa.string())]
        parts.append(quotes)
    lines = pc.binary_join_element_wise(*parts, "}", "")
    return [line.encode() for line in lines.to_pylist()]


# Nullable columns, as Flink and Debezium write them.
AVRO = json.dumps(
    {
        "type": "record",
        "name": "record",
        "namespace": "org.apache.flink.avro.generated",
        "fields": [
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in (
                ("id", "long"),
                ("customer", "long"),
                ("status", "string"),
                ("amount", "double"),
                ("at", "long"),
            )
        ],
    }
)


def as_avro(batch: pa.RecordBatch, schema_id: int) -> list[bytes]:
    """A message of the schema AVRO for each row."""
    header = b"\0" + schema_id.to_bytes(4, "big")
    [bodies] = serialize_record_batch(batch, AVRO, 1)
    return [header + body for body in bodies.to_pylist()]


def fill_avro_topic(bootstrap: str, registry: Registry, topic: str, rows: int, keys: int) -> None:
    """A new topic with the upserts in Avro, whose schema is in a registry."""
    schema_id = registry.register(f"{topic}-value", AVRO)
    fill_topic(bootstrap, topic, rows, keys, partial(as_avro, schema_id=schema_id))


def fill_topic(
    bootstrap: str,
    topic: str,
    rows: int,
    keys: int,
    encode: Callable[[pa.RecordBatch], list[bytes]] = as_json,
) -> None:
    """A new topic with the upserts; those of a key are in one partition, in their order."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    server: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
    admin = AdminClient(server)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    settings = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}
    producer = Producer({**server, **settings})
    for batch in upserts(rows, keys):
        homes = (batch["id"].to_numpy() % PARTITIONS).tolist()
        for line, home in zip(encode(batch), homes, strict=True):
            producer.produce(topic, line, partition=home)
        producer.flush()
