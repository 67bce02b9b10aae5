"""The runs of dbt, from the snapshots that they committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dbt.adapters.iceberg_stream.report.contents import Run, Table, TableChange
from dbt.adapters.iceberg_stream.report.history import Write


def list_runs(tables: Iterable[Table], seconds: Mapping[tuple[str, str], float]) -> list[Run]:
    """Return the runs of dbt that committed to tables, the latest first.

    Args:
        tables: with their writes.
        seconds: of nodes, by invocation id and unique id.
    """
    by_run: dict[str, list[tuple[Table, list[Write]]]] = defaultdict(list)
    for table in tables:
        writes: dict[str, list[Write]] = defaultdict(list)
        for write in table.writes:
            if write.run:
                writes[write.run].append(write)
        for run, of_run in writes.items():
            by_run[run].append((table, of_run))
    runs = [_run(run, of_tables, seconds) for run, of_tables in by_run.items()]
    return sorted(runs, key=lambda run: (-run.last_ms, run.invocation_id))


def _run(
    invocation_id: str,
    tables: Sequence[tuple[Table, list[Write]]],
    seconds: Mapping[tuple[str, str], float],
) -> Run:
    writes = [write for _, of_table in tables for write in of_table]
    return Run(
        invocation_id=invocation_id,
        first_ms=min(write.committed_ms for write in writes),
        last_ms=max(write.committed_ms for write in writes),
        principals=sorted({write.principal for write in writes if write.principal}),
        changes=[
            TableChange(
                table=table.name,
                writes=len(of_table),
                inserted=sum(write.inserted for write in of_table),
                updated=sum(write.updated for write in of_table),
                deleted=sum(write.deleted for write in of_table),
                bytes=sum(write.bytes for write in of_table),
                rows_before=_rows_before(table, of_table[-1]),
                rows_after=of_table[0].totals.rows,
                seconds=_seconds(invocation_id, of_table, seconds),
            )
            for table, of_table in tables
        ],
    )


def _rows_before(table: Table, first: Write) -> int | None:
    older = table.writes[table.writes.index(first) + 1 :]
    return older[0].totals.rows if older else None


def _seconds(
    invocation_id: str, writes: Sequence[Write], seconds: Mapping[tuple[str, str], float]
) -> float | None:
    """Return the seconds of the node that wrote; hooks write, too, but are no nodes."""
    recorded = (seconds.get((invocation_id, write.node_id)) for write in writes)
    return next((value for value in recorded if value is not None), None)
