"""A dbt cursor on a Spark session: classifies, runs and reports statements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dbt.adapters.events.logging import AdapterLogger
from dbt_common.events.contextvars import get_node_info
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.engines.cancellation import Cancellation
from dbt.adapters.iceberg_stream.engines.progress import Progress
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.errors.spark import CANCELED, StatementError
from dbt.adapters.iceberg_stream.sessions.information_schema import InformationSchema
from dbt.adapters.iceberg_stream.sessions.merges import Merges
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.session_results import SessionResults
from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables
from dbt.adapters.iceberg_stream.sql.queries import Reads, reads, temporary_view
from dbt.adapters.iceberg_stream.sql.statements import (
    Statement,
    classify,
    dropped_namespace,
    split,
)
from dbt.adapters.iceberg_stream.tables.commit.commit_state import resolve
from dbt.adapters.iceberg_stream.tables.commit.outcome import (
    Outcome,
    find_file_delete,
    find_outcome,
)
from dbt.adapters.iceberg_stream.tables.commit.read_set import capture_read_set
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    PRINCIPAL,
    new_write_id,
    snapshot_properties,
    spark_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame

    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
    from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
    from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
    from dbt.adapters.iceberg_stream.sessions.external_sources import ExternalSources
    from dbt.adapters.iceberg_stream.sessions.function_definition import Definition
    from dbt.adapters.iceberg_stream.sessions.functions import ProjectFunctions
    from dbt.adapters.iceberg_stream.sessions.results import ResultCache

logger = AdapterLogger("Iceberg_Stream")
Result = TypeVar("Result")

ROW_VERBS = {"insert", "merge", "update", "delete", "create", "replace", "truncate"}
# These statements can always be retried: they replace the whole relation.
REBUILDS = {"create", "replace"}
# Their snapshots have no write id if Spark deletes whole files.
DELETE_VERBS = {"delete", "truncate"}
VIEW_VERBS = {"create", "cache"}
STATEMENT_ATTEMPTS = 5
TABLE_EXISTS = "table already exists"
# Spark deletes whole files without a scan; a compaction may have put them into larger ones since.
PARTIAL_FILE = "some, but not all, rows match filter"
QUERY_VERBS = {"select", "with", "values"}
# Statements that change a session, so that the next model must not use it.
SETTING_VERBS = {"set", "reset", "use", "add", "declare"}


def _owner(renewal: Renewal | None) -> str:
    return renewal.owner if renewal else ""


class Handle:
    """A dbt connection's handle: a session, and the catalogs that all connections share.

    Args:
        session: the session.
        catalogs: the catalogs.
        show_progress: show the progress of long statements.
        on_close: is called when dbt closes the connection.
        on_lost: is called if the server does not end a canceled statement.
        renewal: renews the session's tokens, if it has any.
        results: the result cache, if there is one.
        functions: the functions of the project, if there is one.
        merges: lets one connection at a time merge into a table.
        external_sources: the sources that are no tables of a catalog.
        small_tables: replaces small tables without a write by Spark.
    """

    def __init__(
        self,
        session: Session,
        catalogs: Catalogs,
        show_progress: bool,
        on_close: Callable[[Handle], None],
        on_lost: Callable[[], None],
        renewal: Renewal | None = None,
        results: ResultCache | None = None,
        functions: ProjectFunctions | None = None,
        merges: Merges | None = None,
        external_sources: ExternalSources | None = None,
        small_tables: SmallTables | None = None,
    ) -> None:
        self.session = session
        self.catalogs = catalogs
        self.merges = merges or Merges()
        self.small_tables = small_tables
        # Whether the next merge waits for its turn. Its rows must not depend on the table.
        self.merges_in_turn = False
        self.reusable = True
        self.canceled = False
        # What each temporary view of this session reads; None if unknown.
        self.views: dict[str, Reads | None] = {}
        self._ended = threading.Event()
        self._on_close = on_close
        self._on_lost = on_lost
        self._renewal = renewal
        self._functions = functions
        self._information_schema = InformationSchema(session, catalogs)
        self._external_sources = external_sources
        # Python functions that the session has, by name.
        self._registered: dict[str, Definition] = {}
        # No method of this object: a cycle would keep closed sessions until Python collects it.
        owner = partial(_owner, renewal)
        self._results = SessionResults(session, results, owner) if results else None
        self.progress = Progress(show_progress)
        session.on_progress(self.progress)

    def principal_of(self, catalog: str) -> str:
        """Return the owner of the token for a catalog; empty if the catalog has no users.

        Args:
            catalog: the catalog's name, as the profile writes it.
        """
        return self._renewal.principal_of(catalog) if self._renewal else ""

    def refresh_token(self) -> None:
        """Renew the session's token if it expires soon.

        Raises:
            StatementError: there is no valid token.
        """
        try:
            settings = self._renewal.due() if self._renewal else None
        except IdentityError as error:
            raise StatementError(
                f"{error}\nThe statement was not run, and nothing was sent to the catalog "
                f"`{self.catalogs.own.name}`. Models that succeeded before are committed."
            ) from error
        if settings is not None:
            self.session.renew(settings)

    @property
    def principal_and_expiry(self) -> str:
        """The principal and when its token expires, for messages."""
        return self._renewal.principal if self._renewal else ""

    def renew_refused(self, error: StatementError) -> bool:
        """Renew the session's token if the catalog refused it.

        Args:
            error: the statement's error; gets the reason if the renewal fails.

        Returns:
            Whether the session has a new token.
        """
        if self._renewal is None or self.canceled or not error.token_refused:
            return False
        try:
            settings = self._renewal.after_refusal()
        except IdentityError as cause:
            error.add(str(cause))
            return False
        if settings is not None:
            self.session.renew(settings)
        return settings is not None

    def with_valid_token(self, run: Callable[[], Result]) -> Result:
        """Run a statement with a valid token; run it again if the catalog refused the token.

        Args:
            run: runs the statement, and returns its result.

        Raises:
            StatementError: the statement failed; names the principal if the catalog refused it.
        """
        try:
            self.refresh_token()
            try:
                return run()
            except StatementError as error:
                if not self.renew_refused(error):
                    raise
                logger.info("The token expired during a statement: retrying with a new token")
                return run()
        except StatementError as error:
            self.reusable = False
            raise error.for_principal(self.principal_and_expiry) from error

    def few_rows(self, query: str) -> pa.Table | None:
        """Run a query and return its rows; None if they are too many for this process.

        Args:
            query: the query.

        Raises:
            StatementError: it failed.
        """
        small_tables = self.small_tables
        if small_tables is None:
            return None
        prepared = self.prepare(query)
        fetched = self.with_valid_token(lambda: small_tables.fetch(self.session, prepared))
        return None if fetched is None else fetched[0]

    def prepare(self, sql: str) -> str:
        """Return a statement with what it needs of the project's functions and the catalog.

        Args:
            sql: the statement.

        Raises:
            CompilationError: a function or a call is wrong, or a view calls a Python function.
            StatementError: it reads what `information_schema` does not have, or an external source
                that Spark cannot read.
        """
        sql = self._information_schema.prepare(sql)
        if self._external_sources is not None:
            self._external_sources.create_views(self.session, sql)
        if self._functions is None:
            return sql
        prepared = self._functions.prepare(sql)
        for definition in prepared.python:
            signature = definition.signature
            if definition.python and self._registered.get(signature.name) != definition:
                self.session.register_function(
                    signature.name, definition.python, signature.returns, definition.deterministic
                )
                self._registered[signature.name] = definition
        return prepared.sql

    def drop_relations(self, namespace: Sequence[str]) -> None:
        """Drop the tables and views of a namespace, unless it is in no catalog of the profile.

        Args:
            namespace: parts of its name, as in a statement.
        """
        # The name of any relation in it.
        if (relation := self.catalogs.find((*namespace, ""))) is None:
            return
        catalog, (schema, _) = relation
        for name, _ in catalog.relations(schema):
            catalog.drop((schema, name))

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        return Cursor(self)

    def query(self, sql: str) -> tuple[pa.Table, bool]:
        """Run a query, or return its cached rows.

        Args:
            sql: the query.

        Returns:
            The rows, and whether they come from the cache.
        """
        # A session whose settings or functions changed may return other rows.
        if self._results is None or not self.reusable:
            return self.session.query(sql), False
        return self._results.query(sql)

    def interrupt(self) -> None:
        """Cancel the running statement, and refuse the next ones; returns at once."""
        self.canceled = True
        self.reusable = False
        cancellation = Cancellation(self.session, self.progress.tasks_run, self._ended)
        threading.Thread(target=cancellation.run, args=(self._on_lost,), daemon=True).start()

    def reopen(self) -> None:
        """Prepare the session for another node."""
        self._ended.clear()
        self._information_schema.drop()

    def close(self) -> None:
        """End the connection; the session may be reused."""
        self._ended.set()
        self._on_close(self)


class Cursor:
    """Runs one statement; dbt's cursor."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._statement = Statement("unknown")
        self._table: pa.Table | None = None
        self._frame: DataFrame | None = None
        self._rows: list[tuple[Any, ...]] | None = None
        self._from_cache = False
        self.outcome: Outcome | None = None
        self.target: QualifiedName | None = None

    def execute(self, sql: str, bindings: Sequence[Any] | None = None) -> None:
        """Run a statement: fetch the rows of a query, or read the outcome of a write.

        Of several statements, such as with a `sql_header`, the last one has the result.

        Args:
            sql: one or more statements.
            bindings: not supported.

        Raises:
            StatementError: with the cause and, for known errors, what to do.
        """
        if bindings:
            raise StatementError(
                "The iceberg_stream adapter does not support bindings: inline the values."
            )
        for statement in split(sql):
            self._execute_one(statement)

    def _execute_one(self, sql: str) -> None:
        self._statement = classify(sql)
        self._table = self._frame = self.outcome = self.target = None
        self._from_cache = False
        handle = self._handle
        self._refuse_if_canceled()
        sql = handle.prepare(sql)
        handle.progress.start(str(get_node_info().get("node_name") or "statement"))
        if self._statement.verb in SETTING_VERBS or self._statement.defines_function:
            handle.reusable = False
        if self._statement.verb == "drop" and (namespace := dropped_namespace(sql)):
            # Iceberg's catalogs can drop only empty namespaces.
            handle.drop_relations(namespace)
        try:
            handle.with_valid_token(lambda: self._run_classified(sql))
        finally:
            handle.progress.finish()

    def _run_classified(self, sql: str) -> None:
        if self._statement.writes:
            self._write(sql)
        elif self._statement.verb in QUERY_VERBS:
            self._table, self._from_cache = self._handle.query(sql)
        else:
            self._frame = self._handle.session.run(sql)
            self._record_view(sql)

    def _write(self, sql: str) -> None:
        write_id = new_write_id()
        self.target = self._target()
        catalogs = self._handle.catalogs
        catalog = catalogs.split(self.target)[0] if self.target else catalogs.own
        properties = snapshot_properties(write_id, self._handle.principal_of(catalog.name))
        if len(catalogs.names) > 1:
            # The session may have the user of another catalog from the statement before.
            properties.setdefault(PRINCIPAL, "")
        if self._replace_small_table(sql, properties):
            return
        self._handle.session.configure(spark_settings(properties))
        find = self._find_outcome(write_id)
        try:
            with self._turn():
                self._run_write(sql)
        except StatementError as error:
            if not error.commit_state_unknown or not self._commits_snapshot():
                raise
            self.outcome = self._on_branch(resolve(error, find, write_id))
            if error.engine_gone:
                raise StatementError(
                    f"{error}\nThe statement was committed as snapshot {self.outcome.snapshot_id}.",
                    engine_gone=True,
                ) from error
            logger.warning(
                "The catalog did not confirm a commit, but the table has its snapshot "
                f"{self.outcome.snapshot_id}."
            )
            return
        if self._commits_snapshot():
            self.outcome = self._committed(find)

    def _replace_small_table(self, sql: str, properties: Mapping[str, str]) -> bool:
        """Run a statement that replaces a small table, if it is one; return whether it was run."""
        handle = self._handle
        # Settings and functions of the session may change what Spark would write.
        if handle.small_tables is None or self.target is None or not handle.reusable:
            return False
        query = handle.small_tables.query_of(sql, self.target, handle.views)
        if query is None:
            return False
        self.outcome = handle.small_tables.replace(
            handle.session, self.target, query, properties, self._refuse_if_canceled
        )
        return self.outcome is not None

    def _refuse_if_canceled(self) -> None:
        if self._handle.canceled:
            raise StatementError("Not run: the command was canceled.", CANCELED)

    def _find_outcome(self, write_id: str) -> Callable[[], Outcome | None]:
        """Return what finds the outcome of a write that begins now among the table's snapshots."""
        deletes = self._commits_snapshot() and self._statement.verb in DELETE_VERBS
        latest = next(iter(self._snapshots()), None) if deletes else None
        since = latest.snapshot_id if latest else None

        def find() -> Outcome | None:
            outcome = find_outcome(self._snapshots(), write_id)
            if outcome is None and deletes:
                return find_file_delete(self._snapshots(), since)
            return outcome

        return find

    def _committed(self, find: Callable[[], Outcome | None]) -> Outcome | None:
        """Return the statement's outcome, read from the snapshot that it committed."""
        try:
            outcome = find()
            return None if outcome is None else self._on_branch(outcome)
        except CatalogError as error:
            # The token may have expired since. Not a StatementError, which could cause a retry.
            raise CatalogError(
                f"The statement was committed to {'.'.join(self.target or ())}, but its snapshot "
                f"cannot be read: {error}"
            ) from error

    def _on_branch(self, outcome: Outcome) -> Outcome:
        return replace(outcome, branch=self._statement.branch)

    def _turn(self) -> AbstractContextManager[None]:
        """Wait for other batches' merges into the table, which would conflict with this one."""
        in_turn, self._handle.merges_in_turn = self._handle.merges_in_turn, False
        if not in_turn or self._statement.verb != "merge" or self.target is None:
            return nullcontext()
        return self._handle.merges.turn(self.target)

    def _run_write(self, sql: str) -> None:
        """Run a write; retry after a conflict while its read set has not changed."""
        handle, catalogs = self._handle, self._handle.catalogs
        rebuilds = self._statement.verb in REBUILDS
        read_set = None if rebuilds else capture_read_set(catalogs, reads(sql), handle.views)

        def may_retry(error: BaseException) -> bool:
            if not isinstance(error, StatementError):
                return False
            # If two writers create a table, the second one finds that it exists.
            created = self._statement.replaces and TABLE_EXISTS in str(error).lower()
            compacted = self._statement.verb == "delete" and PARTIAL_FILE in str(error)
            if not (error.is_conflict or created or compacted):
                return False
            if error.commit_state_unknown or handle.canceled:
                return False
            if rebuilds or read_set is None:
                return rebuilds
            if changed := read_set.changed(catalogs):
                error.add(
                    f"The adapter did not retry the statement: {'.'.join(changed)} has changed, "
                    "and the rows were computed from it."
                )
            return changed is None

        def before_retry(state: RetryCallState) -> None:
            logger.info(
                f"Another writer committed to {'.'.join(self.target or ())}: retrying the "
                f"statement ({state.attempt_number + 1} of {STATEMENT_ATTEMPTS})"
            )
            handle.refresh_token()

        for attempt in Retrying(
            retry=retry_if_exception(may_retry),
            stop=stop_after_attempt(STATEMENT_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            before_sleep=before_retry,
            reraise=True,
        ):
            with attempt:
                handle.session.run(sql)

    def _record_view(self, sql: str) -> None:
        if self._statement.verb in VIEW_VERBS and (view := temporary_view(sql)) is not None:
            self._handle.views[view.name.lower()] = view.reads

    def _commits_snapshot(self) -> bool:
        rows = self._statement.verb in ROW_VERBS and not self._statement.on_view
        return rows and self.target is not None

    def _snapshots(self) -> Iterator[SnapshotSummary]:
        assert self.target is not None
        return self._handle.catalogs.snapshots(self.target)

    def _target(self) -> QualifiedName | None:
        """Return the changed relation's name; None if it is in no catalog of the profile."""
        return self._handle.catalogs.find_qualified(self._statement.target or ())

    def response(self) -> IcebergStreamResponse:
        """Return the outcome, for the status line and run_results.json."""
        verb = self._statement.verb.upper()
        relation = ".".join(self.target) if self.target else None
        if self.outcome is None:
            rows = None if self._table is None else self._table.num_rows
            code = "OK" if rows is None else verb
            cached = self._from_cache or None
            return IcebergStreamResponse(
                code,
                code=code,
                rows_affected=rows,
                relation=relation,
                from_cache=cached,
                target=self.target,
            )
        return IcebergStreamResponse.of(self.outcome, verb, relation, target=self.target)

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The result's columns (DB-API); None if there is no result."""
        if self._table is None and self._frame is not None:
            self._table = self._handle.session.fetch(self._frame)
        if self._table is None:
            return None
        return [(f.name, str(f.type), None, None, None, None, True) for f in self._table.schema]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return self.fetchmany(None)

    def fetchmany(self, size: int | None) -> list[tuple[Any, ...]]:
        """Return the next rows.

        Args:
            size: how many; None for all that remain.
        """
        if self._rows is None:
            columns = self.description
            self._rows = as_rows(self._table) if columns and self._table is not None else []
        fetched, self._rows = (
            (self._rows, []) if size is None else (self._rows[:size], self._rows[size:])
        )
        return fetched

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None if there is none."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def close(self) -> None:
        """Release the rows."""
        self._table = self._frame = self._rows = None
