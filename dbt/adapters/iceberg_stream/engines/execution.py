"""One execution of a plan on a Spark Connect server, which survives a broken connection.

Implements Spark Connect's reattachable execution (base.proto: ExecutePlan, ReattachExecute,
ReleaseExecute): the server keeps the responses until the client releases them, and ends a stream of
responses after a while, so that the client continues with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import grpc
from pyspark.sql.connect.proto import (
    ExecutePlanRequest,
    ExecutePlanResponse,
    ReattachExecuteRequest,
    ReattachOptions,
    ReleaseExecuteRequest,
)
from pyspark.sql.connect.proto.base_pb2_grpc import SparkConnectServiceStub
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from dbt.adapters.iceberg_stream.engines import while_waiting

# Between two calls: each wait is four times as long as the one before, as in Spark's client.
FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0
WAIT_FACTOR = 4
JITTER_SECONDS = 0.5
NOT_FOUND = ("INVALID_HANDLE.OPERATION_NOT_FOUND", "INVALID_HANDLE.SESSION_NOT_FOUND")
Result = TypeVar("Result")


def retried(times: int, call: Callable[[], Result]) -> Result:
    """Call the server, and try again if it does not answer.

    Args:
        times: how often to call it again.
        call: makes the request.
    """
    retrying = Retrying(
        retry=retry_if_exception(_is_temporary),
        stop=stop_after_attempt(times + 1),
        wait=wait_exponential_jitter(
            FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, WAIT_FACTOR, JITTER_SECONDS
        ),
        reraise=True,
    )
    return retrying(call)


def send(method: Any, request: Any) -> None:
    """Send a request, and do not wait for the answer.

    Args:
        method: of the stub.
        request: the request.
    """
    with suppress(ValueError):  # the channel is closed
        # gRPC cancels a call that nobody keeps; the callback keeps this one.
        method.future(request).add_done_callback(lambda _: None)


def _is_temporary(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    return isinstance(error, grpc.RpcError) and (
        error.code() is grpc.StatusCode.UNAVAILABLE or _says(error, "INVALID_CURSOR.DISCONNECTED")
    )


def _says(error: grpc.RpcError, *conditions: str) -> bool:
    return any(condition in (error.details() or "") for condition in conditions)


class Execution:
    """An execution; its responses can be read once.

    Args:
        stub: the server.
        request: the request, with an operation id.
        retries: how often to call a server again that does not answer.
    """

    def __init__(
        self, stub: SparkConnectServiceStub, request: ExecutePlanRequest, retries: int
    ) -> None:
        option = ExecutePlanRequest.RequestOption(
            reattach_options=ReattachOptions(reattachable=True)
        )
        request.request_options.append(option)
        self._stub = stub
        self._request = request
        self._retries = retries
        self._last_response_id = ""
        self._stream: Iterator[ExecutePlanResponse] | None = stub.ExecutePlan(request)

    def responses(self) -> Generator[ExecutePlanResponse, None, None]:
        """Yield the responses.

        Raises:
            grpc.RpcError: the server reports an error, or does not answer.
        """
        try:
            while_waiting.work()
            while True:
                response = retried(self._retries, self._next)
                if response.HasField("result_complete"):
                    return
                self._last_response_id = response.response_id
                yield response
        finally:
            self._release()

    def _next(self) -> ExecutePlanResponse:
        while True:
            reattaches = self._stream is None
            if self._stream is None:
                self._stream = self._stub.ReattachExecute(self._reattach_request())
            try:
                return next(self._stream)
            except StopIteration:
                self._stream = None
            except grpc.RpcError as error:
                self._stream = None
                if not reattaches or self._last_response_id or not _says(error, *NOT_FOUND):
                    raise
                # The first request has not reached the server.
                self._stream = self._stub.ExecutePlan(self._request)

    def _reattach_request(self) -> ReattachExecuteRequest:
        request = ReattachExecuteRequest(
            session_id=self._request.session_id,
            user_context=self._request.user_context,
            operation_id=self._request.operation_id,
            client_type=self._request.client_type,
        )
        if self._request.HasField("client_observed_server_side_session_id"):
            request.client_observed_server_side_session_id = (
                self._request.client_observed_server_side_session_id
            )
        if self._last_response_id:
            request.last_response_id = self._last_response_id
        return request

    def _release(self) -> None:
        """Release the execution on the server, which otherwise releases it itself, but later."""
        request = ReleaseExecuteRequest(
            session_id=self._request.session_id,
            user_context=self._request.user_context,
            operation_id=self._request.operation_id,
            client_type=self._request.client_type,
            release_all=ReleaseExecuteRequest.ReleaseAll(),
        )
        send(self._stub.ReleaseExecute, request)
