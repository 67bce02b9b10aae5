"""Several tables of one stream: their batches in one commit, or one after the other.

REST catalog specification, `commitTransaction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink, SinkCommit
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, commit_together

# A table, and the batches of it that wait.
Part = tuple[Sink, Sequence[WrittenBatch]]


def commit_batches(write_id: str, parts: Sequence[Part]) -> list[Committed | None]:
    """Commit what waits for each table; None for those where it changes nothing.

    All of them or none where the catalog is able to; a table that does not change is not touched.

    Raises:
        The same as `Sink.commit`; where the catalog is not able to, tables before the one that it
        concerns are committed.
    """
    if len(parts) == 1:
        ((sink, batches),) = parts
        return [sink.commit(write_id, batches)]
    with ExitStack() as turns:
        for sink, _ in parts:
            turns.enter_context(sink.turn)
        with ExitStack() as undo:
            for sink, batches in parts:
                undo.callback(sink.discard, batches)
            prepared = [(sink, sink.prepare(write_id, batches)) for sink, batches in parts]
            undo.pop_all()
        ready = [(sink, one) for sink, one in prepared if one is not None]
        if not ready:
            return [None] * len(parts)
        together = parts[0][0].catalog.commits_together
        done = dict(_at_once(ready) if together else _in_turn(ready))
        return [done.get(id(sink)) for sink, _ in parts]


def _at_once(ready: Sequence[tuple[Sink, SinkCommit]]) -> list[tuple[int, Committed]]:
    done = commit_together([one.committer for _, one in ready])
    return [(id(s), s.committed(one, d)) for (s, one), d in zip(ready, done, strict=True)]


def _in_turn(ready: Sequence[tuple[Sink, SinkCommit]]) -> list[tuple[int, Committed]]:
    done = []
    for number, (sink, one) in enumerate(ready, start=1):
        with ExitStack() as undo:
            for _, later in ready[number:]:
                undo.callback(later.committer.give_up)
            done.append((id(sink), sink.committed(one, one.committer.commit())))
            undo.pop_all()
    return done
