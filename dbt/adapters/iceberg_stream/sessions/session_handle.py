"""A connection's Spark session: keeps its token valid, and prepares its statements."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dbt_common.events.contextvars import get_node_info

from dbt.adapters.iceberg_stream.builds.aliases import with_aliases, with_published_texts
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.engines.cancellation import Cancellation
from dbt.adapters.iceberg_stream.engines.progress import Progress
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import CANCELED, StatementError
from dbt.adapters.iceberg_stream.sessions.information_schema import InformationSchema
from dbt.adapters.iceberg_stream.sessions.merges import Merges
from dbt.adapters.iceberg_stream.sessions.own_reads import OwnReads
from dbt.adapters.iceberg_stream.sessions.running_nodes import RunningNodes
from dbt.adapters.iceberg_stream.sessions.session_results import SessionResults
from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables
from dbt.adapters.iceberg_stream.sql.queries import Reads, reads
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet, capture_read_set

if TYPE_CHECKING:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
    from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
    from dbt.adapters.iceberg_stream.sessions.external_sources import ExternalSources
    from dbt.adapters.iceberg_stream.sessions.function_definition import Definition
    from dbt.adapters.iceberg_stream.sessions.functions import ProjectFunctions
    from dbt.adapters.iceberg_stream.sessions.results import ResultCache

logger = Logger()
Result = TypeVar("Result")


def _owner(renewal: Renewal | None) -> str:
    return renewal.owner if renewal else ""


class SessionHandle:
    """A connection's session, and the catalogs that all connections share.

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
        nodes: what the nodes of the command do.
    """

    def __init__(
        self,
        session: Session,
        catalogs: Catalogs,
        show_progress: bool,
        on_close: Callable[[SessionHandle], None],
        on_lost: Callable[[], None],
        renewal: Renewal | None = None,
        results: ResultCache | None = None,
        functions: ProjectFunctions | None = None,
        merges: Merges | None = None,
        external_sources: ExternalSources | None = None,
        small_tables: SmallTables | None = None,
        nodes: RunningNodes | None = None,
    ) -> None:
        self.session = session
        self.catalogs = catalogs
        self.merges = merges or Merges()
        self.small_tables = small_tables
        self.nodes = nodes or RunningNodes()
        # Whether the next merge waits for its turn. Its rows must not depend on the table.
        self.merges_in_turn = False
        self.reusable = True
        self.canceled = False
        # What each temporary view of this session reads; None if unknown. A session that has some
        # is not used for the next node.
        self.views: dict[str, Reads | None] = {}
        # What the cached ones among them had read when they were cached; None if unknown.
        self.cached: dict[str, ReadSet | None] = {}
        # Those whose rows the engine keeps as they were.
        self._staged: set[str] = set()
        # What the node's queries have read of its own table; see `node_queries.py`.
        self.own_reads = OwnReads(catalogs)
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

    def few_rows(self, query: str, most_rows: int) -> pa.Table | None:
        """Run a query and return its rows; None if they are too many for this process.

        Args:
            query: the query.
            most_rows: the most rows.

        Raises:
            StatementError: it failed.
        """
        small_tables = self.small_tables
        if small_tables is None:
            return None
        prepared = self.prepare(query)
        views = self.views if self.reusable else None
        fetched = self.with_valid_token(
            lambda: small_tables.fetch(self.session, prepared, views, most_rows)
        )
        return None if fetched is None else fetched[0]

    def stage(self, view: str, query: str) -> None:
        """Run a query, and keep its rows as a temporary view.

        Args:
            view: name of the view.
            query: the query.

        Raises:
            CompilationError: as for `prepare`.
            StatementError: the query failed.
        """
        self.refuse_if_canceled()
        prepared = self.prepare(query)
        read = reads(prepared)
        self.reusable = False
        self.progress.start(str(get_node_info().get("node_name") or view))
        try:
            before = self.read_set_of(read)
            self.with_valid_token(lambda: self.session.stage(view, prepared))
            self._refuse_duplicate_columns(view)
        finally:
            self.progress.finish()
        self.views[view.lower()] = read and read.of_tables()
        self.cached[view.lower()] = before
        self._staged.add(view.lower())

    def _refuse_duplicate_columns(self, view: str) -> None:
        names = [name for name, _ in self.session.schema(f"select * from {quote(view)}")]
        lower = [name.lower() for name in names]
        if len(set(lower)) == len(names):
            return
        is_exact = self.session.setting("spark.sql.caseSensitive") == "true"
        if not is_exact or len(set(names)) < len(names):
            twice = next(name for name in names if lower.count(name.lower()) > 1)
            raise StatementError(
                f"The query returns the column {quote(twice)} more than once. Nothing was written. "
                "Give each column a name of its own. Names that differ only in case count as equal."
            )

    def prepare(self, sql: str) -> str:
        """Return a statement with what it needs of functions, the catalog and a build.

        Args:
            sql: the statement.

        Raises:
            CompilationError: a function or a call is wrong, or a view calls a Python function.
            StatementError: it reads what `information_schema` does not have, or an external source
                that Spark cannot read.
        """
        sql = with_published_texts(with_aliases(self._information_schema.prepare(sql)))
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

    def read_set(self, sql: str) -> ReadSet:
        """Return what a statement reads, with the current versions.

        Views that are cached keep the rows, and have the versions, of the time when they were.

        Args:
            sql: the statement.
        """
        return self.read_set_of(reads(sql))

    def read_set_of(self, read: Reads | None) -> ReadSet:
        """Return the read set of a statement that is parsed, for the checks of writes.

        Args:
            read: the relations that it reads; None if unknown.
        """
        read = read and read.of_tables()
        return capture_read_set(self.catalogs, read, self.views, cached=self.cached)

    def is_cached(self, sql: str, table: QualifiedName) -> bool:
        """Return whether a statement reads a cached view of a table.

        Args:
            sql: the statement.
            table: the table.
        """
        read = reads(sql)
        views = [parts[0].lower() for parts in read.relations if len(parts) == 1] if read else []
        read_sets = [self.cached.get(view) for view in views]
        return any(table in read_set.versions for read_set in read_sets if read_set)

    def forget_view(self, name: Sequence[str] | None) -> None:
        """Note that a statement has dropped what has a name, which may be a temporary view.

        Args:
            name: its parts, as in the statement.
        """
        if name is not None and len(name) == 1:
            self.views.pop(name[0].lower(), None)
            self.cached.pop(name[0].lower(), None)
            self._staged.discard(name[0].lower())

    def on_write(
        self,
        table: QualifiedName,
        rows_changed: bool,
        snapshot_id: int | None = None,
        replaced: bool = False,
    ) -> None:
        """Note that this session changed a table: Spark computes its cached views again.

        It does not compute staged rows again.

        Args:
            table: the table.
            rows_changed: whether rows may have changed; otherwise only columns or properties.
            snapshot_id: the snapshot that it has committed.
            replaced: whether there is another table now, or none.
        """
        for view, read_set in self.cached.items():
            if read_set is None or table not in read_set.versions:
                continue
            if view in self._staged and snapshot_id is not None:
                written = read_set.written | {snapshot_id}
                self.cached[view] = dataclasses.replace(read_set, written=written)
            else:
                self.cached[view] = self._after_write(read_set, table, rows_changed)
        self.own_reads.on_write(table, not rows_changed, replaced, snapshot_id)

    def _after_write(
        self, read_set: ReadSet, table: QualifiedName, rows_changed: bool
    ) -> ReadSet | None:
        metadata = None if rows_changed else self.catalogs.metadata(table, history=False)
        return None if metadata is None else read_set.with_schema(table, metadata)

    def drop_relations(self, namespace: Sequence[str]) -> None:
        """Drop the tables and views of a namespace, unless it is in no catalog of the profile.

        Args:
            namespace: parts of its name, as in a statement.
        """
        # The name of any relation in it.
        if (relation := self.catalogs.find((*namespace, ""))) is None:
            return
        catalog, (schema, _) = relation
        from dbt.adapters.iceberg_stream.tables.drop import drop_contents

        drop_contents(catalog, schema, self.catalogs)

    def query(self, sql: str) -> tuple[pa.Table, bool]:
        """Run a query, or return its cached rows.

        Args:
            sql: the query.

        Returns:
            The rows, and whether they come from the cache.
        """
        # A session whose settings or functions changed may return other rows.
        if self._results is None or not self.reusable:
            return self._run_query(sql), False
        return self._results.query(sql, self._run_query)

    def _run_query(self, sql: str) -> pa.Table:
        interpreted = (
            self.small_tables is not None
            and self.reusable
            and self.small_tables.sizes.computes_few_rows(sql, self.views)
        )
        return self.session.query(sql, interpreted)

    def refuse_if_canceled(self) -> None:
        """Raise a StatementError if the command was canceled."""
        if self.canceled:
            raise StatementError("Not run: the command was canceled.", CANCELED)

    def interrupt(self) -> None:
        """Cancel the running statement, and refuse the next ones; returns at once."""
        self.canceled = True
        self.reusable = False
        cancellation = Cancellation(self.session, self.progress.tasks_run, self._ended)
        threading.Thread(target=cancellation.run, args=(self._on_lost,), daemon=True).start()

    def reopen(self) -> None:
        """Prepare the session for another node."""
        self._ended.clear()
        self.own_reads.forget()
        self._information_schema.drop()

    def close(self) -> None:
        """End the connection; the session may be reused."""
        self._ended.set()
        self._on_close(self)
