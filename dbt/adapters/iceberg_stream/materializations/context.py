"""What the Python of a materialization works with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.engines.session import Session


@dataclass(frozen=True)
class MaterializationContext:
    """What the Python of a materialization needs of the adapter, for one node of a run.

    Attributes:
        catalog: the model's Iceberg catalog, as its user.
        catalogs: all catalogs of the profile.
        credentials: the profile.
        project_root: the project's folder, for relative paths.
        principal: the owner of the token for the catalog; empty if the catalog has no users.
        session: returns this thread's Spark session, with a valid token.
        with_valid_token: runs what uses this session with a valid token; again with a new one if
            the catalog refuses the token.
        discard_session: keeps this thread's session from other nodes, after code of the user ran
            in it.
        has_default_settings: returns whether this thread's session has its initial settings.
        execute: runs a SQL statement as dbt does, and returns its response.
        few_rows: runs a query whose rows are written to the table with the given metadata, and
            returns them; None if they are too many for this process, or Spark is a cluster.
        append_few_rows: runs a query once, appends its rows to a table or one of its branches, and
            returns the outcome; None if nothing was written, because Spark must append them.
        note_own_table: notes that code of the model, which runs next, may read its own table.
        read_check: returns what a write of a query's rows to a table must check.
        database_errors: returns a context that converts errors of a statement to dbt's errors; its
            argument is the statement's text.
        turn_of: waits until no other thread merges into a table in its turn, and lets them wait.
        check_canceled: raises StatementError if the command was canceled.
        reach: which tables the adapter can write in place of Spark.
        after_commit: call it with table and outcome after each commit that Spark did not make. It
            refreshes the table in Spark, drops cached results, records what changed, and calls
            the project's `iceberg_stream__on_write`.
    """

    catalog: IcebergCatalog
    catalogs: Catalogs
    credentials: IcebergStreamCredentials
    project_root: Path
    principal: str
    session: Callable[[], Session]
    with_valid_token: Callable[[Callable[[], Any]], Any]
    discard_session: Callable[[], None]
    has_default_settings: Callable[[], bool]
    execute: Callable[[str], IcebergStreamResponse]
    few_rows: Callable[[str, Metadata | None], pa.Table | None]
    append_few_rows: Callable[[QualifiedName, str, str | None], Outcome | None]
    note_own_table: Callable[[], None]
    read_check: Callable[[str, QualifiedName], ReadCheck]
    database_errors: Callable[[str], AbstractContextManager[None]]
    turn_of: Callable[[QualifiedName], AbstractContextManager[None]]
    check_canceled: Callable[[], None]
    reach: StorageReach
    after_commit: Callable[[Name, Outcome], None]

    @property
    def is_remote(self) -> bool:
        """Return whether Spark is a cluster, closer to the storage than this process."""
        return self.credentials.method == "connect"

    def merge_turn(self, relation: BaseRelation) -> AbstractContextManager[None]:
        """Wait for merges of other batches into a table, which would conflict with this one's.

        Args:
            relation: the table.
        """
        return self.turn_of(self.catalogs.qualified(self.catalog.name, table_name(relation)))

    def read_check_of(self, query: str, relation: BaseRelation) -> ReadCheck:
        """Return what a write of a query's rows must check. Call it before the query runs.

        Args:
            query: the query.
            relation: the table that gets the rows.

        Raises:
            TableChanged: the model has queried a version of the table that is not there any more.
        """
        name = self.catalogs.qualified(self.catalog.name, table_name(relation))
        return self.read_check(query, name)
