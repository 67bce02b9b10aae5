"""One Spark Connect session: the engine as one dbt connection sees it."""

from __future__ import annotations

import itertools
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.sql.selects import parse_select_chain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.session import SparkSession

# dbt forks nothing after it has opened connections; gRPC's fork handlers would only add a lock.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A dead server must fail a statement within seconds; the client's default retries for minutes.
CONNECT_RETRIES = 6
# One that this command has used before may be starting anew: half a minute.
RESTART_RETRIES = 18
# A network that swallows packets without a word is found dead; servers allow a ping in 5 minutes.
KEEPALIVE = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_timeout_ms": 20_000}
# Texts and comments of a query, each as a whole, names in backticks, and words.
WORDS = re.compile(
    r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/"""
    r"|`(?P<quoted>(?:[^`]|``)*)`|\w+",
    re.DOTALL,
)
ProgressHandler = Callable[..., None]
_importing = threading.Lock()
_numbers = itertools.count()


class Session:
    """Runs statements on a Spark Connect server; not shared between connections.

    Every method raises StatementError with a message in plain words.
    """

    def __init__(
        self,
        url: str,
        settings: Mapping[str, str],
        on_open: Callable[[str], None] = lambda session_id: None,
        known_server: bool = False,
    ) -> None:
        """Open a session; a known server is waited for while it is being restarted."""
        self._url = url
        self._on_open = on_open
        self._progress: ProgressHandler | None = None
        load_pyspark()
        with explain():
            self._spark = _open(url)
        try:
            on_open(self._spark.session_id)
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
        return self._spark

    def activate(self) -> None:
        """Make it the session that users' code finds in this thread."""
        from dbt.adapters.iceberg_stream.engines.client import activate

        activate(self._spark)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set several settings in one call to the server."""
        with explain():
            self._spark.conf._set_all(dict(settings), silent=True)

    def run(self, sql: str) -> DataFrame:
        """Run a command, in one call; its rows, if any, are left on the server."""
        with explain():
            return self._spark.sql(sql)

    def query(self, sql: str) -> pa.Table:
        """Run a query and bring all its rows here, in one call.

        `sql(…).toArrow()` makes three calls: one to look at the text, one for the schema, one for
        the rows. A command must not come here, for it would run anew for each look at it.
        """
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL

        with explain():
            return DataFrame(SQL(sql), self._spark)._to_table()[0]

    def fetch(self, frame: DataFrame) -> pa.Table:
        """Bring the rows of a command here."""
        with explain():
            return frame._to_table()[0]

    def schema(self, sql: str) -> list[tuple[str, str]]:
        """Names and types of a query's columns, without running it."""
        with explain():
            return [(f.name, f.dataType.simpleString()) for f in self._spark.sql(sql).schema]

    def arrow_schema(self, sql: str, **views: DataFrame) -> pa.Schema:
        """Columns of a query's rows as `stream` gives them, without running it."""
        from pyspark.sql.pandas.types import to_arrow_schema

        with explain():
            return to_arrow_schema(self.frame(sql, **views).schema)

    def stream(self, sql: str, **views: DataFrame) -> Iterator[Any]:
        """The schema of a query's rows, then the rows in batches, as fast as they are taken.

        The views are frames that the query names. What their observations observe is known when
        all rows were taken.
        """
        import pyarrow as pa

        with explain():
            plan = self.frame(sql, **views)._plan.to_proto(self._spark.client)
            found = self._spark.client.to_table_as_iterator(plan, _observations(views))
            tables = (table for table in found if isinstance(table, pa.Table))
            first = next(tables, None)
            yield self.arrow_schema(sql, **views) if first is None else first.schema
            for table in itertools.chain([] if first is None else [first], tables):
                yield from table.to_batches()

    def rows(self, sql: str, **views: DataFrame) -> pa.Table:
        """All rows of a query; the views are frames that it names."""
        with explain():
            return self.frame(sql, **views)._to_table()[0]

    def frame(self, sql: str, **views: DataFrame) -> DataFrame:
        """A query's rows, not asked for yet; the views are frames that it names."""
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL, SubqueryAlias

        selects = parse_select_chain(sql) if len(views) == 1 else None
        if selects is not None and selects.relation in views:
            return selects.over(views[selects.relation])
        # The server makes them temporary views for as long as it looks at the query: of two
        # queries at once, one would read what the other one has given the same name.
        own = {name: f"{name}_{next(_numbers)}" for name in views}
        named = [SubqueryAlias(frame._plan, own[name]) for name, frame in views.items()]
        return DataFrame(SQL(renamed(sql, own), None, None, named or None), self._spark)

    def map_in_arrow(
        self,
        rows: pa.Table,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        modules: Sequence[ModuleType],
    ) -> pa.Table:
        """What a function makes of local rows, spread over as many tasks.

        The modules that its code is in are shipped by value: workers have PyArrow only.
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
        """What a function makes of a frame's partitions; modules are as for `map_in_arrow`.

        The views are those that the frame was made with: what they observe is known afterwards.
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
        """Make local rows a temporary view of this session."""
        from pyspark.sql.pandas.types import from_arrow_schema

        with explain():
            frame: DataFrame = (
                self._spark.createDataFrame(rows)
                if rows.num_rows
                else self._spark.createDataFrame([], schema=from_arrow_schema(rows.schema))
            )
            frame.createOrReplaceTempView(name)

    def on_progress(self, handler: ProgressHandler) -> None:
        """Call the handler while statements run, with stages, inflight_tasks, done."""
        self._progress = handler
        self._spark.registerProgressHandler(handler)

    def renew(self, settings: Mapping[str, str]) -> None:
        """Go on in a copy of the session, temporary views included, with other settings.

        A catalog keeps the settings of its first use, so a new token needs a new session.
        """
        old, copy = self._spark, str(uuid.uuid4())
        with explain():
            # The object that `cloneSession` gives lacks what `stop` needs: open the copy by its id.
            old.client.clone(copy).close()
            self._spark = _open(f"{self._url};session_id={copy}")
            self._on_open(copy)
            if self._progress is not None:
                self._spark.registerProgressHandler(self._progress)
            self.configure(settings)
            old.stop()

    def interrupt(self) -> bool:
        """Cancel what runs; may be called from any thread. False if nothing was there to cancel."""
        with explain():
            return bool(self._spark.interruptAll())

    def abandon(self) -> None:
        """Leave the server: a statement that waits for it fails here, whatever becomes of it."""
        with explain():
            # Not the client's own `close`, which first waits for what it has asked the server.
            self._spark.client._channel.close()

    def version(self) -> str:
        with explain():
            return str(self._spark.version)

    def setting(self, name: str) -> str:
        """A setting of the session or the server; empty if it is not set."""
        with explain():
            return str(self._spark.conf.get(name, ""))

    def settings(self, prefixes: tuple[str, ...]) -> dict[str, str]:
        """All settings of the session and the server whose names begin with one of the prefixes."""
        with explain():
            found = self._spark.conf.getAll
        return {name: value for name, value in found.items() if name.startswith(prefixes)}

    def lives(self) -> bool:
        """Whether the server is there and still has the session."""
        try:
            self.setting("spark.sql.session.timeZone")  # the version is asked for only once
        except StatementError:
            return False
        return True

    def close(self) -> None:
        """End the session; a server that is gone has nothing to be told."""
        try:
            with explain():
                self._spark.stop()
        except StatementError:
            return


def renamed(sql: str, names: Mapping[str, str]) -> str:
    """A query with other names in the place of some, but for those in its texts and comments."""

    def other(found: re.Match[str]) -> str:
        if quoted := found["quoted"]:
            return f"`{names.get(quoted, quoted)}`"
        return names.get(found[0], found[0])

    return WORDS.sub(other, sql)


def load_pyspark() -> None:
    """Import the client, in one thread: its modules import each other in a circle."""
    with _importing:
        import pyspark.sql.connect.session  # noqa: F401


def interrupt_session(url: str, session_id: str) -> int:
    """Cancel what runs in a session of this user that its client has left, and end the session.

    Returns the number of statements that were canceled.
    """
    load_pyspark()
    with explain():
        spark = _open(f"{url};session_id={session_id}")
        try:
            return len(spark.interruptAll())
        finally:
            spark.stop()


def _observations(views: Mapping[str, DataFrame]) -> dict[str, Observation]:
    """What a query's views observe: a query as text does not know of them."""
    found = (view._plan.observations for view in views.values())
    return {name: observation for each in found for name, observation in each.items()}


def _open(url: str) -> SparkSession:
    from dbt.adapters.iceberg_stream.engines.client import open_session

    spark = open_session(url, KEEPALIVE)
    _retry(spark, CONNECT_RETRIES)
    return spark


def _retry(spark: SparkSession, times: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=times, max_backoff=2000)])


def quiet_pyspark() -> None:
    """Keep pyspark's own words out of dbt's output: errors come as exceptions."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def as_rows(table: Any) -> list[tuple[Any, ...]]:
    """Rows of an Arrow table as tuples of Python values."""
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []
