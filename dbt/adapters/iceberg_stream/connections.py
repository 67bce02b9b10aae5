"""dbt's connections: each one a Spark session of its own on the engine."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.contracts.connection import (
    AdapterRequiredConfig,
    Connection,
    ConnectionState,
)
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.exceptions import FailedToConnectError
from dbt.adapters.sql import SQLConnectionManager
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.engines.embedded import status
from dbt.adapters.iceberg_stream.engines.engine import Engine
from dbt.adapters.iceberg_stream.engines.errors import CANCELED, StatementError
from dbt.adapters.iceberg_stream.engines.settings import (
    Endpoint,
    EngineError,
    prepare_home,
)
from dbt.adapters.iceberg_stream.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.identity.identity import Identity
from dbt.adapters.iceberg_stream.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.identity.token import Token
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import make_engine, make_lake, make_results
from dbt.adapters.iceberg_stream.profile.validation import NO_CACHE
from dbt.adapters.iceberg_stream.relation import quote
from dbt.adapters.iceberg_stream.response import IcebergStreamResponse

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.cache.results import ResultCache
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.cursor import Cursor, Handle
    from dbt.adapters.iceberg_stream.engines.orphans import SessionRecord
    from dbt.adapters.iceberg_stream.engines.session import Session

logger = AdapterLogger("Iceberg_Stream")


class IcebergStreamConnectionManager(SQLConnectionManager):
    TYPE = "iceberg_stream"

    def __init__(self, profile: AdapterRequiredConfig, mp_context: SpawnContext) -> None:
        super().__init__(profile, mp_context)
        self._shared = threading.Lock()
        self._lake: IcebergCatalog | None = None
        self._engine: Engine | None = None
        self._identity: Identity | None = None
        self._results: ResultCache | None = None
        self._results_made = False
        self._idle: list[Handle] = []
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._server_known = False
        self._canceling_thread: int | None = None
        self._recording = threading.Lock()
        self._record: SessionRecord | None = None

    @property
    def credentials(self) -> IcebergStreamCredentials:
        credentials = self.profile.credentials
        assert isinstance(credentials, IcebergStreamCredentials)
        return credentials

    @property
    def project_root(self) -> Path:
        return Path(getattr(self.profile, "project_root", None) or Path.cwd())

    @property
    def warehouse(self) -> Path:
        return self.credentials.warehouse_path(self.project_root)

    @property
    def engine(self) -> Engine:
        with self._shared:
            if self._engine is None:
                self._engine = make_engine(self.credentials, self.project_root)
            return self._engine

    @property
    def identity(self) -> Identity | None:
        """The user's token, one for the whole invocation."""
        with self._shared:
            if self._identity is None:
                self._identity = self.credentials.identity(self.project_root)
            return self._identity

    @property
    def lake(self) -> IcebergCatalog:
        """The Iceberg catalog, shared by the threads of this invocation."""
        identity = self.identity
        with self._shared:
            if self._lake is None:
                self._lake = make_lake(self.credentials, self.project_root, identity)
            return self._lake

    @property
    def results(self) -> ResultCache | None:
        """Cached results of queries; None where the profile wants none."""
        if self.credentials.result_cache in NO_CACHE:
            return None
        lake = self.lake
        with self._shared:
            if not self._results_made:
                self._results = make_results(self.credentials, self.project_root, lake)
                self._results_made = True
            return self._results

    @property
    def principal(self) -> str:
        """Whose token is used; empty where the catalog knows no users."""
        return self.identity.principal if self.identity else ""

    def current_session(self) -> Session:
        """This thread's session, with a token that is good now.

        Raises:
            StatementError: there is no such token.
        """
        handle: Handle = self.get_thread_connection().handle
        handle.refresh_token()
        return handle.session

    def discard_session(self) -> None:
        """Give this thread's session to no other node: its settings may not be ours any more."""
        self.get_thread_connection().handle.reusable = False

    def has_default_settings(self) -> bool:
        """Whether this thread's session has the settings it begins with."""
        connection = self.get_if_exists()
        opened = connection is not None and connection.state == ConnectionState.OPEN
        return not opened or bool(connection.handle.reusable)

    def refresh_spark(self, name: tuple[str, str]) -> None:
        """Have Spark see a commit that it has not made: what it has cached of a table is stale.

        An engine that has not started yet has cached nothing.
        """
        if self.credentials.method == "embedded":
            server = status(self.credentials.engine_path(self.project_root))
            if server is None or not server.ready:
                return
        relation = ".".join(quote(part) for part in (self.credentials.database, *name))
        sql = f"refresh table {relation}"
        with self.exception_handler(sql):
            self.current_session().run(sql)

    def forget_results(self, name: tuple[str, str]) -> None:
        """Drop the cached results of queries that read a relation."""
        if (results := self.results) is not None:
            results.forget(name)

    def session_settings(self, token: Token | None) -> dict[str, str]:
        """Settings of a Spark session: the catalog, as the owner of the token."""
        from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings

        catalog = self.credentials.catalog_settings()
        if catalog is None:
            return spark_settings(self.credentials.database, self.warehouse)
        return catalog.spark(token.value if token else None)

    def open(self, connection: Connection) -> Connection:
        """Give the connection a session of its own: an idle one, or a new one."""
        if connection.state == ConnectionState.OPEN:
            return connection
        try:
            handle = self._idle_handle() or self._new_handle()
            self._refuse_if_canceled(handle)
            connection.handle = handle
        except (EngineError, StatementError, IdentityError) as error:
            connection.state = ConnectionState.FAIL  # type: ignore[assignment]
            raise FailedToConnectError(f"Spark cannot be used. {error}") from error
        connection.state = ConnectionState.OPEN  # type: ignore[assignment]
        return connection

    def _refuse_if_canceled(self, handle: Handle) -> None:
        try:
            self.refuse_if_canceled()
        except StatementError:
            self._take_back(handle)
            raise

    def refuse_if_canceled(self) -> None:
        """Raise StatementError once the command was canceled, by another thread than this."""
        with self._shared:
            by = self._canceling_thread
        if by not in (None, threading.get_ident()):
            raise StatementError("Not run: the command was canceled.", CANCELED)

    def _idle_handle(self) -> Handle | None:
        with self._shared:
            handle = self._idle.pop() if self._idle else None
        if handle is None:
            return None
        # The server may have been restarted, or have ended a session that was idle for long.
        if not handle.session.lives():
            handle.reusable = False
            self._take_back(handle)
            return self._idle_handle()
        handle.reopen()
        return handle

    def _new_handle(self) -> Handle:
        from dbt.adapters.iceberg_stream.cursor import Handle
        from dbt.adapters.iceberg_stream.engines.session import Session, quiet_pyspark

        lake, identity = self.lake, self.identity
        token = identity.token() if identity else None
        endpoint = self.engine.endpoint()
        quiet_pyspark()
        record = self._session_record(endpoint)
        session = Session(
            endpoint.url,
            self.session_settings(token),
            partial(record.add, endpoint),
            known_server=self._server_known,
        )
        self._server_known = True
        renewal = Renewal(identity, token, self.session_settings) if identity and token else None
        handle = Handle(
            session,
            lake,
            self.credentials.progress,
            on_close=self._take_back,
            on_lost=self.engine.abandon,
            renewal=renewal,
            results=self.results,
        )
        with self._shared:
            self._handles.add(handle)
        return handle

    def _session_record(self, endpoint: Endpoint) -> SessionRecord:
        """This process's record; before the first session, what killed commands left is ended."""
        from dbt.adapters.iceberg_stream.engines.orphans import SessionRecord, end_orphans

        with self._recording:
            if self._record is None:
                home = self.credentials.engine_path(self.project_root)
                try:
                    prepare_home(home)
                    if ended := end_orphans(home / "sessions", endpoint):
                        logger.info(
                            f"Canceled {ended} statement(s) that a killed command had left running."
                        )
                    self._record = SessionRecord(home / "sessions")
                except OSError as error:
                    raise EngineError(
                        f"The folder {home} cannot be used: {error}. Name another one by "
                        "`engine_home` in the profile."
                    ) from error
            return self._record

    def _take_back(self, handle: Handle) -> None:
        """Keep a session for the next node, unless it is left with settings or failed work."""
        if handle.reusable:
            with self._shared:
                self._idle.append(handle)
        else:
            with self._shared:
                self._handles.discard(handle)
            handle.session.close()

    def cleanup_all(self) -> None:
        super().cleanup_all()
        with self._shared:
            for handle in self._idle:
                handle.session.close()
            self._idle.clear()
            self._canceling_thread = None
            if self._record is not None:
                self._record.close()
                self._record = None
            if self._results is not None:
                self._results.close()
            self._results, self._results_made = None, False
            if self._lake is not None:
                self._lake.close()
                self._lake = None
            if self._engine is not None:
                self._engine.release()
                self._engine = None

    def cancel_open(self) -> list[str]:
        """Cancel what all other threads run, and refuse what they would run next."""
        own = self.get_if_exists()
        with self.lock:
            names = [c.name for c in self.thread_connections.values() if c is not own and c.name]
        own_handle = own.handle if own and own.state == ConnectionState.OPEN else None
        with self._shared:
            self._canceling_thread = threading.get_ident()
            handles = [h for h in self._handles if h is not own_handle and h not in self._idle]
        for handle in handles:
            handle.interrupt()
        return names

    def cancel(self, connection: Connection) -> None:
        handle: Handle = connection.handle
        logger.debug(f"Canceling what {connection.name} runs")
        handle.interrupt()

    @contextmanager
    def exception_handler(self, sql: str) -> Iterator[None]:
        try:
            yield
        except StatementError as error:
            logger.debug(f"Error while running:\n{sql}\n{error}")
            if error.engine_gone and self._record is not None:
                self._record.lost_server()
            handle: Handle | None = self.get_thread_connection().handle
            told = error.for_principal(handle.whose) if handle is not None else error
            raise DbtDatabaseError(str(told)) from error

    @classmethod
    def get_response(cls, cursor: Cursor) -> IcebergStreamResponse:
        return cursor.response()

    @classmethod
    def data_type_code_to_name(cls, type_code: int | str) -> str:
        return str(type_code)

    # Every statement is its own commit: Iceberg has no transactions over statements.
    def begin(self) -> Connection:
        return self._mark_transaction(opened=True)

    def commit(self) -> Connection:
        return self._mark_transaction(opened=False)

    def clear_transaction(self) -> None:
        self._mark_transaction(opened=False)

    def add_begin_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def add_commit_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _mark_transaction(self, opened: bool) -> Connection:
        connection = self.get_thread_connection()
        connection.transaction_open = opened
        return connection

    @classmethod
    def _rollback_handle(cls, connection: Connection) -> None:
        return None
