"""What the Python of a materialization works with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse


@dataclass(frozen=True)
class MaterializationContext:
    """The catalog, Spark and what follows a commit, for one node of a run.

    Attributes:
        catalog: the profile's Iceberg catalog, as its user.
        credentials: the profile.
        project_root: the folder that paths of the project are relative to.
        principal: whose token is used; empty where the catalog knows no users.
        session: returns this thread's Spark session, with a current token.
        discard_session: keeps this thread's session from other nodes, after code of the user ran
            in it.
        has_default_settings: whether this thread's session still has the settings it began with.
        execute: runs a SQL statement as dbt does, and returns what it did.
        database_errors: a context that turns errors of a statement, whose text is given, into
            dbt's.
        check_canceled: raises StatementError once the command was canceled.
        after_commit: to be called after each commit that Spark did not make, with the table and
            the snapshot: Spark reads the table again, cached results go, the project's
            `iceberg_stream__on_write` is called.
    """

    catalog: IcebergCatalog
    credentials: IcebergStreamCredentials
    project_root: Path
    principal: str
    session: Callable[[], Session]
    discard_session: Callable[[], None]
    has_default_settings: Callable[[], bool]
    execute: Callable[[str], IcebergStreamResponse]
    database_errors: Callable[[str], AbstractContextManager[None]]
    check_canceled: Callable[[], None]
    after_commit: Callable[[Name, int], None]

    @property
    def is_remote(self) -> bool:
        """Whether Spark is a cluster, nearer to the storage than this process."""
        return self.credentials.method == "connect"
