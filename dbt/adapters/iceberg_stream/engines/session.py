"""A Spark Connect session, as one dbt connection uses it."""

from __future__ import annotations

import itertools
import os
import re
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dbt.adapters.iceberg_stream.engines import python_functions
from dbt.adapters.iceberg_stream.engines.interpretation import (
    MOST_SECONDS,
    Interpretation,
    RunningTasks,
    TimeLimit,
)
from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate, PythonFunction
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain, load_pyspark
from dbt.adapters.iceberg_stream.sql.selects import parse_select_chain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

# dbt does not fork after it has opened connections; gRPC's fork handlers would only add a lock.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A dead server must fail a statement within seconds; the client's default retries for minutes.
CONNECT_RETRIES = 6
# A server that this command has used before may be restarting, which takes half a minute.
RESTART_RETRIES = 18
# Detects networks that drop packets silently; servers allow one ping in 5 minutes.
KEEPALIVE = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_timeout_ms": 20_000}
# Matches string literals and comments of a query as a whole, names in backticks, and words.
WORDS = re.compile(
    r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/"""
    r"|`(?P<quoted>(?:[^`]|``)*)`|\w+",
    re.DOTALL,
)
ProgressHandler = Callable[..., None]
Result = TypeVar("Result")
_numbers = itertools.count()


class Session:
    """Runs statements on a Spark Connect server; not shared between connections.

    Every method raises StatementError if Spark does not run a statement.
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

    def run(self, sql: str) -> DataFrame:
        """Run a command in one request; rows stay on the server.

        Args:
            sql: the command.
        """
        with self._generated():
            return self._spark.sql(sql)

    def refresh(self, table: str) -> None:
        """Refresh what Spark has cached of a table, for all sessions of the server.

        Args:
            table: the table's quoted name.
        """
        with explain():
            self._spark.sql(f"refresh table {table}")

    def query(self, sql: str, interpreted: bool = False) -> pa.Table:
        """Run a query and fetch all its rows, in one request.

        `sql(…).toArrow()` needs three requests: for the analysis, the schema and the rows. Not for
        commands, which each analysis would run again.

        Args:
            sql: the query.
            interpreted: as for `few_rows`.
        """
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL

        def run(tag: str) -> pa.Table:
            with self._tagged(tag):
                return DataFrame(SQL(sql), self._spark)._to_table()[0]

        return self._interpret_first(run, interpreted)

    def fetch(self, frame: DataFrame) -> pa.Table:
        """Fetch the rows of a command.

        Args:
            frame: the result of `run`.
        """
        with self._generated():
            return frame._to_table()[0]

    def schema(self, sql: str) -> list[tuple[str, str]]:
        """Return names and Spark SQL types of a query's columns, without running it.

        Args:
            sql: the query.
        """
        with explain():
            return [(f.name, f.dataType.simpleString()) for f in self._spark.sql(sql).schema]

    def arrow_schema(self, sql: str, **views: DataFrame) -> pa.Schema:
        """Return the schema of the rows that `stream` yields, without running the query.

        Args:
            sql: the query.
            views: data frames that the query references by name.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        with explain():
            return to_arrow_schema(self.frame(sql, **views).schema)

    def stream(self, sql: str, **views: DataFrame) -> Iterator[Any]:
        """Run a query, and yield the schema of its rows, then the rows in batches.

        Spark waits if the caller is slower. Observations of the views are available after the last
        batch.

        Args:
            sql: the query.
            views: data frames that the query references by name.
        """
        import pyarrow as pa

        from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets

        with explain():
            plan = self.frame(sql, **views)._plan.to_proto(self._spark.client)
            results = self._results(plan, _observations(views), uuid.uuid4().hex)
            tables = (table for table in results if isinstance(table, pa.Table))
            first = next(tables, None)
            yield self.arrow_schema(sql, **views) if first is None else first.schema
            for table in itertools.chain([] if first is None else [first], tables):
                yield from map(with_offsets, table.to_batches())

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

    def _interpret_first(self, run: Callable[[str], Result], interpreted: bool) -> Result:
        """Run a query, interpreted at first if it should be, and with generated code if that takes
        long.

        Args:
            run: runs the query, with the tag that is its argument.
            interpreted: whether it should be.
        """
        if interpreted:
            tag = uuid.uuid4().hex
            limit = TimeLimit(MOST_SECONDS, self._tasks, partial(self._interrupt_tag, tag))
            try:
                with limit.watch(), explain():
                    self._interpretation.switch(self, on=True)
                    return run(tag)
            except StatementError:
                if not limit.exceeded:
                    raise
        with self._generated():
            # Not with the same tag: the last interrupt may still be on its way.
            return run(uuid.uuid4().hex)

    def _interrupt_tag(self, tag: str) -> None:
        with suppress(StatementError), explain():
            self._spark.interruptTag(tag)

    def _results(
        self, plan: Any, observations: dict[str, Observation], tag: str
    ) -> Generator[StructType | pa.Table, None, None]:
        """Yield the schema and the batches of a plan; end its query if the caller stops early.

        The server would go on with the query, and keep all further rows in its memory.
        """
        with self._tagged(tag):
            results = self._spark.client.to_table_as_iterator(plan, observations)
            first = next(results, None)  # the request, which gets the tag
        try:
            if first is not None:
                yield first
            yield from results
        except GeneratorExit:
            # The garbage collector may be the caller, in a thread that must not wait for others.
            threading.Thread(target=self._interrupt_tag, args=(tag,), daemon=True).start()
            raise

    def few_rows(
        self, sql: str, most_rows: int, most_bytes: int, interpreted: bool = False
    ) -> tuple[pa.Table, StructType] | None:
        """Run a query and fetch its rows and schema, unless they are too many.

        Args:
            sql: the query.
            most_rows: the most rows to fetch.
            most_bytes: the most bytes of Arrow data to fetch.
            interpreted: whether the query reads so few rows that Spark should interpret it. If it
                takes long all the same, it is run again with generated code.

        Returns:
            The rows and their schema in Spark; None if there are more, and the query was ended.
        """
        return self._interpret_first(
            lambda tag: self._few_rows(sql, most_rows, most_bytes, tag), interpreted
        )

    def _few_rows(
        self, sql: str, most_rows: int, most_bytes: int, tag: str
    ) -> tuple[pa.Table, StructType] | None:
        import pyarrow as pa
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets

        schema, tables, rows, size = StructType(), [], 0, 0
        # The server keeps all rows of a partition in memory before it sends the first one.
        limited = DataFrame(SQL(sql), self._spark).limit(most_rows + 1)
        plan = limited._plan.to_proto(self._spark.client)
        with closing(self._results(plan, {}, tag)) as results:
            for result in results:
                if isinstance(result, StructType):
                    schema = result
                    continue
                batches = list(map(with_offsets, result.to_batches()))
                tables.append(pa.Table.from_batches(batches, result.schema))
                rows += result.num_rows
                size += tables[-1].nbytes
                if rows > most_rows or size > most_bytes:
                    return None
        if not tables:
            return to_arrow_schema(schema).empty_table(), schema
        return pa.concat_tables(tables), schema

    def rows(self, sql: str, **views: DataFrame) -> pa.Table:
        """Run a query and fetch all its rows.

        Args:
            sql: the query.
            views: data frames that the query references by name.
        """
        with explain():
            return self.frame(sql, **views)._to_table()[0]

    def frame(self, sql: str, **views: DataFrame) -> DataFrame:
        """Return a query as a data frame, without running it.

        Args:
            sql: the query.
            views: data frames that the query references by name.
        """
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL, SubqueryAlias

        self._interpretation.switch(self, on=False)
        selects = parse_select_chain(sql) if len(views) == 1 else None
        if selects is not None and selects.relation in views:
            return selects.over(views[selects.relation])
        # The server creates temporary views while it analyzes the query. The names must be unique,
        # because concurrent queries would read each other's views.
        unique = {name: f"{name}_{next(_numbers)}" for name in views}
        aliases = [SubqueryAlias(frame._plan, unique[name]) for name, frame in views.items()]
        return DataFrame(SQL(renamed(sql, unique), None, None, aliases or None), self._spark)

    def map_in_arrow(
        self,
        rows: pa.Table,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        modules: Sequence[ModuleType],
    ) -> pa.Table:
        """Run a function on local rows in Spark's tasks, one per row.

        Args:
            rows: the rows.
            function: converts batches of rows to batches of results.
            schema: of the results.
            modules: the modules of the function's code; they are sent to the workers, which have
                PyArrow only.

        Returns:
            The results.
        """
        with explain():
            frame = self._spark.createDataFrame(rows).repartition(rows.num_rows)
        return self.run_in_tasks(frame, function, schema, modules)

    def run_in_tasks(
        self,
        frame: DataFrame,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        modules: Sequence[ModuleType],
        **views: DataFrame,
    ) -> pa.Table:
        """Run a function on a data frame's partitions in Spark's tasks.

        Args:
            frame: the rows.
            function: converts batches of rows to batches of results.
            schema: of the results.
            modules: as for `map_in_arrow`.
            views: the views of the frame's query; their observations are available afterwards.

        Returns:
            The results.
        """
        from pyspark import cloudpickle
        from pyspark.sql.pandas.types import from_arrow_schema

        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        with explain():
            mapped = frame.mapInArrow(function, from_arrow_schema(schema))
            plan = mapped._plan.to_proto(self._spark.client)
            return self._spark.client.to_table(plan, _observations(views))[0]

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


def renamed(sql: str, names: Mapping[str, str]) -> str:
    """Replace names in a query, except in string literals and comments.

    Args:
        sql: the query.
        names: new names by old ones.
    """

    def new_name(match: re.Match[str]) -> str:
        if quoted := match["quoted"]:
            return f"`{names.get(quoted, quoted)}`"
        return names.get(match[0], match[0])

    return WORDS.sub(new_name, sql)


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


def _observations(views: Mapping[str, DataFrame]) -> dict[str, Observation]:
    """Return the observations of a query's views, which SQL text does not have."""
    plans = (view._plan.observations for view in views.values())
    return {name: observation for plan in plans for name, observation in plan.items()}


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


def as_rows(table: Any) -> list[tuple[Any, ...]]:
    """Convert an Arrow table to tuples of Python values."""
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []
