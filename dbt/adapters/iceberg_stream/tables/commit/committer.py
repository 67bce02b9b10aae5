"""Commits changes, and retries after conflicts and unknown commit states.

Article on the write contract, "Conflict Resolution": a retry writes metadata only, as long as the
change is still valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFileContent, FileFormat
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
    TableChanged,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, SnapshotSummary, snapshots
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit, with_schema
from dbt.adapters.iceberg_stream.tables.commit.change import Change
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DamagedFile,
    iter_manifests,
    read_manifest_list,
)
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
from dbt.adapters.iceberg_stream.tables.commit.validation import validate

# Iceberg's own default of 4 is for few writers; an attempt costs milliseconds here.
COMMIT_ATTEMPTS = 30
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
TOTAL_SECONDS = 1800


@dataclass(frozen=True)
class Committed:
    """A committed snapshot.

    Attributes:
        snapshot: the snapshot.
        attempts: how many attempts the commit took.
    """

    snapshot: SnapshotSummary
    attempts: int


@dataclass(frozen=True)
class Prepared:
    """One attempt: the commit for the catalog, and its result if the catalog accepts it."""

    commit: TableCommit
    result: Committed


@dataclass
class Committer:
    """Commits one change to one table.

    Attributes:
        catalog: the catalog, as the user who writes.
        name: namespace and identifier of the table.
        change: the change to commit.
        base: the table as the writer read it; its UUID must stay the same.
        updates: further updates of the commit, such as a new schema.
        check: raises if the change is invalid for the metadata of an attempt.
        with_snapshot: returns further updates for the snapshot of an attempt.
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
        # After an unknown commit state no file may be removed: a snapshot may reference it.
        self._unknown: CommitStateUnknown | None = None

    @property
    def snapshot_id(self) -> int:
        """Id of the snapshot that the change gets."""
        return self._producer.snapshot_id

    def commit(self) -> Committed:
        """Commit, with retries. New files are removed only if no snapshot can reference them.

        Raises:
            ValidationFailed: another writer's commit conflicts; the data files stay, for the
                caller.
            CommitConflict: the commit conflicted in every attempt; the files are removed.
            CommitStateUnknown: the commit may have succeeded, and the table does not show it; the
                files stay.
            CatalogError: the catalog refuses; the files are removed.
            OSError: the storage refuses; the files are removed if it allows that.
        """
        return commit_together([self])[0]

    def commit_once(self) -> Committed:
        """Commit without retries, for a change that is valid for this base only.

        Raises:
            The errors of `commit`; CommitConflict at the first conflict.
        """
        try:
            return _attempt([self])[0]
        except CommitStateUnknown:
            raise
        except (CatalogError, OSError):
            self.give_up()
            raise

    def prepare(self) -> Committed | Prepared:
        """Build the snapshot on the current table, or find it if an earlier attempt committed it.

        Raises:
            CommitConflict: the table is changing; another attempt may succeed.
            ValidationFailed: as for `commit`, but no file is removed.
            CatalogError: as for `commit`, but no file is removed.
            OSError: as for `commit`, but no file is removed.
        """
        self.attempts += 1
        base = self._load()
        committed = self._find(base) if self.attempts > 1 else None
        if committed is not None:
            return committed
        _check_schema(self.base.metadata, base.metadata, self.name)
        validate(base.io, self.base.metadata, base.metadata, self.change)
        if self.check is not None:
            self.check(base.metadata)
        _check_version(self.base.metadata, base.metadata, self.change, self.name)
        try:
            snapshot = self._producer.build(with_schema(base.metadata, self.updates))
        except MissingFiles as missing:
            raise ValidationFailed(
                f"Another writer removed or rewrote {len(missing.paths)} of the files that this "
                f"write replaces in {'.'.join(self.name)}.",
                [],
                missing.paths,
            ) from missing
        except FileNotFoundError as missing_file:
            # The table was dropped with its files, or a file expired: the next attempt shows which.
            kind = CommitConflict if self.attempts == 1 else CatalogError
            raise kind(
                f"A file of {'.'.join(self.name)} does not exist any more: {missing_file}"
            ) from missing_file
        except DamagedFile as damaged:
            name = ".".join(self.name)
            raise CatalogError(
                f"{damaged}. Nothing was written to {name}. Run `iceberg-stream check {name}`."
            ) from damaged
        further = self.with_snapshot(snapshot) if self.with_snapshot is not None else ()
        updates = (
            *self.updates,
            *further,
            *_updates(base.metadata, snapshot, self.change),
        )
        requirements = _requirements(base, self.change.branch, self.updates)
        commit = TableCommit(base, requirements, updates)
        return Prepared(commit, Committed(_summary(snapshot), self.attempts))

    def attempt_failed(self, error: BaseException | None) -> None:
        """Clean up before the next attempt.

        Args:
            error: the attempt's error.
        """
        if isinstance(error, CommitStateUnknown):
            self._unknown = error
        elif self._unknown is None:
            self._producer.attempt_failed()

    def raise_if_unknown(self, error: Exception) -> None:
        """Raise CommitStateUnknown if the state of an earlier attempt is unknown.

        Args:
            error: the error that ended the attempts.
        """
        if self._unknown is not None:
            raise CommitStateUnknown(
                f"{self._unknown}\nThe commit state is unknown. {error}\nIf the write was "
                f"committed, {'.'.join(self.name)} has the snapshot {self._producer.snapshot_id}. "
                "If not, `iceberg-stream orphans` lists the files of this write."
            ) from error

    def find(self) -> Committed | None:
        """Return the snapshot if the table has it, although no attempt was confirmed.

        Raises:
            CatalogError, OSError: the table cannot be read.
        """
        table = self.catalog.load(self.name)
        return None if table is None else self._find(table, thoroughly=True)

    def discard(self) -> None:
        """Remove the metadata files of failed attempts."""
        self._producer.discard()

    def give_up(self) -> None:
        """Remove the change's new files, and the metadata files of failed attempts."""
        self._producer.discard()
        for file in self.change.new_files:
            remove_quietly(self.base.io, file.file_path)

    def is_not_committed(self) -> bool:
        """Return whether the change is certainly not in the table.

        If the table cannot be read, the commit state becomes unknown.
        """
        try:
            return self.find() is None
        except (CatalogError, OSError) as error:
            self._unknown = self._unknown or CommitStateUnknown(
                f"{'.'.join(self.name)} cannot be read after the catalog refused its commit: "
                f"{error}"
            )
            return False

    def _load(self) -> LoadedTable:
        if self.attempts == 1:
            return self.base
        table = self.catalog.load(self.name)
        if not self.base.exists:
            return self._created_by_us(table)
        name = ".".join(self.name)
        if table is None:
            raise TableChanged(
                f"{name} was dropped while this write ran. Nothing was written; run the model "
                "again."
            )
        if table.metadata["table-uuid"] != self.base.metadata["table-uuid"]:
            raise TableChanged(
                f"{name} was dropped and created again while this write ran. Nothing was written; "
                "run the model again."
            )
        return table

    def _created_by_us(self, table: LoadedTable | None) -> LoadedTable:
        """Return the staged table, or the table that an earlier attempt of this commit created."""
        if table is None:
            return self.base
        if self._find(table) is None:
            raise TableChanged(
                f"Another writer created {'.'.join(self.name)} while this write ran. Nothing was "
                "written; run the model again."
            )
        return table

    def _find(self, table: LoadedTable, thoroughly: bool = False) -> Committed | None:
        """Return our snapshot if an attempt with an unknown commit state committed it."""
        newest = None
        for snapshot in snapshots(table.metadata):
            if snapshot.snapshot_id == self._producer.snapshot_id:
                return Committed(snapshot, self.attempts)
            newest = newest or snapshot
        # A catalog may return the newest snapshot only: then the table's files decide.
        thoroughly = thoroughly or self._unknown is not None
        if thoroughly and newest is not None and self._has_new_files(table):
            return Committed(newest, self.attempts)
        return None

    def _has_new_files(self, table: LoadedTable) -> bool:
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
    """Commit the changes of several tables atomically, with retries.

    Args:
        parts: one committer per table; several need `IcebergCatalog.commits_together`.

    Returns:
        The committed snapshots, in the order of `parts`.

    Raises:
        The errors of `Committer.commit`, for the first table that has one.
    """
    try:
        return _retrying(parts)(_attempt, parts)
    except CommitStateUnknown as error:
        return _find_all(parts, error)
    except (CatalogError, OSError) as error:
        _raise_if_unknown(parts, error)
        for part in _not_committed(parts):
            if isinstance(error, ValidationFailed):
                part.discard()
            else:
                part.give_up()
        _raise_if_unknown(parts, error)
        raise


def _find_all(parts: Sequence[Committer], error: CommitStateUnknown) -> list[Committed]:
    """Return the snapshots of commits whose last response was lost.

    Raises:
        CommitStateUnknown: a table has none, or cannot be read; says what to do.
    """
    snapshots = []
    try:
        for part in parts:
            part.attempt_failed(error)
            snapshots.append(part.find())
    except (CatalogError, OSError) as unread:
        _raise_if_unknown(parts, unread)
    missing = [part for part, snapshot in zip(parts, snapshots, strict=True) if snapshot is None]
    if not missing:
        return [snapshot for snapshot in snapshots if snapshot is not None]
    absent = ", ".join(
        f"{'.'.join(part.name)} has no snapshot {part.snapshot_id}" for part in missing
    )
    visible = ": nothing of it is visible" if len(missing) == len(parts) else ""
    raise CommitStateUnknown(
        f"{error}\nSo far, {absent} of this write{visible}. If the write appends rows, look once "
        "more before you repeat it, because a late commit would add them twice. `iceberg-stream "
        "orphans` finds files that the write has left behind."
    ) from error


def _raise_if_unknown(parts: Sequence[Committer], error: Exception) -> None:
    for part in parts:
        part.raise_if_unknown(error)


def _not_committed(parts: Sequence[Committer]) -> list[Committer]:
    """Return the committers whose tables have no new file: a server may not commit atomically."""
    return [part for part in parts if len(parts) == 1 or part.is_not_committed()]


def _attempt(parts: Sequence[Committer]) -> list[Committed]:
    attempts = [part.prepare() for part in parts]
    # An earlier attempt with an unknown commit state may have committed some tables: a server that
    # was killed, or commits one table after the other, may have left out the others.
    prepared = [attempt for attempt in attempts if isinstance(attempt, Prepared)]
    if prepared:
        parts[0].catalog.commit_all([attempt.commit for attempt in prepared])
    return [a.result if isinstance(a, Prepared) else a for a in attempts]


def _retrying(parts: Sequence[Committer]) -> Retrying:
    properties = dict(parts[0].base.metadata.get("properties") or {})
    attempts = property_as_int(properties, "commit.retry.num-retries", COMMIT_ATTEMPTS - 1)

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        # If the commit state is unknown, nothing may be removed, so no table is read.
        for part in parts if isinstance(error, CommitStateUnknown) else _not_committed(parts):
            part.attempt_failed(error)

    return Retrying(
        retry=retry_if_exception_type((CommitConflict, CommitStateUnknown)),
        stop=stop_after_attempt((attempts or 0) + 1) | stop_after_delay(TOTAL_SECONDS),
        wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        before_sleep=before_sleep,
        reraise=True,
    )


def _check_schema(base: Metadata, now: Metadata, name: Name) -> None:
    """Accept rows of an older schema, unless they lack a column that is required now."""
    if base["current-schema-id"] == now["current-schema-id"]:
        return
    required = {field.field_id: field.required for field in current_schema(base).fields}
    missing = [f for f in current_schema(now).fields if f.required and not required.get(f.field_id)]
    if missing:
        raise CatalogError(
            f"The schema of {'.'.join(name)} changed while this write ran: it now requires the "
            f"column `{missing[0].name}`. Nothing was written; run the model again."
        )


def _check_version(base: Metadata, now: Metadata, change: Change, name: Name) -> None:
    if any(added.deletes for added in change.added) and not numbered(now):
        raise CatalogError(
            f"{'.'.join(name)} has format version 1, which has no delete files. Nothing was "
            "written. Upgrade the table with `format_version: 2`."
        )
    if base["format-version"] < 3 <= now["format-version"] and any(
        file.content == DataFileContent.POSITION_DELETES and file.file_format != FileFormat.PUFFIN
        for file in change.new_files
    ):
        raise TableChanged(
            f"{'.'.join(name)} was upgraded to format version {now['format-version']} while "
            "this write ran, and takes no position deletes any more. Nothing was written; run it "
            "again."
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
    metadata: Metadata, snapshot: Mapping[str, Any], change: Change
) -> tuple[TableUpdate, ...]:
    added = AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot))
    if change.is_staged:
        return (added,)
    branch = change.branch
    # The catalog replaces the whole reference, so its retention settings must be included.
    current = (metadata.get("refs") or {}).get(branch) or {}
    reference = {**current, "ref-name": branch, "type": "branch"}
    reference["snapshot-id"] = snapshot["snapshot-id"]
    return added, SetSnapshotRefUpdate.model_validate(reference)


def _summary(snapshot: Mapping[str, Any]) -> SnapshotSummary:
    return SnapshotSummary(snapshot["snapshot-id"], snapshot["timestamp-ms"], snapshot["summary"])
