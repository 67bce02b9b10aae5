"""The area `stream`: changes into tables, against Flink's sink and Spark's MERGE."""

from __future__ import annotations

from benchmarks.bench import Benchmark

from . import key_index, late, latency, memory, merges, sequence, transaction_topic, upserts

BENCHMARKS: dict[str, Benchmark] = {
    "upserts_files": upserts.upserts_files,
    "upserts_kafka": upserts.upserts_kafka,
    "upserts_kafka_avro": upserts.upserts_kafka_avro,
    "transaction_topic": transaction_topic.transaction_topic,
    "upserts_start": upserts.upserts_start,
    "latency": latency.latency,
    "merges_5m": merges.merges_5m,
    "merges_5m_v3": merges.merges_5m_v3,
    "merges_20m": merges.merges_20m,
    "late": late.late,
    "partial": late.partial_changes,
    "versions": late.versions,
    "sequence": sequence.sequence,
    "sequence_50ms": sequence.sequence_50ms,
    "memory": memory.memory,
    "index_200m": key_index.index_200m,
}
