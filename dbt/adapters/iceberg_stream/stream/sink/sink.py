"""What a stream has written becomes a snapshot: many data sequence numbers, one commit.

Article on many data sequence numbers, "Improving write performance"; on the streaming sink,
"Recovery Without External State".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
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
    evolving,
    replacing,
    requirements,
    schemas_changed,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

CLAIMS = 10


@dataclass(frozen=True)
class SinkCommit:
    """A commit to a stream's table, and the progress that it makes."""

    committer: Committer
    ahead: Progress
    summaries: FrontierChain


@dataclass
class Sink:
    """A stream's way into its table.

    Attributes:
        catalog: the catalog, as the user whose stream it is.
        name: the table's.
        progress: what was committed last; grows with each commit.
        keys: columns that tell a row; none where rows are only appended.
        properties: stamps of all its snapshots.
        replaces: whether the next commit replaces all that is in the table.
        updates: what the next commit changes along with the rows, such as a new schema.
        spec_id: of the partition spec that rows come with the values of; the table's at the first
            claim if it is not given.
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
        self.turn = threading.Lock()
        # The table from whose schema the updates were made.
        self._replaced: Metadata | None = None
        self._summaries = FrontierChain()

    def plan(self, write_id: str, **settings: Any) -> DeltaPlan:
        """How the files of a batch are written, by the table as it is now."""
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
        """Commit batches, in their order, in one snapshot; None if they change nothing.

        Raises:
            Fenced: another run has taken over; the batches' files are removed.
            StreamConflict: an older run was faster; likewise.
            CatalogError: the catalog refuses; likewise.
            CommitStateUnknown: an answer was lost, and the table does not tell; the files are kept.
        """
        with self.turn:
            ready = self.prepare(write_id, batches)
            return None if ready is None else self.committed(ready, ready.committer.commit())

    def prepare(self, write_id: str, batches: Sequence[WrittenBatch]) -> SinkCommit | None:
        """What is to be committed; None if the batches change nothing. Asks for the sink's turn."""
        last = batches[-1]
        frontier, watermark = last.batch_range.upper, last.watermark
        ahead = replace(self.progress, frontier=frontier, write_id=write_id, watermark=watermark)
        base = self._load(history=False)
        head = parent_snapshot(base.metadata, MAIN) or {}
        if (head.get("summary") or {}).get(WRITE_ID) != self.progress.write_id:
            # Others have committed: whether the table was set back its history tells.
            base = self._load()
        target = WriteTarget.of(with_schema(base.metadata, self.updates), base.io)
        maker = Descriptors(target, base.metadata, write_id, self.keys)
        added = tuple(
            maker.added(number, sub)
            for number, sub in enumerate(s for batch in batches for s in batch.sub_batches())
        )
        removed: list[DataFile] = []
        target_deletes = last.target_deletes
        if target_deletes is not None and (target_deletes.positions or target_deletes.replaced):
            found, removed = maker.target_deletes(target_deletes, base)
            added = (found, *added)
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
        return SinkCommit(self._committer(base, change, ahead, target_deletes), ahead, summaries)

    def committed(self, ready: SinkCommit, done: Committed) -> Committed:
        """Go on from a commit."""
        self.progress, self.replaces, self.updates = ready.ahead, False, ()
        self._summaries = ready.summaries
        return done

    def _committer(
        self,
        base: LoadedTable,
        change: Change,
        ahead: Progress,
        target_deletes: TargetDeletes | None,
    ) -> Committer:
        def check(metadata: Metadata) -> None:
            require_current_run(metadata, self.progress)
            self._check_partitions(base, change, metadata)
            if target_deletes is not None and target_deletes.snapshot_id != current_snapshot_id(
                metadata
            ):
                raise StreamConflict("Another writer has committed after rows were looked for.")
            if self.updates and schemas_changed(self._replaced or base.metadata, metadata):
                raise StreamError(
                    f"The schema of {'.'.join(self.name)} was changed while it was replaced. "
                    "Nothing was written; run it again."
                )

        def noted(snapshot: Mapping[str, Any]) -> tuple[TableUpdate, ...]:
            return (replace(ahead, sequence_number=snapshot["sequence-number"]).as_property(),)

        return Committer(self.catalog, self.name, change, base, self.updates, check, noted)

    def _check_partitions(self, base: LoadedTable, change: Change, metadata: Metadata) -> None:
        self._require_spec(metadata)
        if current_snapshot_id(metadata) == current_snapshot_id(base.metadata):
            return
        of_partitions = any(
            file.content == DataFileContent.EQUALITY_DELETES and len(file.partition)
            for file in change.new_files
        )
        if of_partitions and specs_with_data(base.io, metadata) - {self.spec_id}:
            raise StreamConflict("Another writer has written rows by an older partition spec.")

    def _require_spec(self, metadata: Metadata) -> None:
        if metadata["default-spec-id"] != self.spec_id:
            raise StreamError(
                f"The partitions of {'.'.join(self.name)} were changed while its stream ran. "
                "Nothing of this batch was written; start the stream again."
            )

    def record(self, frontier: Frontier) -> None:
        """Record progress that changed nothing, without a snapshot.

        Raises:
            Fenced, StreamConflict: as for a commit.
        """
        with self.turn:
            self._set(replace(self.progress, frontier=frontier))

    def claim(self, arrow: pa.Schema | None = None, anew: bool = False) -> None:
        """Say that this run goes on from here, or begins anew: older ones may not commit any more.

        The table's schema is made to take in rows of the Arrow schema, if one is given.

        Raises:
            ColumnError: it cannot take them in.
            RolledBack: the table was set back behind what the stream has committed.
        """
        with self.turn:
            self._claim(arrow, anew)

    @retry(
        retry=retry_if_exception_type(CommitConflict),
        stop=stop_after_attempt(CLAIMS),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def _claim(self, arrow: pa.Schema | None, anew: bool) -> None:
        base = self._load()
        if self.keys and not numbered(base.metadata):
            raise StreamError(
                f"{'.'.join(self.name)} has format version 1, which cannot delete rows by key. Set "
                "`format_version: 2` in the stream model, or leave out its `unique_key`."
            )
        if self.spec_id is None:
            self.spec_id = base.metadata["default-spec-id"]
        # Rows come with partition values of the spec that the stream was opened with.
        self._require_spec(base.metadata)
        sink_id = self.progress.sink_id
        known = (
            restart_progress(base.metadata, sink_id) if anew else recover(base.metadata, sink_id)
        )
        if known is not None:
            self.progress = replace(known.next_run(), run=self.progress.run)
        updates = (self.progress.as_property(), *_unpartitioned_spec(base.metadata))
        properties = base.metadata.get("properties") or {}
        if not properties.keys() & TABLE_DEFAULTS.keys():
            # A table that is older than the defaults; a stream commits to it all day.
            updates += (SetPropertiesUpdate(updates=dict(TABLE_DEFAULTS)),)
        if arrow is not None:
            updates += evolving(base.metadata, arrow, ".".join(self.name))
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
        noted = require_current_run(base.metadata, self.progress)
        progress = replace(progress, sequence_number=noted.sequence_number)
        self.catalog.commit(base, _unchanged(base), (progress.as_property(),))
        self.progress = progress

    def replace_with(self, arrow: pa.Schema) -> None:
        """Have the next commit replace all rows by such of the Arrow schema."""
        metadata = self._load().metadata
        self._replaced = metadata
        self.replaces, self.updates = True, replacing(metadata, arrow, ".".join(self.name))

    def table(self) -> LoadedTable:
        """The table as it is now."""
        return self._load()

    def equality_deletes(self) -> list[str]:
        """Locations of the table's equality deletes, which say which keys have been changed."""
        base = self._load()
        return [
            file.file_path
            for file in live_deletes(base.io, base.metadata)
            if file.content == DataFileContent.EQUALITY_DELETES
        ]

    def discard(self, batches: Sequence[WrittenBatch]) -> None:
        """Remove the files of batches that will not be committed."""
        self.remove([location for batch in batches for location in batch.files])

    def remove(self, locations: Sequence[str]) -> None:
        """Remove files that no snapshot knows."""
        base = self.catalog.load(self.name)
        if base is None:
            return
        for location in locations:
            remove_quietly(base.io, location)

    def _load(self, history: bool = True) -> LoadedTable:
        base = self.catalog.load(self.name, history)
        if base is None:
            raise StreamError(f"The table {'.'.join(self.name)} was dropped under its stream.")
        return base


def accept_rollback(catalog: IcebergCatalog, name: Name, sink_id: str) -> Progress:
    """Have a stream go on from what the table holds now, after the table was rolled back.

    Raises:
        StreamError: the table holds nothing of this stream.
        CommitConflict: somebody else has committed meanwhile.
    """
    base = catalog.load(name)
    place = ".".join(name)
    if base is None:
        raise StreamError(f"There is no table {place}.")
    committed = committed_progress(base.metadata, sink_id)
    noted = read_property(base.metadata, sink_id)
    if committed is None:
        raise StreamError(
            f"{place} holds nothing that {sink_id} has written: run it with --full-refresh."
        )
    version = max(committed.version, noted.version if noted else 0) + 1
    accepted = replace(committed, version=version, run=Progress(sink_id).run)
    catalog.commit(base, _unchanged(base), (accepted.as_property(),))
    return accepted


def _unpartitioned_spec(metadata: Metadata) -> tuple[TableUpdate, ...]:
    if unpartitioned(metadata) is not None:
        return ()
    number = 1 + max(known["spec-id"] for known in metadata["partition-specs"])
    return (AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=number)),)


def current_snapshot_id(metadata: Metadata) -> int | None:
    """The snapshot that a table is at; None for an empty one."""
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
