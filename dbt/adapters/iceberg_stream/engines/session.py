"""Runs statements in a Spark Connect session, as one dbt connection uses it."""

from __future__ import annotations

import itertools
import re
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dbt.adapters.iceberg_stream.engines.imports import load_pyspark
from dbt.adapters.iceberg_stream.engines.python_values import python_values
from dbt.adapters.iceberg_stream.engines.server_session import ServerSession
from dbt.adapters.iceberg_stream.errors.spark import StatementError, explain
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.selects import parse_select_chain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.proto import DataType, Relation
    from pyspark.sql.types import StructType

# Matches string literals and comments of a query as a whole, names in backticks, and words.
WORDS = re.compile(
    r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/"""
    r"|`(?P<quoted>(?:[^`]|``)*)`|\w+",
    re.DOTALL,
)
# A local relation needs no tasks, which would wait for those of other statements. While any session
# has cached a table, `show current namespace` fails.
CURRENT_SCHEMA = "select current_catalog() as catalog, current_schema() as name from values (1)"
Result = TypeVar("Result")
_numbers = itertools.count()


class Session(ServerSession):
    """Runs statements on a Spark Connect server; not shared between connections.

    Every method raises StatementError if Spark does not run a statement.
    """

    def run(self, sql: str) -> Relation:
        """Run a command; its rows stay on the server.

        Args:
            sql: the command.

        Returns:
            The rows, to `fetch`.
        """
        with self._runs():
            return self._client.run(sql)

    def stage(self, view: str, sql: str) -> None:
        """Run a query, and create a temporary view of its rows.

        The rows stay as they are, while Spark computes those of `cache table` again after each
        write, of any session, to a table that the query reads.

        Args:
            view: name of the view.
            sql: the query.
        """
        with self._runs():
            self._client.stage(quote(view), sql)

    def refresh(self, table: str) -> None:
        """Refresh what Spark has cached of a table, for all sessions of the server.

        Args:
            table: the table's quoted name.
        """
        with explain():
            self._client.run(f"refresh table {table}")

    def renew(self, settings: Mapping[str, str]) -> None:
        """Continue in a copy of the session, with other settings and the same current schema.

        Session variables stay behind: Spark neither copies nor lists them.

        Args:
            settings: the settings to change.
        """
        current = self._current_schema()
        super().renew(settings)
        if current:
            self.run(f"use {current}")

    def _current_schema(self) -> str:
        """Return where names without a schema are looked up; empty if no catalog can be loaded."""
        try:
            (row,) = self.query(CURRENT_SCHEMA).to_pylist()
        except StatementError:
            return ""  # no `use` has succeeded
        return ".".join(filter(None, (quote(row["catalog"]), row["name"])))

    def query(self, sql: str, interpreted: bool = False) -> pa.Table:
        """Run a query and fetch all its rows, in one request.

        Not for commands: Spark's analysis would run them once more.

        Args:
            sql: the query.
            interpreted: as for `few_rows`.
        """
        from dbt.adapters.iceberg_stream.engines.sql_client import query

        with self._runs(interpreted):
            return self._table(query(sql))

    def fetch(self, rows: Relation) -> pa.Table:
        """Fetch the rows of a command.

        Args:
            rows: the result of `run`.
        """
        with self._runs():
            return self._table(rows)

    def _table(self, relation: Relation) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(list(self._batches(relation)))

    def _batches(self, relation: Relation) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of a query; there is a batch also if there are no rows."""
        import pyarrow as pa

        from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets

        with closing(self._client.rows(relation)) as results:
            for result in results:
                if isinstance(result, pa.RecordBatch):
                    yield with_offsets(result)

    def schema(self, sql: str) -> list[tuple[str, str]]:
        """Return names and Spark SQL types of a query's columns, without running it.

        Args:
            sql: the query.
        """
        from dbt.adapters.iceberg_stream.engines.column_types import sql_type

        with explain():
            fields = self._client.schema(sql).fields
        return [(field.name, sql_type(field.data_type)) for field in fields]

    def arrow_schema(self, sql: str, **views: DataFrame) -> pa.Schema:
        """Return the schema of the rows that `stream` yields, without running the query.

        Args:
            sql: the query.
            views: data frames that the query references by name.
        """
        load_pyspark()
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
        # Spark's client, whose import takes as long as a small model, only for views.
        yield from self._stream_frame(sql, views) if views else self._stream_query(sql)

    def _stream_query(self, sql: str) -> Iterator[Any]:
        from dbt.adapters.iceberg_stream.engines.sql_client import query

        with self._runs(), closing(self._batches(query(sql))) as batches:
            first = next(batches)
            yield first.schema
            yield first
            yield from batches

    def _stream_frame(self, sql: str, views: Mapping[str, DataFrame]) -> Iterator[Any]:
        import pyarrow as pa

        from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets

        with explain():
            plan = self.frame(sql, **views)._plan.to_proto(self._spark.client)
            results = self._results(plan, _observations(dict(views)), uuid.uuid4().hex)
            tables = (table for table in results if isinstance(table, pa.Table))
            first = next(tables, None)
            yield self.arrow_schema(sql, **views) if first is None else first.schema
            for table in itertools.chain([] if first is None else [first], tables):
                yield from map(with_offsets, table.to_batches())

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
    ) -> tuple[pa.Table, DataType.Struct] | None:
        """Run a query and fetch its rows and schema, unless they are too many.

        Args:
            sql: the query.
            most_rows: the most rows to fetch.
            most_bytes: the most bytes of Arrow data to fetch.
            interpreted: whether the query reads so few rows that Spark should interpret it.

        Returns:
            The rows and their schema in Spark; None if there are more, and the query was ended.
        """
        import pyarrow as pa

        from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets
        from dbt.adapters.iceberg_stream.engines.sql_client import query

        schema: Any = None
        batches, rows, size = [], 0, 0
        # The server keeps all rows of a partition in memory before it sends the first one.
        limited = query(sql, most_rows + 1)
        with self._runs(interpreted), closing(self._client.rows(limited)) as results:
            for result in results:
                if not isinstance(result, pa.RecordBatch):
                    schema = result
                    continue
                batches.append(with_offsets(result))
                rows += result.num_rows
                size += batches[-1].nbytes
                if rows > most_rows or size > most_bytes:
                    return None
        return pa.Table.from_batches(batches), schema

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
        load_pyspark()
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
        tasks: int,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        modules: Sequence[ModuleType],
    ) -> pa.Table:
        """Run a function on local rows in Spark's tasks.

        Args:
            rows: the rows.
            tasks: how many tasks get about the same number of rows.
            function: converts batches of rows to batches of results.
            schema: of the results.
            modules: the modules of the function's code; they are sent to the workers, which have
                PyArrow only.

        Returns:
            The results.
        """
        with explain():
            frame = self._spark.createDataFrame(rows).repartition(tasks)
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
        load_pyspark()
        from pyspark import cloudpickle
        from pyspark.sql.pandas.types import from_arrow_schema

        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        with explain():
            mapped = frame.mapInArrow(function, from_arrow_schema(schema))
            plan = mapped._plan.to_proto(self._spark.client)
            return self._spark.client.to_table(plan, _observations(views))[0]


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


def _observations(views: Mapping[str, DataFrame]) -> dict[str, Observation]:
    """Return the observations of a query's views, which SQL text does not have."""
    plans = (view._plan.observations for view in views.values())
    return {name: observation for plan in plans for name, observation in plan.items()}


def as_rows(table: Any) -> list[tuple[Any, ...]]:
    """Convert an Arrow table to tuples of Python values."""
    columns = [python_values(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []
