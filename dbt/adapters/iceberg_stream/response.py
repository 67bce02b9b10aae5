from __future__ import annotations

from dataclasses import dataclass

from dbt.adapters.contracts.connection import AdapterResponse


@dataclass
class IcebergStreamResponse(AdapterResponse):
    """What a statement did; the numbers come from the snapshot it committed."""

    snapshot_id: int | None = None
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    files_added: int | None = None
    files_removed: int | None = None
    bytes_written: int | None = None
    relation: str | None = None
    merge_engine: str | None = None
    merge_engine_reason: str | None = None
    from_cache: bool | None = None
