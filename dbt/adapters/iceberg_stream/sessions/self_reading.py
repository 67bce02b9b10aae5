"""Runs statements whose rows are computed from the table that they change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sql.aliases import with_target_alias
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.statements import with_target
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    READS_TARGET,
    spark_settings,
)
from dbt.adapters.iceberg_stream.tables.commit.work_branch import WorkBranch

ATTEMPTS = 3
NOTHING_VISIBLE = "Nothing of the statement is visible. Run the model again."


def write_from_target(
    handle: SessionHandle,
    sql: str,
    branch: str | None,
    check: ReadCheck,
    write_id: str,
) -> bool:
    """Run a statement on a branch of its target, which the target gets if it has not changed.

    Args:
        handle: runs it.
        sql: the statement.
        branch: the branch that it changes; None for main.
        check: what it reads, and the table that it reads and changes.
        write_id: id of the write.

    Returns:
        Whether it was run; False if the table can have no branch.

    Raises:
        StatementError: it failed, or the target has changed; nothing of it is visible.
    """
    try:
        for _ in range(ATTEMPTS):
            # Compactions by others do not change what was read.
            with suppress(CommitConflict):
                return _write_on_branch(handle, sql, branch or MAIN, check, write_id)
    except CatalogError as error:
        raise StatementError(str(error)) from error
    raise StatementError(check.message(check.table))


def _write_on_branch(
    handle: SessionHandle, sql: str, branch: str, check: ReadCheck, write_id: str
) -> bool:
    catalog, name = handle.catalogs.split(check.table)
    work = WorkBranch(catalog, name, write_id, branch)
    metadata = work.begin()
    with ExitStack() as undo:
        undo.callback(work.remove)
        check.check_attempt(metadata or catalog.metadata(name))
        if metadata is None:
            undo.pop_all()
            return False
        parts = (catalog.name, *name, f"branch_{work.name}")
        _run(handle, with_target(with_target_alias(sql), ".".join(map(quote, parts))))
        work.publish()
        undo.pop_all()
    return True


def reads_published(check: ReadCheck) -> bool:
    """Return whether rows are computed from the published version of the staged table they go to.

    Args:
        check: what was read, and the table that gets the rows.
    """
    published = without_build(check.table)
    return published != check.table and published in check.reads


@contextmanager
def marked(handle: SessionHandle) -> Iterator[None]:
    """Mark the snapshots of a session's statements as computed from the table that they change.

    Args:
        handle: runs them.
    """
    mark = spark_settings({READS_TARGET: "true"})
    handle.session.configure(mark)
    try:
        yield
    except StatementError:
        # Later statements of the session are not marked; its error would hide this one.
        with suppress(StatementError):
            handle.session.unset(mark)
        raise
    handle.session.unset(mark)


def _run(handle: SessionHandle, sql: str) -> None:
    with marked(handle):
        try:
            handle.session.run(sql)
        except StatementError as error:
            if error.commit_state_unknown:
                error.add(NOTHING_VISIBLE)
            raise
