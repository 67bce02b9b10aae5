"""The snapshot strategy `iceberg_history`: all versions of a table that Iceberg still has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dbt.adapters.base import Column
from dbt_common.exceptions import CompilationError, DbtDatabaseError

from dbt.adapters.iceberg_stream.builds.names import split_staged
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, keeps_rows
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.strategies import HISTORY
from dbt.adapters.iceberg_stream.sql.queries import reads
from dbt.adapters.iceberg_stream.sql.versions import at_snapshots, tables_without_version

# Each version is a scan of the table in the statement's plan.
VERSIONS_OF_A_STATEMENT = 50
logger = Logger()


@dataclass(frozen=True)
class SourceVersion:
    """A version of the table that a snapshot reads.

    Attributes:
        sql: the snapshot's query of this version.
        at_ms: when the version became the current one, in milliseconds since 1970 (UTC).
        schema_id: of the version's columns; None if unknown.
        is_current: whether the version has the columns of the table today.
    """

    sql: str
    at_ms: int
    schema_id: int | None = None
    is_current: bool = True


def source_versions(
    catalogs: Catalogs, sql: str, model: Mapping[str, Any], since_ms: int | None
) -> list[SourceVersion]:
    """Return the versions of a snapshot's table that it has not read, oldest first.

    The last one is always among them: compared once more, it changes nothing. Compactions are left
    out. Iceberg spec, "Table Metadata Fields", `snapshot-log`: https://iceberg.apache.org/spec/

    Args:
        catalogs: the profile's catalogs.
        sql: the snapshot's query.
        model: the snapshot's node in dbt's graph.
        since_ms: when the last change that the snapshot has was committed; None for a new one.

    Raises:
        CompilationError: the query does not read exactly one table of today.
    """
    name, table, ends = _only_table(catalogs, sql, model)
    history = list(_history(table.metadata))
    later = [entry for entry in history if since_ms is None or entry[0] > since_ms]
    if since_ms is not None and len(later) == len(history) > 0:
        logger.warning(
            f"{model['unique_id']}: versions of {'.'.join(name)} have expired that this snapshot "
            f"has not read. Changes since {_time(since_ms)} are dated {_time(history[0][0])}. "
            "Run dbt snapshot before snapshots expire."
        )
    if not history:
        return [SourceVersion(sql, table.metadata.get("last-updated-ms") or 0)]
    schema_ids = {s["snapshot-id"]: s.get("schema-id") for s in table.metadata["snapshots"]}
    current = table.metadata.get("current-schema-id")
    return [
        SourceVersion(
            at_snapshots(sql, dict.fromkeys(ends, snapshot_id)),
            at_ms,
            schema_ids[snapshot_id],
            schema_ids[snapshot_id] in (None, current),
        )
        for at_ms, snapshot_id in later or history[-1:]
    ]


def statements(
    versions: Sequence[SourceVersion],
    columns: Sequence[Column],
    columns_of: Callable[[str], Sequence[Column]],
    node: str,
) -> list[list[dict[str, Any]]]:
    """Return the versions that each statement reads, as macros take them.

    Args:
        versions: oldest first.
        columns: of the snapshot's query today.
        columns_of: returns the columns of a query.
        node: the snapshot's id, for messages.

    Returns:
        For each version `sql`, `at_ms` and `columns`, the SQL of today's columns; None if the
        version has all of them. Versions that lack a column which the query names are left out.
    """
    selected: dict[int | None, str | None] = {}
    readable = []
    for version in versions:
        if not version.is_current and version.schema_id not in selected:
            selected[version.schema_id] = _columns_then(version, columns, columns_of, node)
        columns_sql = None if version.is_current else selected[version.schema_id]
        if version.is_current or columns_sql is not None:
            readable.append({"sql": version.sql, "at_ms": version.at_ms, "columns": columns_sql})
    starts = range(0, len(readable), VERSIONS_OF_A_STATEMENT)
    return [readable[start : start + VERSIONS_OF_A_STATEMENT] for start in starts]


def _columns_then(
    version: SourceVersion,
    columns: Sequence[Column],
    columns_of: Callable[[str], Sequence[Column]],
    node: str,
) -> str | None:
    """Return today's columns as SQL on an earlier version; None if its query cannot be read."""
    try:
        before = {column.name.lower(): column for column in columns_of(version.sql)}
    except DbtDatabaseError as error:
        logger.warning(
            f"{node}: the version of {_time(version.at_ms)} and others with its columns cannot be "
            f"read; their changes are dated by the next version. {error.msg}"
        )
        return None
    for column in columns:
        earlier = before.get(column.name.lower(), column)
        if earlier.dtype != column.dtype and not earlier.can_expand_to(column):
            logger.warning(
                f"{node}: `{column.name}` was {earlier.dtype} in the version of "
                f"{_time(version.at_ms)} and is {column.dtype} now. The changes of this "
                "version, and of others with its columns, get the date of the next version."
            )
            return None
    return ", ".join(
        column.quoted
        if column.name.lower() in before
        else f"cast(null as {column.data_type}) as {column.quoted}"
        for column in columns
    )


def _only_table(
    catalogs: Catalogs, sql: str, model: Mapping[str, Any]
) -> tuple[QualifiedName, LoadedTable, list[int]]:
    """Return the table that a query reads, and where its name ends in the query."""
    place = f"`strategy: {HISTORY}` of {model['unique_id']}"
    names = reads(sql)
    tables = tables_without_version(sql)
    if names is None or len(names.relations) != 1 or len(tables) != 1 or names.versions:
        raise CompilationError(
            f"{place}: the query must read one table, without `.at(…)`. Use `strategy: check` for "
            "other queries."
        )
    ((parts, ends),) = tables.items()
    name = catalogs.find_qualified(parts)
    catalog, own_name = catalogs.split(name) if name else (None, None)
    table = catalog.load(own_name) if catalog is not None and own_name is not None else None
    if name is None or table is None:
        raise CompilationError(
            f"{place}: {'.'.join(parts)} has no history, because it is no Iceberg table of the "
            "profile's catalogs. Read a table, or use `strategy: check`."
        )
    if split_staged(name[-1]) is not None:
        raise CompilationError(
            f"{place}: this run publishes {'.'.join(name)} at its end, which gives its rows their "
            "time. Run dbt snapshot after it, or set `publish: immediately`."
        )
    return name, table, list(ends)


def _history(metadata: Metadata) -> Iterator[tuple[int, int]]:
    """Yield when each version became the current one, and its snapshot, without compactions.

    The clock of a writer may be behind: its version then comes a millisecond after the one before.
    """
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    log = [(int(e["timestamp-ms"]), e["snapshot-id"]) for e in metadata.get("snapshot-log") or []]
    current = snapshots.get(metadata.get("current-snapshot-id"))
    if current is not None and (not log or log[-1][1] != current["snapshot-id"]):
        log.append((int(current["timestamp-ms"]), current["snapshot-id"]))
    before: int | None = None
    latest = 0
    for at_ms, snapshot_id in log:
        at_ms = latest = at_ms if at_ms >= latest else latest + 1
        snapshot = snapshots.get(snapshot_id)
        if snapshot is None:
            continue
        # After a rollback, a compaction may have other rows than the version before.
        is_compaction = keeps_rows(snapshot) and snapshot.get("parent-snapshot-id") == before
        if before is None or not is_compaction:
            yield at_ms, snapshot_id
        before = snapshot_id


def _time(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return time.isoformat(" ", "milliseconds")
