"""The runs of dbt and the published builds, from the snapshots that they committed."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from dbt.adapters.iceberg_stream.report.contents import Publication, Run, Table, TableChange
from dbt.adapters.iceberg_stream.report.history import Write

# A table, and places in its writes.
_Places = tuple[Table, list[int]]
# All tables of a build are published at one time, or within seconds if other writers appended.
PAUSE_MS = 60_000


def list_runs(tables: Iterable[Table], seconds: Mapping[tuple[str, str], float]) -> list[Run]:
    """Return the runs of dbt that committed to tables, the latest first.

    Args:
        tables: with their writes.
        seconds: of nodes, by invocation id and unique id.
    """
    runs = [_run(*item, seconds) for item in _writes_by(tables, lambda write: write.run).items()]
    return sorted(runs, key=lambda run: (-run.last_ms, run.invocation_id))


def list_publications(tables: Iterable[Table]) -> list[Publication]:
    """Return the published builds whose snapshots the tables still have, the latest first.

    Args:
        tables: with their writes.
    """
    publications = [
        _publication(build, part)
        for build, places in _writes_by(tables, lambda write: write.build).items()
        for part in _by_time(places)
    ]
    return sorted(publications, key=lambda one: (-one.published_ms, one.build))


def _writes_by(tables: Iterable[Table], key: Callable[[Write], str]) -> dict[str, list[_Places]]:
    """Return the places of writes in those of their table, by a key that is not empty."""
    by_key: dict[str, list[_Places]] = defaultdict(list)
    for table in tables:
        places: dict[str, list[int]] = defaultdict(list)
        for place, write in enumerate(table.writes):
            if value := key(write):
                places[value].append(place)
        for value, of_value in places.items():
            by_key[value].append((table, of_value))
    return by_key


def _by_time(places: Sequence[_Places]) -> list[list[_Places]]:
    """Split the writes of a build's name, which later builds may have again, at long pauses."""
    times = sorted({table.writes[n].committed_ms for table, own in places for n in own})
    starts = [
        time
        for before, time in zip([-inf, *times], times, strict=False)
        if time - before > PAUSE_MS
    ]
    parts: dict[int, list[_Places]] = defaultdict(list)
    for table, own in places:
        of_start: dict[int, list[int]] = defaultdict(list)
        for n in own:
            of_start[bisect_right(starts, table.writes[n].committed_ms)].append(n)
        for start, of_part in of_start.items():
            parts[start].append((table, of_part))
    return list(parts.values())


def _publication(build: str, places: Sequence[_Places]) -> Publication:
    writes = [table.writes[place] for table, own in places for place in own]
    return Publication(
        build=build,
        published_ms=max(write.committed_ms for write in writes),
        principals=sorted({write.principal for write in writes if write.principal}),
        changes=[_change("", table, own, {}) for table, own in places],
    )


def _run(
    invocation_id: str,
    places: Sequence[_Places],
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
