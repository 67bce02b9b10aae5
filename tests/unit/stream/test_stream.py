"""The loop of a stream, without Spark and without a table."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.sink import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Lag
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream

BATCHES = 3


class Numbers:
    """A source of three batches, which notes what was known of its lag when it was asked."""

    def __init__(self, status: StreamStatus) -> None:
        self.status = status
        self.lags: list[Lag | None] = []

    def mint(self, lower: Mapping[str, int] | None, rows: int) -> dict[str, int] | None:
        self.lags.append(self.status.lag)
        done = 0 if lower is None else lower["n"]
        return {"n": done + 1} if done < BATCHES else None

    def lag(self, frontier: Mapping[str, int]) -> Lag:
        return Lag(BATCHES - frontier["n"], "rows")


class Dry(Stream):
    """Writes nothing."""

    def _write(self, pool: Any, upper: Any) -> WrittenBatch:
        return WrittenBatch(upper, [], None)


def test_a_busy_stream_knows_its_lag(monkeypatch: Any) -> None:
    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.stream.LAG_SECONDS", 0.0)
    status = StreamStatus("m")
    source = Numbers(status)
    sink: Any = SimpleNamespace(
        claim=lambda schema: None,
        commit=lambda write_id, batches: None,
        record=lambda frontier: None,
        progress=SimpleNamespace(frontier=None, watermark=None),
        replaces=False,
    )
    query: Any = SimpleNamespace(looks_up=False)
    unused: Any = None
    Dry(
        unused,
        source,
        query,
        sink,
        StreamOptions("m"),
        unused,
        status,
        unused,
        unused,  # type: ignore[arg-type]
    ).drain()
    assert source.lags == [None, Lag(2, "rows"), Lag(1, "rows"), Lag(0, "rows")]
