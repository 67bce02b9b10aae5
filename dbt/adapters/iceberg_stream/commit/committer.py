"""The commit: build, swap, and what to do when somebody else was faster or the answer is lost.

Article on the write contract, "Conflict Resolution": what is committed anew is metadata only, as
long as what the change relies on still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_int
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict, CommitUnknown
from dbt.adapters.iceberg_stream.catalog.lake import Lake, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, SnapshotSummary, snapshots
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.commit.change import Change
from dbt.adapters.iceberg_stream.commit.manifests import read_manifest_list, read_manifests
from dbt.adapters.iceberg_stream.commit.producer import (
    MissingFiles,
    SnapshotProducer,
    current_schema,
    parent_snapshot,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.commit.validation import ChangedMeanwhile, validate

# Iceberg's own default of 4 is for few writers; an attempt costs milliseconds here.
ATTEMPTS = 30
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
TOTAL_SECONDS = 1800


@dataclass(frozen=True)
class Committed:
    """A snapshot that is in the table, and how many attempts it took."""

    snapshot: SnapshotSummary
    attempts: int


@dataclass
class Committer:
    """Commits one change to one table.

    Attributes:
        lake: the catalog, as the user who writes.
        name: the table's.
        change: what is committed.
        base: the table as the writer saw it; its identity must stay the same.
        updates: what changes along with the rows, such as a new schema.
        check: looks at the base of each attempt and raises where the change may not be made.
    """

    lake: Lake
    name: Name
    change: Change
    base: LoadedTable
    updates: tuple[TableUpdate, ...] = ()
    check: Callable[[Metadata], None] | None = None

    def __post_init__(self) -> None:
        self._producer = SnapshotProducer(self.base.io, self.change)
        self._attempts = 0
        # Once an answer was lost, no file of ours may be removed: a snapshot may name it.
        self._unknown: CommitUnknown | None = None

    def commit(self) -> Committed:
        """Commit, as often as it takes. New files are removed only if they certainly are nowhere.

        Raises:
            ChangedMeanwhile: the change is no longer right; its files are kept for its maker.
            CommitConflict: others were faster each time; the files are removed.
            CommitUnknown: an answer was lost, and the table did not show what became of it; the
                files are kept.
            CatalogError: the catalog refuses; the files are removed.
            OSError: the storage does; the files are removed as far as it lets us.
        """
        try:
            return self._retrying()(self._attempt)
        except CommitUnknown:
            raise
        except ChangedMeanwhile as error:
            self._raise_if_unknown(error)
            self._producer.discard()
            raise
        except (CatalogError, OSError) as error:
            self._raise_if_unknown(error)
            self._give_up()
            raise

    def _raise_if_unknown(self, error: Exception) -> None:
        if self._unknown is not None:
            raise CommitUnknown(
                f"{self._unknown}\nWhether it was committed is not known. {error}\nIf it was, "
                f"{'.'.join(self.name)} has the snapshot {self._producer.snapshot_id}. If it was "
                "not, iceberg-stream orphans lists the files of this write."
            ) from error

    def _retrying(self) -> Retrying:
        properties = dict(self.base.metadata.get("properties") or {})
        attempts = property_as_int(properties, "commit.retry.num-retries", ATTEMPTS - 1)
        return Retrying(
            retry=retry_if_exception_type((CommitConflict, CommitUnknown)),
            stop=stop_after_attempt((attempts or 0) + 1) | stop_after_delay(TOTAL_SECONDS),
            wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
            before_sleep=self._before_retry,
            reraise=True,
        )

    def _attempt(self) -> Committed:
        self._attempts += 1
        base = self._load()
        done = self._find(base) if self._attempts > 1 else None
        if done is not None:
            return done
        _check_schema(self.base.metadata, base.metadata, self.name)
        validate(base.io, base.metadata, self.change)
        if self.check is not None:
            self.check(base.metadata)
        try:
            snapshot = self._producer.build(with_schema(base.metadata, self.updates))
        except MissingFiles as missing:
            raise ChangedMeanwhile(
                f"Another writer removed or rewrote {len(missing.paths)} of the files that this "
                f"write replaces in {'.'.join(self.name)}.",
                [],
                missing.paths,
            ) from missing
        except FileNotFoundError as gone:
            # Dropped with its files, or cleaned up by somebody: the next look tells.
            fault = CommitConflict if self._attempts == 1 else CatalogError
            raise fault(f"A file of {'.'.join(self.name)} is gone: {gone}") from gone
        updates = (*self.updates, *_updates(snapshot, self.change.branch))
        self.lake.commit(base, _requirements(base, self.change.branch), updates)
        return Committed(_summary(snapshot), self._attempts)

    def _load(self) -> LoadedTable:
        if self._attempts == 1:
            return self.base
        table = self.lake.load(self.name)
        if not self.base.exists:
            return self._made_by_us(table)
        place = ".".join(self.name)
        if table is None:
            raise CatalogError(f"{place} was dropped while this write ran; nothing was written.")
        if table.metadata["table-uuid"] != self.base.metadata["table-uuid"]:
            raise CatalogError(
                f"{place} was dropped and made anew while this write ran; nothing was written. "
                "Run it again."
            )
        return table

    def _made_by_us(self, table: LoadedTable | None) -> LoadedTable:
        """A table that this commit makes: still not there, or made by an attempt of ours."""
        if table is None:
            return self.base
        if self._find(table) is None:
            raise CatalogError(f"{'.'.join(self.name)} was made by somebody else meanwhile.")
        return table

    def _find(self, table: LoadedTable) -> Committed | None:
        """Our snapshot, if an attempt whose answer was lost has made it."""
        ours = None
        for found in snapshots(table.metadata):
            if found.snapshot_id == self._producer.snapshot_id:
                return Committed(found, self._attempts)
            ours = ours or found
        # A catalog may show the newest snapshot only: there our files tell.
        if self._unknown is not None and ours is not None and self._files_are_in(table):
            return Committed(ours, self._attempts)
        return None

    def _files_are_in(self, table: LoadedTable) -> bool:
        snapshot = parent_snapshot(table.metadata, self.change.branch)
        new = {file.file_path for file in self.change.new_files}
        if snapshot is None or not new:
            return False
        manifests = read_manifest_list(table.io, snapshot["manifest-list"])
        return any(
            item.data_file.file_path in new
            for entries in read_manifests(table.io, manifests)
            for item in entries
        )

    def _before_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, CommitUnknown):
            self._unknown = error
        elif self._unknown is None:
            self._producer.attempt_failed()

    def _give_up(self) -> None:
        self._producer.discard()
        for file in self.change.new_files:
            remove_quietly(self.base.io, file.file_path)


def _check_schema(written: Metadata, now: Metadata, name: Name) -> None:
    """Rows written with an older schema are good, unless a column that they lack is required."""
    if written["current-schema-id"] == now["current-schema-id"]:
        return
    known = {field.field_id: field.required for field in current_schema(written).fields}
    lacking = [f for f in current_schema(now).fields if f.required and not known.get(f.field_id)]
    if lacking:
        raise CatalogError(
            f"The schema of {'.'.join(name)} was changed while this write ran: it requires the "
            f"column `{lacking[0].name}` now. Nothing was written; run it again."
        )


def _requirements(base: LoadedTable, branch: str) -> tuple[TableRequirement, ...]:
    if not base.exists:
        return (AssertCreate(),)
    parent = parent_snapshot(base.metadata, branch)
    reference = {"ref": branch, "snapshot-id": parent and parent["snapshot-id"]}
    uuid = AssertTableUUID(uuid=base.metadata["table-uuid"])
    schema = {"current-schema-id": base.metadata["current-schema-id"]}
    return (
        uuid,
        AssertCurrentSchemaId.model_validate(schema),
        AssertRefSnapshotId.model_validate(reference),
    )


def _updates(snapshot: Mapping[str, Any], branch: str) -> tuple[TableUpdate, ...]:
    return (
        AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)),
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": branch, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        ),
    )


def _summary(snapshot: Mapping[str, Any]) -> SnapshotSummary:
    return SnapshotSummary(snapshot["snapshot-id"], snapshot["timestamp-ms"], snapshot["summary"])
