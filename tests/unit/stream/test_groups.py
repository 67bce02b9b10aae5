"""Models of a commit group meet, or learn that one of them does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.groups import Grouping, Groups
from dbt.adapters.iceberg_stream.stream.options import StreamOptions

MEMBERS = frozenset("abc")


class Run:
    """One run of dbt, which tells of nodes that end."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Any], None]] = []
        self.groups = Groups(self._listeners.append)
        self.started: list[int] = []
        self.fails = False
        self.waits = threading.Event()

    def end(self, node: str) -> None:
        data = SimpleNamespace(node_info=SimpleNamespace(unique_id=node))
        for listener in self._listeners:
            listener(SimpleNamespace(info=SimpleNamespace(name="NodeFinished"), data=data))

    def join(self, member: str, refresh: bool = False, **options: Any) -> None:
        writer = SimpleNamespace(options=StreamOptions("sink", **options))
        table: Any = SimpleNamespace(writer=writer, status=SimpleNamespace(name=member))
        polls: list[int] = []

        def poll() -> None:
            self.waits.set()
            polls.append(1)
            assert len(polls) < 10, "it waits for ever"

        def start(all: Any) -> None:
            self.started.append(len(all))
            if self.fails:
                raise StreamError("the stream has failed")

        self.groups.get("g", MEMBERS).run(member, "source", refresh, table, start, poll)


def in_thread(work: Callable[[], None]) -> tuple[threading.Thread, list[Exception]]:
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except (StreamError, AssertionError) as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_the_last_one_runs_the_stream_of_all() -> None:
    run = Run()
    waiting = [in_thread(lambda name=name: run.join(name)) for name in "ab"]  # type: ignore[misc]
    run.join("c")
    for thread, raised in waiting:
        thread.join()
        assert raised == []
    assert run.started == [3]


def test_what_ends_the_stream_ends_it_for_all() -> None:
    run = Run()
    run.fails = True
    waiting = [in_thread(lambda name=name: run.join(name)) for name in "ab"]  # type: ignore[misc]
    with pytest.raises(StreamError, match="has failed"):
        run.join("c")
    for thread, raised in waiting:
        thread.join()
        assert [str(error) for error in raised] == [str(raised[0])]
        assert "has failed" in str(raised[0])


def test_one_that_has_ended_before_another_came() -> None:
    run = Run()
    run.end("b")
    with pytest.raises(StreamError, match="b of the commit group `g` was not run"):
        run.join("a")


def test_one_that_comes_after_the_group_has_failed() -> None:
    run = Run()
    thread, raised = in_thread(lambda: run.join("a"))
    run.end("b")
    thread.join()
    assert len(raised) == 1
    run.end("a")
    with pytest.raises(StreamError, match="was not run"):
        run.join("c")


def test_what_members_must_agree_on() -> None:
    run = Run()
    thread, _ = in_thread(lambda: run.join("a", refresh=True))
    assert run.waits.wait(10)
    with pytest.raises(StreamError, match=r"a is rebuilt .* and b is not"):
        run.join("b", refresh=False)
    with pytest.raises(StreamError, match="`batch_rows` is 5 for b and 1000000 for a"):
        run.join("b", refresh=True, batch_rows=5)
    run.end("c")
    thread.join()


def grouping(selected: str = "abcdxy", **reads: list[str]) -> Grouping:
    def node(name: str, group: str | None) -> dict[str, Any]:
        config = {"materialized": "stream", "commit_group": group} if group else {}
        return {"config": config, "depends_on": {"nodes": reads.get(name, [])}}

    groups = {"a": "g", "b": "g", "c": "h", "d": "h", "x": None, "y": None}
    return Grouping.of({name: node(name, group) for name, group in groups.items()}, list(selected))


def test_a_group_that_can_be_run() -> None:
    grouping(a=["x"], b=["x", "y"], c=["a"], x=["y"]).check_runnable("g", 4)
    grouping(a=["x"], c=["a"], x=["y"]).check_runnable("h", 4)


@pytest.mark.parametrize(
    ("reads", "threads", "selected", "because"),
    [
        ({"a": ["b"]}, 4, "abcd", "must not read each other"),
        ({"a": ["x"], "x": ["y"], "y": ["b"]}, 4, "abcdxy", "y waits for the commit group `g`"),
        ({"a": ["c"], "d": ["b"]}, 4, "abcd", "d waits for the commit group `g`"),
        ({}, 3, "abcd", "run with --threads 4"),
        ({}, 4, "acd", "leaves out b"),
    ],
)
def test_one_that_cannot(
    reads: dict[str, list[str]], threads: int, selected: str, because: str
) -> None:
    with pytest.raises(StreamError, match=because):
        grouping(selected, **reads).check_runnable("g", threads)
