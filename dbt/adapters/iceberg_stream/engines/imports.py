"""Import Spark Connect's messages and Spark's client, each only when it is needed."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

# The packages around Spark Connect's messages.
PACKAGES = ("pyspark", "pyspark.sql", "pyspark.sql.connect")

# Spark's modules have circular imports, so one thread imports them.
_importing = threading.Lock()


def load_messages() -> None:
    """Import Spark Connect's messages without the packages around them.

    These import NumPy and Spark's classic client, which takes twice as long as the messages.

    Raises:
        ImportError: PySpark is not installed.
    """
    with _importing:
        if PACKAGES[0] in sys.modules or (spec := find_spec(PACKAGES[0])) is None:
            import pyspark.sql.connect.proto  # noqa: F401

            return
        for name in PACKAGES:
            package = ModuleType(name)
            folders = spec.submodule_search_locations or ()
            package.__path__ = [str(Path(folder, *name.split(".")[1:])) for folder in folders]
            sys.modules[name] = package
        try:
            import pyspark.sql.connect.proto  # noqa: F401
        finally:
            for name in PACKAGES:
                del sys.modules[name]


def load_pyspark() -> None:
    """Import Spark's client."""
    with _importing:
        import pyspark.sql.connect.proto
        import pyspark.sql.connect.session

        # It is no attribute of its package yet if `load_messages` has imported it.
        pyspark.sql.connect.proto = sys.modules["pyspark.sql.connect.proto"]
