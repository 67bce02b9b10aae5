"""The summary of dbt's events, as dbt fires them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from dbt_common.events.event_manager_client import get_event_manager

from dbt.adapters.iceberg_stream.summary import listener
from dbt.adapters.iceberg_stream.summary.changes import Changes
from dbt.adapters.iceberg_stream.summary.listener import BuildSummary
from tests.unit.tables.commit.test_table_change import outcome

FINISHED = SimpleNamespace(info=SimpleNamespace(name="FinishedRunningStats"))


def ended(
    table: str, status: str = "success", kind: str = "model", materialized: str = "table"
) -> Any:
    schema, alias = table.split(".")
    node = SimpleNamespace(
        unique_id=f"{kind}.shop.{alias}",
        resource_type=kind,
        materialized=materialized,
        node_relation=SimpleNamespace(database="Lake", schema=schema, alias=alias),
    )
    result = SimpleNamespace(status=status, execution_time=1.25)
    data = SimpleNamespace(node_info=node, run_result=result)
    return SimpleNamespace(info=SimpleNamespace(name="NodeFinished"), data=data)


class Dbt:
    """dbt's events, and what is printed."""

    def __init__(self, in_json: bool = False) -> None:
        self.changes = Changes()
        callbacks: list[Callable[[Any], None]] = []
        BuildSummary(callbacks.append, self.changes, "lake", in_json)
        (self.fire,) = callbacks
        self.lines: list[str] = []

    def finish(self, *events: Any) -> list[str]:
        self.lines.clear()
        for event in (*events, FINISHED):
            self.fire(event)
        return list(self.lines)


@pytest.fixture
def dbt() -> Iterator[Dbt]:
    yield from listening(Dbt())


@pytest.fixture
def dbt_json() -> Iterator[Dbt]:
    yield from listening(Dbt(in_json=True))


def listening(dbt: Dbt) -> Iterator[Dbt]:
    manager = get_event_manager()
    manager.callbacks.append(callback := lambda event: dbt.lines.append(event.info.msg))
    yield dbt
    manager.callbacks.remove(callback)


def test_tables(dbt: Dbt) -> None:
    dbt.changes.record(("shop", "orders"), outcome(1000, 1001, 2, 1, rows_updated=1))
    dbt.changes.record(("shop", "stream"), outcome(None, None, 7, 1))
    dbt.changes.record(("shop", "audit"), outcome(0, 1, 1, 1))
    dbt.changes.record(("dbt_test__audit", "unique"), outcome(0, 1, 1, 1))
    lines = dbt.finish(
        ended("shop.orders", materialized="incremental"),
        ended("shop.a_view", materialized="view"),
        ended("shop.stream", materialized="stream"),
        ended("shop.customers", materialized="incremental"),
        ended("shop.bad", "error"),
        ended("shop.after", "skipped"),
        ended("dbt_test__audit.unique", "fail", "test", "test"),
    )
    assert lines == [
        "",
        "table        before  after  added  updated  removed  changed   written  seconds",
        "shop.orders   1,000  1,001      2        1        1     0.2%  10 bytes      1.2",
        "shop.stream       ?      ?      7        0        0        ?  10 bytes      1.2",
        "shop.audit        0      1      1        0        0           10 bytes",
        "Unchanged: shop.customers",
        "Failed: shop.bad",
        "Skipped: shop.after",
    ]
    # The next command of the process begins at nothing.
    assert dbt.finish(ended("shop.a_view", materialized="view")) == []


def test_nothing_to_tell(dbt: Dbt) -> None:
    dbt.changes.record(("dbt_test__audit", "unique"), outcome(0, 1, 1, 1))
    assert dbt.finish(ended("dbt_test__audit.unique", "fail", "test", "test")) == []
    assert dbt.finish(ended("shop.bad", "error"), ended("shop.after", "skipped")) == []
    assert dbt.finish() == []


def test_batches_report_for_their_model(dbt: Dbt) -> None:
    dbt.changes.record(("shop", "orders"), outcome(0, 3, 3, 1))
    batches = [ended("shop.orders", "success"), ended("shop.orders", "error")]
    lines = dbt.finish(*batches, ended("shop.orders", "partial success"))
    assert [line.split()[0] for line in lines[1:]] == ["table", "shop.orders", "Failed:"]


def test_many_tables(dbt: Dbt) -> None:
    lines = dbt.finish(*(ended(f"shop.t{n}", materialized="incremental") for n in range(12)))
    assert lines[1].startswith("Unchanged: shop.t0, shop.t1, ")
    assert lines[1].endswith(", shop.t9 and 2 more")


def test_json(dbt_json: Dbt) -> None:
    dbt_json.changes.record(("shop", "orders"), outcome(3, 1, 0, 1))
    lines = dbt_json.finish(ended("shop.orders"), ended("shop.other"))
    orders, other = (json.loads(line)["build_summary"] for line in lines)
    assert orders == {
        "table": "shop.orders",
        "node": "model.shop.orders",
        "result": "changed",
        "rows_before": 3,
        "rows_after": 1,
        "rows_added": 0,
        "rows_updated": 0,
        "rows_removed": 2,
        "share_changed": 0.666667,
        "rebuilt": False,
        "bytes_written": 10,
        "commits": 1,
        "warned": False,
        "seconds": 1.25,
    }
    assert other == {
        "table": "shop.other",
        "node": "model.shop.other",
        "result": "unchanged",
        "seconds": 1.25,
    }


def test_an_error_does_not_fail_the_command(dbt: Dbt, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(listener, "as_text", fail)
    lines = dbt.finish(ended("shop.orders"))
    assert lines[-1].endswith("The build summary cannot be printed: ValueError('no')")


def test_a_renamed_table() -> None:
    changes = Changes()
    changes.record(("shop", "orders__staged"), outcome(0, 3, 3, 1))
    changes.rename(("shop", "orders__staged"), ("shop", "orders"))
    changes.rename(("shop", "unknown"), ("shop", "other"))
    assert changes.get(("shop", "orders")).rows_after == 3
    assert list(changes.take()) == [("shop", "orders")]
    assert not changes.take()


def test_a_staged_table_has_its_published_name() -> None:
    changes = Changes()
    changes.record(("shop", "orders__dbt_build_pr-42"), outcome(0, 3, 3, 1))
    changes.mark_as_warned(("shop", "orders__dbt_build_pr-42"))
    assert changes.get(("shop", "orders")).is_warned
    assert list(changes.take()) == [("shop", "orders")]
