"""`iceberg-stream why`: why the last run built a model or ran a data test, or did not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.cli.options import (
    get_catalog,
    plain_errors,
    profiles_dir,
    project_dir,
    target,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName

# dbt names a node by its kind, package, name and, for some models, version.
BUILT = ("model", "seed", "snapshot")
TEST = "test"


@click.command()
@click.argument("model")
@project_dir
@profiles_dir
@target
def why(model: str, project_dir: Path, profiles_dir: Path | None, target: str | None) -> None:
    """Say why the last run of dbt built MODEL, or left it unchanged (`skip_unchanged`).

    Then list the tables that its last build read, and whether they have other rows now. MODEL may
    also be a data test.
    """
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    results = _read_results(project_dir)
    result = _find(results, model)
    click.echo(_outcome(result, results["metadata"]["generated_at"]))
    if _kind(result) == TEST:
        return
    database, name = _table(project_dir, result["unique_id"])
    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog = get_catalog(catalogs, database)
        for line in _inputs(catalogs, catalogs.qualified(catalog.name, name)):
            click.echo(line)


def _read_results(project_dir: Path) -> Any:
    path = _target_path(project_dir) / "run_results.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise click.ClickException(
            f"There is no {path}, where dbt describes its last run. Run `dbt build` first, or give "
            "the project with --project-dir."
        ) from error
    except ValueError as error:
        raise click.ClickException(
            f"{path} is not valid JSON: {error}. Run `dbt build`, which writes it again."
        ) from error


def _target_path(project_dir: Path) -> Path:
    return project_dir / os.environ.get("DBT_TARGET_PATH", "target")


def _find(results: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return the result of a model, by its name or its id."""
    built = [r for r in results["results"] if _kind(r) in (*BUILT, TEST)]
    matching = [r for r in built if model in (r["unique_id"], r["unique_id"].split(".")[2])]
    if len(matching) == 1:
        return dict(matching[0])
    if matching:
        ids = ", ".join(r["unique_id"] for r in matching)
        raise click.ClickException(
            f"Several nodes are named {model}: {ids}. Give one of these ids."
        )
    names = ", ".join(sorted(r["unique_id"].split(".")[2] for r in built)) or "nothing"
    raise click.ClickException(
        f"The last run of dbt had no model, seed, snapshot or data test {model}; it had {names}. "
        "Correct the name, or run dbt for this one first."
    )


def _kind(result: Mapping[str, Any]) -> str:
    return str(result["unique_id"]).split(".")[0]


def _outcome(result: Mapping[str, Any], generated_at: str) -> str:
    node, response = result["unique_id"], result.get("adapter_response") or {}
    when, done = _utc(generated_at), "run" if _kind(result) == TEST else "built"
    if response.get("code") == "NO-OP":
        return f"{node} was not {done} at {when}: {result['message']}."
    if reason := response.get("built_because") or response.get("run_because"):
        return f"{node} was {done} at {when}: {reason}."
    if result["status"] in ("error", "skipped"):
        return f"{node} was not {done} at {when}: {result.get('message') or result['status']}"
    return f"{node} was {done} at {when}: the run did not use `skip_unchanged` for it."


def _utc(time: str) -> str:
    """Return an ISO 8601 time in UTC as dbt's users read it."""
    return f"{time[:16].replace('T', ' ')} UTC"


def _table(project_dir: Path, unique_id: str) -> tuple[str | None, tuple[str, str]]:
    """Return the catalog of a node, and its namespace and identifier."""
    path = _target_path(project_dir) / "manifest.json"
    try:
        node = json.loads(path.read_text())["nodes"][unique_id]
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise click.ClickException(
            f"{path} does not describe {unique_id}, which was removed or renamed since the last "
            "run. Run `dbt build` again."
        ) from error
    return node.get("database"), (node["schema"], node["alias"])


def _inputs(catalogs: Catalogs, name: QualifiedName) -> list[str]:
    from dbt.adapters.iceberg_stream.catalog.metadata import same_rows
    from dbt.adapters.iceberg_stream.unchanged.record import is_as_left, read_record

    metadata = catalogs.metadata(name)
    if metadata is None:
        return [f"{'.'.join(name)} does not exist."]
    if (record := read_record(metadata)) is None:
        return [f"{'.'.join(name)} has no record of its last build."]
    state = "as that build left it" if is_as_left(metadata, record) else "changed since"
    lines = [f"{'.'.join(name)} was last built at {_utc(record.built_at)}, and is {state}."]
    for table, (snapshot_id, _) in record.inputs["tables"].items():
        qualified = catalogs.find_qualified(table.split("."))
        current = None if qualified is None else catalogs.metadata(qualified)
        if isinstance(snapshot_id, str):
            lines.append(f"  {table}: read in the version that the query names")
        elif current is None:
            lines.append(f"  {table}: no longer exists")
        elif "versions" not in metadata:
            now = "the same rows" if snapshot_id in same_rows(current) else "other rows"
            lines.append(f"  {table}: read at snapshot {snapshot_id}, has {now} now")
    return lines
