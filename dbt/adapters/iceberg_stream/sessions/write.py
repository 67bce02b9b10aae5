"""Runs a statement that writes: by Spark or in this process, again after a conflict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.missing_columns import explain_missing_column
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sql.statements import Statement
from dbt.adapters.iceberg_stream.tables.commit.commit_state import resolve
from dbt.adapters.iceberg_stream.tables.commit.outcome import (
    Outcome,
    find_file_delete,
    find_outcome,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    PRINCIPAL,
    new_write_id,
    snapshot_properties,
    spark_settings,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
    from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
    from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck

logger = Logger()

ROW_VERBS = {"insert", "merge", "update", "delete", "create", "replace", "truncate"}
# These statements can always be retried: they replace the whole relation.
REBUILDS = {"create", "replace"}
# Their snapshots have no write id if Spark deletes whole files.
DELETE_VERBS = {"delete", "truncate"}
INSERTING_VERBS = {"insert", "merge"}
STATEMENT_ATTEMPTS = 5
TABLE_EXISTS = "table already exists"
# Spark deletes whole files without a scan; a compaction may have put them into larger ones since.
PARTIAL_FILE = "some, but not all, rows match filter"


@dataclass
class Write:
    """One statement that writes.

    Attributes:
        handle: runs it.
        statement: what kind of statement it is, and what it changes.
        outcome: what it has changed; None before it has run, and if it commits no snapshot.
    """

    handle: SessionHandle
    statement: Statement
    outcome: Outcome | None = field(default=None, init=False)

    @cached_property
    def target(self) -> QualifiedName | None:
        """The changed relation's name; None if it is in no catalog of the profile."""
        return self.handle.catalogs.find_qualified(self.statement.target or ())

    def run(self, sql: str) -> None:
        """Run the statement, and read its outcome from the snapshot that it commits.

        Args:
            sql: the statement, as Spark takes it.

        Raises:
            StatementError: it failed; says whether it was committed, if that is not certain.
            CatalogError: it was committed, but its snapshot cannot be read.
        """
        write_id = new_write_id()
        catalogs = self.handle.catalogs
        catalog = catalogs.split(self.target)[0] if self.target else catalogs.own
        properties = snapshot_properties(write_id, self.handle.principal_of(catalog.name))
        if len(catalogs.names) > 1:
            # The session may have the user of another catalog from the statement before.
            properties.setdefault(PRINCIPAL, "")
        if self._replace_small_table(sql, properties):
            return
        check = None
        if self.target is not None and not self._rebuilds:
            check = self._read_check(sql, self.target)
        self.handle.session.configure(spark_settings(properties))
        find = self._find_outcome(write_id)
        if self._write_from_target(sql, check, write_id):
            self.outcome = self._committed(find)
            return
        try:
            with self._turn(), self._mark(check):
                self._run_write(sql, check)
        except StatementError as error:
            if not error.commit_state_unknown or not self._commits_snapshot():
                if self.target is not None and self.statement.verb in INSERTING_VERBS:
                    explain_missing_column(error, *catalogs.split(self.target))
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

    @property
    def _rebuilds(self) -> bool:
        return self.statement.verb in REBUILDS

    def _read_check(self, sql: str, target: QualifiedName) -> ReadCheck:
        from dbt.adapters.iceberg_stream.sessions.node_queries import read_check

        try:
            return read_check(self.handle, sql, target, self.statement.verb)
        except CatalogError as error:
            raise StatementError(str(error)) from error

    def _write_from_target(self, sql: str, check: ReadCheck | None, write_id: str) -> bool:
        """Run a statement whose rows are computed from its target; return whether it was run."""
        if check is None or not check.reads_target:
            return False
        # Of rows that are read while it runs, Spark's MERGE knows which others change.
        was_read_before = check.table in check.queried.versions
        if not (was_read_before or self._appends(sql) or self.handle.is_cached(sql, check.table)):
            return False
        from dbt.adapters.iceberg_stream.sessions.self_reading import write_from_target

        with self._turn():
            return write_from_target(self.handle, sql, self.statement.branch, check, write_id)

    def _appends(self, sql: str) -> bool:
        if self.statement.verb != "merge":
            return self.statement.verb == "insert"
        from dbt.adapters.iceberg_stream.sql.queries import only_inserts

        return only_inserts(sql)

    def _replace_small_table(self, sql: str, properties: Mapping[str, str]) -> bool:
        """Run a statement that replaces a small table, if it is one; return whether it was run."""
        handle = self.handle
        # Settings and functions of the session may change what Spark would write.
        if handle.small_tables is None or self.target is None or not handle.reusable:
            return False
        query = handle.small_tables.query_of(sql, self.target, handle.views)
        if query is None:
            return False
        self.outcome = handle.small_tables.replace(
            handle.session,
            self.target,
            query,
            handle.views,
            properties,
            handle.refuse_if_canceled,
        )
        return self.outcome is not None

    def _find_outcome(self, write_id: str) -> Callable[[], Outcome | None]:
        """Return what finds the outcome of a write that begins now among the table's snapshots."""
        deletes = self._commits_snapshot() and self.statement.verb in DELETE_VERBS
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
        return replace(outcome, branch=self.statement.branch)

    def _turn(self) -> AbstractContextManager[None]:
        """Wait for other batches' merges into the table, which would conflict with this one."""
        in_turn, self.handle.merges_in_turn = self.handle.merges_in_turn, False
        if not in_turn or self.statement.verb != "merge" or self.target is None:
            return nullcontext()
        return self.handle.merges.turn(self.target)

    def _mark(self, check: ReadCheck | None) -> AbstractContextManager[None]:
        """Mark the write if it reads the published version of its staged target."""
        from dbt.adapters.iceberg_stream.sessions.self_reading import marked, reads_published

        if check is None or not reads_published(check):
            return nullcontext()
        return marked(self.handle)

    def _run_write(self, sql: str, check: ReadCheck | None) -> None:
        """Run a write; retry after a conflict while its read set has not changed."""
        handle, rebuilds = self.handle, self._rebuilds

        def may_retry(error: BaseException) -> bool:
            if not isinstance(error, StatementError):
                return False
            # If two writers create a table, the second one finds that it exists.
            created = self.statement.replaces and TABLE_EXISTS in str(error).lower()
            compacted = self.statement.verb == "delete" and PARTIAL_FILE in str(error)
            if not (error.is_conflict or created or compacted):
                return False
            if error.commit_state_unknown or handle.canceled:
                return False
            if rebuilds or check is None or not check.read_set.is_complete:
                return rebuilds
            if changed := check.changed():
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

    def _commits_snapshot(self) -> bool:
        rows = self.statement.verb in ROW_VERBS and not self.statement.on_view
        return rows and self.target is not None

    def _snapshots(self) -> Iterator[SnapshotSummary]:
        assert self.target is not None
        return self.handle.catalogs.snapshots(self.target)
