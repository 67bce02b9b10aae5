"""Commit the written batches of a stream: many data sequence numbers in one snapshot.

Article on many data sequence numbers, "Improving write performance"; article on the streaming sink,
"Recovery Without External State".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import storage_advice
from dbt.adapters.iceberg_stream.catalog.tables import MAIN, LoadedTable, with_schema
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import (
    live_deletes,
)
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.descriptors import (
    Descriptors,
    partitioned_by,
    specs_with_data,
    unpartitioned,
)
from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import FrontierChain
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    Progress,
    committed_progress,
    read_property,
    recover,
    require_current_run,
    restart_progress,
)
from dbt.adapters.iceberg_stream.stream.sink.widened_keys import rewrite_widened_deletes
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    numbered,
    parent_snapshot,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    evolution_updates,
    replacement_updates,
    requirements,
    schemas_changed,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

CLAIMS = 10


@dataclass(frozen=True)
class SinkCommit:
    """A commit to a stream's table that is prepared but not made yet.

    Attributes:
        committer: makes the commit.
        ahead: the progress after it.
        summaries: the chain of summaries after it.
    """

    committer: Committer
    ahead: Progress
    summaries: FrontierChain


@dataclass
class Sink:
    """Commits a stream's batches to its table.

    Attributes:
        catalog: the catalog, as the stream's user.
        name: of the table.
        progress: the progress after the last commit.
        keys: columns that identify a row; none where rows are only appended.
        properties: properties of all its snapshots.
        replaces: whether the next commit replaces all rows of the table.
        updates: updates of the table's metadata in the next commit, such as a new schema.
        spec_id: the partition spec that rows have values of; by default the table's spec at the
            first `claim`.
        lock: held by whoever commits.
    """

    catalog: IcebergCatalog
    name: Name
    progress: Progress
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    replaces: bool = False
    updates: tuple[TableUpdate, ...] = ()
    spec_id: int | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        # The FileIO of the last load.
        self._io: FileIO | None = None
        # The table's metadata when `updates` were derived from its schema.
        self._replaced: Metadata | None = None
        self._summaries = FrontierChain()

    def plan(self, write_id: str, **settings: Any) -> DeltaPlan:
        """Plan the files of a batch, by the table's current metadata.

        Args:
            write_id: of the batch, in the names of its files.
            settings: further fields of the plan.
        """
        base = self._load(history=False)
        target = WriteTarget.of(with_schema(base.metadata, self.updates), base.io)
        location = target.locations.new_data_location("x").rsplit("/", 1)[0]
        return DeltaPlan(
            filesystem=target.filesystem(),
            location=location,
            path=target.path_of(location),
            schema=target.file_schema,
            keys=self.keys,
            options=target.options,
            write_id=write_id,
            deletes_by_partition=partitioned_by(base.io, base.metadata, target, self.keys),
            **settings,
        )

    def commit(self, write_id: str, batches: Sequence[WrittenBatch]) -> Committed | None:
        """Commit batches in one snapshot.

        Args:
            write_id: of the commit.
            batches: the batches, in their order.

        Returns:
            The commit; None if the batches change nothing.

        Raises:
            Fenced: another run has taken over; the batches' files are removed.
            StreamConflict: another writer committed first; the batches' files are removed.
            CatalogError: the catalog refuses the commit; the batches' files are removed.
            CommitStateUnknown: it is not known whether the commit was made; the files stay.
        """
        with self.lock:
            commit = self.prepare(write_id, batches)
            return None if commit is None else self.apply_commit(commit, commit.committer.commit())

    def prepare(self, write_id: str, batches: Sequence[WrittenBatch]) -> SinkCommit | None:
        """Prepare the commit of batches; the caller must hold `lock`.

        Args:
            write_id: of the commit.
            batches: the batches, in their order.

        Returns:
            The commit; None if the batches change nothing.
        """
        last = batches[-1]
        frontier, watermark = last.batch_range.upper, last.watermark
        ahead = replace(self.progress, frontier=frontier, write_id=write_id, watermark=watermark)
        base = self._load(history=False)
        head = parent_snapshot(base.metadata, MAIN) or {}
        if (head.get("summary") or {}).get(WRITE_ID) != self.progress.write_id:
            # Others have committed: only the whole history shows whether the table was rolled back.
            base = self._load()
        target = WriteTarget.of(with_schema(base.metadata, self.updates), base.io)
        descriptors = Descriptors(target, base.metadata, write_id, self.keys)
        added = tuple(
            descriptors.describe(number, sub)
            for number, sub in enumerate(s for batch in batches for s in batch.sub_batches())
        )
        removed: list[DataFile] = []
        deletes = last.target_deletes
        if deletes is not None and (deletes.positions or deletes.replaced):
            files, removed = descriptors.describe_target_deletes(deletes, base)
            added = (files, *added)
        if not added and not self.replaces:
            return None
        covered, summaries = self._summaries.next_summary(frontier, write_id)
        change = Change(
            _operation(added, removed, self.replaces),
            added,
            removed=tuple(removed),
            removes_all=self.replaces,
            properties={**self.properties, **ahead.summary(covered)},
        )
        return SinkCommit(self._committer(base, change, ahead, deletes), ahead, summaries)

    def apply_commit(self, commit: SinkCommit, committed: Committed) -> Committed:
        """Advance the progress after a prepared commit was made.

        Args:
            commit: the prepared commit.
            committed: its result.

        Returns:
            The result.
        """
        self.progress, self.replaces, self.updates = commit.ahead, False, ()
        self._summaries = commit.summaries
        return committed

    def _committer(
        self, base: LoadedTable, change: Change, ahead: Progress, deletes: TargetDeletes | None
    ) -> Committer:
        def check(metadata: Metadata) -> None:
            require_current_run(metadata, self.progress)
            self._check_partitions(base, change, metadata)
            if deletes is not None and deletes.snapshot_id != current_snapshot_id(metadata):
                raise StreamConflict(
                    f"Another writer committed to {'.'.join(self.name)} after the rows to delete "
                    "were located."
                )
            if self.updates and schemas_changed(self._replaced or base.metadata, metadata):
                raise StreamError(
                    f"The schema of {'.'.join(self.name)} was changed while it was replaced. "
                    "Nothing was written. Run the model again."
                )

        def progress_update(snapshot: Mapping[str, Any]) -> tuple[TableUpdate, ...]:
            return (replace(ahead, sequence_number=snapshot["sequence-number"]).as_property(),)

        return Committer(
            self.catalog, self.name, change, base, self.updates, check, progress_update
        )

    def _check_partitions(self, base: LoadedTable, change: Change, metadata: Metadata) -> None:
        self._require_spec(metadata)
        if current_snapshot_id(metadata) == current_snapshot_id(base.metadata):
            return
        of_partitions = any(
            file.content == DataFileContent.EQUALITY_DELETES and len(file.partition)
            for file in change.new_files
        )
        if of_partitions and specs_with_data(base.io, metadata) - {self.spec_id}:
            raise StreamConflict(
                f"Another writer added rows of an older partition spec to {'.'.join(self.name)}."
            )

    def _require_spec(self, metadata: Metadata) -> None:
        if metadata["default-spec-id"] != self.spec_id:
            raise StreamError(
                f"The partition spec of {'.'.join(self.name)} was changed while its stream ran. "
                "Nothing of this batch was written. Start the stream again."
            )

    def record(self, frontier: Frontier) -> None:
        """Record progress that changed no rows, in the table's property and without a snapshot.

        Args:
            frontier: all changes of the source before it are in the table.

        Raises:
            Fenced, StreamConflict: as for `commit`.
        """
        with self.lock:
            self._set(replace(self.progress, frontier=frontier))

    def claim(self, schema: pa.Schema | None = None, refresh: bool = False) -> None:
        """Take the table over for this run, so that older runs cannot commit any more.

        Args:
            schema: of the rows to come; the table's schema is evolved to take them. None leaves
                the table's schema as it is.
            refresh: whether the run replaces all rows, instead of continuing from the progress.

        Raises:
            ColumnError: the table's schema cannot be evolved to the rows'.
            RolledBack: the table was rolled back behind what the stream has committed.
            StreamError: the table's format version 1 has no row-level deletes.
        """
        with self.lock:
            self._claim(schema, refresh)

    @retry(
        retry=retry_if_exception_type(CommitConflict),
        stop=stop_after_attempt(CLAIMS),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def _claim(self, schema: pa.Schema | None, refresh: bool) -> None:
        base = self._load()
        if self.keys and not numbered(base.metadata):
            raise StreamError(
                f"{'.'.join(self.name)} has format version 1, which cannot delete rows by key. Set "
                "`format_version: 2` in the stream model, or remove its `unique_key`."
            )
        if self.spec_id is None:
            self.spec_id = base.metadata["default-spec-id"]
        # Rows have partition values of the spec that the stream was opened with.
        self._require_spec(base.metadata)
        read_progress = restart_progress if refresh else recover
        progress = read_progress(base.metadata, self.progress.sink_id)
        if progress is not None:
            self.progress = replace(progress.next_run(), run=self.progress.run)
        updates = (self.progress.as_property(), *_unpartitioned_spec(base.metadata))
        properties = base.metadata.get("properties") or {}
        if not properties.keys() & TABLE_DEFAULTS.keys():
            # Tables of older versions lack the defaults that many commits of a stream need.
            updates += (SetPropertiesUpdate(updates=dict(TABLE_DEFAULTS)),)
        if schema is not None:
            updates += evolution_updates(base.metadata, schema, ".".join(self.name))
        deletes = rewrite_widened_deletes(base, updates, self.properties)
        if deletes is None:
            required = (*_unchanged(base), *requirements(base.metadata, updates))
            self.catalog.commit(base, required, updates)
        else:
            Committer(self.catalog, self.name, deletes, base, updates).commit_once()

    @retry(
        retry=retry_if_exception_type(CommitConflict),
        stop=stop_after_attempt(CLAIMS),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def _set(self, progress: Progress) -> None:
        base = self._load()
        recorded = require_current_run(base.metadata, self.progress)
        progress = replace(progress, sequence_number=recorded.sequence_number)
        self.catalog.commit(base, _unchanged(base), (progress.as_property(),))
        self.progress = progress

    def replace_with(self, schema: pa.Schema) -> None:
        """Let the next commit replace all rows, and the table's schema.

        Args:
            schema: of the rows to come.
        """
        metadata = self._load().metadata
        self._replaced = metadata
        self.updates = replacement_updates(metadata, schema, ".".join(self.name))
        self.replaces = True

    def table(self) -> LoadedTable:
        """Load the table's current metadata."""
        return self._load()

    def equality_deletes(self) -> list[str]:
        """Return the locations of the table's equality delete files, which have changed keys."""
        base = self._load()
        return [
            file.file_path
            for file in live_deletes(base.io, base.metadata)
            if file.content == DataFileContent.EQUALITY_DELETES
        ]

    def discard(self, batches: Sequence[WrittenBatch]) -> None:
        """Remove the files of batches that will not be committed.

        Args:
            batches: the batches.
        """
        self.remove([location for batch in batches for location in batch.files])

    def remove(self, locations: Sequence[str]) -> None:
        """Remove files that no snapshot refers to.

        Args:
            locations: of the files.
        """
        base = self.catalog.load(self.name)
        if base is None:
            return
        for location in locations:
            remove_quietly(base.io, location)

    def _load(self, history: bool = True) -> LoadedTable:
        base = self.catalog.load(self.name, history)
        if base is None:
            raise StreamError(
                f"The table {'.'.join(self.name)} was dropped while its stream ran. Run the model "
                "again to create it."
            )
        self._io = base.io
        return base

    def storage_advice(self, error: OSError) -> str:
        """Return what a user can do about an error of the table's storage; empty if unknown.

        Args:
            error: PyArrow's error.
        """
        return storage_advice(error, self._io)


def accept_rollback(catalog: IcebergCatalog, name: Name, sink_id: str) -> Progress:
    """Resume a stream from the table's current snapshot, after the table was rolled back.

    Args:
        catalog: the catalog.
        name: of the table.
        sink_id: of the stream.

    Returns:
        The progress that the next run continues from.

    Raises:
        StreamError: there is no such table, or it has no commit of this stream.
        CommitConflict: another writer committed at the same time.
    """
    base = catalog.load(name)
    table = ".".join(name)
    if base is None:
        raise StreamError(f"There is no table {table}.")
    committed = committed_progress(base.metadata, sink_id)
    recorded = read_property(base.metadata, sink_id)
    if committed is None:
        raise StreamError(
            f"{table} has no snapshot that {sink_id} has written. Run the model with "
            "--full-refresh."
        )
    version = max(committed.version, recorded.version if recorded else 0) + 1
    accepted = replace(committed, version=version, run=Progress(sink_id).run)
    catalog.commit(base, _unchanged(base), (accepted.as_property(),))
    return accepted


def _unpartitioned_spec(metadata: Metadata) -> tuple[TableUpdate, ...]:
    if unpartitioned(metadata) is not None:
        return ()
    number = 1 + max(spec["spec-id"] for spec in metadata["partition-specs"])
    return (AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=number)),)


def current_snapshot_id(metadata: Metadata) -> int | None:
    """Return the id of a table's current snapshot; None for a table without snapshots.

    Args:
        metadata: of the table.
    """
    snapshot = parent_snapshot(metadata, MAIN)
    return None if snapshot is None else int(snapshot["snapshot-id"])


def _unchanged(base: LoadedTable) -> tuple[TableRequirement, ...]:
    parent = parent_snapshot(base.metadata, MAIN)
    reference = {"ref": MAIN, "snapshot-id": parent and parent["snapshot-id"]}
    return (
        AssertTableUUID(uuid=base.metadata["table-uuid"]),
        AssertRefSnapshotId.model_validate(reference),
    )


def _operation(
    added: Sequence[AddedFiles], removed: Sequence[DataFile], replaces: bool
) -> Operation:
    data = any(files.data for files in added)
    deletes = any(files.deletes for files in added) or bool(removed)
    if replaces or (data and deletes):
        return Operation.OVERWRITE
    return Operation.DELETE if deletes else Operation.APPEND
