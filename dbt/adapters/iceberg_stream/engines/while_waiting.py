"""Imports that a thread does while it waits for Spark.

A merge needs PyIceberg and pandas, whose import takes as long as a small query.
"""

from __future__ import annotations

import threading
from importlib import import_module

_thread = threading.local()


def import_later(module: str) -> None:
    """Import a module when this thread waits for Spark next.

    Not in another thread: the packages have circular imports.

    Args:
        module: its full name.
    """
    _thread.module = module


def work() -> None:
    """Do what this thread has put off."""
    module, _thread.module = getattr(_thread, "module", None), None
    if module is not None:
        import_module(module)
