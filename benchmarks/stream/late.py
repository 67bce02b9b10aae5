"""Changes that depend on the table's rows: late ones, partial ones, and versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.harness import Result, alternate
from dbt.adapters.iceberg_stream.stream.batches import located_rows
from dbt.adapters.iceberg_stream.stream.query.changed_rows import END, START

from .data import changes, write_files
from .merges import Merges, base_batches
from .rig import PICKS
from .tables import check

ROWS, BATCHES, LATE = 5_000_000, 10, 0.01
NEWER = 100_000_000
VERSIONS = 2


@dataclass(frozen=True)
class Kind:
    """Changes of a kind, and the two ways of a stream to apply them.

    Attributes:
        name: of the result.
        per_file: changes of a batch.
        what: what is particular about them.
        options: of the stream.
        peer: what the peer does.
        peer_options: of the peer's stream, in place of others.
        change: makes a batch of upserts one of this kind.
        base: makes rows of the table, before the changes, those of this kind.
        versions: of each key, before the changes.
    """

    name: str
    per_file: int
    what: str
    options: dict[str, object]
    peer: str
    peer_options: dict[str, object]
    change: Callable[[pa.RecordBatch], pa.RecordBatch]
    base: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch
    versions: int = 1


def _late(batch: pa.RecordBatch) -> pa.RecordBatch:
    order = NEWER + batch["at"].to_numpy()
    # The first batch has no watermark before it.
    if batch["at"][0].as_py():
        order[:: round(1 / LATE)] = -1
    return batch.set_column(batch.schema.names.index("at"), "at", pa.array(order))


def _partial(batch: pa.RecordBatch) -> pa.RecordBatch:
    nulls = pa.nulls(batch.num_rows, pa.int64())
    return batch.set_column(batch.schema.names.index("customer"), "customer", nulls)


def _as_versions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """An ended and an open version of each key, both older than all changes."""
    numbers = batch["id"].to_numpy()
    start = numbers % VERSIONS - VERSIONS
    end = pa.array(start + 1, mask=start == -1)
    keys = pa.array(numbers // VERSIONS)
    batch = batch.set_column(batch.schema.names.index("id"), "id", keys)
    return batch.append_column(START, pa.array(start)).append_column(END, end)


def late(bench: Bench) -> list[Result]:
    """One change in a hundred is older than its row."""
    return _measure(
        bench,
        Kind(
            "late",
            bench.size(100_000),
            "of which one in a hundred is older than its row",
            {"sequence_by": ("at",)},
            "the same stream with equality deletes",
            {"delete_encoding": "equality"},
            _late,
        ),
    )


def partial_changes(bench: Bench) -> list[Result]:
    """Nulls that leave the row's value as it is."""
    return _measure(
        bench,
        Kind(
            "partial",
            bench.size(10_000),
            "whose nulls leave the row's value as it is",
            {"ignore_null_updates": True},
            "the same stream, for which Spark scans the table",
            {},
            _partial,
        ),
    )


def versions(bench: Bench) -> list[Result]:
    """New versions, which end those before."""
    return _measure(
        bench,
        Kind(
            "versions",
            bench.size(10_000),
            f"with all versions kept, {VERSIONS} of each key at the beginning",
            {"sequence_by": ("at",), "scd_type": 2},
            "the same stream, for which Spark scans the table",
            {},
            lambda batch: batch,
            _as_versions,
            VERSIONS,
        ),
    )


def _measure(bench: Bench, kind: Kind) -> list[Result]:
    merges = Merges(bench, bench.size(ROWS), version=2)
    try:
        folder = merges.rig.folder / kind.name
        files = write_files(folder, _batches(merges.rows, kind))
        expected = _truth(merges.rows, files, kind)
        most_keys = located_rows.MOST_KEYS
        peer_options = {**kind.options, **kind.peer_options}
        measures = {
            "ours": partial(_run, merges, files, expected, kind, kind.options, most_keys),
            "peer": partial(_run, merges, files, expected, kind, peer_options, 0),
        }
        for warm_up in measures.values():
            warm_up()
        seconds = alternate(measures, bench.runs(3))
        note = (
            f"{BATCHES * kind.per_file:,} scattered changes of {merges.rows:,} rows in {BATCHES} "
            f"batches, {kind.what}."
        )
        return [Result.of(kind.name, kind.peer, seconds["ours"], seconds["peer"], None, note)]
    finally:
        merges.rig.close()


def _run(
    merges: Merges,
    files: Path,
    expected: tuple[int, float],
    kind: Kind,
    options: dict[str, object],
    most_keys: int,
) -> float:
    name = merges.table("ours", {"format-version": "3"}, kind.base)
    source: dict[str, object] = {"type": "files", "path": str(files), "format": "parquet"}
    stream = merges.rig.stream(name, source, PICKS, batch_rows=1, commit_interval=0.0, **options)
    before, located_rows.MOST_KEYS = located_rows.MOST_KEYS, most_keys
    begin = time.perf_counter()
    try:
        stream.drain()
    finally:
        located_rows.MOST_KEYS = before
    seconds = time.perf_counter() - begin
    check(merges.rig.session, f"s.{name}", expected)
    return seconds


def _batches(rows: int, kind: Kind) -> Iterator[pa.RecordBatch]:
    keys = rows // kind.versions
    ids = np.random.default_rng(3).permutation(keys)[: BATCHES * kind.per_file]
    for begin in range(0, len(ids), kind.per_file):
        yield kind.change(changes(ids[begin : begin + kind.per_file], 4, begin))


def _truth(rows: int, files: Path, kind: Kind) -> tuple[int, float]:
    amounts = np.concatenate([batch["amount"].to_numpy() for batch in base_batches(rows)])
    for file in sorted(files.iterdir()):
        batch = pq.read_table(file)
        applied = batch.filter(pc.greater_equal(batch["at"], 0))
        if kind.versions > 1:
            amounts = np.concatenate([amounts, applied["amount"].to_numpy()])
            continue
        amounts[applied["id"].to_numpy()] = applied["amount"].to_numpy()
    return len(amounts), float(amounts.sum())
