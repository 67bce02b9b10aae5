"""What Spark's users do with a stream: a MERGE for each batch.

In a stream `foreachBatch` would call this. Over Spark Connect its worker of Python is not reliable
on a busy machine, so that the batches are merged one by one here, without a stream's own costs.
"""

from __future__ import annotations

import time
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.session import Session

from .rig import DDL

MERGE_ON_READ, COPY_ON_WRITE = "merge-on-read", "copy-on-write"
PEERS = {
    MERGE_ON_READ: "a MERGE a batch, merge-on-read",
    COPY_ON_WRITE: "a MERGE a batch, copy-on-write",
}


def properties(mode: str) -> dict[str, str]:
    """Of a table whose merges are of this mode."""
    return {f"write.{command}.mode": mode for command in ("merge", "update", "delete")}


def merge_files(session: Session, table: str, files: list[Path]) -> float:
    """Seconds to merge files, whose ids differ within a file, one after the other."""
    begin = time.perf_counter()
    for file in files:
        rows = session.spark.read.schema(DDL).parquet(f"file://{file}")
        rows.createOrReplaceTempView("batch")
        session.run(
            f"merge into {table} t using batch b on t.id = b.id "
            "when matched then update set * when not matched then insert *"
        )
    return time.perf_counter() - begin
