"""The loop of a stream, without Spark and without a table."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.sources.source import Lag
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.written import Description, WrittenBatch

BATCHES = 3


class Numbers:
    """A source of three batches, which notes what was known of its lag when it was asked."""

    def __init__(self, status: StreamStatus) -> None:
        self.status = status
        self.lags: list[Lag | None] = []

    def present(self, lower: Mapping[str, int] | None) -> dict[str, int]:
        return {"n": BATCHES}

    def mint(
        self, lower: Mapping[str, int] | None, rows: int, until: Any = None
    ) -> dict[str, int] | None:
        self.lags.append(self.status.lag)
        done = 0 if lower is None else lower["n"]
        return {"n": done + 1} if done < BATCHES else None

    def lag(self, frontier: Mapping[str, int]) -> Lag:
        return Lag(BATCHES - frontier["n"], "rows")


def test_a_busy_stream_knows_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.stream.LAG_SECONDS", 0.0)
    status = StreamStatus("m")
    source = Numbers(status)
    sink = SimpleNamespace(
        claim=lambda schema, anew: None,
        commit=lambda write_id, batches: None,
        record=lambda frontier: None,
        discard=lambda batches: None,
        progress=SimpleNamespace(frontier=None, watermark=None),
        replaces=False,
    )

    def write(session: Any, described: Description, name: str, late: bool) -> WrittenBatch:
        return WrittenBatch(described, [])

    writer: Any = SimpleNamespace(
        source=source,
        sink=sink,
        options=StreamOptions("m"),
        schema=None,
        write=write,
        looks_up=False,
        is_late=False,
    )
    session: Any = object()
    Stream(lambda: session, writer, status).drain()
    assert source.lags == [None, Lag(2, "rows"), Lag(1, "rows"), Lag(0, "rows")]
