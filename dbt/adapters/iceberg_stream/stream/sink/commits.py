"""Commit the batches of a stream to all its tables, in one transaction where the catalog can.

Iceberg REST catalog specification, `commitTransaction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.stream.errors import RowsMoved, StreamConflict
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink, SinkCommit
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, commit_together

# A table and its pending batches.
PendingCommit = tuple[Sink, Sequence[WrittenBatch]]


def commit_batches(write_id: str, pending: Sequence[PendingCommit]) -> list[Committed | None]:
    """Commit the pending batches of each table; tables that do not change are not touched.

    The catalog commits to all tables or to none, if it can commit several tables at once;
    otherwise the tables are committed one after the other.

    Args:
        write_id: of the commit.
        pending: the tables and their batches.

    Returns:
        A commit for each table, in their order; None where the batches change nothing.

    Raises:
        StreamError, CatalogError, CommitStateUnknown: as for `Sink.commit`. A catalog that cannot
            commit several tables at once has then committed the tables before the failed one.
    """
    if len(pending) == 1:
        ((sink, batches),) = pending
        return [sink.commit(write_id, batches)]
    with ExitStack() as locks:
        for sink, _ in pending:
            locks.enter_context(sink.lock)
        try:
            commits = _prepare(write_id, pending)
            if not commits:
                return [None] * len(pending)
            together = pending[0][0].catalog.commits_together
            committed = dict(_commit_transaction(commits) if together else _commit_each(commits))
        except RowsMoved as error:
            raise StreamConflict(str(error)) from error
        return [committed.get(id(sink)) for sink, _ in pending]


def _prepare(write_id: str, pending: Sequence[PendingCommit]) -> list[tuple[Sink, SinkCommit]]:
    """Prepare the commits of tables that change; if one fails, remove the files of all."""
    commits = []
    with ExitStack() as undo:
        for sink, batches in pending:
            undo.callback(sink.discard, batches)
        for sink, batches in pending:
            if (commit := sink.prepare(write_id, batches)) is not None:
                commits.append((sink, commit))
                undo.callback(commit.give_up, sink.remove)
        undo.pop_all()
    return commits


def _commit_transaction(commits: Sequence[tuple[Sink, SinkCommit]]) -> list[tuple[int, Committed]]:
    try:
        results = commit_together([commit.committer for _, commit in commits])
    except CommitStateUnknown:
        raise
    except (CatalogError, OSError):
        # A server that does not commit atomically may have committed some of the tables.
        for sink, commit in commits:
            if commit.committer.is_not_committed():
                commit.give_up(sink.remove)
        raise
    return [
        (id(sink), sink.apply_commit(commit, result))
        for (sink, commit), result in zip(commits, results, strict=True)
    ]


def _commit_each(commits: Sequence[tuple[Sink, SinkCommit]]) -> list[tuple[int, Committed]]:
    results = []
    for number, (sink, commit) in enumerate(commits, start=1):
        with ExitStack() as undo:
            for other, later in commits[number:]:
                undo.callback(later.give_up, other.remove)
            try:
                results.append((id(sink), sink.apply_commit(commit, commit.commit(sink.remove))))
            except RowsMoved:
                commit.give_up(sink.remove)
                raise
            undo.pop_all()
    return results
