"""A table that one run of a stream has taken over: its progress, its metadata and its files."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table.update import TableUpdate
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import storage_advice
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import Fenced, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.claim import (
    claimed_progress,
    commit_claim,
    require_deletes,
)
from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import FrontierChain
from dbt.adapters.iceberg_stream.stream.sink.partition_specs import require_spec
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    Progress,
    require_current_run,
)
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged
from dbt.adapters.iceberg_stream.stream.sink.staged_refresh import (
    Takeover,
    drop_refresh,
    read_takeover,
    refresh_name,
    stage_refresh,
)
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import replacement_updates

CLAIMS = 10


@dataclass(frozen=True)
class _OwnTable:
    """The stream's own table, as it was when its full refresh was staged."""

    name: Name
    progress: Progress
    metadata: Metadata
    summaries: FrontierChain


@dataclass
class ClaimedTable:
    """A table that one run of a stream writes, and older runs cannot write any more.

    Attributes:
        catalog: the catalog, as the stream's user.
        name: of the table.
        progress: the progress after the last commit.
        keys: columns that identify a row; none where rows are only appended.
        properties: properties of all its snapshots.
        spec_id: the partition spec that rows have values of; by default the table's spec at the
            first `claim`.
        replaces: whether the next commit replaces all rows of the table.
        updates: updates of the table's metadata in the next commit, such as a new schema.
        lock: held by whoever commits.
    """

    catalog: IcebergCatalog
    name: Name
    progress: Progress
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    spec_id: int | None = None
    replaces: bool = False
    updates: tuple[TableUpdate, ...] = ()

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        # The FileIO of the last load.
        self._io: FileIO | None = None
        # The table's metadata when `updates` were derived from its schema.
        self._replaced: Metadata | None = None
        self._summaries = FrontierChain()
        # The stream's own table, while commits go to the staged one.
        self._own: _OwnTable | None = None
        # The name that this run's staged table is for, and the UUID of the staged table.
        self._staged: tuple[Name, str] | None = None
        # What the next commit takes over from the staged table.
        self._takeover: Takeover | None = None

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
        name = ".".join(self.name)
        if self.keys:
            require_deletes(base.metadata, name)
        if self.spec_id is None:
            self.spec_id = base.metadata["default-spec-id"]
        # Rows have partition values of the spec that the stream was opened with.
        require_spec(base.metadata, self.spec_id, name)
        self.progress = claimed_progress(base.metadata, self.progress, refresh, name)
        commit_claim(self.catalog, base, self.progress, schema, self.properties)
        # After the claim: the staged table is of an earlier run, which cannot commit any more.
        if self.progress.may_be_staged and not self.is_staged:
            drop_refresh(self.catalog, self.name)

    def replace_with(self, schema: pa.Schema) -> None:
        """Let the next commit replace all rows, and the table's schema.

        Args:
            schema: of the rows to come.
        """
        metadata = self._load().metadata
        self._replaced = metadata
        self.updates = replacement_updates(metadata, schema, ".".join(self.name))
        self.replaces = True

    def forget_replacement(self) -> None:
        """Let the next commit replace nothing: what an attempt before had prepared is dropped."""
        self.replaces, self.updates = False, ()
        self._replaced = self._takeover = None

    @property
    def is_staged(self) -> bool:
        """Return whether commits go to the staged table of a full refresh."""
        return self._own is not None

    def stage(self) -> None:
        """Let commits go to a staged table, which readers of the stream's table do not see.

        Raises:
            CatalogError: the catalog refuses the staged table.
            OSError: the storage refuses a file.
        """
        with self.lock:
            base = self._load()
            start = Progress(
                self.progress.sink_id,
                self.progress.version,
                self.progress.run,
                None if self.replaces else self.progress.frontier,
                ordered_by=self.progress.ordered_by,
            )
            self._staged = self.name, stage_refresh(self.catalog, base, self.updates, start)
            replaced = self._replaced or base.metadata
            self._own = _OwnTable(self.name, self.progress, replaced, self._summaries)
            self.name, self.progress = refresh_name(self.name), start
            self.replaces, self.updates, self._replaced = False, (), None
            self._summaries = FrontierChain()

    def take_over(self) -> Progress:
        """Let the next commit replace all rows of the stream's own table by the staged ones.

        Returns:
            The progress that the commit must record.

        Raises:
            OSError: the storage refuses a file.
        """
        with self.lock:
            own, staged, progress = self._own, self._load(), self.progress
            assert own is not None, "only a staged table is taken over"
            self.name, self.progress, self._summaries = own.name, own.progress, own.summaries
            self._own, self._replaced = None, own.metadata
            self._takeover = read_takeover(staged, self._load(), progress.sink_id)
            self.replaces, self.updates = True, self._takeover.updates
            return progress

    def drop_staged(self) -> None:
        """Drop this run's staged table, whose files the stream's own table has, or nobody needs.

        Raises:
            CatalogError: the catalog refuses.
        """
        if self._staged is not None:
            drop_refresh(self.catalog, *self._staged)
            self._staged = None

    def record(self, frontier: Frontier) -> None:
        """Record progress that changed no rows, in the table's property and without a snapshot.

        Args:
            frontier: all changes of the source before it are in the table.

        Raises:
            Fenced, StreamConflict: as for `commit`.
        """
        with self.lock:
            self._set(replace(self.progress, frontier=frontier))

    @retry(
        retry=retry_if_exception_type(CommitConflict),
        stop=stop_after_attempt(CLAIMS),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def _set(self, progress: Progress) -> None:
        base = self._load()
        recorded = require_current_run(base.metadata, self.progress)
        progress = replace(
            progress,
            sequence_number=recorded.sequence_number,
            snapshot_id=recorded.snapshot_id,
        )
        self.catalog.commit(base, unchanged(base), (progress.as_property(),))
        self.progress = progress

    def table(self) -> LoadedTable:
        """Load the table's current metadata."""
        return self._load()

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
        if not locations:
            return
        try:
            base = self.catalog.load(self.name, history=False)
        except CatalogError:
            # Files that stay are orphans: no reason to fail after a commit, or to hide an error.
            return
        if base is None:
            return
        for location in locations:
            remove_quietly(base.io, location)

    def _load(self, history: bool = True) -> LoadedTable:
        own = self._own
        name = self.name if own is None else refresh_name(own.name)
        base = self.catalog.load(name, history)
        if self._own is not own:
            # Batches are written while another thread stages the table or takes it over.
            return self._load(history)
        found = None if base is None else base.metadata["table-uuid"]
        if own is not None and self._staged is not None and found != self._staged[1]:
            raise Fenced(
                f"The staged table of this full refresh, {'.'.join(name)}, was dropped: by another "
                f"run of the stream {self.progress.sink_id}, which has taken over, or by a user. "
                f"{'.'.join(own.name)} keeps its rows, and this run has stopped. If there is no "
                "other run, run the model with --full-refresh again."
            )
        if base is None:
            raise StreamError(
                f"The table {'.'.join(name)} was dropped while its stream ran. Run the model again "
                "to create it."
            )
        self._io = base.io
        return base

    def storage_advice(self, error: OSError) -> str:
        """Return what a user can do about an error of the table's storage; empty if unknown.

        Args:
            error: PyArrow's error.
        """
        return storage_advice(error, self._io)
