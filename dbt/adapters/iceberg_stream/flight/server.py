"""A Flight SQL server: queries and bulk ingest of ADBC clients, with each client's token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.names import require_names
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.flight import messages as messages
from dbt.adapters.iceberg_stream.flight.callers import Caller, Callers
from dbt.adapters.iceberg_stream.flight.catalog import answer, schema_of
from dbt.adapters.iceberg_stream.flight.spark_text import NotAllowed
from dbt.adapters.iceberg_stream.flight.statements import Allowed, check_statement
from dbt.adapters.iceberg_stream.sessions.cursor import Cursor
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
    """Serves until `shutdown`. Each statement runs once, when its rows are fetched.

    Args:
        location: `grpc://host:port` or `grpc+tls://host:port`.
        make_caller: creates the caller of a token.
        default_schema: schema of tables that a client names without one.
        certificates: pairs of certificate chain and private key (PEM), for TLS.
        on_progress: is called with the table's name and the rows so far of each ingest.
    """

    def __init__(
        self,
        location: str,
        make_caller: Callable[[str], Caller],
        default_schema: str,
        certificates: list[tuple[bytes, bytes]] | None = None,
        on_progress: Callable[[str, int], None] | None = None,
    ) -> None:
        self._callers = Callers(make_caller)
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
            raise _refusal(reason(error)) from error
        except NotAllowed as error:
            raise flight.FlightUnauthorizedError(
                f"The server refused the statement. {error}"
            ) from error
        except (ColumnError, ValueError) as error:
            raise flight.FlightServerError(reason(error)) from error
        except (DbtRuntimeError, EngineError, OSError) as error:
            raise flight.FlightInternalError(reason(error)) from error

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        """Return the schema and the ticket of a statement or metadata command."""
        with self._caller(context) as caller:
            name, command = messages.unpack(descriptor.command)
            if name in METADATA_COMMANDS:
                ticket, schema = descriptor.command, schema_of(name, command)
            else:
                statement = check_statement(_sql(name, command), caller.catalog)
                handle = statement.sql.encode()
                ticket = messages.pack("TicketStatementQuery", statement_handle=handle)
                schema = self._schema(caller, statement)
            endpoint = flight.FlightEndpoint(ticket, [])
            return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        """Run the statement or metadata command of a ticket, and return its rows."""
        with self._caller(context) as caller:
            name, command = messages.unpack(ticket.ticket)
            if name in METADATA_COMMANDS:
                return flight.RecordBatchStream(answer(name, command, caller.catalog))
            # A client may forge a ticket, so its statement is checked again.
            statement = check_statement(command.statement_handle.decode(), caller.catalog)
            if not statement.is_query:
                return flight.RecordBatchStream(self._run(caller, statement)[1])
        return self._stream(context, statement.sql)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Create or close a prepared statement."""
        with self._caller(context) as caller:
            _, request = messages.unpack(action.body.to_pybytes())
            if action.type == "ClosePreparedStatement":
                return iter(())
            if action.type != "CreatePreparedStatement":
                raise ValueError(f"This server does not support the action {action.type}.")
            statement = check_statement(request.query, caller.catalog)
            prepared = messages.pack(
                "ActionCreatePreparedStatementResult",
                prepared_statement_handle=statement.sql.encode(),
                dataset_schema=self._schema(caller, statement).serialize().to_pybytes(),
            )
            return iter((prepared,))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Ingest rows or run an update, and send the number of rows."""
        with self._caller(context) as caller:
            name, command = messages.unpack(descriptor.command)
            if name == "CommandStatementIngest":
                rows = self._ingest(context, caller, command, reader)
            else:
                statement = check_statement(_sql(name, command), caller.catalog)
                rows = self._run(caller, statement)[0]
            result = messages.message("DoPutUpdateResult", record_count=rows)
            writer.write(pa.py_buffer(result.SerializeToString()))

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

    def _schema(self, caller: Caller, statement: Allowed) -> pa.Schema:
        """Return the schema of a query's rows, without running it."""
        if not statement.is_query:
            return pa.schema([])
        with caller.handle() as handle:
            return handle.session.arrow_schema(statement.sql)

    def _run(self, caller: Caller, statement: Allowed) -> tuple[int, pa.Table]:
        """Run a statement that is not a query; return the number of changed rows, and no rows."""
        with caller.handle() as handle:
            cursor = Cursor(handle)
            cursor.execute(statement.sql)
            return cursor.response().rows_affected or 0, pa.schema([]).empty_table()

    def _stream(self, context: Any, sql: str) -> flight.GeneratorStream:
        """Stream rows as fast as the client reads them."""

        def batches(first: Iterator[Any]) -> Iterator[Any]:
            with self._caller(context):
                yield from first

        rows = batches(self._rows(context, sql))
        schema = next(rows)
        return flight.GeneratorStream(schema, rows)

    def _rows(self, context: Any, sql: str) -> Iterator[Any]:
        token = context.get_middleware(MIDDLEWARE).value
        with self._callers.calling(token) as caller, caller.handle() as handle:
            handle.refresh_token()
            yield from handle.session.stream(sql)


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


def _refusal(text: str) -> Exception:
    if "does not accept the token" in text or "expired" in text:
        return flight.FlightUnauthenticatedError(text)
    if "refused" in text:
        return flight.FlightUnauthorizedError(text)
    return flight.FlightServerError(text)
