"""`iceberg-stream check`: checks a table's files against its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.contents import check_contents
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.live_files import check_live
from dbt.adapters.iceberg_stream.maintenance.check.manifests import Listed, Track, check_manifests
from dbt.adapters.iceberg_stream.maintenance.check.metadata import check_metadata
from dbt.adapters.iceberg_stream.maintenance.check.positions import check_positions
from dbt.adapters.iceberg_stream.maintenance.check.schemas import TableSchemas
from dbt.adapters.iceberg_stream.maintenance.check.storage import check_files, check_logged_files
from dbt.adapters.iceberg_stream.maintenance.check.streams import check_streams
from dbt.adapters.iceberg_stream.maintenance.check.structure import check_structure, normalized


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        table: namespace and identifier.
        findings: what is wrong.
        snapshots: how many snapshots were checked.
        manifests: how many manifests were checked.
        files: how many files were checked.
        contents: how many data files were read; None if that was not requested.
    """

    table: tuple[str, str]
    findings: Sequence[Finding]
    snapshots: int
    manifests: int
    files: int
    contents: int | None

    def count(self, severity: str) -> int:
        """Return how many findings have a severity."""
        return sum(1 for finding in self.findings if finding.severity == severity)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "table": ".".join(self.table),
            "snapshots": self.snapshots,
            "manifests": self.manifests,
            "files": self.files,
            "contents": self.contents,
            "findings": [finding.as_json() for finding in self.findings],
        }


def no_track(items: Sequence[Any], label: str) -> Iterable[Any]:
    """Show no progress."""
    return items


def check_table(table: LoadedTable, data: bool = False, track: Track[Any] = no_track) -> Report:
    """Check a table's metadata and, with `data`, the rows of its live files.

    Args:
        table: the table, with all snapshots.
        data: read every live file of every branch and tag.
        track: wraps long loops to show progress.

    Returns:
        The findings, and how much was checked.

    Raises:
        OSError: the storage refuses to answer.
    """
    listed = Listed()
    findings = list(dict.fromkeys(_findings(table, data, listed, track)))
    refused = any(finding.kind.refused for finding in findings)
    live = {e.data_file.file_path for entries in listed.heads.values() for e in entries}
    return Report(
        table.name,
        findings,
        0 if refused else len(table.metadata.get("snapshots") or []),
        listed.manifests,
        len(listed.sizes),
        len(live) if data else None,
    )


def _findings(
    table: LoadedTable, data: bool, listed: Listed, track: Track[Any]
) -> Iterator[Finding]:
    metadata = normalized(table.metadata)
    table = replace(table, metadata=metadata)
    # Later checks rely on earlier ones.
    for check in (check_structure, check_metadata):
        first = list(check(metadata))
        yield from first
        if any(finding.kind.refused for finding in first):
            return
    yield from check_streams(metadata)
    schemas = TableSchemas(metadata)
    yield from schemas.problems
    yield from check_manifests(table, schemas, listed, track)
    yield from check_files(table, listed, track)
    yield from check_logged_files(table)
    for ref, entries in listed.heads.items():
        yield from check_live(metadata, schemas, ref, entries)
        if data:
            yield from check_positions(table.io, ref, entries)
    if data:
        files = {e.data_file.file_path: e.data_file for es in listed.heads.values() for e in es}
        for file in track(list(files.values()), "Contents"):
            yield from check_contents(table.io, metadata, schemas, file)
