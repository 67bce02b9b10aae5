"""What one caller may take from the others."""

from __future__ import annotations

import threading
import time
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
    slots = Slots(Limits(statements=1))
    with (
        pytest.raises(LimitExceeded, match="took longer than 1 s"),
        slots.taken() as release,
        limits.time_limit(session, release),
    ):
        assert canceled.wait(10)
        with slots.taken():
            pass  # a client that reads no more does not keep its slot
        raise StatementError("canceled")
    with slots.taken():
        pass
    refused = pytest.raises(StatementError, match="^another")
    with refused, limits.time_limit(session, release):
        raise StatementError("another")


def test_a_late_cancellation_does_not_meet_the_next_statement() -> None:
    ended, met = threading.Event(), []

    def interrupt() -> None:
        time.sleep(0.3)
        met.append(ended.is_set())

    session: Any = SimpleNamespace(interrupt=interrupt)
    with Limits(seconds=1).time_limit(session, lambda: None):
        time.sleep(1.1)
    ended.set()
    assert met == [False]


def test_a_client_that_is_gone() -> None:
    """The request to cancel is repeated until the statement ends: Spark may swallow one."""
    requests, gone = threading.Semaphore(0), threading.Event()
    session: Any = SimpleNamespace(interrupt=requests.release)
    refused = pytest.raises(StatementError, match="^canceled")
    with refused, Limits().time_limit(session, lambda: None, gone.is_set):
        assert not requests.acquire(timeout=1)
        gone.set()
        assert requests.acquire(timeout=10) and requests.acquire(timeout=10)
        raise StatementError("canceled")
