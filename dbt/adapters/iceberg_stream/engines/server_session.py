"""A session on a Spark Connect server: its settings, views and functions, from start to end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from dbt.adapters.iceberg_stream.engines import python_functions
from dbt.adapters.iceberg_stream.engines.imports import load_messages, load_pyspark
from dbt.adapters.iceberg_stream.engines.interpretation import Interpretation
from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate, PythonFunction
from dbt.adapters.iceberg_stream.engines.settings import Endpoint
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain

if TYPE_CHECKING:
    import grpc
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.sql_client import SqlClient

# dbt does not fork after it has opened connections; gRPC's fork handlers would only add a lock.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A dead server must fail a statement within seconds; the client's default retries for minutes.
CONNECT_RETRIES = 6
# No network lies between this process and a socket of this machine: whoever listened is dead.
SOCKET_RETRIES = 2
# A server that this command has used before may be restarting, which takes half a minute.
RESTART_RETRIES = 18
MOMENT_SECONDS = 2.0
# Detects networks that drop packets silently; servers allow one ping in 5 minutes.
KEEPALIVE = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_timeout_ms": 20_000}
ProgressHandler = Callable[..., None]


class ServerSession:
    """A session on a Spark Connect server; not shared between connections.

    It has two clients: one for SQL, and Spark's own for data frames and Python, which is opened
    when it is needed, because its import takes long.

    Every method raises StatementError if the server does not answer, or refuses.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: Mapping[str, str],
        on_open: Callable[[str], None] = lambda session_id: None,
        known_server: bool = False,
    ) -> None:
        """Open a session.

        Args:
            endpoint: the server.
            settings: settings of the session.
            on_open: is called with the id of each session that is opened.
            known_server: wait for the server while it restarts.
        """
        self._endpoint = endpoint
        self._on_open = on_open
        self._interpretation = Interpretation()
        self._progress_handlers: list[ProgressHandler] = []
        self._opened_spark: SparkSession | None = None
        # The session that this one is a copy of, in both clients.
        self._copied: tuple[SqlClient, SparkSession | None] | None = None
        self._client = self._open_client(str(uuid.uuid4()))
        try:
            on_open(self._client.session_id)
            if known_server:
                self._client.retries = RESTART_RETRIES
            self.configure(settings)
            self._client.retries = _retries(endpoint)
        except (OSError, StatementError):
            self.close()
            raise

    def _open_client(self, session_id: str) -> SqlClient:
        load_messages()
        from dbt.adapters.iceberg_stream.engines.sql_client import SqlClient

        client = SqlClient(self._endpoint, session_id, KEEPALIVE, self._raise_spark_error)
        client.retries = _retries(self._endpoint)
        client.progress_handlers = self._progress_handlers
        return client

    def _raise_spark_error(self, error: grpc.RpcError) -> NoReturn:
        """Raise the exception that Spark's client raises for an error that the server reports."""
        self._spark.client._handle_rpc_error(error)
        raise error  # for type checkers: Spark's method has raised

    @property
    def _spark(self) -> SparkSession:
        """The same session in Spark's own client, opened when it is first needed."""
        if self._opened_spark is None:
            with explain():
                self._opened_spark = _open(self._endpoint, self._client.session_id)
                for handler in self._progress_handlers:
                    self._opened_spark.registerProgressHandler(handler)
        return self._opened_spark

    @property
    def spark(self) -> SparkSession:
        """The session itself, for Python models."""
        self._interpretation.switch(self, on=False)
        return self._spark

    def activate(self) -> None:
        """Make it the active session of this thread, for users' code."""
        from dbt.adapters.iceberg_stream.engines.client import activate

        activate(self.spark)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set several settings in one request.

        Args:
            settings: the settings.
        """
        with explain():
            self._client.set(settings)

    def unset(self, names: Iterable[str]) -> None:
        """Unset several settings in one request.

        Args:
            names: of the settings.
        """
        with explain():
            self._client.unset(names)

    @contextmanager
    def _runs(self, interpreted: bool = False) -> Iterator[None]:
        """Make requests that run with generated code or interpreted, and explain their errors."""
        with explain():
            self._interpretation.switch(self, on=interpreted)
            yield

    @contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        """Give a tag to the requests that this thread makes with Spark's client."""
        self._spark.addTag(tag)
        try:
            yield
        finally:
            self._spark.removeTag(tag)

    def _interrupt_tag(self, tag: str) -> None:
        with suppress(StatementError), explain():
            self._spark.interruptTag(tag)

    def register(self, name: str, rows: pa.Table) -> None:
        """Create a temporary view of local rows.

        Args:
            name: of the view.
            rows: the rows.
        """
        load_pyspark()
        from pyspark.sql.pandas.types import from_arrow_schema

        with explain():
            frame: DataFrame = (
                self._spark.createDataFrame(rows)
                if rows.num_rows
                else self._spark.createDataFrame([], schema=from_arrow_schema(rows.schema))
            )
            frame.createOrReplaceTempView(name)

    def register_source(
        self,
        name: str,
        format_name: str,
        location: str | None,
        options: Mapping[str, str],
        columns: str | None,
    ) -> None:
        """Create a temporary view of files, or of a table that Spark reads by other means.

        Args:
            name: of the view.
            format_name: Spark's name of the format.
            location: address of the files, if it has any.
            options: of Spark's reader.
            columns: DDL of the columns; None to let Spark find them.
        """
        with explain():
            reader = self._spark.read.format(format_name).options(**options)
            if columns is not None:
                reader = reader.schema(columns)
            reader.load(location).createOrReplaceTempView(name)

    def register_function(
        self, name: str, function: PythonFunction, returns: str, deterministic: bool
    ) -> None:
        """Register a Python function in the session, under a name for SQL.

        Args:
            name: the name, which may have a dot.
            function: the function or aggregate.
            returns: Spark SQL type of its values.
            deterministic: whether it returns the same value for the same arguments.
        """
        load_pyspark()
        from pyspark import cloudpickle
        from pyspark.sql.connect.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        cloudpickle.register_pickle_by_value(python_functions)
        # With Arrow a value is cast to the function's type, which Spark otherwise replaces by NULL.
        kind = (
            PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF
            if isinstance(function, PythonAggregate)
            else PythonEvalType.SQL_ARROW_BATCHED_UDF
        )
        with explain():
            # A type as text would be parsed by the session that is active in this thread.
            schema: Any = self._spark._parse_ddl(f"value {returns}")
            self._spark.udf.register(
                name,
                UserDefinedFunction(
                    function, schema[0].dataType, name, evalType=kind, deterministic=deterministic
                ),
            )

    def on_progress(self, handler: ProgressHandler) -> None:
        """Register a progress handler.

        Args:
            handler: is called while statements run, with stages, inflight_tasks, done.
        """
        self._progress_handlers.append(handler)
        if self._opened_spark is not None:
            self._opened_spark.registerProgressHandler(handler)

    def renew(self, settings: Mapping[str, str]) -> None:
        """Continue in a copy of the session, temporary views included, with other settings.

        A catalog keeps the settings of its first use, so a new token needs a new session. The old
        one stays open until the next renewal: views of data frames have tables of its catalogs.

        Args:
            settings: the settings to change.
        """
        old, copy = self._client, str(uuid.uuid4())
        with explain():
            old.clone(copy)
            before, self._copied = self._copied, (old, self._opened_spark)
            self._opened_spark, self._client = None, self._open_client(copy)
            self._on_open(copy)
            self.configure(settings)
            if before is not None:
                _end(*before)

    def interrupt(self) -> bool:
        """Cancel running statements, from any thread; return whether there were any."""
        with explain():
            canceled = self._client.interrupt()
        if self._copied is not None:
            # The server may have closed that one.
            with suppress(StatementError), explain():
                canceled |= self._copied[0].interrupt()
        return canceled

    def abandon(self) -> None:
        """Disconnect from the server: a running statement fails here, but may continue there."""
        with explain():
            for client, spark in self._sessions():
                client.disconnect()
                if spark is not None:
                    # The client's own `close` would wait for its requests first.
                    spark.client._channel.close()

    def version(self) -> str:
        """Return the server's version of Spark."""
        with explain():
            return self._client.version()

    def setting(self, name: str) -> str:
        """Return a setting of the session or the server; empty if it is not set."""
        with explain():
            return self._client.setting(name)

    def settings(self, prefixes: tuple[str, ...]) -> dict[str, str]:
        """Return all settings of the session and the server with a prefix.

        Args:
            prefixes: of the names.
        """
        with explain():
            settings = self._client.settings()
        return {name: value for name, value in settings.items() if name.startswith(prefixes)}

    def lives(self) -> bool:
        """Return whether the server answers and still has the session.

        A server that has answered a moment ago is not asked again.
        """
        if time.monotonic() - self._client.answered_at < MOMENT_SECONDS:
            return True
        try:
            self.setting("spark.sql.session.timeZone")
        except StatementError:
            return False
        return True

    def close(self) -> None:
        """End the session, if the server answers."""
        for client, spark in self._sessions():
            with suppress(StatementError), explain():
                _end(client, spark)

    def _sessions(self) -> list[tuple[SqlClient, SparkSession | None]]:
        """Return the session's clients, and those of the session that it is a copy of."""
        return [(self._client, self._opened_spark), *([self._copied] if self._copied else [])]


def _retries(endpoint: Endpoint) -> int:
    return CONNECT_RETRIES if endpoint.socket is None else SOCKET_RETRIES


def _end(client: SqlClient, spark: SparkSession | None) -> None:
    """End a session, in both of its clients."""
    if spark is None:
        client.end()
    else:
        client.disconnect()
        spark.stop()


def interrupt_session(endpoint: Endpoint, session_id: str) -> int:
    """Cancel the statements of a session whose client has ended, and end the session.

    Args:
        endpoint: the server.
        session_id: the session's id.

    Returns:
        How many statements were canceled.
    """
    with explain():
        spark = _open(endpoint, session_id)
        try:
            return len(spark.interruptAll())
        finally:
            spark.stop()


def _open(endpoint: Endpoint, session_id: str) -> SparkSession:
    load_pyspark()
    from pyspark.sql.connect.client.retries import DefaultPolicy

    from dbt.adapters.iceberg_stream.engines.client import open_session

    spark = open_session(endpoint, session_id, KEEPALIVE)
    policy = DefaultPolicy(max_retries=_retries(endpoint), max_backoff=2000)
    spark.client.set_retry_policies([policy])
    return spark


def quiet_pyspark() -> None:
    """Suppress pyspark's own log messages: errors come as exceptions."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
