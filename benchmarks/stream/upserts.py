"""Upserts of few keys from files and from Kafka, against Flink's sink."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate, steady
from dbt.adapters.iceberg_stream.engines.embedded import stop
from tests.servers.kafka import kafka_server
from tests.servers.schema_registry import schema_registry

from .data import fill_avro_topic, fill_topic, truth, upserts, write_files
from .flink import PEER, Flink, files_source, flink, kafka_source
from .rig import BY_SPARK, COMPUTES, DDL, FILTERS, PICKS, Rig
from .tables import check, read, shape

FEW, MANY = 1_000_000, 5_000_000
KEYS = 100_000
# The least ratios that are wanted: by input, and with a filter in the query.
AIMS = {"files": 4.0, "json": 2.5, "avro": 2.0}
FILTERED_AIM = 1.5
# Flink commits with its checkpoints, each second. So do we, with batches of less than a second. Of
# files the rows are not known before: these come to three times as many.
COMMITS: dict[str, Any] = {"commit_interval": 1.0}
BATCH_ROWS = {"files": 100_000, "kafka": 300_000}


@dataclass(frozen=True)
class Input:
    """The same changes as both sides name them; `ordered` if Flink keeps the order of a key's."""

    rows: int
    keys: int
    ours: dict[str, Any]
    flink: dict[str, str]
    ordered: bool

    @property
    def aim(self) -> float:
        """The least ratio that is wanted."""
        return AIMS["files" if self.ours["type"] == "files" else self.ours["format"]]


class Pair:
    """Both sides, warm, and what their last runs have left."""

    def __init__(self, rig: Rig, peer: Flink) -> None:
        self.rig, self.peer = rig, peer
        self.rig.session.configure(peer.settings())
        self.looks: dict[str, str] = {}
        self._jobs = 0

    def ours(self, given: Input, sql: str = PICKS) -> float:
        rows = BATCH_ROWS[given.ours["type"]]
        seconds, stream = self.rig.drained(given.ours, sql, batch_rows=rows, **COMMITS)
        table = ".".join(stream.tables[0].sink.name)
        check(self.rig.session, table, truth(given.rows, given.keys))
        self.looks["ours"] = str(shape(self.rig.session, table))
        return seconds

    def flink(self, given: Input) -> float:
        self._jobs += 1
        seconds = self.peer.run(f"t{self._jobs}", given.flink)
        table = f"flink.s.t{self._jobs}"
        expected = truth(given.rows, given.keys)
        if given.ordered:
            check(self.rig.session, table, expected)
        elif (rows := read(self.rig.session, table)[1][0]) != expected[0]:
            raise BenchmarkError(f"Flink has left {rows} rows of {expected[0]}")
        self.looks["flink"] = str(shape(self.rig.session, table))
        return seconds

    def compare(self, few: Input, many: Input, runs: int, name: str) -> list[Result]:
        """Both sizes, and what more changes cost when all has started."""
        for warm_up in (self.ours, self.flink):
            warm_up(few)
        measures: dict[str, Callable[[], float]] = {
            f"{side.__name__} {given.rows:,}": partial(side, given)
            for given in (few, many)
            for side in (self.ours, self.flink)
        }
        seconds = alternate(measures, runs)
        ours_few, theirs_few, ours_many, theirs_many = seconds.values()
        results = []
        for given, label, ours, theirs in (
            (few, "1m", ours_few, theirs_few),
            (many, "5m", ours_many, theirs_many),
        ):
            note = (
                f"{given.rows:,} upserts of {given.keys:,} keys, drained by a warm engine and by "
                "a warm Flink, whose job's start and last checkpoint are in. "
                f"{_rates(given.rows, ours, theirs)}"
            )
            results.append(Result.of(f"{name}_{label}", PEER, ours, theirs, given.aim, note))
        more = many.rows - few.rows
        ours, theirs = steady(ours_few, ours_many), steady(theirs_few, theirs_many)
        note = (
            f"What {more:,} upserts more take, so that no start and no end is in. "
            f"{_rates(more, ours, theirs)} After {many.rows:,} ours has {self.looks['ours']}; "
            f"Flink {self.looks['flink']}."
        )
        results.append(Result.of(f"{name}_steady", PEER, ours, theirs, many.aim, note))
        return [*results, *self._with_more(many, theirs_many, f"{name}_5m")]

    def _with_more(self, given: Input, theirs: list[float], name: str) -> list[Result]:
        """With a filter in the query, with expressions, and with a query that Spark computes."""
        queries = {
            "filtered": (FILTERS, FILTERED_AIM),
            "computed": (COMPUTES, FILTERED_AIM),
            "by_spark": (BY_SPARK, None),
        }
        for sql, _ in queries.values():
            self.ours(given, sql)
        measures = {label: partial(self.ours, given, sql) for label, (sql, _) in queries.items()}
        seconds = alternate(measures, len(theirs))
        return [
            Result.of(
                f"{name}_{label}",
                PEER,
                seconds[label],
                theirs,
                aim,
                f"Ours {label}. {_rates(given.rows, seconds[label], theirs)}",
            )
            for label, (_, aim) in queries.items()
        ]


def _rates(rows: int, ours: list[float], theirs: list[float]) -> str:
    a, b = (rows / statistics.median(seconds) for seconds in (ours, theirs))
    return f"Ours {a:,.0f} rows/s, Flink {b:,.0f}."


@contextmanager
def _pair(bench: Bench, name: str) -> Iterator[Pair]:
    folder = bench.folder / name
    with flink(folder / "flink") as peer:
        rig = Rig(folder / "ours", bench.engine)
        try:
            yield Pair(rig, peer)
        finally:
            rig.close()


def upserts_files(bench: Bench) -> list[Result]:
    """From Parquet files, which Flink reads in any order."""
    keys, inputs = bench.size(KEYS), []
    for rows in (bench.size(FEW), bench.size(MANY)):
        folder = bench.folder / "upserts" / str(rows)
        write_files(folder, upserts(rows, keys, bench.size(100_000)))
        ours = {"type": "files", "path": str(folder), "format": "parquet"}
        inputs.append(Input(rows, keys, ours, files_source(folder), False))
    with _pair(bench, "upserts_files") as pair:
        few, many = inputs
        return pair.compare(few, many, bench.runs(3), "upserts_files")


def upserts_kafka(bench: Bench) -> list[Result]:
    """From a topic of JSON, up to its end."""
    keys, inputs = bench.size(KEYS), []
    with ExitStack() as stack:
        server = stack.enter_context(kafka_server(bench.folder / "kafka"))
        for rows in (bench.size(FEW), bench.size(MANY)):
            topic = f"upserts{rows}"
            fill_topic(server, topic, rows, keys)
            ours = {"type": "kafka", "bootstrap_servers": server, "topic": topic}
            ours |= {"format": "json", "columns": DDL}
            inputs.append(Input(rows, keys, ours, kafka_source(server, topic), True))
        pair = stack.enter_context(_pair(bench, "upserts_kafka"))
        few, many = inputs
        return pair.compare(few, many, bench.runs(3), "upserts_kafka")


def upserts_kafka_avro(bench: Bench) -> list[Result]:
    """From a topic of Avro, whose schema is in a registry, up to its end."""
    keys, inputs = bench.size(KEYS), []
    with ExitStack() as stack:
        server = stack.enter_context(kafka_server(bench.folder / "kafka"))
        registry = stack.enter_context(schema_registry(bench.folder / "registry"))
        for rows in (bench.size(FEW), bench.size(MANY)):
            topic = f"avro{rows}"
            fill_avro_topic(server, registry, topic, rows, keys)
            ours = {"type": "kafka", "bootstrap_servers": server, "topic": topic}
            ours |= {"format": "avro", "schema_registry": registry.url}
            theirs = kafka_source(server, topic, registry.url)
            inputs.append(Input(rows, keys, ours, theirs, True))
        pair = stack.enter_context(_pair(bench, "upserts_kafka_avro"))
        few, many = inputs
        return pair.compare(few, many, bench.runs(3), "upserts_kafka_avro")


def upserts_start(bench: Bench) -> list[Result]:
    """From nothing running to a first small file in the table."""
    folder = bench.folder / "start"
    write_files(folder / "source", upserts(1000, 100, 1000))
    numbers = iter(range(1000))
    measures = {
        "ours": lambda: _cold(folder / f"ours{next(numbers)}", folder / "source"),
        "flink": lambda: _cold_flink(folder / f"flink{next(numbers)}", folder / "source"),
    }
    seconds = alternate(measures, bench.runs(3))
    note = "Start of the engine or of Flink, and a first batch of 1,000 changes in the table."
    return [Result.of("upserts_start", PEER, seconds["ours"], seconds["flink"], None, note)]


def _cold(folder: Path, source: Path) -> float:
    begin = time.perf_counter()
    rig = Rig(folder, folder / "engine")
    try:
        rig.drained({"type": "files", "path": str(source), "format": "parquet"}, **COMMITS)
        return time.perf_counter() - begin
    finally:
        rig.close()
        stop(folder / "engine")


def _cold_flink(folder: Path, source: Path) -> float:
    begin = time.perf_counter()
    with flink(folder) as peer:
        peer.run("t", files_source(source))
        return time.perf_counter() - begin
