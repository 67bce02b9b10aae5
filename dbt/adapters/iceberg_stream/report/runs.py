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
    by_run: dict[str, list[tuple[Table, list[int]]]] = defaultdict(list)
    for table in tables:
        places: dict[str, list[int]] = defaultdict(list)
        for place, write in enumerate(table.writes):
            if write.run:
                places[write.run].append(place)
        for run, of_run in places.items():
            by_run[run].append((table, of_run))
    runs = [_run(run, of_tables, seconds) for run, of_tables in by_run.items()]
    return sorted(runs, key=lambda run: (-run.last_ms, run.invocation_id))


def _run(
    invocation_id: str,
    places: Sequence[tuple[Table, list[int]]],
    seconds: Mapping[tuple[str, str], float],
) -> Run:
    """Sum up a run from the places of its writes in those of each table."""
    writes = [table.writes[place] for table, of_table in places for place in of_table]
    return Run(
        invocation_id=invocation_id,
        first_ms=min(write.committed_ms for write in writes),
        last_ms=max(write.committed_ms for write in writes),
        principals=sorted({write.principal for write in writes if write.principal}),
        changes=[_change(invocation_id, table, of_table, seconds) for table, of_table in places],
    )


def _change(
    invocation_id: str,
    table: Table,
    places: Sequence[int],
    seconds: Mapping[tuple[str, str], float],
) -> TableChange:
    writes = [table.writes[place] for place in places]
    older = table.writes[places[-1] + 1 : places[-1] + 2]
    return TableChange(
        table=table.name,
        writes=len(writes),
        inserted=sum(write.inserted for write in writes),
        updated=sum(write.updated for write in writes),
        deleted=sum(write.deleted for write in writes),
        bytes=sum(write.bytes for write in writes),
        rows_before=older[0].totals.rows if older else None,
        rows_after=writes[0].totals.rows,
        seconds=_seconds(invocation_id, writes, seconds),
    )


def _seconds(
    invocation_id: str, writes: Sequence[Write], seconds: Mapping[tuple[str, str], float]
) -> float | None:
    """Return the seconds of the node that wrote; hooks write, too, but are no nodes."""
    recorded = (seconds.get((invocation_id, write.node_id)) for write in writes)
    return next((value for value in recorded if value is not None), None)
