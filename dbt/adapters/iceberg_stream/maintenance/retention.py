"""Which snapshots `expire_snapshots` would remove, by the properties of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.maintenance.properties import int_property
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id

MAX_AGE, MIN_SNAPSHOTS = (
    "history.expire.max-snapshot-age-ms",
    "history.expire.min-snapshots-to-keep",
)
MAX_REF_AGE = "history.expire.max-ref-age-ms"
# Iceberg's defaults: five days, one snapshot, and references that never expire.
DEFAULT_MAX_AGE_MS, DEFAULT_MIN_SNAPSHOTS = 5 * 24 * 60 * 60 * 1000, 1


def expirable_snapshots(metadata: Metadata, now_ms: int) -> set[int]:
    """Return the ids of the snapshots that have outlived the table's own retention.

    As Iceberg's `RemoveSnapshots`: each branch keeps its newest snapshots by number and by age, a
    tag keeps its snapshot, and other snapshots are kept by age.

    Args:
        metadata: of the table, with all snapshots.
        now_ms: the time, in milliseconds since 1970 (UTC).
    """
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    properties = metadata.get("properties") or {}
    oldest = now_ms - (int_property(properties, MAX_AGE, DEFAULT_MAX_AGE_MS) or 0)
    at_least = int_property(properties, MIN_SNAPSHOTS, None) or DEFAULT_MIN_SNAPSHOTS
    retained: set[int] = set()
    referenced: set[int] = set()
    for ref in _retained_refs(metadata, now_ms).values():
        ancestors = list(_ancestors(by_id, ref["snapshot-id"]))
        if ref.get("type", "branch").lower() == "tag":
            ancestors = ancestors[:1]
        referenced.update(ancestors)
        count = ref.get("min-snapshots-to-keep", at_least)
        age = ref.get("max-snapshot-age-ms")
        since = oldest if age is None else now_ms - age
        for place, snapshot_id in enumerate(ancestors):
            if place >= max(count, 1) and by_id[snapshot_id]["timestamp-ms"] < since:
                break
            retained.add(snapshot_id)
    for snapshot_id, snapshot in by_id.items():
        if snapshot_id not in referenced and snapshot["timestamp-ms"] >= oldest:
            retained.add(snapshot_id)
    return by_id.keys() - retained


def expired_refs(metadata: Metadata, now_ms: int) -> list[str]:
    """Return the names of the branches and tags that have outlived their own retention.

    Args:
        metadata: of the table, with all snapshots.
        now_ms: the time, in milliseconds since 1970 (UTC).
    """
    retained = _retained_refs(metadata, now_ms)
    return [name for name in metadata.get("refs") or {} if name not in retained]


def _retained_refs(metadata: Metadata, now_ms: int) -> dict[str, Mapping[str, Any]]:
    """Return branches and tags by name, without those that expire themselves."""
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    retained: dict[str, Mapping[str, Any]] = {}
    refs = dict(metadata.get("refs") or {})
    current = current_snapshot_id(metadata)
    if current is not None:
        refs.setdefault(MAIN, {"snapshot-id": current})
    default_age = int_property(metadata.get("properties") or {}, MAX_REF_AGE, None)
    for name, ref in refs.items():
        snapshot = by_id.get(ref["snapshot-id"])
        age = ref.get("max-ref-age-ms", default_age)
        expired = name != MAIN and age is not None and snapshot is not None
        if snapshot is not None and not (expired and now_ms - snapshot["timestamp-ms"] > age):
            retained[name] = ref
    return retained


def _ancestors(by_id: Mapping[int, Mapping[str, Any]], snapshot_id: int) -> Iterator[int]:
    number: int | None = snapshot_id
    seen: set[int] = set()  # damaged metadata may have a cycle
    while number is not None and number not in seen and number in by_id:
        yield number
        seen.add(number)
        number = by_id[number].get("parent-snapshot-id")


def freed_bytes(metadata: Metadata, expirable: set[int]) -> int:
    """Return about how many bytes of data and delete files the expiry of snapshots frees.

    The summary of a snapshot has the size of the files that it removed from the table. They are
    free as soon as the snapshots before it have expired, unless a tag or branch still has them.

    Args:
        metadata: of the table, with all snapshots.
        expirable: ids of the snapshots that expire.
    """
    return sum(
        int((snapshot.get("summary") or {}).get("removed-files-size") or 0)
        for snapshot in metadata.get("snapshots") or []
        if snapshot.get("parent-snapshot-id") in expirable
    )
