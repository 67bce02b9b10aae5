"""Finds the two versions that are compared: snapshots, tags, branches, times, other tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, keeps_rows, previous_snapshot_id
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT, LoadedTable
from dbt.adapters.iceberg_stream.diff.errors import DiffError, Expired
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, parent_snapshot
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import INVOCATION_ID

Snapshot = Mapping[str, Any]
# Between a table's name and a snapshot, tag, branch or time.
AT = "@"
# Tags and branches that a message lists.
LISTED = 10
# Property of snapshots that a stream commits.
FRONTIER = "iceberg-stream.frontier"


@dataclass(frozen=True)
class TableVersion:
    """A table at one of its snapshots, with the schema that readers of it see.

    Attributes:
        table: the table; its metadata say that this version is the current one.
        snapshot: from the table's metadata; None if the table had no rows yet.
        ref: the branch or tag that the user or the default names; empty for an id or a time.
    """

    table: LoadedTable
    snapshot: Snapshot | None
    ref: str = ""

    @property
    def schema(self) -> Schema:
        """The schema that readers of this version see."""
        return current_schema(self.table.metadata)

    @property
    def name(self) -> str:
        """The table's name with its namespace."""
        return ".".join(self.table.name)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot's id; None if the table had no rows yet."""
        return None if self.snapshot is None else int(self.snapshot["snapshot-id"])

    @property
    def time(self) -> datetime | None:
        """When the snapshot was committed (UTC); None if the table had no rows yet."""
        if self.snapshot is None:
            return None
        return datetime.fromtimestamp(self.snapshot["timestamp-ms"] / 1000, timezone.utc)

    @property
    def label(self) -> str:
        """The version for messages: table, snapshot and reference."""
        if self.snapshot is None:
            return f"{self.name} before its first snapshot"
        ref = f" ({self.ref})" if self.ref else ""
        return f"{self.name} at snapshot {self.snapshot_id}{ref}"

    def is_same_table(self, other: TableVersion) -> bool:
        """Return whether another version is of the same table, whose field ids it shares."""
        uuid = self.table.metadata.get("table-uuid")
        return uuid is not None and uuid == other.table.metadata.get("table-uuid")


def find_versions(
    catalog: IcebergCatalog, name: Name, before: str | None = None, after: str | None = None
) -> tuple[TableVersion, TableVersion]:
    """Return the two versions to compare.

    A version is a snapshot id, a tag, a branch, an ISO 8601 time, another table (`schema.name`), or
    one of these of another table (`schema.name@tag`).

    Args:
        catalog: the profile's catalog.
        name: the table.
        before: the older version; by default the snapshot before `after`.
        after: the newer version; by default the current one.

    Raises:
        DiffError: there is no such table or version.
    """
    table = load_table(catalog, name)
    new = _at(table, parent_snapshot(table.metadata, MAIN), MAIN)
    if after is not None:
        new = _find(catalog, table, after)
    old = _before(new) if before is None else _find(catalog, table, before)
    return old, new


def find_version(catalog: IcebergCatalog, name: Name, text: str | None = None) -> TableVersion:
    """Return one version of a table.

    Args:
        catalog: the profile's catalog.
        name: the table.
        text: what `find_versions` takes; None for the current version.

    Raises:
        DiffError: there is no such table or version.
    """
    table = load_table(catalog, name)
    if text is None:
        return _at(table, parent_snapshot(table.metadata, MAIN), MAIN)
    return _find(catalog, table, text)


def find_before_last_run(version: TableVersion) -> TableVersion:
    """Return the version before the run of dbt that last changed the rows of a version.

    The commits of a run have the same invocation id, and a commit by another program is a run of
    its own. Snapshots that change no row are left out, such as compactions.

    Args:
        version: the later version.

    Returns:
        The earlier one; the table before its first snapshot if there was no earlier run.

    Raises:
        Expired: the earlier version has expired.
    """
    table, snapshot, last_run = version.table, version.snapshot, None
    while snapshot is not None:
        if not keeps_rows(snapshot):
            run = (snapshot.get("summary") or {}).get(INVOCATION_ID) or snapshot["snapshot-id"]
            if last_run not in (None, run):
                return _at(table, snapshot)
            last_run = run
        previous_id = previous_snapshot_id(table.metadata, snapshot)
        previous = None if previous_id is None else _snapshot(table, previous_id)
        if previous is None and (previous_id is not None or not _is_first(snapshot)):
            raise Expired(
                f"Older snapshots of {version.name} have expired, so the version before its last "
                "run is unknown."
            )
        snapshot = previous
    return _at(table, None)


def load_table(catalog: IcebergCatalog, name: Name) -> LoadedTable:
    """Load a table with all its snapshots.

    Args:
        catalog: the profile's catalog.
        name: the table.

    Raises:
        DiffError: there is no such table, or it is a view.
    """
    table = catalog.load(name)
    if table is not None:
        return table
    if dict(catalog.relations(name[0])).get(name[1]) == "view":
        raise DiffError(f"{'.'.join(name)} is a view, which has no snapshots. Give a table.")
    raise DiffError(
        f"There is no table {'.'.join(name)} in the catalog `{catalog.name}`. Check the name "
        "(schema.name), and `--target`, which selects the profile's catalog."
    )


def _find(catalog: IcebergCatalog, table: LoadedTable, text: str) -> TableVersion:
    if (version := version_of(table, text)) is not None:
        return version
    other, at, part = text.rpartition(AT)
    if not at:
        other, part = text, ""
    if other.count(".") == 1:
        namespace, identifier = other.split(".")
        table = load_table(catalog, (namespace, identifier))
        if not part:
            return _at(table, parent_snapshot(table.metadata, MAIN), MAIN)
        if (version := version_of(table, part)) is not None:
            return version
        text = part
    raise DiffError(unknown_version(table, text))


def version_of(table: LoadedTable, text: str) -> TableVersion | None:
    """Return the version that a reference, an id or a time names; None if it is none of them.

    Args:
        table: the table, with all its snapshots.
        text: the reference, id or time.

    Raises:
        DiffError: the table has no snapshot at this time.
    """
    metadata = table.metadata
    refs = metadata.get("refs") or {}
    if text == MAIN or text in refs:
        return _at(table, parent_snapshot(metadata, text), text)
    if text.isdecimal():
        snapshot = _snapshot(table, int(text))
        return None if snapshot is None else _at(table, snapshot)
    time = parse_time(text)
    return None if time is None else version_at(table, time)


def parse_time(text: str) -> datetime | None:
    """Return the time of a text in ISO 8601, in UTC without a time zone; None if it is none.

    Args:
        text: the text.
    """
    try:
        time = datetime.fromisoformat(
            text.removesuffix("Z") + ("+00:00" if text[-1:] == "Z" else "")
        )
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def version_at(table: LoadedTable, moment: datetime) -> TableVersion:
    """Return the version that was current at a time.

    Args:
        table: the table, with all its snapshots.
        moment: the time, with a time zone.

    Raises:
        DiffError: the table had no snapshot then, or it has expired.
    """
    entries = _log(table)
    earlier = [e for e in entries if e["timestamp-ms"] <= moment.timestamp() * 1000]
    if earlier:
        number = int(earlier[-1]["snapshot-id"])
        if (snapshot := _snapshot(table, number)) is not None:
            return _at(table, snapshot)
        raise DiffError(f"The snapshot {number} of {'.'.join(table.name)} has expired.")
    oldest = f" Its history begins at {_time(entries[0])}." if entries else ""
    raise DiffError(
        f"{'.'.join(table.name)} has no snapshot at {moment.isoformat()}: it did not exist yet, or "
        f"its snapshots have expired.{oldest}"
    )


def _before(version: TableVersion) -> TableVersion:
    """Return the version before another one, by default the table before its first snapshot."""
    table, snapshot = version.table, version.snapshot
    if snapshot is None:
        return version
    parent_id = previous_snapshot_id(table.metadata, snapshot)
    if parent_id is None:
        return _at(table, None)
    parent = _snapshot(table, parent_id)
    if parent is None:
        raise DiffError(
            f"The snapshot {parent_id}, the one before {version.label}, has expired. Give an older "
            "version that still exists with `--from`."
        )
    return _at(table, parent)


def _at(table: LoadedTable, snapshot: Snapshot | None, ref: str = "") -> TableVersion:
    """Return a version; a tag, an id or a time has the schema of its snapshot."""
    metadata = table.metadata
    schema_id = metadata["current-schema-id"]
    is_branch = ref and ((metadata.get("refs") or {}).get(ref) or {}).get("type") != "tag"
    if snapshot is not None and not is_branch:
        schema_ids = {schema["schema-id"] for schema in metadata["schemas"]}
        own = snapshot.get("schema-id")
        schema_id = own if own in schema_ids else schema_id
    number = NO_SNAPSHOT if snapshot is None else snapshot["snapshot-id"]
    refs = {} if snapshot is None else {MAIN: {"type": "branch", "snapshot-id": number}}
    versioned = {"refs": refs, "current-snapshot-id": number, "current-schema-id": schema_id}
    return TableVersion(replace(table, metadata={**metadata, **versioned}), snapshot, ref)


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot without a previous one is the first of its table.

    The history of a replaced table begins with the new snapshot once the older ones have expired,
    but its sequence numbers go on. A stream's first commit has the number of its last batch.
    """
    number = snapshot.get("sequence-number") or 0
    return number <= 1 or FRONTIER in (snapshot.get("summary") or {})


def _log(table: LoadedTable) -> list[Snapshot]:
    return list(table.metadata.get("snapshot-log") or [])


def _snapshot(table: LoadedTable, number: int) -> Snapshot | None:
    snapshots = table.metadata.get("snapshots") or []
    return next((s for s in snapshots if s["snapshot-id"] == number), None)


def _time(entry: Snapshot) -> str:
    moment = datetime.fromtimestamp(entry["timestamp-ms"] / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def unknown_version(table: LoadedTable, text: str) -> str:
    """Return why a text names no version of a table.

    Args:
        table: the table, with all its snapshots.
        text: what `version_of` does not understand.
    """
    name, metadata = ".".join(table.name), table.metadata
    if text.isdecimal():
        numbers = [str(s["snapshot-id"]) for s in metadata.get("snapshots") or []]
        newest = f" Its newest snapshots are {', '.join(numbers[-3:])}." if numbers else ""
        return f"{name} has no snapshot {text}: it has expired, or the id is wrong.{newest}"
    refs = sorted(metadata.get("refs") or {})
    listed = f" It has the tags and branches {', '.join(refs[:LISTED])}." if refs else ""
    return (
        f"`{text}` is not a version of {name}. Give a snapshot id, a tag, a branch, a time such as "
        f"2026-01-31T12:00, or another table as schema.name.{listed}"
    )
