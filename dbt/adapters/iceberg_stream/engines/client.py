"""Spark's own session class, made safe for many sessions in many threads."""

from __future__ import annotations

import atexit
import os

from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession


class ClientSession(SparkSession):
    """A session that is ended by `stop` only.

    Spark's finalizer waits for threads that all sessions of the process share. The garbage
    collector may call it in one of these threads, which then waits for itself, for ever.
    """

    def __del__(self) -> None:
        """Nothing: see the class."""


def open_session(url: str, channel_options: dict[str, int]) -> SparkSession:
    """A new session on the server, which is not asked yet."""
    channel = DefaultChannelBuilder(url, list(channel_options.items()))
    session = ClientSession(connection=channel)
    # It would ask a server that may be gone, for minutes; and it keeps the client for ever.
    atexit.unregister(session.client._cleanup_ml_cache)
    # As the builder does it: users' code, and pandas on Spark, may ask for the active session.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    SparkSession._set_default_and_active_session(session)
    return session


def activate(session: SparkSession) -> None:
    """Make a session the one that users' code and pandas on Spark find in this thread."""
    # `_set_default_and_active_session` keeps the one that an earlier node has left there.
    SparkSession._active_session.session = session
