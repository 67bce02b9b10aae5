"""What the surface asks of an engine, wherever it runs."""

from __future__ import annotations

from typing import Protocol

from dbt.adapters.iceberg_stream.engines.settings import Endpoint


class Engine(Protocol):
    """Access to one Spark Connect server. Thread-safe."""

    def prestart(self) -> None:
        """Begin to get the server ready; returns at once."""

    def endpoint(self) -> Endpoint:
        """The server's address, once it answers.

        Raises:
            EngineError: there is no server to be had.
        """

    def release(self) -> None:
        """This process needs the server no longer."""

    def abandon(self) -> None:
        """A statement goes on although it was canceled: end it with the server, if it is ours."""
