"""The interface of engines, on this machine or elsewhere."""

from __future__ import annotations

from typing import Protocol

from dbt.adapters.iceberg_stream.engines.settings import Endpoint


class Engine(Protocol):
    """Access to one Spark Connect server. Thread-safe."""

    def prestart(self) -> None:
        """Begin to get the server ready; returns at once."""

    def endpoint(self) -> Endpoint:
        """Return the server's address, once it answers.

        Raises:
            EngineError: there is no server, and none can be started.
        """

    def release(self) -> None:
        """Report that this process no longer needs the server."""

    def abandon(self) -> None:
        """Stop the server, if no other process uses it, because a canceled statement runs on."""
