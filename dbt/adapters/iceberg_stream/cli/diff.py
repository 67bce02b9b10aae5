"""`iceberg-stream diff`: show what changed between two versions of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dbt.adapters.iceberg_stream.cli.options import (
    plain_errors,
    profiles_dir,
    project_dir,
    table_name,
    target,
)

# Identifies the rows of dbt snapshots.
SCD_ID = "dbt_scd_id"
TEXT, MARKDOWN, JSON = "text", "markdown", "json"
VERSION = "Snapshot id, tag, branch, ISO 8601 time (UTC), or another table: schema.name[@version]."


@click.command()
@click.argument("name", metavar="TABLE|MODEL")
@click.option(
    "--from",
    "before",
    metavar="VERSION",
    help=f"Older version. {VERSION}  [default: the snapshot before --to]",
)
@click.option(
    "--to",
    "after",
    metavar="VERSION",
    help="Newer version, given like --from.  [default: the current one]",
)
@click.option(
    "--key",
    metavar="COLUMNS",
    help="Columns that identify a row, separated by commas.  [default: `unique_key` of MODEL, or "
    "the identifier columns of TABLE, or else whole rows]",
)
@click.option("--whole-rows", is_flag=True, help="Compare whole rows, even if there is a key.")
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many added, removed and changed rows to show: up to so many of each.",
)
@click.option("--metadata", is_flag=True, help="Compare schemas and files only; read no rows.")
@click.option(
    "--format",
    "output",
    type=click.Choice((TEXT, MARKDOWN, JSON)),
    default=TEXT,
    show_default=True,
    help="Output for a terminal, for a pull request, or for programs.",
)
@project_dir
@profiles_dir
@target
def diff(
    name: str,
    before: str | None,
    after: str | None,
    key: str | None,
    whole_rows: bool,
    rows: int,
    metadata: bool,
    output: str,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Show what changed in TABLE (schema.name) or MODEL between two versions.

    Shows changes of columns, files and rows. Reads only data files that differ, and changes
    nothing.

    Exit codes: 0 whether or not there are differences, 1 after an error.
    """
    from dbt.adapters.iceberg_stream.diff import render
    from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
    from dbt.adapters.iceberg_stream.diff.version import find_versions
    from dbt.adapters.iceberg_stream.profile.project import open_catalog

    if key is not None and whole_rows:
        raise click.UsageError("Give either --key or --whole-rows, not both.")
    keys = [] if whole_rows else None if key is None else _columns(key)
    with plain_errors():
        if "." in name:
            table = table_name(name)
        else:
            table, unique_key = _model(name, project_dir, profiles_dir, target)
            keys = unique_key if keys is None else keys
        with closing(open_catalog(project_dir, profiles_dir, target)) as catalog:
            difference = compare_metadata(*find_versions(catalog, table, before, after))
            if output == TEXT:
                click.echo(f"{'.'.join(table)}\n{render.metadata_text(difference)}")
            if not metadata:
                difference = compare_rows(difference, keys, rows)
    if output == JSON:
        click.echo(json.dumps(difference.as_json(), indent=2))
    elif output == MARKDOWN:
        click.echo(render.markdown(difference))
    elif not metadata:
        click.echo(render.rows_text(difference))


def _columns(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"`--key` must be column names separated by commas, got `{text}`.")
    return names


def _model(
    name: str, project_dir: Path, profiles_dir: Path | None, target: str | None
) -> tuple[tuple[str, str], list[str] | None]:
    """Return the table and the `unique_key` of a model; None if it has none."""
    from dbt.adapters.iceberg_stream.stream.options import column_names

    nodes = _listed(name, project_dir, profiles_dir, target)
    if len(nodes) != 1:
        many = ", ".join(str(node["unique_id"]) for node in nodes)
        problem = f"is ambiguous: {many}" if nodes else "does not exist in the project"
        raise click.ClickException(
            f"The model `{name}` {problem}. `dbt ls` lists the models. Give a table as schema.name."
        )
    config = nodes[0]["config"]
    if config["materialized"] in ("view", "ephemeral"):
        raise click.ClickException(
            f"The model `{name}` is materialized as {config['materialized']}, which has no "
            "snapshots. Give a table, or a model that is one."
        )
    keys = column_names(config.get("unique_key"))
    if nodes[0]["resource_type"] == "snapshot":
        # A snapshot has many rows of a `unique_key`, one for each of its versions.
        names = config.get("snapshot_meta_column_names") or {}
        keys = (names.get(SCD_ID) or SCD_ID,)
    return (nodes[0]["schema"], nodes[0]["alias"]), list(keys) or None


def _listed(
    name: str, project_dir: Path, profiles_dir: Path | None, target: str | None
) -> list[Mapping[str, Any]]:
    """Return the models, seeds and snapshots with a name, as `dbt ls` lists them."""
    from dbt.cli.main import dbtRunner

    arguments = ["--quiet", "--log-level", "none", "ls", "--select", name]
    arguments += ["--resource-type", "model", "--resource-type", "seed"]
    arguments += ["--resource-type", "snapshot", "--project-dir", str(project_dir)]
    arguments += ["--profiles-dir", str(profiles_dir)] if profiles_dir else []
    arguments += ["--target", target] if target else []
    keys = ["unique_id", "resource_type", "name", "schema", "alias", "config"]
    listing = dbtRunner().invoke([*arguments, "--output", "json", "--output-keys", *keys])
    if listing.exception is not None:
        raise click.ClickException(
            f"dbt cannot list the models of the project: {listing.exception}\n"
            "Run `dbt ls` to see the whole error, or give a table as schema.name."
        )
    nodes = [json.loads(line) for line in listing.result or []]  # type: ignore[union-attr]
    return [node for node in nodes if node["name"] == name]
