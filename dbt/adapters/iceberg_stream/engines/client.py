"""Spark's session class, adapted to many sessions in many threads."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import grpc
from pyspark.sql.connect.client import ChannelBuilder
from pyspark.sql.connect.proto import ReleaseExecuteRequest, ReleaseExecuteResponse
from pyspark.sql.connect.session import SparkSession

from dbt.adapters.iceberg_stream.engines.channel import open_channel
from dbt.adapters.iceberg_stream.engines.settings import Endpoint


class ClientSession(SparkSession):
    """A session that only `stop` ends.

    Spark's finalizer waits for threads that all sessions of the process share. If the garbage
    collector calls it in one of these threads, the thread waits for itself forever.
    """

    def __del__(self) -> None:
        """Do nothing; see the class."""


class _Channel(ChannelBuilder):
    """Opens the channel of an endpoint; Spark's own builder knows no sockets."""

    def __init__(self, endpoint: Endpoint, session_id: str, options: dict[str, int]) -> None:
        super().__init__(params={ChannelBuilder.PARAM_SESSION_ID: session_id})
        self._endpoint = endpoint
        self._options = options

    @property
    def host(self) -> str:
        return self._endpoint.host

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - Spark's name
        return open_channel(self._endpoint, self._options)


def open_session(
    endpoint: Endpoint, session_id: str, channel_options: dict[str, int]
) -> SparkSession:
    """Open a session, without connecting to the server yet.

    Args:
        endpoint: the server.
        session_id: the session's id, a UUID.
        channel_options: options of the gRPC channel.
    """
    session = ClientSession(connection=_Channel(endpoint, session_id, channel_options))
    stub = session.client._stub
    stub.ReleaseExecute = _at_the_end_only(stub.ReleaseExecute)
    # At exit it would try for minutes to reach the server; and it keeps the client alive.
    atexit.unregister(session.client._cleanup_ml_cache)
    # Like the session builder: users' code and pandas on Spark use the active session.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    SparkSession._set_default_and_active_session(session)
    return session


def _at_the_end_only(release: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `ReleaseExecute` that sends no request while an execution still has responses.

    Spark's client sends one for each response, five for a query of one row, which costs as much
    time as the query's own request. The server drops all but the last 10 MB of the sent responses
    by itself (`spark.connect.execute.reattachable.observerRetryBufferSize`).
    """

    def call(request: ReleaseExecuteRequest, **options: Any) -> ReleaseExecuteResponse:
        if request.HasField("release_until"):
            return ReleaseExecuteResponse()
        return release(request, **options)

    return call


def activate(session: SparkSession) -> None:
    """Make a session the active one of this thread, for users' code and pandas on Spark."""
    # `_set_default_and_active_session` would not replace the session of an earlier node.
    SparkSession._active_session.session = session
