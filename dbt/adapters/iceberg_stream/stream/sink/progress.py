"""How far a stream is, kept in the table that it writes, and nowhere else.

Article on the streaming sink, "Recovery Without External State". Each commit says in its snapshot's
summary what it covers, and repeats it in a property of the table: the summary is what decides, the
property survives the expiry of snapshots and takes idle progress, which is worth no snapshot.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import MAIN
from dbt.adapters.iceberg_stream.stream.errors import (
    Fenced,
    RolledBack,
    StreamConflict,
    StreamError,
)
from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import whole_frontier
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, describe
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX, WRITE_ID

SINK_ID = f"{PREFIX}sink-id"
SINK_VERSION = f"{PREFIX}sink-version"
SINK_RUN = f"{PREFIX}sink-run"
FRONTIER = f"{PREFIX}frontier"
WATERMARK = f"{PREFIX}watermark"


@dataclass(frozen=True)
class Progress:
    """What a stream has done, after one of its commits.

    Attributes:
        sink_id: of the stream.
        version: of the run; a later run has a higher one.
        run: tells runs of one version apart.
        frontier: of the source, all before which is in the table; None before the first commit.
        write_id: of the commit; empty before the first one.
        watermark: the highest value of what orders changes, as JSON; None where nothing does.
        recorded: when, in milliseconds since the epoch, as far as the table's property tells.
        sequence_number: of the commit's snapshot; None where that is not told.
    """

    sink_id: str
    version: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    frontier: Frontier | None = None
    write_id: str = ""
    watermark: Any = None
    recorded: int = field(default=0, compare=False)
    sequence_number: int | None = field(default=None, compare=False)

    def summary(self, frontier: Frontier | None) -> dict[str, str]:
        """The same as properties of a snapshot, with as much of the frontier as it needs."""
        found = {
            SINK_ID: self.sink_id,
            SINK_VERSION: str(self.version),
            SINK_RUN: self.run,
            FRONTIER: json.dumps(frontier, separators=(",", ":")),
            WRITE_ID: self.write_id,
        }
        if self.watermark is not None:
            found[WATERMARK] = json.dumps(self.watermark)
        return found

    def as_property(self) -> SetPropertiesUpdate:
        """The same as a property of the table."""
        said = {
            "version": self.version,
            "run": self.run,
            "frontier": self.frontier,
            "write-id": self.write_id,
            "watermark": self.watermark,
            "recorded": int(time.time() * 1000),
        }
        if self.sequence_number is not None:
            said["sequence-number"] = self.sequence_number
        content = json.dumps(said, separators=(",", ":"))
        return SetPropertiesUpdate(updates={property_name(self.sink_id): content})

    def next_run(self) -> Progress:
        """The progress with which another run begins."""
        return replace(self, version=self.version + 1, run=uuid.uuid4().hex)


def property_name(sink_id: str) -> str:
    """The table property that repeats the progress of a stream."""
    return f"{PREFIX}sink.{sink_id}"


def recover(metadata: Metadata, sink_id: str) -> Progress | None:
    """How far the stream is; None if it has never written to the table.

    Raises:
        RolledBack: the table was set back behind what the stream has committed.
        StreamError: snapshots that say how far it is have expired.
    """
    noted = read_property(metadata, sink_id)
    committed = next(_committed(_ancestors(metadata), sink_id), None)
    newest = next(_committed(reversed(metadata.get("snapshots") or []), sink_id), None)
    if noted is None or committed is None:
        # Where ancestors have expired, what the stream has committed may be among them.
        whole = noted is None or _knows_all_ancestors(metadata)
        if newest is not None and committed is None and whole:
            raise _rolled_back(sink_id, None, newest)
        if noted is not None and not _may_hold(metadata, noted):
            raise _rolled_back(sink_id, None, noted)
        return noted if committed is None else committed_progress(metadata, sink_id)
    if committed.write_id == noted.write_id:
        # The property may be ahead by idle progress.
        return noted
    raise _rolled_back(sink_id, committed, noted)


def restart_progress(metadata: Metadata, sink_id: str) -> Progress:
    """The progress of a run that replaces all that the table has, rolled back or not."""
    committed = next(_committed(_ancestors(metadata), sink_id), Progress(sink_id))
    newest = next(_committed(reversed(metadata.get("snapshots") or []), sink_id), None)
    known = (committed, newest, read_property(metadata, sink_id))
    return replace(committed, version=max(one.version for one in known if one is not None))


def committed_progress(metadata: Metadata, sink_id: str) -> Progress | None:
    """The progress of a stream as the table's own snapshots have it; None if they have none.

    Raises:
        StreamError: snapshots that have a part of it have expired.
    """
    commits = list(_committed(_ancestors(metadata), sink_id))
    if not commits:
        return None
    frontier = whole_frontier((one.write_id, one.frontier or {}) for one in commits)
    if frontier is None:
        raise StreamError(
            f"How far {sink_id} has read its source is not known any more: the table was rolled "
            "back, or has lost its properties, and snapshots with names of files that were read "
            "have expired. Rebuild the table: run the model with --full-refresh."
        )
    return replace(commits[0], frontier=frontier)


def require_current_run(metadata: Metadata, ours: Progress) -> Progress:
    """Whether a run may commit what follows on its progress; asked on every attempt.

    Returns the progress as the table's property tells it.

    Raises:
        Fenced: another run has taken over.
        StreamConflict: an older run has committed meanwhile.
        RolledBack: the table was set back.
    """
    noted = read_property(metadata, ours.sink_id)
    if noted is None:
        raise RolledBack(
            f"The table does not know the stream {ours.sink_id} any more: its properties were "
            "replaced. Nothing was written; run the stream again with --full-refresh."
        )
    _require_same_run(noted, ours)
    committed = next(_committed(_ancestors(metadata), ours.sink_id), None)
    if committed is not None:
        _require_same_run(committed, ours)
    if noted.write_id != ours.write_id:
        raise StreamConflict(
            f"The run {noted.run} of the stream {ours.sink_id} has committed after this one began."
        )
    if committed is not None and committed.write_id != ours.write_id:
        raise _rolled_back(ours.sink_id, committed, ours)
    if committed is None and not _may_hold(metadata, noted):
        raise _rolled_back(ours.sink_id, None, noted)
    return noted


def read_property(metadata: Metadata, sink_id: str) -> Progress | None:
    """Progress as the table's property tells it."""
    said = (metadata.get("properties") or {}).get(property_name(sink_id))
    if said is None:
        return None
    found = json.loads(said)
    return Progress(
        sink_id,
        found["version"],
        found["run"],
        found["frontier"],
        found["write-id"],
        found["watermark"],
        found["recorded"],
        found.get("sequence-number"),
    )


def sinks(metadata: Metadata) -> list[Progress]:
    """All streams that write to a table."""
    prefix = property_name("")
    names = (metadata.get("properties") or {}).keys()
    found = (read_property(metadata, n.removeprefix(prefix)) for n in names if n.startswith(prefix))
    return [progress for progress in found if progress is not None]


def _require_same_run(other: Progress, ours: Progress) -> None:
    if other.version > ours.version or (other.version == ours.version and other.run != ours.run):
        raise Fenced(
            f"Another run of the stream {ours.sink_id} has taken over (version {other.version}, "
            f"run {other.run}; this one is version {ours.version}). This run has stopped and wrote "
            "nothing more. Only one may go on: look for the other one before you start this again."
        )


def _committed(snapshots: Iterator[Mapping[str, Any]], sink_id: str) -> Iterator[Progress]:
    """Progress told by snapshots, newest first; other writers' and compactions are passed over."""
    for snapshot in snapshots:
        said = snapshot.get("summary") or {}
        if said.get(SINK_ID) != sink_id or said.get("operation") == "replace":
            continue
        watermark = said.get(WATERMARK)
        yield Progress(
            sink_id,
            int(said[SINK_VERSION]),
            said[SINK_RUN],
            json.loads(said[FRONTIER]),
            said[WRITE_ID],
            None if watermark is None else json.loads(watermark),
            sequence_number=snapshot.get("sequence-number"),
        )


def _ancestors(metadata: Metadata) -> Iterator[Mapping[str, Any]]:
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    snapshot = parent_snapshot(metadata, MAIN)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))


def _knows_all_ancestors(metadata: Metadata) -> bool:
    """Whether there is nothing before the oldest ancestor that is there.

    That it has no parent is not enough: PyIceberg takes away the parents that it expires.
    """
    oldest: Mapping[str, Any] | None = None
    for snapshot in _ancestors(metadata):
        oldest = snapshot
    if oldest is None:
        return True
    said = oldest.get("summary") or {}
    has_replaced = said.get("operation") == "replace" or "deleted-data-files" in said
    has_all_added = said.get("added-records", "0") == said.get("total-records")
    is_first = int(oldest.get("sequence-number") or 0) <= 1
    begins = is_first or (has_all_added and not has_replaced)
    return oldest.get("parent-snapshot-id") is None and begins


def _may_hold(metadata: Metadata, noted: Progress) -> bool:
    """Whether the commit of a progress, which no ancestor is, may be among those that have expired.

    None has where the first of the table's snapshots is known, as after `create or replace`.
    Sequence numbers only grow: where an ancestor that is there has a lower one than the commit,
    those that follow it are all known, and the commit is none of them.
    """
    number = noted.sequence_number
    if number is None:
        everywhere = _committed(reversed(metadata.get("snapshots") or []), noted.sink_id)
        same = (one for one in everywhere if one.write_id == noted.write_id)
        number = next((one.sequence_number for one in same), None)
    if not noted.write_id:
        return True
    if _knows_all_ancestors(metadata):
        return False
    if number is None:
        return True
    known = [int(snapshot.get("sequence-number") or 0) for snapshot in _ancestors(metadata)]
    return bool(known) and min(known) >= number


def _rolled_back(sink_id: str, now: Progress | None, ahead: Progress) -> RolledBack:
    stands = describe(now.frontier if now is not None else None)
    return RolledBack(
        f"The table was rolled back: it stands at {stands} of the source of {sink_id}, which has "
        f"already committed up to {describe(ahead.frontier)}. To apply the changes between once "
        "more, run `iceberg-stream resume` on it; to rebuild it, run the model with --full-refresh."
    )
