"""Spark's session class, adapted to many sessions in many threads."""

from __future__ import annotations

import atexit
import os

from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession


class ClientSession(SparkSession):
    """A session that only `stop` ends.

    Spark's finalizer waits for threads that all sessions of the process share. If the garbage
    collector calls it in one of these threads, the thread waits for itself forever.
    """

    def __del__(self) -> None:
        """Do nothing; see the class."""


def open_session(url: str, channel_options: dict[str, int]) -> SparkSession:
    """Open a session, without connecting to the server yet.

    Args:
        url: Spark's connection string.
        channel_options: options of the gRPC channel.
    """
    channel = DefaultChannelBuilder(url, list(channel_options.items()))
    session = ClientSession(connection=channel)
    # At exit it would try for minutes to reach the server; and it keeps the client alive.
    atexit.unregister(session.client._cleanup_ml_cache)
    # Like the session builder: users' code and pandas on Spark use the active session.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    SparkSession._set_default_and_active_session(session)
    return session


def activate(session: SparkSession) -> None:
    """Make a session the active one of this thread, for users' code and pandas on Spark."""
    # `_set_default_and_active_session` would not replace the session of an earlier node.
    SparkSession._active_session.session = session
