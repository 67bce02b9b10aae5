"""A table that one run of a stream has taken over: its progress, its metadata and its files."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyiceberg.io import FileIO
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.storage import storage_advice
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.claim import (
    claimed_progress,
    commit_claim,
    require_deletes,
)
from dbt.adapters.iceberg_stream.stream.sink.partition_specs import require_spec
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, require_current_run
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import unchanged
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly

CLAIMS = 10


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
        lock: held by whoever commits.
    """

    catalog: IcebergCatalog
    name: Name
    progress: Progress
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    spec_id: int | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        # The FileIO of the last load.
        self._io: FileIO | None = None

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
        progress = replace(progress, sequence_number=recorded.sequence_number)
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
