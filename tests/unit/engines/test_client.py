"""Sessions that nobody has any more do not disturb the others, and requests that are left out."""

from __future__ import annotations

import gc
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.proto import ReleaseExecuteRequest, ReleaseExecuteResponse
from pyspark.sql.connect.proto.base_pb2_grpc import (
    SparkConnectServiceServicer,
    add_SparkConnectServiceServicer_to_server,
)
from pyspark.sql.connect.session import SparkSession

from dbt.adapters.iceberg_stream.engines.client import open_session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint


def test_the_garbage_collector_takes_a_session_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(
        ExecutePlanResponseReattachableIterator, "shutdown", lambda: ended.append(True)
    )
    session = open_session(Endpoint("localhost", 1), str(uuid.uuid4()), {})
    SparkSession._default_session = SparkSession._active_session.session = None
    session.itself = session
    gone = weakref.ref(session), weakref.ref(session.client)
    del session
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not ended


class Recorder(SparkConnectServiceServicer):
    """A server that records which executions it may forget."""

    def __init__(self) -> None:
        self.released: list[str | None] = []

    def ReleaseExecute(self, request: ReleaseExecuteRequest, _: Any) -> ReleaseExecuteResponse:
        self.released.append(request.WhichOneof("release"))
        return ReleaseExecuteResponse()


def test_an_execution_is_released_once_when_it_is_complete() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    recorder = Recorder()
    add_SparkConnectServiceServicer_to_server(recorder, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        session = open_session(Endpoint("localhost", port), str(uuid.uuid4()), {})
        release = session.client._stub.ReleaseExecute
        until = ReleaseExecuteRequest.ReleaseUntil(response_id="1")
        release(ReleaseExecuteRequest(release_until=until), metadata=[])
        release(ReleaseExecuteRequest(release_all=ReleaseExecuteRequest.ReleaseAll()), metadata=[])
    finally:
        server.stop(None)
    assert recorder.released == ["release_all"]
