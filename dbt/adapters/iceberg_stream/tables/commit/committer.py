"""The commit: build, swap, and what to do when somebody else was faster or the answer is lost.

Article on the write contract, "Conflict Resolution": what is committed anew is metadata only, as
long as what the change relies on still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, SnapshotSummary, snapshots
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit, with_schema
from dbt.adapters.iceberg_stream.tables.commit.change import Change
from dbt.adapters.iceberg_stream.tables.commit.manifests import iter_manifests, read_manifest_list
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    MissingFiles,
    SnapshotProducer,
    current_schema,
    numbered,
    parent_snapshot,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    requirements as schema_requirements,
)
from dbt.adapters.iceberg_stream.tables.commit.validation import ChangedMeanwhile, validate

# Iceberg's own default of 4 is for few writers; an attempt costs milliseconds here.
ATTEMPTS = 30
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
TOTAL_SECONDS = 1800


@dataclass(frozen=True)
class Committed:
    """A snapshot that is in the table, and how many attempts it took."""

    snapshot: SnapshotSummary
    attempts: int


@dataclass(frozen=True)
class Prepared:
    """What one attempt asks of the catalog, and what is done when it says yes."""

    swap: TableCommit
    done: Committed


@dataclass
class Committer:
    """Commits one change to one table.

    Attributes:
        catalog: the catalog, as the user who writes.
        name: the table's.
        change: what is committed.
        base: the table as the writer saw it; its identity must stay the same.
        updates: what changes along with the rows, such as a new schema.
        check: looks at the base of each attempt and raises where the change may not be made.
        with_snapshot: what changes along with the snapshot of each attempt.
    """

    catalog: IcebergCatalog
    name: Name
    change: Change
    base: LoadedTable
    updates: tuple[TableUpdate, ...] = ()
    check: Callable[[Metadata], None] | None = None
    with_snapshot: Callable[[Mapping[str, Any]], tuple[TableUpdate, ...]] | None = None

    def __post_init__(self) -> None:
        self._producer = SnapshotProducer(self.base.io, self.change)
        self.attempts = 0
        # Once an answer was lost, no file of ours may be removed: a snapshot may name it.
        self._unknown: CommitStateUnknown | None = None

    def commit(self) -> Committed:
        """Commit, as often as it takes. New files are removed only if they certainly are nowhere.

        Raises:
            ChangedMeanwhile: the change is no longer right; its files are kept for its maker.
            CommitConflict: others were faster each time; the files are removed.
            CommitStateUnknown: an answer was lost, and the table did not show what became of it;
                the files are kept.
            CatalogError: the catalog refuses; the files are removed.
            OSError: the storage does; the files are removed as far as it lets us.
        """
        return commit_together([self])[0]

    def commit_once(self) -> Committed:
        """Commit to the base as it is, for a change that has to be made anew on another one.

        Raises:
            The same as `commit`; CommitConflict at the first conflict.
        """
        try:
            return _attempt([self])[0]
        except CommitStateUnknown:
            raise
        except (CatalogError, OSError):
            self.give_up()
            raise

    def prepare(self) -> Committed | Prepared:
        """Build the snapshot on the table as it is now; or find the one of a lost answer.

        Raises:
            CommitConflict: the table changes at this moment; another attempt may do.
            ChangedMeanwhile, CatalogError, OSError: as for `commit`; nothing is removed yet.
        """
        self.attempts += 1
        base = self._load()
        done = self._find(base) if self.attempts > 1 else None
        if done is not None:
            return done
        _check_schema(self.base.metadata, base.metadata, self.name)
        _check_version(base.metadata, self.change, self.name)
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
            fault = CommitConflict if self.attempts == 1 else CatalogError
            raise fault(f"A file of {'.'.join(self.name)} is gone: {gone}") from gone
        along = self.with_snapshot(snapshot) if self.with_snapshot is not None else ()
        updates = (
            *self.updates,
            *along,
            *_updates(base.metadata, snapshot, self.change.branch),
        )
        required = _requirements(base, self.change.branch, self.updates)
        swap = TableCommit(base, required, updates)
        return Prepared(swap, Committed(_summary(snapshot), self.attempts))

    def attempt_failed(self, error: BaseException | None) -> None:
        """Another attempt follows."""
        if isinstance(error, CommitStateUnknown):
            self._unknown = error
        elif self._unknown is None:
            self._producer.attempt_failed()

    def raise_if_unknown(self, error: Exception) -> None:
        """Raise CommitStateUnknown if the answer to an earlier attempt was lost."""
        if self._unknown is not None:
            raise CommitStateUnknown(
                f"{self._unknown}\nWhether it was committed is not known. {error}\nIf it was, "
                f"{'.'.join(self.name)} has the snapshot {self._producer.snapshot_id}. If it was "
                "not, iceberg-stream orphans lists the files of this write."
            ) from error

    def discard(self) -> None:
        """Remove the metadata files of what came to nothing."""
        self._producer.discard()

    def give_up(self) -> None:
        """Remove all files of what came to nothing."""
        self._producer.discard()
        for file in self.change.new_files:
            remove_quietly(self.base.io, file.file_path)

    def is_out(self) -> bool:
        """Whether the change is certainly not in the table; if nobody can tell, it is unknown."""
        try:
            table = self.catalog.load(self.name)
            return table is None or self._find(table, thoroughly=True) is None
        except (CatalogError, OSError) as error:
            self._unknown = self._unknown or CommitStateUnknown(
                f"{'.'.join(self.name)} cannot be looked at after its commit was refused: {error}"
            )
            return False

    def _load(self) -> LoadedTable:
        if self.attempts == 1:
            return self.base
        table = self.catalog.load(self.name)
        if not self.base.exists:
            return self._made_by_us(table)
        place = ".".join(self.name)
        if table is None:
            raise CatalogError(f"{place} was dropped while this write ran; nothing was written.")
        if table.metadata["table-uuid"] != self.base.metadata["table-uuid"]:
            raise CatalogError(
                f"{place} was dropped and created again while this write ran; nothing was written. "
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

    def _find(self, table: LoadedTable, thoroughly: bool = False) -> Committed | None:
        """Our snapshot, if an attempt whose answer was lost has made it."""
        ours = None
        for found in snapshots(table.metadata):
            if found.snapshot_id == self._producer.snapshot_id:
                return Committed(found, self.attempts)
            ours = ours or found
        # A catalog may show the newest snapshot only: there our files tell.
        thoroughly = thoroughly or self._unknown is not None
        if thoroughly and ours is not None and self._files_are_in(table):
            return Committed(ours, self.attempts)
        return None

    def _files_are_in(self, table: LoadedTable) -> bool:
        snapshot = parent_snapshot(table.metadata, self.change.branch)
        new = {file.file_path for file in self.change.new_files}
        if snapshot is None or not new:
            return False
        manifests = read_manifest_list(table.io, snapshot["manifest-list"])
        return any(
            item.data_file.file_path in new
            for _, entries in iter_manifests(table.io, manifests)
            for item in entries
        )


def commit_together(parts: Sequence[Committer]) -> list[Committed]:
    """Commit changes of one table each, all of them or none.

    The catalog must be able to (`IcebergCatalog.commits_together`) if there are several.

    Raises:
        The same as `Committer.commit`, of the first table that something is wrong with.
    """
    try:
        return _retrying(parts)(_attempt, parts)
    except CommitStateUnknown:
        raise
    except (CatalogError, OSError) as error:
        _raise_if_unknown(parts, error)
        for part in _outside(parts):
            if isinstance(error, ChangedMeanwhile):
                part.discard()
            else:
                part.give_up()
        _raise_if_unknown(parts, error)
        raise


def _raise_if_unknown(parts: Sequence[Committer], error: Exception) -> None:
    for part in parts:
        part.raise_if_unknown(error)


def _outside(parts: Sequence[Committer]) -> list[Committer]:
    """Those whose files no table has, though all were refused: a server may not keep its word."""
    return [part for part in parts if len(parts) == 1 or part.is_out()]


def _attempt(parts: Sequence[Committer]) -> list[Committed]:
    found = [part.prepare() for part in parts]
    # Those that are in already are of an attempt whose answer was lost; a server that was killed,
    # or does one table after the other, may have left some out.
    ready = [one for one in found if isinstance(one, Prepared)]
    if ready:
        parts[0].catalog.commit_all([one.swap for one in ready])
    return [one.done if isinstance(one, Prepared) else one for one in found]


def _retrying(parts: Sequence[Committer]) -> Retrying:
    properties = dict(parts[0].base.metadata.get("properties") or {})
    attempts = property_as_int(properties, "commit.retry.num-retries", ATTEMPTS - 1)

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        # After a lost answer nothing may be removed, and nobody need be asked.
        for part in parts if isinstance(error, CommitStateUnknown) else _outside(parts):
            part.attempt_failed(error)

    return Retrying(
        retry=retry_if_exception_type((CommitConflict, CommitStateUnknown)),
        stop=stop_after_attempt((attempts or 0) + 1) | stop_after_delay(TOTAL_SECONDS),
        wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        before_sleep=before_sleep,
        reraise=True,
    )


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


def _check_version(metadata: Metadata, change: Change, name: Name) -> None:
    if any(added.deletes for added in change.added) and not numbered(metadata):
        raise CatalogError(
            f"{'.'.join(name)} has format version 1, which has no delete files. Nothing was "
            "written. Upgrade the table: `format_version: 2`."
        )


def _requirements(
    base: LoadedTable, branch: str, updates: Sequence[TableUpdate]
) -> tuple[TableRequirement, ...]:
    if not base.exists:
        return (AssertCreate(),)
    parent = parent_snapshot(base.metadata, branch)
    reference = {"ref": branch, "snapshot-id": parent and parent["snapshot-id"]}
    schema = {"current-schema-id": base.metadata["current-schema-id"]}
    return (
        AssertTableUUID(uuid=base.metadata["table-uuid"]),
        AssertRefSnapshotId.model_validate(reference),
        *(
            schema_requirements(base.metadata, updates)
            or (AssertCurrentSchemaId.model_validate(schema),)
        ),
    )


def _updates(
    metadata: Metadata, snapshot: Mapping[str, Any], branch: str
) -> tuple[TableUpdate, ...]:
    # A catalog takes the reference as it is told: what is left out of its settings is gone.
    known = (metadata.get("refs") or {}).get(branch) or {}
    reference = {**known, "ref-name": branch, "type": "branch"}
    reference["snapshot-id"] = snapshot["snapshot-id"]
    return (
        AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)),
        SetSnapshotRefUpdate.model_validate(reference),
    )


def _summary(snapshot: Mapping[str, Any]) -> SnapshotSummary:
    return SnapshotSummary(snapshot["snapshot-id"], snapshot["timestamp-ms"], snapshot["summary"])
