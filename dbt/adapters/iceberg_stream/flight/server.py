"""A Flight SQL server: queries and bulk ingest of ADBC clients, with each client's token."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.names import require_names
from dbt.adapters.iceberg_stream.engines.engine import Engine
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.flight import messages as messages
from dbt.adapters.iceberg_stream.flight.callers import Caller, Callers
from dbt.adapters.iceberg_stream.flight.catalog import answer, schema_of
from dbt.adapters.iceberg_stream.flight.limits import Limits
from dbt.adapters.iceberg_stream.flight.statements import (
    NOT_A_QUERY,
    NOT_ALLOWED,
    ONLY_A_QUERY,
)
from dbt.adapters.iceberg_stream.sessions.cursor import Cursor, Handle
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

MIDDLEWARE = "token"
# Metadata commands, whose results are rows.
METADATA_COMMANDS = {
    "CommandGetSqlInfo",
    "CommandGetCatalogs",
    "CommandGetDbSchemas",
    "CommandGetTables",
    "CommandGetTableTypes",
}
Result = TypeVar("Result")

logger = Logger()


class TokenReader(flight.ServerMiddlewareFactory):
    """Reads the caller's bearer token from the headers of each call."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Token:
        """Return the token of a call.

        Raises:
            flight.FlightUnauthenticatedError: the call has no bearer token.
        """
        header = next((v for k, v in headers.items() if k.lower() == "authorization"), [""])[0]
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise flight.FlightUnauthenticatedError(
                "The call has no bearer token. Set adbc.flight.sql.authorization_header."
            )
        return _Token(token)


class _Token(flight.ServerMiddleware):
    def __init__(self, value: str) -> None:
        self.value = value


class FlightSqlServer(flight.FlightServerBase):
    """Serves until `shutdown`. A query runs when its rows are fetched, any other statement at once.

    Args:
        location: `grpc://host:port` or `grpc+tls://host:port`.
        make_caller: creates the caller of a token.
        engine: runs the callers' statements.
        default_schema: schema of tables that a client names without one.
        limits: of each caller.
        certificates: pairs of certificate chain and private key (PEM), for TLS.
        on_progress: is called with the table's name and the rows so far of each ingest.
    """

    def __init__(
        self,
        location: str,
        make_caller: Callable[[str], Caller],
        engine: Engine,
        default_schema: str,
        limits: Limits,
        certificates: list[tuple[bytes, bytes]] | None = None,
        on_progress: Callable[[str, int], None] | None = None,
    ) -> None:
        self._callers = Callers(make_caller)
        self._engine = engine
        self._limits = limits
        self._repeating = threading.Lock()
        self._default_schema = default_schema
        self._on_progress = on_progress
        super().__init__(
            location, tls_certificates=certificates or [], middleware={MIDDLEWARE: TokenReader()}
        )

    @contextmanager
    def _caller(self, context: Any) -> Iterator[Caller]:
        """Provide the caller, and convert errors to Flight's."""
        token = context.get_middleware(MIDDLEWARE).value
        try:
            with self._callers.calling(token) as caller:
                yield caller
        except (CatalogError, StatementError, IdentityError) as error:
            # `from None`: Flight would send the traceback, with paths of this machine.
            raise _refusal(error) from None
        except (ColumnError, ValueError) as error:
            raise flight.FlightServerError(reason(error)) from None
        except (DbtRuntimeError, EngineError, OSError) as error:
            raise flight.FlightInternalError(reason(error)) from None
        except (AttributeError, LookupError, TypeError) as error:
            logger.error(f"A call failed: {error}\n{traceback.format_exc()}")
            raise flight.FlightInternalError(
                "The call failed by an error of this server. Its log has the details."
            ) from None

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        """Return the schema and the ticket of a query or metadata command; run other statements.

        A client may never fetch the rows of a statement that has none.
        """
        with self._caller(context) as caller:
            name, command = messages.unpack(descriptor.command or b"")
            if name in METADATA_COMMANDS:
                ticket, schema = descriptor.command, schema_of(name, command)
            else:
                sql = _sql(name, command)
                ticket = messages.pack("TicketStatementQuery", statement_handle=sql.encode())
                found = self._schema(context, caller, sql)
                if found is None:
                    rows = self._run(context, caller, sql)
                    return flight.FlightInfo(pa.schema([]), descriptor, [], rows, -1)
                schema = found
            endpoint = flight.FlightEndpoint(ticket, [])
            return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        """Run the query or metadata command of a ticket, and return its rows."""
        with self._caller(context) as caller:
            name, command = messages.unpack(ticket.ticket)
            if name in METADATA_COMMANDS:
                return flight.RecordBatchStream(answer(name, command, caller.catalog))
            if name != "TicketStatementQuery":
                raise ValueError(f"A ticket for {name} is not one of this server.")
            return self._stream(context, command.statement_handle.decode())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Create or close a prepared statement."""
        with self._caller(context) as caller:
            if action.type == "ClosePreparedStatement":
                return iter(())
            if action.type != "CreatePreparedStatement":
                raise ValueError(f"This server does not support the action {action.type}.")
            name, request = messages.unpack(action.body.to_pybytes())
            if name != "ActionCreatePreparedStatementRequest":
                raise ValueError(f"{name} does not create a prepared statement.")
            schema = self._schema(context, caller, request.query) or pa.schema([])
            prepared = messages.pack(
                "ActionCreatePreparedStatementResult",
                prepared_statement_handle=request.query.encode(),
                dataset_schema=schema.serialize().to_pybytes(),
            )
            return iter((prepared,))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Ingest rows or run an update, and send the number of rows."""
        with self._caller(context) as caller:
            name, command = messages.unpack(descriptor.command or b"")
            if name == "CommandStatementIngest":
                with caller.slots.taken():
                    rows = self._ingest(context, caller, command, reader)
            else:
                rows = self._run(context, caller, _sql(name, command))
            result = messages.message("DoPutUpdateResult", record_count=rows)
            writer.write(pa.py_buffer(result.SerializeToString()))

    def list_flights(self, context: Any, criteria: Any) -> Iterator[flight.FlightInfo]:
        """Return nothing: Flight SQL's metadata commands list the tables."""
        return iter(())

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions and what they do."""
        return [
            ("CreatePreparedStatement", "Returns a handle of a statement."),
            ("ClosePreparedStatement", "Does nothing."),
        ]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: Flight SQL does not use it.

        Raises:
            flight.FlightServerError: always.
        """
        raise flight.FlightServerError("This server does not support DoExchange.") from None

    def shutdown(self) -> None:
        """End all calls and sessions."""
        super().shutdown()
        self._callers.close()

    def _ingest(self, context: Any, caller: Caller, command: Any, reader: Any) -> int:
        if command.temporary:
            raise ValueError("Iceberg has no temporary tables. Ingest into a table.")
        if command.catalog and command.catalog != caller.catalog.name:
            raise ValueError(
                f"The catalog {command.catalog} does not exist. Use {caller.catalog.name}."
            )
        name = (command.schema or self._default_schema, command.table)
        require_names(*name)
        table = ".".join(name)

        def report(rows: int) -> None:
            if self._on_progress is not None:
                self._on_progress(table, rows)

        def require_client() -> None:
            # Flight ends the stream in the same way if the client was killed.
            if context.is_cancelled():
                raise flight.FlightCancelledError(
                    f"The client has disconnected; {table} is unchanged."
                )

        data = pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, require_client))
        mode = _mode(command)
        result = ingest(caller.catalog, name, data, mode, progress=report, confirm=require_client)
        caller.refresh(f"{quote(caller.catalog.name)}.{quote(name[0])}.{quote(name[1])}")
        return result.rows

    def _schema(self, context: Any, caller: Caller, sql: str) -> pa.Schema | None:
        """Return the schema of a query's rows, without running it; None for other statements."""

        def find() -> pa.Schema:
            with self._session(caller, context) as handle:
                return handle.session.arrow_schema(sql + ONLY_A_QUERY)

        try:
            return self._repeated(find)
        except StatementError as error:
            if error.condition != NOT_A_QUERY:
                raise
            return None

    def _run(self, context: Any, caller: Caller, sql: str) -> int:
        """Run a statement that is not a query, and return the number of changed rows."""

        def run() -> int:
            with self._session(caller, context) as handle:
                cursor = Cursor(handle)
                cursor.execute(sql)
                return cursor.response().rows_affected or 0

        return self._repeated(run, writes=True)

    def _repeated(self, run: Callable[[], Result], writes: bool = False) -> Result:
        """Run a statement, and once more if the engine has ended and nothing was committed.

        It may have been another caller's statement that has ended the engine. Statements are
        repeated one after the other, so that the one to blame ends its own repetition only.
        """
        engine = self._engine.endpoint()
        try:
            return run()
        except StatementError as error:
            if not error.engine_gone or (writes and not error.not_committed):
                raise
            # A server that is running may still execute the statement.
            if self._engine.endpoint() == engine:
                raise
        with self._repeating:
            return run()

    @contextmanager
    def _session(self, caller: Caller, context: Any) -> Iterator[Handle]:
        """Provide a session for one statement, within the caller's limits.

        The statement is canceled if the client cancels the call, or is gone.
        """

        def is_canceled() -> bool:
            if not context.is_cancelled():
                return False
            handle.canceled, handle.reusable = True, False
            return True

        with (
            caller.slots.taken() as release,
            caller.handle() as handle,
            self._limits.time_limit(handle.session, release, is_canceled),
        ):
            yield handle

    def _stream(self, context: Any, sql: str) -> flight.GeneratorStream:
        """Stream rows as fast as the client reads them.

        Raises:
            StatementError: the statement is not a query, or fails before its first row.
        """
        rows, schema = self._repeated(lambda: self._started(context, sql))

        def batches() -> Iterator[Any]:
            with self._caller(context):
                yield from rows

        return flight.GeneratorStream(schema, batches())

    def _started(self, context: Any, sql: str) -> tuple[Iterator[Any], pa.Schema]:
        """Return the rows of a query that has begun to return them, and their schema."""
        rows = self._rows(context, sql)
        return rows, next(rows)

    def _rows(self, context: Any, sql: str) -> Iterator[Any]:
        token = context.get_middleware(MIDDLEWARE).value
        size = 0
        with self._callers.calling(token) as caller, self._session(caller, context) as handle:
            handle.refresh_token()
            for rows in handle.session.stream(sql + ONLY_A_QUERY):
                if isinstance(rows, pa.RecordBatch):
                    size += rows.nbytes
                    self._limits.require_size(size)
                yield rows


def _batches(reader: Any, at_end: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for chunk in reader:
        yield chunk.data
    at_end()


def _sql(name: str, command: Any) -> str:
    if name in ("CommandStatementQuery", "CommandStatementUpdate"):
        return str(command.query)
    if name in ("CommandPreparedStatementQuery", "CommandPreparedStatementUpdate"):
        return str(command.prepared_statement_handle.decode())
    raise ValueError(f"This server does not support {name}.")


def _mode(command: Any) -> Mode:
    """Return the ingest mode of Flight SQL's two options."""
    options = command.table_definition_options
    creates = options.if_not_exist != messages.NOT_EXIST_FAIL
    if options.if_exists == messages.EXISTS_REPLACE:
        return Mode.REPLACE
    if options.if_exists == messages.EXISTS_APPEND:
        return Mode.CREATE_APPEND if creates else Mode.APPEND
    return Mode.CREATE


def _refusal(error: Exception) -> Exception:
    text = str(error)
    if isinstance(error, StatementError) and error.condition == NOT_ALLOWED:
        return flight.FlightUnauthorizedError(f"The server refused the statement. {text}")
    if "does not accept the token" in text or "expired" in text:
        return flight.FlightUnauthenticatedError(text)
    if "refused" in text:
        return flight.FlightUnauthorizedError(text)
    return flight.FlightServerError(text)
