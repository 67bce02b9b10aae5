"""A dbt project as its last command left it: `manifest.json` and `run_results.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from dbt_common.exceptions import DbtRuntimeError

KINDS = ("model", "seed", "snapshot")


@dataclass(frozen=True)
class Node:
    """A model, seed, snapshot or source.

    Attributes:
        unique_id: dbt's unique id.
        name: as models name it; of a source, `source.table`.
        kind: `seed`, `snapshot`, `source`, or the materialization of a model.
        table: namespace and identifier.
        parents: unique ids of the nodes that it reads.
        description: of the project's YAML.
    """

    unique_id: str
    name: str
    kind: str
    table: tuple[str, str]
    parents: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class Project:
    """A dbt project.

    Attributes:
        name: the project's name.
        generated_at: when the manifest was written, as dbt writes it.
        nodes: by unique id; of the sources, only those that a node reads.
        seconds: of nodes in the last run, by invocation id and unique id.
    """

    name: str
    generated_at: str
    nodes: Mapping[str, Node]
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def by_table(self) -> dict[tuple[str, str], Node]:
        """The nodes by their namespace and identifier."""
        return {node.table: node for node in self.nodes.values()}


def read_project(target_path: Path) -> Project | None:
    """Read the artifacts of a project's last dbt command.

    Args:
        target_path: folder of the artifacts.

    Returns:
        The project; None if the folder has no manifest.

    Raises:
        DbtRuntimeError: the manifest is not one of dbt's.
        OSError: it cannot be read.
    """
    path = target_path / "manifest.json"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        manifest = orjson.loads(content)
        nodes = _nodes(manifest)
        header = manifest["metadata"]
        name, generated_at = str(header.get("project_name") or ""), str(header["generated_at"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DbtRuntimeError(
            f"{path} is not a manifest of dbt ({type(error).__name__}: {error}). Write it again "
            "with `dbt parse`, or delete it to have a report without lineage."
        ) from error
    return Project(name, generated_at, nodes, _seconds(target_path / "run_results.json"))


def _nodes(manifest: Mapping[str, Any]) -> dict[str, Node]:
    nodes = [
        Node(
            unique_id=unique_id,
            name=str(entry["name"]),
            kind=_kind(entry),
            table=(str(entry["schema"]), str(entry.get("alias") or entry["name"])),
            parents=tuple(map(str, (entry.get("depends_on") or {}).get("nodes") or ())),
            description=str(entry.get("description") or ""),
        )
        for unique_id, entry in manifest["nodes"].items()
        if entry["resource_type"] in KINDS
    ]
    read = {parent for node in nodes for parent in node.parents}
    sources = [
        Node(
            unique_id=unique_id,
            name=f"{entry['source_name']}.{entry['name']}",
            kind="source",
            table=(str(entry["schema"]), str(entry["identifier"])),
            description=str(entry.get("description") or ""),
        )
        for unique_id, entry in manifest["sources"].items()
        if unique_id in read
    ]
    return {node.unique_id: node for node in (*sources, *nodes)}


def _kind(entry: Mapping[str, Any]) -> str:
    if entry["resource_type"] != "model":
        return str(entry["resource_type"])
    return str((entry.get("config") or {}).get("materialized") or "model")


def _seconds(path: Path) -> dict[tuple[str, str], float]:
    """Return the seconds of nodes in the last run; empty if dbt has written none."""
    try:
        results = orjson.loads(path.read_bytes())
        run = results["metadata"]["invocation_id"]
        return {(run, one["unique_id"]): float(one["execution_time"]) for one in results["results"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # The report has all other figures without it.
        return {}
