"""What one caller may take from the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.flight.limits import LimitExceeded, Limits, Slots


def test_slots() -> None:
    slots = Slots(Limits(statements=2))
    refused = pytest.raises(LimitExceeded, match="^2 statements of this caller are running")
    with slots.taken(), slots.taken(), refused, slots.taken():
        pass
    with slots.taken():
        pass


def test_size() -> None:
    limits = Limits(result_bytes=2_000_000)
    limits.require_size(2_000_000)
    with pytest.raises(LimitExceeded, match="larger than 2 MB"):
        limits.require_size(2_000_001)


def test_time() -> None:
    canceled = threading.Event()
    session: Any = SimpleNamespace(interrupt=canceled.set)
    limits = Limits(seconds=1)
    with pytest.raises(LimitExceeded, match="took longer than 1 s"), limits.time_limit(session):
        assert canceled.wait(10)
        raise StatementError("canceled")
    with pytest.raises(StatementError, match="^another"), limits.time_limit(session):
        raise StatementError("another")
