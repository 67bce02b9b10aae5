"""A session on a Spark Connect server: its settings, views and functions, from start to end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.engines import python_functions
from dbt.adapters.iceberg_stream.engines.interpretation import Interpretation, RunningTasks
from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate, PythonFunction
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain, load_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# dbt does not fork after it has opened connections; gRPC's fork handlers would only add a lock.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A dead server must fail a statement within seconds; the client's default retries for minutes.
CONNECT_RETRIES = 6
# A server that this command has used before may be restarting, which takes half a minute.
RESTART_RETRIES = 18
# Detects networks that drop packets silently; servers allow one ping in 5 minutes.
KEEPALIVE = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_timeout_ms": 20_000}
ProgressHandler = Callable[..., None]


class ServerSession:
    """A session on a Spark Connect server; not shared between connections.

    Every method raises StatementError if the server does not answer, or refuses.
    """

    def __init__(
        self,
        url: str,
        settings: Mapping[str, str],
        on_open: Callable[[str], None] = lambda session_id: None,
        known_server: bool = False,
    ) -> None:
        """Open a session.

        Args:
            url: Spark's connection string.
            settings: settings of the session.
            on_open: is called with the id of each session that is opened.
            known_server: wait for the server while it restarts.
        """
        self._url = url
        self._on_open = on_open
        self._progress: ProgressHandler | None = None
        self._interpretation = Interpretation()
        self._tasks = RunningTasks()
        load_pyspark()
        with explain():
            self._spark = _open(url)
        try:
            on_open(self._spark.session_id)
            self._spark.registerProgressHandler(self._tasks)
            if known_server:
                _retry(self._spark, RESTART_RETRIES)
            self.configure(settings)
            _retry(self._spark, CONNECT_RETRIES)
        except (OSError, StatementError):
            self.close()
            raise

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
            self._spark.conf._set_all(dict(settings), silent=True)

    @contextmanager
    def _generated(self) -> Iterator[None]:
        """Make requests that run with generated code, and explain their errors."""
        with explain():
            self._interpretation.switch(self, on=False)
            yield

    @contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        """Give a tag to the requests that this thread makes, by which they can be ended."""
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
        self._progress = handler
        self._spark.registerProgressHandler(handler)

    def renew(self, settings: Mapping[str, str]) -> None:
        """Continue in a copy of the session, temporary views included, with other settings.

        A catalog keeps the settings of its first use, so a new token needs a new session.

        Args:
            settings: the settings to change.
        """
        old, copy = self._spark, str(uuid.uuid4())
        with explain():
            # `stop` does not work on the result of `cloneSession`, so the copy is opened by its id.
            old.client.clone(copy).close()
            self._spark = _open(f"{self._url};session_id={copy}")
            self._on_open(copy)
            for handler in filter(None, (self._tasks, self._progress)):
                self._spark.registerProgressHandler(handler)
            self.configure(settings)
            old.stop()

    def interrupt(self) -> bool:
        """Cancel running statements, from any thread; return whether there were any."""
        with explain():
            return bool(self._spark.interruptAll())

    def abandon(self) -> None:
        """Disconnect from the server: a running statement fails here, but may continue there."""
        with explain():
            # The client's own `close` would wait for its requests first.
            self._spark.client._channel.close()

    def version(self) -> str:
        """Return the server's version of Spark."""
        with explain():
            return str(self._spark.version)

    def setting(self, name: str) -> str:
        """Return a setting of the session or the server; empty if it is not set."""
        with explain():
            return str(self._spark.conf.get(name, ""))

    def settings(self, prefixes: tuple[str, ...]) -> dict[str, str]:
        """Return all settings of the session and the server with a prefix.

        Args:
            prefixes: of the names.
        """
        with explain():
            settings = self._spark.conf.getAll
        return {name: value for name, value in settings.items() if name.startswith(prefixes)}

    def lives(self) -> bool:
        """Return whether the server answers and still has the session."""
        try:
            self.setting("spark.sql.session.timeZone")  # not the version, which is cached
        except StatementError:
            return False
        return True

    def close(self) -> None:
        """End the session, if the server answers."""
        try:
            with explain():
                self._spark.stop()
        except StatementError:
            return


def interrupt_session(url: str, session_id: str) -> int:
    """Cancel the statements of a session whose client has ended, and end the session.

    Args:
        url: Spark's connection string.
        session_id: the session's id.

    Returns:
        How many statements were canceled.
    """
    load_pyspark()
    with explain():
        spark = _open(f"{url};session_id={session_id}")
        try:
            return len(spark.interruptAll())
        finally:
            spark.stop()


def _open(url: str) -> SparkSession:
    from dbt.adapters.iceberg_stream.engines.client import open_session

    spark = open_session(url, KEEPALIVE)
    _retry(spark, CONNECT_RETRIES)
    return spark


def _retry(spark: SparkSession, times: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=times, max_backoff=2000)])


def quiet_pyspark() -> None:
    """Suppress pyspark's own log messages: errors come as exceptions."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
