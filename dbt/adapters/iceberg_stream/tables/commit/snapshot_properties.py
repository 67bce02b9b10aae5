"""What every snapshot of ours says about the write that made it."""

from __future__ import annotations

import uuid

from dbt_common.events.contextvars import get_node_info
from dbt_common.invocation import get_invocation_id

from dbt.adapters.iceberg_stream.__version__ import version

PREFIX = "iceberg-stream."
WRITE_ID = f"{PREFIX}write-id"
# Iceberg copies session settings with this prefix into the summaries of snapshots.
SPARK_PREFIX = "spark.sql.iceberg.snapshot-property."


def new_write_id() -> str:
    return uuid.uuid4().hex


def stamps(write_id: str, principal: str = "") -> dict[str, str]:
    """Snapshot summary properties of one write, by the dbt node that runs in this thread."""
    node = get_node_info()
    who = {f"{PREFIX}principal": principal} if principal else {}
    return who | {
        WRITE_ID: write_id,
        f"{PREFIX}invocation-id": get_invocation_id(),
        f"{PREFIX}node-id": str(node.get("unique_id") or ""),
        f"{PREFIX}model": str(node.get("node_name") or ""),
        f"{PREFIX}adapter-version": version,
    }


def spark_settings(properties: dict[str, str]) -> dict[str, str]:
    """The same as settings of a Spark session."""
    return {f"{SPARK_PREFIX}{key}": value for key, value in properties.items()}
