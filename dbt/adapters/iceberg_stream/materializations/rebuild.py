"""Builds models again whose published tables another writer changed, in the same build."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.settings import BUILD

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import Name

FLAGS = ("full_refresh", "defer", "favor_state", "empty", "warn_error")
OPTIONS = (
    *("profiles_dir", "project_dir", "target_path", "log_path", "target", "profile", "threads"),
    *("state", "defer_state", "event_time_start", "event_time_end", "indirect_selection"),
)
LISTS = ("exclude", "resource_types", "exclude_resource_types")
DBT = "from dbt.cli.main import cli; cli()"


def rebuild(
    build: str, arguments: Any, target: Path, conflicts: Collection[Name], staged: Collection[Name]
) -> None:
    """Build models again, and those of the build that read them, with dbt in another process.

    Args:
        build: name of the build.
        arguments: the arguments of dbt's command (`config.args`).
        target: dbt's target folder, with its manifest.
        conflicts: published names of the tables to build again.
        staged: published names of all relations of the build.

    Raises:
        BuildError: dbt failed.
    """
    manifest = json.loads((target / "manifest.json").read_text())
    models = list(nodes_to_rebuild(manifest, conflicts, staged))
    environment = {**os.environ, BUILD.upper(): build}
    command = [sys.executable, "-c", DBT, *dbt_arguments(arguments, models)]
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise BuildError(
            f"The build `{build}` was not published: published tables changed since it read them, "
            "and the models that read them could not be built again; see above. Correct the error "
            f"and run dbt with ICEBERG_STREAM_BUILD={build} for these models, then "
            f"`iceberg-stream publish {build}`; or give it up with `iceberg-stream discard "
            f"{build}`."
        )


def nodes_to_rebuild(
    manifest: Mapping[str, Any], conflicts: Collection[Name], staged: Collection[Name]
) -> Iterator[str]:
    """Yield the selectors of nodes whose tables changed, and of those that read them.

    Args:
        manifest: dbt's manifest.
        conflicts: published names of the tables that changed.
        staged: published names of the relations of the build.
    """
    names = {
        unique_id: (node["schema"], node.get("alias") or node["name"])
        for unique_id, node in manifest["nodes"].items()
        if node["resource_type"] in ("model", "seed", "snapshot")
    }
    reached, ahead = set[str](), [node for node, name in names.items() if name in conflicts]
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            # Through ephemeral models, too, which have no relation.
            ahead += [child for child in manifest["child_map"][node] if child in names]
    for node in sorted(reached):
        if names[node] in staged:
            yield _selector(manifest["nodes"][node], manifest["metadata"]["project_name"])


def _selector(node: Mapping[str, Any], project: str) -> str:
    """Return what selects a node and no other one.

    For dbt, the name of a model is also that of all models in a folder of this name.
    """
    name, path = map(glob.escape, (".".join(node["fqn"]), node["original_file_path"]))
    # Paths are those of the project; a selector ends at a blank, and a part of it at a comma.
    if node["package_name"] != project or set(path) & set(" ,"):
        return f"fqn:{name}"
    return f"fqn:{name},path:{path}"


def dbt_arguments(arguments: Any, models: Collection[str]) -> list[str]:
    """Return the arguments of dbt that run a command again for some models.

    Args:
        arguments: the arguments of the command (`config.args`).
        models: the selectors.
    """
    result = [arguments.which, "--select", *models]
    result += [f"--{flag.replace('_', '-')}" for flag in FLAGS if getattr(arguments, flag, False)]
    for option in OPTIONS:
        if (value := getattr(arguments, option, None)) is not None:
            result += [f"--{option.replace('_', '-')}", str(value)]
    if (sample := getattr(arguments, "sample", None)) is not None:
        result += ["--sample", json.dumps({"start": str(sample.start), "end": str(sample.end)})]
    for option in LISTS:
        if values := getattr(arguments, option, None):
            result += [f"--{option.replace('_', '-')}", *values]
    return [*result, "--vars", json.dumps(arguments.vars)]
