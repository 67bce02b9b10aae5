"""`iceberg-stream diff`: show what changed between two versions of a table, or in a build."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.cli.options import (
    find_catalog,
    get_catalog,
    in_catalog,
    plain_errors,
    profiles_dir,
    project_dir,
    table_name,
    target,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
    from dbt.adapters.iceberg_stream.diff.difference import TableDifference
    from dbt.adapters.iceberg_stream.diff.version import TableVersion

# Identifies the rows of dbt snapshots.
SCD_ID = "dbt_scd_id"
TEXT, MARKDOWN, JSON = "text", "markdown", "json"
VERSION = "Snapshot id, tag, branch, ISO 8601 time (UTC), or another table: schema.name[@version]."


@click.command()
@click.argument("name", metavar="[TABLE|MODEL]", required=False)
@click.option(
    "--build",
    metavar="BUILD",
    help="Compare what a build has staged with what is published.",
)
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
@in_catalog
def diff(
    name: str | None,
    build: str | None,
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
    catalog_name: str | None,
) -> None:
    """Show what changed in TABLE ([catalog.]schema.name) or MODEL, or what a build would change.

    Compares two versions of a table, or, with --build, the staged version of each table of the
    build with the published one. Shows changes of columns, files and rows. Reads only data files
    that differ, and changes nothing.

    Exit codes: 0 whether or not there are differences, 1 after an error.
    """
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    if key is not None and whole_rows:
        raise click.UsageError("Give either --key or --whole-rows, not both.")
    if build is not None and (before or after):
        raise click.UsageError(
            "Give either --build, which compares with what is published, or --from and --to."
        )
    if name is None and build is None:
        raise click.UsageError("Give a table as schema.name, a model, or --build.")
    keys = [] if whole_rows else None if key is None else _columns(key)
    project = _Project(project_dir, profiles_dir, target)
    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog = get_catalog(catalogs, catalog_name)
        if name is not None and "." in name:
            catalog, name = find_catalog(catalogs, name, catalog_name)
        report = _Report(output, None if metadata else rows)
        if build is not None:
            _diff_build(catalog, project, build, name, keys, report)
        else:
            assert name is not None, "checked above"
            table, own_key, database = project.table(name)
            catalog = catalog if database is None else get_catalog(catalogs, database)
            report.add(_versions(catalog, table, before, after), own_key if keys is None else keys)
    report.end()


def _versions(
    catalog: IcebergCatalog, table: Name, before: str | None, after: str | None
) -> tuple[TableVersion, TableVersion]:
    from dbt.adapters.iceberg_stream.diff.version import find_versions

    return find_versions(catalog, table, before, after)


def _diff_build(
    catalog: IcebergCatalog,
    project: _Project,
    build: str,
    name: str | None,
    keys: Sequence[str] | None,
    report: _Report,
) -> None:
    """Compare each table of a build, or one of them, with the published version."""
    from dbt.adapters.iceberg_stream.builds.build import get_build
    from dbt.adapters.iceberg_stream.builds.versions import table_versions, view_changes

    staged = get_build(catalog, build)
    chosen = None if name is None else project.table(name)[0]
    if chosen is not None and chosen not in staged.relations:
        raise click.ClickException(
            f"The build `{build}` has not staged {'.'.join(chosen)}. It has "
            f"{', '.join('.'.join(n) for n in sorted(staged.relations))}."
        )
    report.is_list = True
    own_keys = project.keys() if keys is None else {}
    for versions in table_versions(catalog, staged):
        table = versions[1].table.name
        if chosen in (None, table):
            report.add(versions, own_keys.get(table) if keys is None else keys)
    for view, change in view_changes(catalog, staged).items():
        if chosen in (None, view):
            report.add_view(view, change)


@dataclass
class _Report:
    """Prints differences as they are computed; JSON and Markdown at the end.

    Attributes:
        output: the format.
        samples: how many rows of each kind to show; None to read no rows.
        is_list: whether JSON is a list of several tables.
    """

    output: str
    samples: int | None
    is_list: bool = False

    def __post_init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, versions: tuple[TableVersion, TableVersion], keys: Sequence[str] | None) -> None:
        """Compare two versions."""
        from dbt.adapters.iceberg_stream.diff import render
        from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows

        difference: TableDifference = compare_metadata(*versions)
        if self.output == TEXT:
            click.echo(f"{versions[1].name}\n{render.metadata_text(difference)}")
        if self.samples is not None:
            difference = compare_rows(difference, keys, self.samples)
        if self.output == JSON:
            self._parts.append(difference.as_json())
        elif self.output == MARKDOWN:
            self._parts.append(render.markdown(difference))
        elif self.samples is not None:
            click.echo(render.rows_text(difference))

    def add_view(self, name: Name, change: str) -> None:
        """Report what a build does with a view."""
        text = {"new": "is new", "changed": "has another query", "unchanged": "is unchanged"}
        sentence = text.get(change, change)
        if self.output == JSON:
            self._parts.append({"view": ".".join(name), "change": change})
        elif self.output == MARKDOWN:
            self._parts.append(f"### `{'.'.join(name)}`\n\nThe view {sentence}.\n")
        else:
            click.echo(f"{'.'.join(name)}\n  the view {sentence}")

    def end(self) -> None:
        """Print what is not printed yet."""
        if self.output == JSON:
            click.echo(json.dumps(self._parts if self.is_list else self._parts[0], indent=2))
        elif self.output == MARKDOWN:
            click.echo("\n\n".join(part.rstrip("\n") for part in self._parts))


def _columns(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"`--key` must be column names separated by commas, got `{text}`.")
    return names


@dataclass(frozen=True)
class _Project:
    """The dbt project, whose models have keys."""

    project_dir: Path
    profiles_dir: Path | None
    target: str | None

    def table(self, name: str) -> tuple[Name, list[str] | None, str | None]:
        """Return the table of a name or a model, and the model's key and catalog, if it has one."""
        if "." in name:
            return table_name(name), None, None
        nodes = [node for node in self._listed("--select", name) if node["name"] == name]
        if len(nodes) != 1:
            many = ", ".join(str(node["unique_id"]) for node in nodes)
            problem = f"is ambiguous: {many}" if nodes else "does not exist in the project"
            raise click.ClickException(
                f"The model `{name}` {problem}. `dbt ls` lists the models. Give a table as "
                "schema.name."
            )
        config = nodes[0]["config"]
        if config["materialized"] in ("view", "ephemeral"):
            raise click.ClickException(
                f"The model `{name}` is materialized as {config['materialized']}, which has no "
                "snapshots. Give a table, or a model that is one."
            )
        return (nodes[0]["schema"], nodes[0]["alias"]), _key(nodes[0]), nodes[0].get("database")

    def keys(self) -> dict[Name, list[str]]:
        """Return the keys of the project's tables."""
        keys = (((node["schema"], node["alias"]), _key(node)) for node in self._listed())
        return {name: key for name, key in keys if key}

    def _listed(self, *selection: str) -> Iterator[Mapping[str, Any]]:
        """Yield models, seeds and snapshots, as `dbt ls` lists them."""
        from dbt.cli.main import dbtRunner

        arguments = ["--quiet", "--log-level", "none", "ls", *selection]
        for kind in ("model", "seed", "snapshot"):
            arguments += ["--resource-type", kind]
        arguments += ["--project-dir", str(self.project_dir)]
        arguments += ["--profiles-dir", str(self.profiles_dir)] if self.profiles_dir else []
        arguments += ["--target", self.target] if self.target else []
        keys = ["unique_id", "resource_type", "name", "database", "schema", "alias", "config"]
        listing = dbtRunner().invoke([*arguments, "--output", "json", "--output-keys", *keys])
        if listing.exception is not None:
            raise click.ClickException(
                f"dbt cannot list the models of the project: {listing.exception}\n"
                "Run `dbt ls` to see the whole error, or give a table as schema.name."
            )
        yield from (json.loads(line) for line in listing.result or [])  # type: ignore[union-attr]


def _key(node: Mapping[str, Any]) -> list[str] | None:
    """Return the columns that identify a row of a model; None if there are none."""
    from dbt.adapters.iceberg_stream.stream.options import column_names

    config = node["config"]
    keys = column_names(config.get("unique_key"))
    if node["resource_type"] == "snapshot":
        # A snapshot has many rows of a `unique_key`, one for each of its versions.
        names = config.get("snapshot_meta_column_names") or {}
        keys = (names.get(SCD_ID) or SCD_ID,)
    return list(keys) or None
