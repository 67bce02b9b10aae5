"""Gathers the contents of a report from the metadata of tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.advice import Thresholds, advise
from dbt.adapters.iceberg_stream.report.builds import read_builds
from dbt.adapters.iceberg_stream.report.contents import Contents
from dbt.adapters.iceberg_stream.report.listing import list_nodes, list_tables
from dbt.adapters.iceberg_stream.report.project import Project
from dbt.adapters.iceberg_stream.report.runs import list_publications, list_runs
from dbt.adapters.iceberg_stream.report.tables import read_tables

# Advice reads the manifests of all files. When so many seconds have passed since the start, no
# further table is examined for it, and no further table of a build is read.
TIME_LIMIT = 6.0


def gather(
    catalog: IcebergCatalog,
    namespaces: Sequence[str] = (),
    project: Project | None = None,
    now_ms: int | None = None,
    time_limit: float = TIME_LIMIT,
) -> Contents:
    """Read what a report shows; reads metadata only, and changes nothing.

    A table or namespace that cannot be read is listed with its error, and the others are read.

    Args:
        catalog: the profile's catalog.
        namespaces: whose tables to report; by default those of the project's nodes, and without a
            project those of the whole catalog.
        project: the dbt project; None to report tables without lineage.
        now_ms: the time, in milliseconds since 1970 (UTC); None for the clock's.
        time_limit: seconds after which no further staged table is read, and no further table is
            examined for advice.

    Raises:
        CatalogError: the catalog does not list its namespaces, or the tables of none of them.
    """
    deadline = time.monotonic() + time_limit
    now = int(time.time() * 1000) if now_ms is None else now_ms
    listing = list_tables(catalog, namespaces, project)
    nodes = {} if project is None else project.by_table
    builds = read_builds(catalog, listing.builds, deadline)
    tables, errors = read_tables(catalog, listing.tables, nodes, now, deadline)
    healths = [table.health for table in tables if table.health is not None]
    return Contents(
        catalog=catalog.name,
        namespaces=namespaces,
        project=project,
        nodes=list_nodes(project, namespaces, listing.tables),
        tables=tables,
        unreadable={**listing.unreadable, **errors},
        advice=advise(healths, Thresholds(), now),
        builds=builds,
        publications=list_publications(tables),
        runs=list_runs(tables, {} if project is None else project.seconds),
        generated_ms=now,
    )
