"""Processes of tests that start without the seconds that imports take in a new Python."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

# What the processes run. One server starts all of them, so it imports all.
MODULES = [f"tests.integration.{name}" for name in ("stream_writer", "kafka_writer", "writers")]


def forkserver() -> ForkServerContext:
    """Starts processes from a server that has imported their modules."""
    context = get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
