"""Converts equality deletes to position deletes or deletion vectors.

Readers apply deletes by position without looking at any key. A conversion reads each delete file
and the key columns of each data file once (article on high-scale streaming, "Improving query
performance"), changes no row, and does not lock the table: after another writer's commit it reads
only data files that are new, and writes its files again only if that commit has changed theirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import CONVERSION, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id, remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX
from dbt.adapters.iceberg_stream.tables.deletes.equality import (
    EqualityDeletes,
    Scope,
    equality_delete_files,
    scope_of,
)
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    UnsupportedFile,
    deleted_rows,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# Commits of other writers after which a conversion gives up.
ATTEMPTS = 20
# Property of a staged snapshot.
STAGED = f"{PREFIX}staged-conversion"


class NotConvertible(CatalogError):
    """A file cannot be read here; the message names it and says what to do instead."""


class FilesChanged(CatalogError):
    """Another writer has changed what a conversion has looked at; another attempt may succeed."""


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        committed: the commit; None if the table had no equality deletes.
        delete_files: equality delete files that were removed.
        keys: rows of these files.
        rows: rows of the table that are now deleted by position.
    """

    committed: Committed | None = None
    delete_files: int = 0
    keys: int = 0
    rows: int = 0


def rows_to_read(table: LoadedTable) -> int:
    """Return how many rows a conversion reads: the deleted keys, and rows that may have them.

    Args:
        table: the table.

    Returns:
        The number of rows; 0 if the table has no equality deletes.
    """
    deletes = equality_delete_files(table)
    if not deletes:
        return 0
    newest: dict[Scope, int] = {}
    for item in deletes:
        scope = scope_of(table.metadata, item.data_file)
        newest[scope] = max(item.sequence_number or 0, newest.get(scope, 0))

    def is_older(item: ManifestEntry) -> bool:
        # Deletes of the scope None apply to all partitions.
        scopes = (None, scope_of(table.metadata, item.data_file))
        return any(newest.get(scope, 0) > (item.sequence_number or 0) for scope in scopes)

    data = live_entries(table.io, table.metadata, ManifestContent.DATA, test=is_older)
    return sum(item.data_file.record_count for item in (*deletes, *data))


def convert_equality_deletes(
    catalog: IcebergCatalog,
    name: Name,
    properties: Mapping[str, str],
    check: Callable[[Metadata], None] | None = None,
) -> Conversion:
    """Replace the equality deletes of a table by position deletes or deletion vectors.

    Args:
        catalog: the catalog, as the user who writes.
        name: of the table.
        properties: snapshot properties.
        check: raises if the commit is not allowed for the metadata of an attempt.

    Raises:
        NotConvertible: a file cannot be read here; nothing was changed.
        CatalogError: there is no such table, or the catalog refuses; nothing was changed.
        CommitConflict, FilesChanged: other writers changed these files in each of many attempts.
        CommitStateUnknown: it is not known whether the commit was made.
        OSError: the storage refuses a file; nothing was changed.
    """
    return _convert(catalog, name, properties, check)


def stage_conversion(
    catalog: IcebergCatalog, name: Name, properties: Mapping[str, str]
) -> int | None:
    """Stage a conversion of a table's equality deletes, for readers of one version of the table.

    The table's branches stay as they are. A reader who reads the staged snapshot by its id gets the
    rows of the current one, without looking at any key. A snapshot that is there already is used
    again; Iceberg's `expire_snapshots` removes it like others that no branch refers to.

    Args:
        catalog: the catalog, as a user who may write.
        name: of the table.
        properties: snapshot properties.

    Returns:
        The id of the snapshot; None if the table has no equality deletes, or its catalog does not
        keep staged snapshots.

    Raises:
        CatalogError, CommitStateUnknown, OSError: as for `convert_equality_deletes`.
    """
    base = catalog.load(name)
    if base is None or not equality_delete_files(base):
        return None
    if (staged := _staged(base)) is not None:
        return staged
    conversion = _convert(catalog, name, {**properties, STAGED: "true"}, is_staged=True)
    table = catalog.load(name)
    if conversion.committed is None or table is None:
        return None
    snapshot_id = conversion.committed.snapshot.snapshot_id
    kept = {snapshot["snapshot-id"] for snapshot in table.metadata["snapshots"]}
    return snapshot_id if snapshot_id in kept else None


def _staged(base: LoadedTable) -> int | None:
    """Return the staged conversion of the current snapshot, if there is one.

    It must have the current columns: a reader of a snapshot's id gets those of the snapshot.
    """
    current, schema_id = current_snapshot_id(base.metadata), base.metadata["current-schema-id"]
    return next(
        (
            int(snapshot["snapshot-id"])
            for snapshot in base.metadata["snapshots"]
            if snapshot.get("parent-snapshot-id") == current
            and snapshot.get("schema-id") == schema_id
            and STAGED in (snapshot.get("summary") or {})
        ),
        None,
    )


def _paths(entries: Iterable[ManifestEntry]) -> set[str]:
    return {item.data_file.file_path for item in entries}


def _convert(
    catalog: IcebergCatalog,
    name: Name,
    properties: Mapping[str, str],
    check: Callable[[Metadata], None] | None = None,
    is_staged: bool = False,
) -> Conversion:
    with ExitStack() as resources:
        try:
            return _Converter(catalog, name, properties, check, is_staged, resources).convert()
        except UnsupportedFile as error:
            raise NotConvertible(
                f"The equality deletes of {'.'.join(name)} cannot be converted: {error}. Compact "
                "the table with Spark instead: call system.rewrite_data_files(table => "
                f"'{'.'.join(name)}', options => map('delete-file-threshold', '1', "
                "'remove-dangling-deletes', 'true'))"
            ) from error


# A data file that is removed and added again has another sequence number.
_Version = tuple[str, int | None]


@dataclass
class _Converter:
    """Converts the deletes that a table has at the first attempt.

    Attributes:
        catalog: the catalog, as the user who writes.
        name: of the table.
        properties: snapshot properties.
        check: raises if the commit is not allowed for the metadata of an attempt.
        is_staged: whether no branch gets the snapshot.
        resources: closed after the conversion.
    """

    catalog: IcebergCatalog
    name: Name
    properties: Mapping[str, str]
    check: Callable[[Metadata], None] | None
    is_staged: bool
    resources: ExitStack
    _deletes: EqualityDeletes | None = None
    # Rows that the equality deletes delete, by location and sequence number of their data file.
    _rows: dict[_Version, BitMap] = field(default_factory=dict)

    @retry(
        retry=retry_if_exception_type((CommitConflict, FilesChanged)),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def convert(self) -> Conversion:
        base = self.catalog.load(self.name)
        if base is None:
            raise CatalogError(f"There is no table {'.'.join(self.name)}.")
        live = equality_delete_files(base)
        if not live:
            return Conversion()
        try:
            deletes = self._gather(base, live)
            self._locate(base, deletes)
            change, rows = self._change(base, deletes)
        except FileNotFoundError as error:
            # Another writer has removed the file since, or it is lost: the next attempt shows it.
            raise CommitConflict(f"{'.'.join(self.name)}: {error}") from error
        committer = Committer(
            self.catalog, self.name, change, base, check=partial(self._check, base, deletes)
        )
        try:
            committed = committer.commit()
        except ValidationFailed as error:
            for file in change.new_files:
                remove_quietly(base.io, file.file_path)
            raise FilesChanged(str(error)) from error
        return Conversion(committed, len(deletes.files), deletes.keys, rows)

    def _check(self, base: LoadedTable, deletes: EqualityDeletes, metadata: Metadata) -> None:
        """Raise FilesChanged if another writer has changed what this conversion has looked at."""
        if self.check is not None:
            self.check(metadata)
        if current_snapshot_id(metadata) == current_snapshot_id(base.metadata):
            return
        now = replace(base, metadata=metadata)
        if not _paths(equality_delete_files(now)) >= _paths(deletes.files):
            raise FilesChanged(self._overtaken("removed equality deletes"))
        if self._unread(now, deletes):
            raise FilesChanged(self._overtaken("added data files"))
        before, after = self._located(base), self._located(now)
        if {_version(item): item.delete_keys for item in before} != {
            _version(item): item.delete_keys for item in after
        }:
            raise FilesChanged(self._overtaken("deleted rows, or rewrote files"))

    def _overtaken(self, what: str) -> str:
        return (
            f"Other writers {what} of {'.'.join(self.name)} whenever its equality deletes were "
            "being converted. Nothing was changed. Run it again when fewer of them write."
        )

    def _gather(self, base: LoadedTable, live: Sequence[ManifestEntry]) -> EqualityDeletes:
        deletes = self._deletes
        if deletes is None or not _paths(live) >= _paths(deletes.files):
            # Some were removed: the table may have been rolled back, and their rows be live again.
            self._deletes = deletes = self.resources.enter_context(EqualityDeletes(base))
            self._rows.clear()
        return deletes

    def _locate(self, base: LoadedTable, deletes: EqualityDeletes) -> None:
        unread = self._unread(base, deletes)
        numbers = {item.data_file.file_path: item.sequence_number for item in unread}
        for file, positions in deletes.deleted_in(unread):
            self._rows[file.file_path, numbers[file.file_path]] = positions

    def _unread(self, table: LoadedTable, deletes: EqualityDeletes) -> list[ManifestEntry]:
        """Return data files that deletes apply to, and that no attempt has read."""

        def is_unread(item: ManifestEntry) -> bool:
            version = item.data_file.file_path, item.sequence_number
            return version not in self._rows and deletes.apply_to(item)

        return live_entries(table.io, table.metadata, ManifestContent.DATA, test=is_unread)

    def _located(self, table: LoadedTable) -> list[SnapshotFile]:
        """Return the data files whose rows equality deletes delete."""

        def is_located(item: ManifestEntry) -> bool:
            return bool(self._rows.get((item.data_file.file_path, item.sequence_number)))

        data = live_entries(table.io, table.metadata, ManifestContent.DATA, test=is_located)
        return list(snapshot_files(table, data).values())

    def _change(self, base: LoadedTable, deletes: EqualityDeletes) -> tuple[Change, int]:
        """Return the change, and how many rows it deletes by position."""
        located = self._located(base)
        before = deleted_rows(base, located)
        after = [(item, before[item.path] | self._rows[_version(item)]) for item in located]
        after = [(item, rows) for item, rows in after if len(rows) > len(before[item.path])]
        removed = [item.data_file for item in deletes.files]
        partly: list[tuple[DataFile, BitMap]] = []
        for item, rows in after:
            removed += item.own_deletes
            if len(rows) < item.file.record_count:
                partly.append((item.file, rows))
            else:
                removed.append(item.file)
        target = WriteTarget.of(base.metadata, base.io)
        uses_vectors = base.metadata["format-version"] >= 3
        name = f"convert-{uuid.uuid4().hex}-deletes"
        new = write_deletes_by_position(target, uses_vectors, name, partly)
        # Not `replace`: a compaction by Iceberg that began before these equality deletes, and keeps
        # its old sequence number, must notice the new deletes of the files that it replaces.
        change = Change(
            Operation.DELETE,
            (AddedFiles(deletes=tuple(new.values())),),
            removed=tuple(removed),
            properties={**self.properties, CONVERSION: "true"},
            is_staged=self.is_staged,
        )
        return change, sum(len(rows) - len(before[item.path]) for item, rows in after)


def _version(item: SnapshotFile) -> _Version:
    return item.path, item.sequence_number
