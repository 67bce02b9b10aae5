"""The tables, builds and nodes that belong to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.builds.build import Build, group_builds
from dbt.adapters.iceberg_stream.builds.names import published_tables
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.maintenance.unreadable import why_unreadable
from dbt.adapters.iceberg_stream.report.contents import Name
from dbt.adapters.iceberg_stream.report.project import Node, Project


@dataclass(frozen=True)
class Listing:
    """What the catalog lists in the namespaces of a report.

    Attributes:
        tables: sorted names of the published tables.
        builds: that are not published.
        unreadable: errors by the name of a namespace.
    """

    tables: Sequence[Name]
    builds: Sequence[Build]
    unreadable: Mapping[str, str]


def list_tables(
    catalog: IcebergCatalog, namespaces: Sequence[str], project: Project | None
) -> Listing:
    """List the tables and builds of a report.

    With a project, the builds are those of its namespaces: they may have models that it has not.

    Args:
        catalog: the profile's catalog.
        namespaces: whose tables to list; empty for those of the project's nodes, and without a
            project for those of the whole catalog.
        project: the dbt project, if any.

    Raises:
        CatalogError: the catalog does not list its namespaces, or the tables of none of them.
    """
    nodes = [] if project is None or namespaces else list(project.nodes.values())
    listed = namespaces or {node.table[0] for node in nodes} or catalog.namespaces()
    relations: dict[str, list[tuple[str, str]]] = {}
    errors: dict[str, CatalogError] = {}
    for namespace in sorted(listed):
        try:
            relations[namespace] = catalog.relations(namespace)
        except CatalogError as error:
            errors[namespace] = error
    if errors and not relations:
        raise next(iter(errors.values()))
    names = [name for one, own in relations.items() for name in published_tables(one, own)]
    return Listing(
        tables=sorted(_of_project(names, nodes) if nodes else names),
        builds=group_builds(relations),
        unreadable={name: why_unreadable(error) for name, error in errors.items()},
    )


def list_nodes(
    project: Project | None, namespaces: Sequence[str], tables: Iterable[Name]
) -> dict[str, Node]:
    """Return a report's nodes by unique id: with namespaces, their tables' and what these read.

    Args:
        project: the dbt project, if any.
        namespaces: of the report; empty for the whole project.
        tables: of the report.
    """
    if project is None:
        return {}
    if not namespaces:
        return dict(project.nodes)
    names = set(tables)
    own = {key for key, node in project.nodes.items() if node.table in names}
    read = {parent for key in own for parent in project.nodes[key].parents}
    return {key: node for key, node in project.nodes.items() if key in own | read}


def _of_project(names: Iterable[Name], nodes: Sequence[Node]) -> list[Name]:
    """Return the tables of a project's nodes, those of a stream's routes among them."""
    own = {node.table for node in nodes}
    streams = [node.table for node in nodes if node.kind == "stream"]
    return [
        (namespace, table)
        for namespace, table in names
        if (namespace, table) in own
        or any(namespace == s and table.startswith(f"{stream}__") for s, stream in streams)
    ]
