"""What a thread imports while it waits for Spark."""

from __future__ import annotations

import sys
import threading

import pytest

from dbt.adapters.iceberg_stream.engines.while_waiting import import_later, work

MODULE = "json.tool"


@pytest.fixture(autouse=True)
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def test_it_is_imported_once() -> None:
    import_later(MODULE)
    assert MODULE not in sys.modules
    work()
    del sys.modules[MODULE]
    work()
    assert MODULE not in sys.modules


def test_other_threads_do_not_import_it() -> None:
    import_later(MODULE)
    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert MODULE not in sys.modules
    work()
    assert MODULE in sys.modules
