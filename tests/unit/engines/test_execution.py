"""Executions go on after broken connections: every response arrives once, in order."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.connect.proto import (
    ExecutePlanRequest,
    ExecutePlanResponse,
    ReattachExecuteRequest,
    ReleaseExecuteRequest,
    ReleaseExecuteResponse,
)
from pyspark.sql.connect.proto.base_pb2_grpc import (
    SparkConnectServiceServicer,
    SparkConnectServiceStub,
    add_SparkConnectServiceServicer_to_server,
)

from dbt.adapters.iceberg_stream.engines import execution
from dbt.adapters.iceberg_stream.engines.execution import Execution

RESPONSES = 6
# How a server ends a stream of responses before the last one.
END, BREAK = "end", "break"
LOST = "lost"  # the request does not reach the server


class Server(SparkConnectServiceServicer):
    """Executes one plan, and ends streams as it is told.

    Args:
        ends: for each stream, after how many responses it ends, and how.
    """

    def __init__(self, ends: list[tuple[int, str]]) -> None:
        self._ends = iter(ends)
        self.started = 0
        self.released: list[str] = []
        self.has_released = threading.Event()
        self.forgets = False

    def ExecutePlan(
        self, request: ExecutePlanRequest, context: grpc.ServicerContext
    ) -> Iterator[ExecutePlanResponse]:
        count, how = next(self._ends, (RESPONSES, END))
        if how == LOST:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset")
        self.started += 1
        yield from self._responses(0, count, how, context)

    def ReattachExecute(
        self, request: ReattachExecuteRequest, context: grpc.ServicerContext
    ) -> Iterator[ExecutePlanResponse]:
        if not self.started or self.forgets:
            context.abort(grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.OPERATION_NOT_FOUND] …")
        count, how = next(self._ends, (RESPONSES, END))
        yield from self._responses(int(request.last_response_id or -1) + 1, count, how, context)

    def _responses(
        self, first: int, count: int, how: str, context: grpc.ServicerContext
    ) -> Iterator[ExecutePlanResponse]:
        for number in range(first, min(first + count, RESPONSES)):
            yield ExecutePlanResponse(response_id=str(number))
        if first + count >= RESPONSES:
            complete = ExecutePlanResponse.ResultComplete()
            yield ExecutePlanResponse(response_id="last", result_complete=complete)
        elif how == BREAK:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def ReleaseExecute(self, request: ReleaseExecuteRequest, _: Any) -> ReleaseExecuteResponse:
        self.released.append(request.WhichOneof("release"))
        self.has_released.set()
        return ReleaseExecuteResponse()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(execution, "LONGEST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(execution, "JITTER_SECONDS", 0.0)


def execute(servicer: Server, retries: int = 20, most: int | None = None) -> list[int]:
    """Execute on a server, and return the numbers of the first responses, by default of all."""
    server = grpc.server(ThreadPoolExecutor(4))
    add_SparkConnectServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    channel = grpc.insecure_channel(f"localhost:{port}")
    try:
        request = ExecutePlanRequest(operation_id=str(uuid.uuid4()))
        responses = Execution(SparkConnectServiceStub(channel), request, retries).responses()
        numbers = [int(next(responses).response_id) for _ in range(most or 0)]
        if most is None:
            numbers = [int(response.response_id) for response in responses]
        responses.close()
        assert servicer.has_released.wait(10)
        return numbers
    finally:
        channel.close()
        server.stop(None)


@given(st.lists(st.tuples(st.integers(0, RESPONSES), st.sampled_from([END, BREAK, LOST]))))
def test_every_response_arrives_once(ends: list[tuple[int, str]]) -> None:
    server = Server(ends)
    assert execute(server, retries=len(ends) + 1) == list(range(RESPONSES))
    assert server.started == 1


def test_the_server_may_forget_what_was_read() -> None:
    server = Server([])
    execute(server)
    assert server.released == ["release_all"]


def test_the_server_may_forget_what_is_not_read() -> None:
    server = Server([])
    assert execute(server, most=2) == [0, 1]
    assert server.released == ["release_all"]


def test_nothing_is_executed_again_after_a_response() -> None:
    server = Server([(2, BREAK)])
    server.forgets = True
    with pytest.raises(grpc.RpcError, match="OPERATION_NOT_FOUND"):
        execute(server)
    assert server.started == 1


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(grpc.RpcError, match="Connection reset"):
        execute(Server([(0, LOST)] * 9), retries=3)
