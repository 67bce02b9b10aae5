"""Sessions that nobody has any more do not disturb the others."""

from __future__ import annotations

import gc
import weakref

import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.session import SparkSession

from dbt.adapters.iceberg_stream.engines.client import open_session


def test_the_garbage_collector_takes_a_session_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(
        ExecutePlanResponseReattachableIterator, "shutdown", lambda: ended.append(True)
    )
    session = open_session("sc://localhost:1", {})
    SparkSession._default_session = SparkSession._active_session.session = None
    session.itself = session
    gone = weakref.ref(session), weakref.ref(session.client)
    del session
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not ended
