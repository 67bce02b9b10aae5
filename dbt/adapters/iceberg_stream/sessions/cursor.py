"""A dbt cursor on a Spark session: classifies, runs and reports statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dbt_common.events.contextvars import get_node_info

from dbt.adapters.iceberg_stream.engines.session import as_rows
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.node_queries import note_query, note_unknown
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sessions.write import Write
from dbt.adapters.iceberg_stream.sql.queries import TemporaryView, temporary_view
from dbt.adapters.iceberg_stream.sql.statements import (
    DEFINITION_VERBS,
    ROW_COMMANDS,
    WRITE_VERBS,
    Statement,
    classify,
    dropped_namespace,
    split,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.proto import Relation

    from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
    from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
    from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet

VIEW_VERBS = {"create", "cache"}
QUERY_VERBS = {"select", "with", "values"}
# After any other statement, such as `set` or a script, the next model must not use the session.
TRACELESS_VERBS = {
    *(QUERY_VERBS | VIEW_VERBS | WRITE_VERBS | DEFINITION_VERBS),
    # A procedure may create a view of changes.
    *(ROW_COMMANDS - {"call"}),
    *("(", "analyze", "clear", "comment", "refresh", "table", "uncache"),
}


class Handle(SessionHandle):
    """A dbt connection's handle."""

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        return Cursor(self)


class Cursor:
    """Runs one statement; dbt's cursor."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._statement = Statement("unknown")
        self._table: pa.Table | None = None
        self._relation: Relation | None = None
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
        self._table = self._relation = self.outcome = self.target = None
        self._from_cache = False
        handle = self._handle
        handle.refuse_if_canceled()
        sql = handle.prepare(sql)
        handle.progress.start(str(get_node_info().get("node_name") or "statement"))
        if self._statement.verb not in TRACELESS_VERBS or self._statement.defines_function:
            handle.reusable = False
        if self._statement.verb == "drop" and (namespace := dropped_namespace(sql)):
            # Iceberg's catalogs can drop only empty namespaces.
            handle.drop_relations(namespace)
        try:
            handle.with_valid_token(lambda: self._run_classified(sql))
        finally:
            handle.progress.finish()

    def _run_classified(self, sql: str) -> None:
        handle = self._handle
        if self._statement.writes:
            write = Write(handle, self._statement)
            self.target = write.target
            note_query(handle, sql, self._statement.verb, write.target)
            try:
                write.run(sql)
            finally:
                self.outcome = write.outcome
            if self._statement.verb == "drop":
                handle.forget_view(self._statement.target)
            if write.target is not None:
                self._note_write(write.target)
            return
        note_query(handle, sql, self._statement.verb)
        if self._statement.verb in QUERY_VERBS:
            self._table, self._from_cache = handle.query(sql)
        else:
            view = temporary_view(sql) if self._statement.verb in VIEW_VERBS else None
            if view is not None:
                note_unknown(handle, sql)
            before = handle.read_set_of(view.reads) if view and view.is_cached else None
            self._relation = handle.session.run(sql)
            if self._statement.verb == "call":
                handle.own_reads.follow()
            if view is not None:
                self._record_view(view, before)

    def _note_write(self, table: QualifiedName) -> None:
        verb = self._statement.verb
        self._handle.on_write(
            table,
            rows_changed=verb != "alter" or self._statement.on_view,
            snapshot_id=self.outcome.snapshot_id if self.outcome else None,
            replaced=verb in DEFINITION_VERBS and verb != "alter",
        )

    def _record_view(self, view: TemporaryView, before: ReadSet | None) -> None:
        handle, name = self._handle, view.name.lower()
        handle.forget_view((name,))
        handle.views[name] = view.reads and view.reads.of_tables()
        if view.is_cached:
            handle.cached[name] = before

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
        if self._table is None and self._relation is not None:
            self._table = self._handle.session.fetch(self._relation)
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
        self._table = self._relation = self._rows = None
