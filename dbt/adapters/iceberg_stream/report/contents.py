"""What a report has to show, before it is a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.diff.schemas import SchemaChange
from dbt.adapters.iceberg_stream.maintenance.advice import Advice
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth
from dbt.adapters.iceberg_stream.report.history import Write
from dbt.adapters.iceberg_stream.report.project import Node, Project

Name = tuple[str, str]


@dataclass(frozen=True)
class Stream:
    """A stream that writes to a table.

    Attributes:
        table: namespace and identifier.
        sink_id: identifies the stream in the table.
        progress: how far it has read its source.
        last_progress_ms: its last commit or progress in milliseconds since 1970; None if unknown.
        problem: why it cannot continue; None if it can.
        commits: its latest commits, over which `rows_per_second` is measured.
        rows_per_second: rows that these wrote and deleted; None with fewer than two commits.
    """

    table: Name
    sink_id: str
    progress: str
    last_progress_ms: int | None
    problem: str | None
    commits: int
    rows_per_second: float | None


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        name: namespace and identifier.
        location: folder of its files.
        comment: the table's comment; empty without one.
        format_version: of the table.
        partitioning: transforms of the default partition spec.
        node: the node of the project that writes it; None if the project has none.
        current: the write of the current snapshot; None for a table without one.
        writes: the latest writes to the branch main, newest first.
        snapshots: how many snapshots were written to the branch main, and have not expired.
        other_snapshots: those of other branches, and staged ones.
        streams: that write to the table.
        health: None if the time limit was reached before the table was examined.
    """

    name: Name
    location: str
    comment: str
    format_version: int
    partitioning: str
    node: Node | None
    current: Write | None
    writes: Sequence[Write]
    snapshots: int
    other_snapshots: int
    streams: Sequence[Stream]
    health: TableHealth | None


@dataclass(frozen=True)
class TableChange:
    """What a run of dbt, or a build, changed in one table.

    Attributes:
        table: namespace and identifier.
        writes: how many snapshots.
        inserted: rows inserted; those of rewritten files may be among them.
        updated: rows that a MERGE updated.
        deleted: rows deleted, those of a replaced table included, and keys of equality deletes.
        bytes: of the files that were written.
        rows_before: of the table before; None if unknown.
        rows_after: of the table after its last commit; None if unknown.
        seconds: of the node, if dbt's artifacts have the run.
    """

    table: Name
    writes: int
    inserted: int
    updated: int
    deleted: int
    bytes: int
    rows_before: int | None
    rows_after: int | None
    seconds: float | None


@dataclass(frozen=True)
class Run:
    """A command of dbt, from the snapshots that it committed.

    Attributes:
        invocation_id: dbt's id of the run.
        first_ms: its first commit, in milliseconds since 1970.
        last_ms: its last commit.
        principals: the catalog's users who committed.
        changes: one for each table.
    """

    invocation_id: str
    first_ms: int
    last_ms: int
    principals: Sequence[str]
    changes: Sequence[TableChange]


@dataclass(frozen=True)
class StagedChange:
    """What a build that is not published would change in a table.

    Attributes:
        table: namespace and identifier of the published table.
        kind: `new`, `changed`, `unchanged`, `replaces a view`, or `not built` if its model has
            failed before.
        schema: changes of columns.
        rows_before: of the published table; None if there is none, or if unknown.
        rows_after: of the staged table; None if unknown.
        inserted: rows that the build inserted.
        updated: rows that a MERGE updated.
        removed: rows that are gone, those of a replaced table included.
        is_outdated: whether another writer has changed the published table since it was staged.
    """

    table: Name
    kind: str
    schema: Sequence[SchemaChange] = ()
    rows_before: int | None = None
    rows_after: int | None = None
    inserted: int = 0
    updated: int = 0
    removed: int = 0
    is_outdated: bool = False


@dataclass(frozen=True)
class StagedBuild:
    """A build that is not published.

    Attributes:
        name: its name.
        last_change_ms: when a relation was last staged or changed, in milliseconds since 1970;
            None if none can be read.
        has_ended: whether all commands have ended; False if one still runs or was interrupted.
        failed: nodes that failed or were skipped, and have not succeeded since.
        tables: sorted by name.
        views: published names, and the result of `view_change`.
        unreadable: errors by the published name of a table or view.
    """

    name: str
    last_change_ms: int | None
    has_ended: bool
    failed: Sequence[str]
    tables: Sequence[StagedChange]
    views: Sequence[tuple[Name, str]]
    unreadable: Mapping[str, str]


@dataclass(frozen=True)
class Publication:
    """A published build, from the snapshots that it committed.

    Attributes:
        build: its name.
        published_ms: its last commit, in milliseconds since 1970.
        principals: the catalog's users who wrote the rows.
        changes: one for each table.
    """

    build: str
    published_ms: int
    principals: Sequence[str]
    changes: Sequence[TableChange]


@dataclass(frozen=True)
class Contents:
    """Everything that a report shows.

    Attributes:
        catalog: the catalog's name.
        namespaces: those that were asked for; empty for the project, or for all.
        project: the dbt project; None without a manifest.
        nodes: the project's nodes that belong to the report, by unique id.
        tables: sorted by name.
        unreadable: errors by the name of a table or namespace.
        advice: the most urgent first.
        builds: those that are not published, the latest first.
        publications: of builds, the latest first.
        runs: the latest first.
        generated_ms: when the metadata were read, in milliseconds since 1970.
    """

    catalog: str
    namespaces: Sequence[str]
    project: Project | None
    nodes: Mapping[str, Node]
    tables: Sequence[Table]
    unreadable: Mapping[str, str]
    advice: Sequence[Advice]
    builds: Sequence[StagedBuild]
    publications: Sequence[Publication]
    runs: Sequence[Run]
    generated_ms: int

    @property
    def streams(self) -> list[Stream]:
        """The streams of all tables, those with a problem first, then the latest."""
        streams = [stream for table in self.tables for stream in table.streams]
        return sorted(
            streams, key=lambda s: (s.problem is None, -(s.last_progress_ms or 0), s.table)
        )
