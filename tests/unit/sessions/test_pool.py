"""Which sessions nodes share, and what a canceled command does with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.pool import SessionPool


class Session:
    def __init__(self) -> None:
        self.alive, self.closed = True, False

    def lives(self) -> bool:
        return self.alive

    def close(self) -> None:
        self.closed = True


class Handle:
    """What the pool uses of a connection's handle."""

    def __init__(self, on_close: Callable[[Any], None]) -> None:
        self.session, self.reusable, self.interrupted = Session(), True, 0
        self.views: dict[str, None] = {}
        self.close = lambda: on_close(self)

    def reopen(self) -> None: ...

    def interrupt(self) -> None:
        self.interrupted += 1


def open_pool() -> SessionPool:
    return SessionPool(Handle)  # type: ignore[arg-type]


def take(pool: SessionPool) -> Any:
    return pool.take()


def test_the_next_node_reuses_an_idle_session() -> None:
    pool = open_pool()
    first, second = take(pool), take(pool)
    assert first is not second
    first.close()
    assert take(pool) is first
    assert not first.session.closed


@pytest.mark.parametrize("change", [{"reusable": False}, {"views": {"totals": None}}])
def test_a_changed_session_is_closed_and_not_reused(change: dict[str, Any]) -> None:
    pool = open_pool()
    handle = take(pool)
    vars(handle).update(change)
    handle.close()
    assert handle.session.closed
    assert take(pool) is not handle


def test_a_session_that_the_server_has_closed_is_not_reused() -> None:
    pool = open_pool()
    handle = take(pool)
    handle.close()
    handle.session.alive = False
    assert take(pool) is not handle
    assert handle.session.closed


def test_a_canceled_command_interrupts_other_threads_and_runs_nothing_new() -> None:
    pool = open_pool()
    own, running, idle = take(pool), take(pool), take(pool)
    idle.close()
    pool.cancel_others(own)
    assert (own.interrupted, running.interrupted, idle.interrupted) == (0, 1, 0)

    errors: list[str] = []

    def start_a_node() -> None:
        with pytest.raises(StatementError) as raised:
            pool.take()
        errors.append(str(raised.value))

    thread = threading.Thread(target=start_a_node)
    thread.start()
    thread.join()
    assert errors == ["Not run: the command was canceled."]
    # The canceling thread still runs hooks, and the next command uses the pool again.
    own.close()
    assert take(pool) in (own, idle)
    pool.close()
    thread = threading.Thread(target=lambda: take(pool).close())
    thread.start()
    thread.join()


def test_closing_the_pool_closes_idle_sessions_only() -> None:
    pool = open_pool()
    idle, used = take(pool), take(pool)
    idle.close()
    pool.close()
    assert (idle.session.closed, used.session.closed) == (True, False)
