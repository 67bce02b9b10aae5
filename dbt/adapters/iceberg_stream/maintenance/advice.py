"""What is worth doing for tables, by the estimated gain."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dbt.adapters.iceberg_stream.builds.names import replaced_name
from dbt.adapters.iceberg_stream.maintenance.health import (
    METADATA_DELETE,
    METADATA_VERSIONS,
    TableHealth,
)
from dbt.adapters.iceberg_stream.maintenance.scan_cost import DATA_FILE_SECONDS
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth

Urgency = Literal["broken", "worth", "hint"]
# Broken things first, hints last.
URGENCIES: tuple[Urgency, ...] = ("broken", "worth", "hint")
GIB = 2**30
HOUR_MS = 60 * 60 * 1000
# Compaction writes every file with deletes again, so they must cost this share of a scan.
POSITIONAL_SHARE = 0.05
# Fewer snapshots and fewer bytes are not worth an expiry; fewer metadata files, not a change.
MIN_SNAPSHOTS, MIN_FREED_BYTES, MIN_METADATA_FILES = 100, GIB, 100
# A partition is skewed if it is so many times as large as the median one, and so large.
SKEW, SKEWED_BYTES, MIN_PARTITIONS = 20, 10 * GIB, 4
# A smaller table gains little from a sort order.
SORTED_BYTES = 10 * GIB


@dataclass(frozen=True)
class Thresholds:
    """What is not worth mentioning.

    Attributes:
        min_gain: least gain, in seconds of a full scan.
        max_stream_age: hours after which a stream without progress is late.
    """

    min_gain: float = 1.0
    max_stream_age: float = 48.0


@dataclass(frozen=True)
class Advice:
    """One thing to do for a table.

    Attributes:
        table: namespace and identifier.
        code: short name of the problem.
        problem: what is wrong.
        cure: what to do.
        command: arguments of `iceberg-stream` that do it; empty if no command does.
        seconds: gain for each full scan.
        bytes: storage that becomes free.
        files: files that the table has less.
        urgency: `broken`, `worth` doing, or a `hint`, which depends on how the table is queried.
    """

    table: tuple[str, str]
    code: str
    problem: str
    cure: str
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes: int = 0
    files: int = 0
    urgency: Urgency = "worth"

    def command_line(self, options: Sequence[str] = ()) -> str | None:
        """Return the shell command that does it; None if no command does.

        Args:
            options: that the command needs to find the same catalog.
        """
        if not self.command:
            return None
        return shlex.join(("iceberg-stream", *self.command, *options))

    def gain(self, cost: float) -> str:
        """Return the gain as text; empty if there is none to estimate.

        Args:
            cost: of a full scan of the table, in seconds.
        """
        gains = []
        if self.seconds:
            gains.append(f"about {self.seconds:,.1f} s of {cost:,.1f} s for each full scan")
        if self.bytes:
            gains.append(f"about {in_bytes(self.bytes)} of storage")
        if self.files:
            gains.append(f"{self.files:,} files")
        return ", ".join(gains)

    def as_json(self) -> dict[str, Any]:
        """Return the advice as JSON, without its command."""
        return {
            "table": ".".join(self.table),
            "code": self.code,
            "urgency": self.urgency,
            "problem": self.problem,
            "cure": self.cure,
            "gain": {"seconds": round(self.seconds, 3), "bytes": self.bytes, "files": self.files},
        }


def advise(
    tables: Iterable[TableHealth], thresholds: Thresholds, now_ms: int | None = None
) -> list[Advice]:
    """Return what is worth doing for tables, the largest gain first.

    Broken streams come before all gains, hints after them.

    Args:
        tables: the health of each table.
        thresholds: what is not worth mentioning.
        now_ms: the time, in milliseconds since 1970 (UTC); None for the clock's.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    advice = [
        one
        for health in tables
        for one in (
            *_leftover_advice(health),
            *_delete_advice(health, thresholds),
            *_file_advice(health, thresholds),
            *_storage_advice(health),
            *_layout_hints(health),
            *_stream_advice(health, thresholds, now),
        )
    ]
    return sorted(
        advice,
        key=lambda one: (
            *(URGENCIES.index(one.urgency), -one.seconds, -one.bytes, -one.files),
            *(one.table, one.code),
        ),
    )


def _delete_advice(health: TableHealth, thresholds: Thresholds) -> Iterator[Advice]:
    """Advise how to get rid of delete files."""
    gain = health.cost.seconds - health.cost_after_convert.seconds
    if gain >= thresholds.min_gain:
        yield Advice(
            health.name,
            "equality-deletes",
            f"{health.equality_files:,} equality delete files have {health.equality_keys:,} keys. "
            "A scan builds the set of keys again for each split: "
            f"{health.cost.equality.split_keys:,} keys in all.",
            "Convert the equality deletes to deleted positions.",
            _maintain(health, "convert_deletes"),
            seconds=gain,
            files=health.equality_files,
        )
    gain = health.cost.seconds - health.cost_after_compact.seconds - _merge_seconds(health)
    if gain >= max(thresholds.min_gain, POSITIONAL_SHARE * health.cost.seconds):
        yield Advice(
            health.name,
            "position-deletes",
            f"{health.position_files:,} position delete files and {health.vectors:,} deletion "
            f"vectors delete {health.position_rows + health.vector_rows:,} of {health.rows:,} "
            "rows.",
            "Compact the table: it writes the files without the deleted rows.",
            _maintain(health, "compact"),
            seconds=gain,
            bytes=health.data_bytes - health.cost_after_compact.bytes,
            files=health.position_files + health.vectors,
        )


def _file_advice(health: TableHealth, thresholds: Thresholds) -> Iterator[Advice]:
    """Advise how to have fewer files."""
    gain = _merge_seconds(health)
    if gain >= thresholds.min_gain:
        yield Advice(
            health.name,
            "small-files",
            f"{health.small_files:,} of {health.data_files:,} data files are small.",
            "Compact the table. Data files afterwards: "
            f"{health.data_files - health.files_saved:,}.",
            _maintain(health, "compact"),
            seconds=gain,
            files=health.files_saved,
        )
    gain = health.cost.seconds - health.cost_after_manifests.seconds
    if gain >= thresholds.min_gain:
        yield Advice(
            health.name,
            "manifests",
            f"{health.small_manifests:,} of {health.manifests:,} manifests are small.",
            "Merge the manifests.",
            _maintain(health, "rewrite_manifests"),
            seconds=gain,
            files=health.manifests_saved,
        )


def _leftover_advice(health: TableHealth) -> Iterator[Advice]:
    """Advise on a table that a killed run has left."""
    if (replaced := replaced_name(health.name[1])) is not None:
        yield Advice(
            health.name,
            "leftover-table",
            f"A run built it to replace {health.name[0]}.{replaced}, and was killed before it did, "
            "or still runs.",
            "Run the model again: the table gets its name, or is dropped.",
            ("builds",),
            bytes=health.data_bytes,
        )


def _storage_advice(health: TableHealth) -> Iterator[Advice]:
    """Advise what makes storage free and metadata small."""
    expirable, freed = health.expirable_snapshots, health.expirable_bytes
    if expirable >= MIN_SNAPSHOTS or (expirable and freed >= MIN_FREED_BYTES):
        yield Advice(
            health.name,
            "snapshots",
            f"{expirable:,} of {health.snapshots:,} snapshots are older than the table keeps them. "
            "Each commit writes all snapshots again into a metadata file.",
            "Expire the snapshots.",
            _maintain(health, "expire_snapshots"),
            bytes=freed,
        )
    if health.metadata_limit is None and health.metadata_version >= MIN_METADATA_FILES:
        yield Advice(
            health.name,
            "metadata-files",
            f"The current metadata file is number {health.metadata_version:,}, and commits remove "
            "none of the older ones.",
            f"Set table properties: `alter table {'.'.join(health.name)} set tblproperties "
            f"('{METADATA_DELETE}' = 'true', '{METADATA_VERSIONS}' = '20')`. The older files are "
            "orphans.",
            files=health.metadata_version,
        )


def _layout_hints(health: TableHealth) -> Iterator[Advice]:
    """Hint at layouts that queries may benefit from."""
    largest, middle = health.largest_partition_bytes, health.median_partition_bytes
    if health.partitions >= MIN_PARTITIONS and largest >= SKEWED_BYTES and largest >= SKEW * middle:
        yield Advice(
            health.name,
            "skewed-partitions",
            f"The largest of {health.partitions:,} partitions has {in_bytes(largest)}, the median "
            f"one {in_bytes(middle)}.",
            "Partition by a column with more even values, or add a `bucket` to `partition_by`.",
            urgency="hint",
        )
    if not health.is_sorted and health.data_bytes >= SORTED_BYTES:
        yield Advice(
            health.name,
            "no-sort-order",
            f"The table has {in_bytes(health.data_bytes)} and no sort order, so a filter may have "
            "to read all files of a partition.",
            "If queries filter by a column that is not of `partition_by`, set it as `sort_order`.",
            urgency="hint",
        )


def _stream_advice(health: TableHealth, thresholds: Thresholds, now: int) -> Iterator[Advice]:
    """Advise what the streams of a table need."""
    table = ".".join(health.name)
    for stream in health.streams:
        if stream.problem is not None:
            yield Advice(
                health.name,
                "stream-stopped",
                f"The stream {stream.sink_id} cannot continue. {stream.problem}",
                "Resume the stream, or run its model with --full-refresh.",
                ("resume", table),
                urgency="broken",
            )
        elif (age := _age(stream, now)) is not None and age > thresholds.max_stream_age:
            yield Advice(
                health.name,
                "stream-late",
                f"The stream {stream.sink_id} has recorded no progress for {age:,.0f} hours.",
                "Run its model. If the stream is retired, run "
                f"`iceberg-stream streams {table} forget {stream.sink_id}`.",
                ("streams", table),
                urgency="broken",
            )


def _age(stream: StreamHealth, now: int) -> float | None:
    """Return the hours since a stream's last progress; None if that is unknown."""
    last = stream.last_progress_ms
    return None if last is None else (now - last) / HOUR_MS


def _merge_seconds(health: TableHealth) -> float:
    """Return the gain of merging small files."""
    return health.files_saved * DATA_FILE_SECONDS


def _maintain(health: TableHealth, step: str) -> tuple[str, ...]:
    return ("maintain", ".".join(health.name), "--only", step)


def in_bytes(size: int) -> str:
    """Return a size as text, such as `1.5 GiB`."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
