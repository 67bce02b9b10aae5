"""From a stream model to its tables, without Spark."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from dbt.adapters.iceberg_stream.materializations.stream_model import StreamModel

StreamModel(None, "", {}, None)
assert "pyspark.sql.connect.session" in sys.modules
"""


def test_pyspark_is_imported_by_one_thread() -> None:
    """Two that import parts of it would wait for each other."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
