"""Properties in the summary of every snapshot that the adapter commits."""

from __future__ import annotations

import uuid

from dbt_common.events.contextvars import get_node_info
from dbt_common.invocation import get_invocation_id

from dbt.adapters.iceberg_stream.__version__ import version

PREFIX = "iceberg-stream."
WRITE_ID = f"{PREFIX}write-id"
INVOCATION_ID = f"{PREFIX}invocation-id"
PRINCIPAL = f"{PREFIX}principal"
# Whether the rows were computed from the table as it was before.
READS_TARGET = f"{PREFIX}reads-target"
# Iceberg copies session settings with this prefix into the summaries of snapshots.
SPARK_PREFIX = "spark.sql.iceberg.snapshot-property."


def new_write_id() -> str:
    """Return a unique id for a write."""
    return uuid.uuid4().hex


def snapshot_properties(write_id: str, principal: str = "") -> dict[str, str]:
    """Return the snapshot properties of one write by the dbt node that runs in this thread.

    Args:
        write_id: id of the write; see `new_write_id`.
        principal: name of the catalog's user; empty if unknown.
    """
    node = get_node_info()
    user = {PRINCIPAL: principal} if principal else {}
    return user | {
        WRITE_ID: write_id,
        INVOCATION_ID: get_invocation_id(),
        f"{PREFIX}node-id": str(node.get("unique_id") or ""),
        f"{PREFIX}model": str(node.get("node_name") or ""),
        f"{PREFIX}adapter-version": version,
    }


def spark_settings(properties: dict[str, str]) -> dict[str, str]:
    """Return snapshot properties as settings of a Spark session."""
    return {f"{SPARK_PREFIX}{key}": value for key, value in properties.items()}
