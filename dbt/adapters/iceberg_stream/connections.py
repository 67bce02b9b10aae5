"""dbt's connections: each one a Spark session of its own on the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dbt.adapters.contracts.connection import (
    AdapterRequiredConfig,
    Connection,
    ConnectionState,
)
from dbt.adapters.exceptions import FailedToConnectError
from dbt.adapters.sql import SQLConnectionManager
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.catalog.identity.token import Token
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.engines.embedded import status
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import session_settings
from dbt.adapters.iceberg_stream.sessions.external_sources import ExternalSources
from dbt.adapters.iceberg_stream.sessions.merges import Merges
from dbt.adapters.iceberg_stream.sessions.pool import SessionPool, SessionRecords
from dbt.adapters.iceberg_stream.sessions.resources import Resources
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.running_nodes import RunningNodes
from dbt.adapters.iceberg_stream.sql.quoting import quote

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
    from dbt.adapters.iceberg_stream.engines.session import Session
    from dbt.adapters.iceberg_stream.maintenance.steps.step import MaintenanceContext
    from dbt.adapters.iceberg_stream.sessions.cursor import Cursor, Handle
    from dbt.adapters.iceberg_stream.sessions.functions import ProjectFunctions
    from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
    from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
    from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck

logger = Logger()

# By default, Spark replaces `${…}` in statements, also in texts and comments, by settings and
# environment variables of the server.
SUBSTITUTION = "spark.sql.variable.substitute"
Result = TypeVar("Result")


class IcebergStreamConnectionManager(SQLConnectionManager):
    TYPE = "iceberg_stream"

    def __init__(self, profile: AdapterRequiredConfig, mp_context: SpawnContext) -> None:
        super().__init__(profile, mp_context)
        self.resources = Resources(self.credentials, self.project_root)
        self._records = SessionRecords(self.credentials.engine_path(self.project_root))
        self._pool = SessionPool(self._open_handle)
        self._merges = Merges()
        self.nodes = RunningNodes()
        self._server_checked = False
        self.functions: ProjectFunctions | None = None
        self.external_sources = ExternalSources(self.project_root)

    @property
    def credentials(self) -> IcebergStreamCredentials:
        credentials = self.profile.credentials
        assert isinstance(credentials, IcebergStreamCredentials)
        return credentials

    @property
    def project_root(self) -> Path:
        return Path(getattr(self.profile, "project_root", None) or Path.cwd())

    def principal_of(self, catalog: str) -> str:
        """Return the owner of the token for a catalog; empty if the catalog has no users.

        Args:
            catalog: the catalog's name, as the profile writes it.
        """
        identity = self.resources.identities.get(catalog)
        return identity.principal if identity else ""

    def owner_of(self, catalog: str) -> str:
        """Return a digest of who uses a catalog, roles included; empty if it has no users.

        Args:
            catalog: the catalog's name, as the profile writes it.
        """
        identity = self.resources.identities.get(catalog)
        return identity.owner() if identity else ""

    def current_session(self) -> Session:
        """Return this thread's session, with a valid token.

        Raises:
            StatementError: no valid token is available.
        """
        handle: Handle = self.get_thread_connection().handle
        handle.refresh_token()
        return handle.session

    def with_valid_token(self, run: Callable[[], Result]) -> Result:
        """Run a function that uses this thread's session, with a valid token.

        It runs again, in a copy of the session, if the catalog refused the token.

        Args:
            run: runs it, and returns its result.

        Raises:
            StatementError: it failed.
        """
        handle: Handle = self.get_thread_connection().handle
        return handle.with_valid_token(run)

    def turn_of(self, table: QualifiedName) -> AbstractContextManager[None]:
        """Wait until no other thread merges into a table in its turn, and keep them waiting.

        Args:
            table: the table.
        """
        return self._merges.turn(table)

    def merge_in_turn(self) -> None:
        """Let this thread's next merge wait for those of other threads into the same table."""
        self.get_thread_connection().handle.merges_in_turn = True

    def prepare(self, sql: str) -> str:
        """Return a query with what it calls of the project's functions, in this thread's session.

        Args:
            sql: the query.

        Raises:
            StatementError: no valid token is available, or Spark refuses a function.
            CompilationError: a function or a call is wrong.
        """
        handle: Handle = self.get_thread_connection().handle
        handle.refresh_token()
        return handle.prepare(sql)

    def few_rows(self, query: str, written: Metadata | None) -> pa.Table | None:
        """Run a query whose rows are merged into a table, and return its rows if they are few.

        Args:
            query: the query.
            written: metadata of the table. If its last write changed many rows, the query is not
                run.

        Returns:
            The rows; None if Spark should keep them.

        Raises:
            StatementError: the query failed.
        """
        handle: Handle = self.get_thread_connection().handle
        if handle.small_tables is None:
            return None
        sizes = handle.small_tables.sizes
        most_rows = sizes.most_merged_rows(written)
        if not sizes.had_few_changes(written, most_rows):
            return None
        return handle.few_rows(query, most_rows)

    def stage(self, view: str, query: str) -> None:
        """Run a query, and keep its rows as a temporary view of this thread's session.

        Args:
            view: name of the view.
            query: the query.

        Raises:
            DbtDatabaseError: the query failed.
        """
        from dbt.adapters.iceberg_stream.sessions.node_queries import note_unknown

        logger.debug(f"Staging the rows of a query as {view}:\n{query}")
        with self.exception_handler(query):
            handle = self.get_thread_connection().handle
            note_unknown(handle, query)
            handle.stage(view, query)

    def append_few_rows(
        self, name: QualifiedName, query: str, branch: str | None
    ) -> Outcome | None:
        """Append the rows of a query to a table in this process, if they are few.

        Args:
            name: the table.
            query: returns the new rows; it runs once.
            branch: the branch that gets them; None for main.

        Returns:
            The commit's outcome; None if Spark must append the rows.

        Raises:
            StatementError: Spark, the catalog or the storage refuses; nothing was written.
        """
        from dbt.adapters.iceberg_stream.sessions.small_appends import append_few_rows

        return append_few_rows(self.get_thread_connection().handle, name, query, branch)

    def read_check(self, sql: str, target: QualifiedName) -> ReadCheck:
        """Return what a write of a query's rows must check.

        Args:
            sql: the query.
            target: the table that gets the rows.

        Raises:
            TableChanged: the model has queried a version of the table that is not there any more.
        """
        from dbt.adapters.iceberg_stream.sessions.node_queries import read_check

        handle: Handle = self.get_thread_connection().handle
        return read_check(handle, handle.prepare(sql), target)

    def note_own_table(self) -> None:
        """Note that arbitrary code may read the table of this thread's node."""
        from dbt.adapters.iceberg_stream.sessions.node_queries import note_own_table

        note_own_table(self.get_thread_connection().handle)

    def begin_hook(self) -> None:
        """Begin a hook of this thread's node."""
        self.nodes.begin_hook()
        if (handle := self._open_handle_of_thread()) is not None:
            handle.own_reads.begin_hook()

    def end_hook(self, node: str) -> None:
        """End a hook of a node.

        Args:
            node: its unique id.
        """
        self.nodes.end_hook(node)
        if (handle := self._open_handle_of_thread()) is not None:
            handle.own_reads.end_hook()

    def _open_handle_of_thread(self) -> SessionHandle | None:
        connection = self.get_if_exists()
        if connection is None or connection.state != ConnectionState.OPEN:
            return None
        handle: SessionHandle = connection.handle
        return handle

    def release(self) -> None:
        self.nodes.end()
        super().release()

    def on_write(self, table: QualifiedName, snapshot_id: int) -> None:
        """Note that this thread's node has changed rows of a table without its session.

        Args:
            table: the table.
            snapshot_id: the snapshot that it has committed.
        """
        # Without a session, nothing was read.
        if (handle := self._open_handle_of_thread()) is not None:
            handle.on_write(table, rows_changed=True, snapshot_id=snapshot_id)

    def discard_session(self) -> None:
        """Keep this thread's session from other nodes, because code of the user may change it."""
        self.get_thread_connection().handle.reusable = False

    def has_default_settings(self) -> bool:
        """Return whether this thread's session still has its initial settings."""
        handle = self._open_handle_of_thread()
        return handle is None or handle.reusable

    def refresh_spark(self, *names: QualifiedName) -> None:
        """Refresh tables in Spark's cache, after a commit that Spark did not make.

        Does nothing if the engine has not started yet.

        Args:
            names: the tables.
        """
        if self.credentials.method == "embedded":
            server = status(self.credentials.engine_path(self.project_root))
            if server is None or not server.ready:
                return
        own = self.credentials.database
        relations = [".".join(quote(part) for part in (own, *name)[-3:]) for name in names]
        statements = [f"refresh table {relation}" for relation in relations]
        sql = statements[0]
        if len(statements) > 1:
            # One script takes a quarter of the time of its statements.
            sql = "\n".join(["begin", *(f"{statement};" for statement in statements), "end"])
        with self.exception_handler(sql):
            self.current_session().run(sql)

    def forget_results(self, name: QualifiedName) -> None:
        """Drop the cached results of queries that read a relation.

        Args:
            name: the relation.
        """
        if (results := self.resources.results) is not None:
            results.forget(name)

    def refresh_relation(self, name: QualifiedName) -> None:
        """Refresh a table in Spark's cache, and drop cached results that read it.

        Args:
            name: the table.
        """
        self.refresh_spark(name)
        self.forget_results(name)

    def fetch_rows(self, sql: str) -> list[dict[str, Any]]:
        """Run a statement in this thread's session, and return its rows by column.

        Args:
            sql: the statement, which may be a command such as `call`.

        Raises:
            StatementError: with the cause and, for known errors, what to do.
        """
        cursor: Cursor = self.get_thread_connection().handle.cursor()
        cursor.execute(sql)
        columns = [column[0] for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def maintenance_context(self, catalog_name: str | None = None) -> MaintenanceContext:
        """Return what maintenance needs of the profile and of this thread's session.

        Args:
            catalog_name: the catalog of the tables; the profile's own by default.
        """
        from dbt.adapters.iceberg_stream.maintenance.steps.step import MaintenanceContext

        catalogs = self.resources.catalogs
        catalog = catalogs.get(catalog_name)

        def refresh(name: tuple[str, str]) -> None:
            self.refresh_relation(catalogs.qualified(catalog.name, name))

        return MaintenanceContext(
            catalog,
            self.fetch_rows,
            refresh,
            self.principal_of(catalog.name),
            lambda: catalogs.all_from(catalog),
        )

    # Not a class method as in dbt's base class, because the manager has the sessions.
    def open(self, connection: Connection) -> Connection:  # type: ignore[override]
        """Open a connection with an idle session or a new one."""
        if connection.state == ConnectionState.OPEN:
            return connection
        try:
            connection.handle = self._pool.take()
        except (EngineError, StatementError, IdentityError) as error:
            connection.state = ConnectionState.FAIL
            raise FailedToConnectError(f"Spark cannot be used. {error}") from error
        connection.state = ConnectionState.OPEN
        return connection

    def refuse_if_canceled(self) -> None:
        """Raise StatementError if another thread has canceled the command."""
        self._pool.refuse_if_canceled()

    def session_settings(self, tokens: Mapping[str, Token]) -> dict[str, str]:
        """Return the settings of a Spark session that uses the catalogs with tokens.

        Args:
            tokens: by catalog; without those that have none.
        """
        conf = self.credentials.spark_conf
        substitutes = str(conf.get(SUBSTITUTION, False)).lower()
        catalogs = self.credentials.all_catalogs()
        return session_settings(catalogs, self.project_root, tokens) | {SUBSTITUTION: substitutes}

    def _open_handle(self, on_close: Callable[[SessionHandle], None]) -> Handle:
        from dbt.adapters.iceberg_stream.engines.server_session import quiet_pyspark
        from dbt.adapters.iceberg_stream.engines.session import Session
        from dbt.adapters.iceberg_stream.sessions.cursor import Handle

        shared = self.resources
        catalogs, identities = shared.catalogs, shared.identities
        tokens = {name: identity.token() for name, identity in identities.items()}
        endpoint = shared.engine.endpoint()
        quiet_pyspark()
        session = Session(
            endpoint,
            self.session_settings(tokens),
            partial(self._records.open(endpoint).add, endpoint),
            known_server=self._server_checked,
        )
        self._server_checked = True
        renewal = Renewal(identities, tokens, self.session_settings) if tokens else None
        return Handle(
            session,
            catalogs,
            self.credentials.progress,
            on_close=on_close,
            on_lost=shared.engine.abandon,
            renewal=renewal,
            results=shared.results,
            functions=self.functions,
            merges=self._merges,
            external_sources=self.external_sources,
            small_tables=shared.small_tables,
            nodes=self.nodes,
        )

    def cleanup_all(self) -> None:
        super().cleanup_all()
        self.nodes.clear()
        self._pool.close()
        self._records.close()
        self.resources.close()

    def cancel_open(self) -> list[str]:
        """Cancel the statements of all other threads, and refuse their next ones."""
        own = self.get_if_exists()
        with self.lock:
            names = [c.name for c in self.thread_connections.values() if c is not own and c.name]
        is_open = own is not None and own.state == ConnectionState.OPEN
        self._pool.cancel_others(own.handle if own is not None and is_open else None)
        return names

    def cancel(self, connection: Connection) -> None:
        handle: Handle = connection.handle
        logger.debug(f"Canceling the statement of {connection.name}")
        handle.interrupt()

    @contextmanager
    def exception_handler(self, sql: str) -> Iterator[None]:
        try:
            yield
        except StatementError as error:
            logger.debug(f"Error while running:\n{sql}\n{error}")
            if error.engine_gone:
                self._records.lost_server()
            handle: Handle | None = self.get_thread_connection().handle
            shown = (
                error.for_principal(handle.principal_and_expiry) if handle is not None else error
            )
            raise DbtDatabaseError(str(shown)) from error

    @classmethod
    def get_response(cls, cursor: Cursor) -> IcebergStreamResponse:
        return cursor.response()

    @classmethod
    def data_type_code_to_name(cls, type_code: int | str) -> str:
        return str(type_code)

    # Every statement is its own commit: Iceberg has no transactions over statements.
    def begin(self) -> None:
        self._mark_transaction(opened=True)

    def commit(self) -> None:
        self._mark_transaction(opened=False)

    def clear_transaction(self) -> None:
        self._mark_transaction(opened=False)

    def add_begin_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def add_commit_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _mark_transaction(self, opened: bool) -> None:
        self.get_thread_connection().transaction_open = opened

    @classmethod
    def _rollback_handle(cls, connection: Connection) -> None:
        return None
