"""`iceberg-stream check`: checks a table's files against its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroaring import BitMap64

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.contents import check_contents
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.history_rules import check_history_rules
from dbt.adapters.iceberg_stream.maintenance.check.layout_rules import check_layout_rules
from dbt.adapters.iceberg_stream.maintenance.check.live_files import check_live
from dbt.adapters.iceberg_stream.maintenance.check.manifests import Listed, Track, check_manifests
from dbt.adapters.iceberg_stream.maintenance.check.metadata import check_metadata
from dbt.adapters.iceberg_stream.maintenance.check.positions import check_positions
from dbt.adapters.iceberg_stream.maintenance.check.row_ids import check_row_ids
from dbt.adapters.iceberg_stream.maintenance.check.schema_rules import check_schema_rules
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


# What loading a table raises if its metadata file is missing or damaged.
LOST = (FileNotFoundError, ValueError)
# Rules about metadata alone, each for one chapter of the specification.
RULES = (check_schema_rules, check_layout_rules, check_history_rules)


def lost_report(name: tuple[str, str], error: OSError | ValueError) -> Report:
    """Return the report of a table whose metadata file is missing or damaged.

    Args:
        name: namespace and identifier.
        error: one of `LOST`, of loading the table.
    """
    where = re.search(r"[^\s'\"]*\.metadata\.json", str(error))
    if isinstance(error, FileNotFoundError):
        problem = "The metadata file that the catalog names is missing."
    else:
        problem = f"The metadata file that the catalog names cannot be read ({error})."
    finding = Finding("metadata-lost", where[0] if where else ".".join(name), problem)
    return Report(name, [finding], 0, 0, 0, None)


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
    for check in (check_structure, check_metadata, *RULES):
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
    version = metadata["format-version"]
    for ref, entries in listed.heads.items():
        yield from check_live(metadata, schemas, ref, entries)
        if data:
            deleted: dict[str, BitMap64] = {}
            yield from check_positions(table.io, version, ref, entries, deleted)
            yield from check_row_ids(table.io, metadata, ref, entries, deleted)
    if data:
        yield from _contents(table, schemas, listed, track)


def _contents(
    table: LoadedTable, schemas: TableSchemas, listed: Listed, track: Track[Any]
) -> Iterator[Finding]:
    """Read each live file once, with the schema that the first of its readers has."""
    files = {
        entry.data_file.file_path: (entry.data_file, ref)
        for ref, entries in reversed(sorted(listed.heads.items(), key=_main_first))
        for entry in entries
    }
    views = {ref: schemas.of(ref) for ref in listed.heads}
    for file, ref in track(list(files.values()), "Contents"):
        yield from check_contents(table.io, table.metadata, views[ref], file)


def _main_first(head: tuple[str, Any]) -> bool:
    return head[0] != MAIN
