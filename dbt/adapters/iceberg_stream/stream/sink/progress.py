"""The progress of a stream, stored only in the table that it writes.

Article on the streaming sink, "Recovery Without External State". Each commit stores its progress in
its snapshot's summary and in a property of the table. The summary is decisive. The property
survives the expiry of snapshots, and it takes the progress of an idle stream, which commits no
snapshot.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.stream.errors import (
    Fenced,
    RolledBack,
    StreamConflict,
    StreamError,
)
from dbt.adapters.iceberg_stream.stream.key_index.highest_values import higher
from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import SINCE, whole_frontier
from dbt.adapters.iceberg_stream.stream.sink.watermark import from_json
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, describe
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX, WRITE_ID
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id

SINK_ID = f"{PREFIX}sink-id"
SINK_VERSION = f"{PREFIX}sink-version"
SINK_RUN = f"{PREFIX}sink-run"
FRONTIER = f"{PREFIX}frontier"
WATERMARK = f"{PREFIX}watermark"
# In the property of a stream whose progress was removed, instead of its progress.
FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Progress:
    """The progress of a stream after one of its commits.

    Attributes:
        sink_id: identifies the stream in the table.
        version: of the run; a later run has a higher one.
        run: id of the run, which distinguishes runs of one version.
        frontier: of the source; all changes before it are in the table. None before the first
            commit.
        write_id: of the commit; empty before the first one.
        watermark: the highest value of the first `sequence_by` column, as JSON; None without one.
        ordered_by: field id of that column; None if it is not known.
        recorded: milliseconds since the epoch when the table's property was written; 0 if the
            progress is not from the property.
        sequence_number: of the commit's snapshot; None if it is not known.
        snapshot_id: of the commit's snapshot; None if it is not known.
        must_refresh: whether a full refresh has begun that must end before the stream continues,
            because it has no progress to continue from, and the table has rows.
        may_be_staged: whether a full refresh may have left its staged table.
    """

    sink_id: str
    version: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    frontier: Frontier | None = None
    write_id: str = ""
    watermark: Any = None
    ordered_by: int | None = field(default=None, compare=False)
    recorded: int = field(default=0, compare=False)
    sequence_number: int | None = field(default=None, compare=False)
    snapshot_id: int | None = field(default=None, compare=False)
    must_refresh: bool = field(default=False, compare=False)
    may_be_staged: bool = field(default=False, compare=False)

    def summary(self, frontier: Frontier | None) -> dict[str, str]:
        """Return the progress as properties of a snapshot.

        Args:
            frontier: the part of the frontier that the summary needs, by `FrontierChain`.
        """
        properties = {
            SINK_ID: self.sink_id,
            SINK_VERSION: str(self.version),
            SINK_RUN: self.run,
            FRONTIER: json.dumps(frontier, separators=(",", ":")),
            WRITE_ID: self.write_id,
        }
        if self.watermark is not None:
            properties[WATERMARK] = json.dumps(self.watermark)
        return properties

    def as_property(self) -> SetPropertiesUpdate:
        """Return the update that stores the progress in a property of the table."""
        payload = {
            "version": self.version,
            "run": self.run,
            "frontier": self.frontier,
            "write-id": self.write_id,
            "watermark": self.watermark,
            "recorded": int(time.time() * 1000),
        }
        if self.ordered_by is not None:
            payload["ordered-by"] = self.ordered_by
        if self.sequence_number is not None:
            payload["sequence-number"] = self.sequence_number
        if self.snapshot_id is not None:
            payload["snapshot-id"] = self.snapshot_id
        if self.must_refresh:
            payload["must-refresh"] = True
        if self.may_be_staged:
            payload["may-be-staged"] = True
        content = json.dumps(payload, separators=(",", ":"))
        return SetPropertiesUpdate(updates={property_name(self.sink_id): content})

    def next_run(self) -> Progress:
        """Return the progress that the next run begins with."""
        return replace(self, version=self.version + 1, run=uuid.uuid4().hex)


def property_name(sink_id: str) -> str:
    """Return the name of the table property with the progress of a stream.

    Args:
        sink_id: of the stream.
    """
    return f"{PREFIX}sink.{sink_id}"


def recover(metadata: Metadata, sink_id: str) -> Progress | None:
    """Return the progress that a stream continues from.

    Args:
        metadata: of the table.
        sink_id: of the stream.

    Returns:
        The progress; None if the stream has never written to the table.

    Raises:
        RolledBack: the table was rolled back behind what the stream has committed.
        StreamError: snapshots that have a part of the progress have expired, or the progress was
            removed.
    """
    if forgotten_version(metadata, sink_id) is not None:
        # What its snapshots have of the progress may have expired: it would depend on luck.
        raise StreamError(
            f"The progress of the stream {sink_id} was removed by `iceberg-stream streams … "
            "forget`. To rebuild the table, run the model with --full-refresh. To let the stream "
            "write to the table as it is, run `iceberg-stream streams … add`."
        )
    recorded = read_property(metadata, sink_id)
    if recorded is not None and recorded.must_refresh:
        raise StreamError(
            f"A full refresh of the stream {sink_id} has not ended, and the table still has the "
            "rows of other runs. Run the model with --full-refresh again."
        )
    committed = next(_committed(_ancestors(metadata), sink_id), None)
    newest = next(_committed(reversed(metadata.get("snapshots") or []), sink_id), None)
    if recorded is None or committed is None:
        # If ancestors have expired, the stream's commits may be among them.
        complete = recorded is None or _has_full_history(metadata)
        if newest is not None and committed is None and complete:
            raise _rolled_back(sink_id, None, newest)
        if recorded is not None and not _may_have_expired(metadata, recorded):
            raise _rolled_back(sink_id, None, recorded)
        return recorded if committed is None else committed_progress(metadata, sink_id)
    if committed.write_id == recorded.write_id:
        if SINCE in (recorded.frontier or {}):
            return committed_progress(metadata, sink_id)
        # The property may be ahead by the progress of an idle stream.
        return recorded
    raise _rolled_back(sink_id, committed, recorded)


def restart_progress(metadata: Metadata, sink_id: str) -> Progress:
    """Return the progress that a full refresh begins with, even if the table was rolled back.

    Args:
        metadata: of the table.
        sink_id: of the stream.
    """
    commits = list(_committed(_ancestors(metadata), sink_id))
    committed = commits[0] if commits else Progress(sink_id)
    recorded = read_property(metadata, sink_id)
    newest = next(_committed(reversed(metadata.get("snapshots") or []), sink_id), None)
    # Until the refresh commits, the table keeps its rows, and their progress must stay whole.
    if recorded is not None and recorded.write_id == committed.write_id:
        frontier = recorded.frontier
    else:
        # If a part has expired, the frontier stays marked as incomplete, which `recover` refuses.
        frontier = _whole_frontier(commits) or committed.frontier
    version = max(one.version for one in (committed, newest, recorded) if one is not None)
    version = max(version, forgotten_version(metadata, sink_id) or 0)
    return replace(committed, frontier=frontier, version=version)


def committed_progress(metadata: Metadata, sink_id: str) -> Progress | None:
    """Return the progress of a stream's last commit among the ancestors of the current snapshot.

    Args:
        metadata: of the table.
        sink_id: of the stream.

    Returns:
        The progress; None if no ancestor is a commit of the stream.

    Raises:
        StreamError: snapshots that have a part of the frontier have expired.
    """
    commits = list(_committed(_ancestors(metadata), sink_id))
    if not commits:
        return None
    frontier = _whole_frontier(commits)
    if frontier is None and commits[0].frontier is not None:
        raise StreamError(
            f"The progress of {sink_id} in its source cannot be restored: the table was rolled "
            "back, or has lost its properties, and snapshots with names of files that were read "
            "have expired. Rebuild the table: run the model with --full-refresh."
        )
    return replace(commits[0], frontier=frontier)


def _whole_frontier(commits: Sequence[Progress]) -> Frontier | None:
    """Restore the frontier of the first of the commits; None if it has none, or a part expired."""
    if not commits or commits[0].frontier is None:
        return None
    return whole_frontier((one.write_id, one.frontier or {}) for one in commits)


def require_current_run(metadata: Metadata, ours: Progress) -> Progress:
    """Check, at each attempt to commit, that a run may commit on top of its progress.

    Args:
        metadata: of the table.
        ours: the run's progress.

    Returns:
        The progress in the table's property.

    Raises:
        Fenced: another run has taken over.
        StreamConflict: an older run has committed since this one began.
        RolledBack: the table was rolled back, or has lost its properties.
    """
    recorded = read_property(metadata, ours.sink_id)
    if recorded is None:
        raise RolledBack(
            f"The table has no progress of the stream {ours.sink_id} any more: its properties were "
            "replaced. Nothing was written. Run the stream again with --full-refresh."
        )
    _require_same_run(recorded, ours)
    committed = next(_committed(_ancestors(metadata), ours.sink_id), None)
    if committed is not None:
        _require_same_run(committed, ours)
    if recorded.write_id != ours.write_id:
        raise StreamConflict(
            f"The run {recorded.run} of the stream {ours.sink_id} committed after this one began."
        )
    if committed is not None and committed.write_id != ours.write_id:
        raise _rolled_back(ours.sink_id, committed, ours)
    if committed is None and not _may_have_expired(metadata, recorded):
        raise _rolled_back(ours.sink_id, None, recorded)
    return recorded


def read_property(metadata: Metadata, sink_id: str) -> Progress | None:
    """Return the progress in the table's property; None if the table has none.

    Args:
        metadata: of the table.
        sink_id: of the stream.
    """
    payload = _property_payload(metadata, sink_id)
    if payload is None or FORGOTTEN in payload:
        return None
    return Progress(
        sink_id,
        payload["version"],
        payload["run"],
        payload["frontier"],
        payload["write-id"],
        payload["watermark"],
        payload.get("ordered-by"),
        payload["recorded"],
        payload.get("sequence-number"),
        payload.get("snapshot-id"),
        payload.get("must-refresh", False),
        payload.get("may-be-staged", False),
    )


def forgotten_version(metadata: Metadata, sink_id: str) -> int | None:
    """Return the version of the last run of a stream whose progress was removed.

    Args:
        metadata: of the table.
        sink_id: of the stream.

    Returns:
        The version; None if the progress was not removed.
    """
    payload = _property_payload(metadata, sink_id)
    return None if payload is None or FORGOTTEN not in payload else int(payload["version"])


def _property_payload(metadata: Metadata, sink_id: str) -> dict[str, Any] | None:
    content = (metadata.get("properties") or {}).get(property_name(sink_id))
    return None if content is None else json.loads(content)


def recorded_ids(metadata: Metadata) -> list[str]:
    """Return the ids of the streams that a table's properties name, also of forgotten ones.

    Args:
        metadata: of the table.
    """
    prefix = property_name("")
    names = (metadata.get("properties") or {}).keys()
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def sinks(metadata: Metadata) -> list[Progress]:
    """Return the progress of all streams that write to a table, from its properties.

    Args:
        metadata: of the table.
    """
    all_progress = (read_property(metadata, sink_id) for sink_id in recorded_ids(metadata))
    return [progress for progress in all_progress if progress is not None]


def watermark_of_others(
    metadata: Metadata, column: pa.Field, sink_ids: Collection[str]
) -> pa.Scalar:
    """Return the highest watermark of other streams of a table, forgotten ones included.

    Args:
        metadata: of the table.
        column: that orders changes, with its id. Streams that are ordered by another one are left
            out; where the column is not known, those whose watermarks have another type.
        sink_ids: of the streams.

    Returns:
        The watermark; null if there is none.
    """
    highest = pa.scalar(None, column.type)
    for payload in filter(None, (_property_payload(metadata, one) for one in sink_ids)):
        if payload.get("ordered-by") in (field_id(column), None):
            with suppress(pa.ArrowException, TypeError, OverflowError):
                value = from_json(payload.get("watermark"))
                highest = higher(highest, pa.scalar(value, column.type))
    return highest


def _require_same_run(other: Progress, ours: Progress) -> None:
    if other.version > ours.version or (other.version == ours.version and other.run != ours.run):
        raise Fenced(
            f"Another run of the stream {ours.sink_id} has taken over (version {other.version}, "
            f"run {other.run}; this one is version {ours.version}). This run has stopped and wrote "
            "nothing more. Only one run can continue: stop the other one before you restart this."
        )


def committed_ms(metadata: Metadata, sink_id: str) -> int | None:
    """Return the time of a stream's last commit among the ancestors of the current snapshot.

    Args:
        metadata: of the table.
        sink_id: of the stream.

    Returns:
        Milliseconds since the epoch; None if no ancestor is a commit of the stream.
    """
    commits = (one for one in _ancestors(metadata) if _is_commit(one, sink_id))
    return next((int(one["timestamp-ms"]) for one in commits), None)


def _is_commit(snapshot: Mapping[str, Any], sink_id: str) -> bool:
    """Return whether a stream has made a snapshot, not a compaction, which copies summaries."""
    summary = snapshot.get("summary") or {}
    return summary.get(SINK_ID) == sink_id and summary.get("operation") != "replace"


def _committed(snapshots: Iterator[Mapping[str, Any]], sink_id: str) -> Iterator[Progress]:
    """Yield the progress in a stream's snapshots, in their order."""
    for snapshot in snapshots:
        if not _is_commit(snapshot, sink_id):
            continue
        summary = snapshot["summary"]
        watermark = summary.get(WATERMARK)
        yield Progress(
            sink_id,
            int(summary[SINK_VERSION]),
            summary[SINK_RUN],
            json.loads(summary[FRONTIER]),
            summary[WRITE_ID],
            None if watermark is None else json.loads(watermark),
            sequence_number=snapshot.get("sequence-number"),
        )


def _ancestors(metadata: Metadata) -> Iterator[Mapping[str, Any]]:
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    snapshot = parent_snapshot(metadata, MAIN)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))


def _has_full_history(metadata: Metadata) -> bool:
    """Return whether the oldest ancestor that has not expired is the table's first snapshot.

    That it has no parent is not enough: PyIceberg removes parents that it expires.
    """
    oldest: Mapping[str, Any] | None = None
    for snapshot in _ancestors(metadata):
        oldest = snapshot
    if oldest is None:
        return True
    summary = oldest.get("summary") or {}
    has_replaced = summary.get("operation") == "replace" or "deleted-data-files" in summary
    has_all_added = summary.get("added-records", "0") == summary.get("total-records")
    is_first = int(oldest.get("sequence-number") or 0) <= 1
    begins = is_first or (has_all_added and not has_replaced)
    return oldest.get("parent-snapshot-id") is None and begins


def _may_have_expired(metadata: Metadata, recorded: Progress) -> bool:
    """Return whether the commit of a progress, which is no ancestor, may be an expired ancestor.

    It cannot if the table's first snapshot is known, as after `create or replace`. Sequence numbers
    only grow: if an ancestor has a lower one than the commit, all ancestors after it are known, and
    the commit is none of them. If the oldest known ancestor has the next number, its parent is the
    commit, or another snapshot that the table was rolled back to.
    """
    number = recorded.sequence_number
    if number is None:
        commits = _committed(reversed(metadata.get("snapshots") or []), recorded.sink_id)
        same = (commit for commit in commits if commit.write_id == recorded.write_id)
        number = next((commit.sequence_number for commit in same), None)
    if not recorded.write_id:
        return True
    if _has_full_history(metadata):
        return False
    if number is None:
        return True
    ancestors = [*_ancestors(metadata)]
    if not ancestors:
        return False
    first = int(ancestors[-1].get("sequence-number") or 0)
    if first == number + 1 and recorded.snapshot_id is not None:
        # PyIceberg removes parents that it expires.
        return ancestors[-1].get("parent-snapshot-id") in (None, recorded.snapshot_id)
    return first >= number


def _rolled_back(sink_id: str, now: Progress | None, ahead: Progress) -> RolledBack:
    position = describe(now.frontier if now is not None else None)
    return RolledBack(
        f"The table was rolled back: it stands at {position} of the source of {sink_id}, which "
        f"already committed up to {describe(ahead.frontier)}. To apply the changes between them "
        "again, run `iceberg-stream resume` on the table; to rebuild it, run the model with "
        "--full-refresh."
    )
