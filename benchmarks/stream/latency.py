"""From a message in Kafka to a row that readers see, with a thousand messages a second."""

from __future__ import annotations

import json
import statistics
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result
from dbt.adapters.iceberg_stream.engines.session import as_rows
from tests.servers.kafka import kafka_server

from .flink import PEER, Flink, flink, kafka_source
from .rig import BY_SPARK, DDL, PICKS, Event, Rig

PER_SECOND, SECONDS, WARM_UP = 1000, 60, 10
KEYS = 100_000
# Flink commits each second.
OPTIONS: dict[str, Any] = {"commit_interval": 1.0}
POLL_SECONDS = 0.01
AIMS = {"median": 1.5, "p99": 3.0}


@dataclass
class Watch:
    """When which snapshot of a table was seen first, by its id.

    Attributes:
        current: returns the id of the current snapshot; None if there is none.
    """

    current: Callable[[], int | None]
    seen: dict[int, float] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_SECONDS):
                if (snapshot := self.current()) is not None:
                    self.seen.setdefault(snapshot, time.time())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        yield
        ended.set()
        thread.join()


def latency(bench: Bench) -> list[Result]:
    """With a query that only picks columns, and with one that Spark computes."""
    seconds = bench.size(SECONDS)
    measures: dict[str, list[tuple[float, float]]] = {"picks": [], "by_spark": [], "flink": []}
    with ExitStack() as stack:
        server = stack.enter_context(kafka_server(bench.folder / "kafka"))
        peer = stack.enter_context(flink(bench.folder / "flink"))
        rig = Rig(bench.folder / "ours", bench.engine)
        stack.callback(rig.close)
        rig.session.configure(peer.settings())
        runs: dict[str, Callable[[], tuple[float, float]]] = {
            "picks": partial(_ours, rig, server, PICKS, seconds),
            "by_spark": partial(_ours, rig, server, BY_SPARK, seconds),
            "flink": partial(_flink, rig, peer, server, seconds),
        }
        for _ in range(bench.runs(2)):
            for name, run in runs.items():
                measures[name].append(run())
                print(f"  {name}: median and p99 {measures[name][-1]}", flush=True)
    return [
        Result.of(
            f"latency_{name}_{label}",
            PEER,
            [run[place] for run in measures[name]],
            [run[place] for run in measures["flink"]],
            None,
            f"From a message to its row, the {label} of {PER_SECOND:,} messages a second for "
            f"{seconds} seconds; both commit each second. The aim is {AIMS[label]} s.",
        )
        for name in ("picks", "by_spark")
        for place, label in enumerate(AIMS)
    ]


def _ours(rig: Rig, server: str, sql: str, seconds: int) -> tuple[float, float]:
    topic, name = _topic(server), f"t{uuid.uuid4().hex[:8]}"
    rig.make_table(name)
    source = {"type": "kafka", "bootstrap_servers": server, "topic": topic}
    stream = rig.stream(name, source | {"format": "json", "columns": DDL}, sql, **OPTIONS)
    watch, stop = Watch(partial(_newest_in_catalog, rig, name)), Event()
    with watch.running():
        thread = threading.Thread(target=stream.follow, args=(stop,))
        thread.start()
        times = _send(server, topic, seconds)
        _wait(rig, f"s.{name}", times[-1])
        stop.set()
        thread.join()
    return _percentiles(rig, f"s.{name}", watch, times)


def _flink(rig: Rig, peer: Flink, server: str, seconds: int) -> tuple[float, float]:
    topic, name = _topic(server), f"t{uuid.uuid4().hex[:8]}"
    # A job that ends when it has read as many messages as will be sent.
    source = kafka_source(server, topic) | {
        "scan.bounded.mode": "specific-offsets",
        "scan.bounded.specific-offsets": f"partition:0,offset:{PER_SECOND * (seconds + WARM_UP)}",
    }
    watch = Watch(partial(_newest_of_folder, peer.warehouse / "s" / name / "metadata"))
    with watch.running():
        job = threading.Thread(target=peer.run, args=(name, source))
        job.start()
        times = _send(server, topic, seconds)
        job.join()
    return _percentiles(rig, f"flink.s.{name}", watch, times)


def _topic(server: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"latency{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    return topic


def _send(server: str, topic: str, seconds: int) -> list[int]:
    """Send messages at even intervals; return the times of those after a while, in milliseconds."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server, "linger.ms": 0})
    begin, times = time.time(), list[int]()
    for number in range(PER_SECOND * (seconds + WARM_UP)):
        time.sleep(max(0.0, begin + number / PER_SECOND - time.time()))
        times.append(int(time.time() * 1000))
        row = {"id": number % KEYS, "customer": 1, "status": "new", "amount": 1.0, "at": times[-1]}
        producer.produce(topic, json.dumps(row), partition=0)
        producer.poll(0)
    producer.flush()
    return times[PER_SECOND * WARM_UP :]


def _wait(rig: Rig, table: str, last: int) -> None:
    end = time.monotonic() + 60
    while _newest(rig, table) < last:
        if time.monotonic() > end:
            raise BenchmarkError(f"The last message is not in {table} after a minute.")
        time.sleep(0.2)


def _newest(rig: Rig, table: str) -> int:
    [(newest,)] = as_rows(rig.session.query(f"select coalesce(max(at), 0) from {table}"))
    return int(newest)


def _snapshot(metadata: Mapping[str, Any]) -> int | None:
    current = int(metadata.get("current-snapshot-id") or -1)
    return None if current == -1 else current


def _newest_in_catalog(rig: Rig, name: str) -> int | None:
    loaded = rig.lake.load(("s", name))
    return None if loaded is None else _snapshot(loaded.metadata)


def _newest_of_folder(folder: Path) -> int | None:
    """The current snapshot of a table in a Hadoop catalog."""
    try:
        version = (folder / "version-hint.text").read_text().strip()
        return _snapshot(json.loads((folder / f"v{version}.metadata.json").read_text()))
    except (OSError, ValueError):
        return None


def _percentiles(rig: Rig, table: str, watch: Watch, times: list[int]) -> tuple[float, float]:
    """Seconds from a message to the first snapshot that has it: the median, and of 99 %."""
    seen = sorted(watch.seen.items(), key=lambda item: item[1])
    newest = [_newest(rig, f"{table} version as of {snapshot}") for snapshot, _ in seen]
    if newest[-1] < times[-1]:
        raise BenchmarkError(f"{table} lacks messages.")
    waits = [seen[bisect_left(newest, sent)][1] - sent / 1000 for sent in times]
    return round(statistics.median(waits), 3), round(statistics.quantiles(waits, n=100)[-1], 3)
