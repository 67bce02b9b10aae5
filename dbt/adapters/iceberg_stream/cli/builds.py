"""`iceberg-stream builds`, `publish` and `discard`: builds that runs have staged."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.builds.names import node_titles
from dbt.adapters.iceberg_stream.cli.options import (
    plain_errors,
    profiles_dir,
    project_dir,
    target,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.builds.build import Build, BuildStatus


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@project_dir
@profiles_dir
@target
def builds(as_json: bool, project_dir: Path, profiles_dir: Path | None, target: str | None) -> None:
    """List the builds that are staged, but not published, and what killed runs have left."""
    from dbt.adapters.iceberg_stream.builds.build import list_builds, load_status
    from dbt.adapters.iceberg_stream.builds.leftovers import list_leftovers
    from dbt.adapters.iceberg_stream.profile.project import open_catalog

    with plain_errors(), closing(open_catalog(project_dir, profiles_dir, target)) as catalog:
        listed = [(build, load_status(catalog, build)) for build in list_builds(catalog)]
        leftovers = [] if as_json else list_leftovers(catalog, sorted(catalog.namespaces()))
    if as_json:
        click.echo(json.dumps([_as_json(*item) for item in listed], indent=2))
    elif not listed:
        click.echo("All builds are published or discarded.")
    else:
        for build, status in listed:
            click.echo(_line(build, status))
    for leftover in leftovers:
        replaced, missing = ".".join(leftover.replaced), leftover.is_missing
        click.echo(
            f"{'.'.join(leftover.name)}  left by a run that was killed while it built "
            f"{replaced}{', which does not exist now' if missing else ''}. The next run of its "
            f"model {'gives it this name' if missing else 'drops it'}."
        )


def _as_json(build: Build, status: BuildStatus) -> dict[str, Any]:
    return {
        "name": build.name,
        "relations": {".".join(name): kind for name, kind in sorted(build.relations.items())},
        "last_change": status.last_change.isoformat(),
        "failed": node_titles(status.failed),
        "has_ended": status.has_ended,
    }


def _line(build: Build, status: BuildStatus) -> str:
    relations = ", ".join(".".join(name) for name in sorted(build.relations))
    minutes = (datetime.now(timezone.utc) - status.last_change).total_seconds() / 60
    age = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    parts = [build.name, relations, f"last changed {age} ago"]
    if not status.has_ended:
        parts.append("a command has not ended")
    if status.failed:
        parts.append(f"failed: {', '.join(node_titles(status.failed))}")
    return "  ".join(parts)


@click.command()
@click.argument("build")
@click.option(
    "--force",
    is_flag=True,
    help="Publish even if the last run of the build failed or was interrupted.",
)
@project_dir
@profiles_dir
@target
def publish(
    build: str, force: bool, project_dir: Path, profiles_dir: Path | None, target: str | None
) -> None:
    """Publish BUILD: all its tables in one commit, then its views.

    Exit codes: 0 if it was published, 1 if nothing was published.
    """
    from dbt.adapters.iceberg_stream.builds.build import get_build, load_status
    from dbt.adapters.iceberg_stream.builds.publish import publish as publish_relations
    from dbt.adapters.iceberg_stream.builds.publish import published_text
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog = catalogs.own
        staged = get_build(catalog, build)
        if not force:
            _check_complete(build, load_status(catalog, staged))
        relations = staged.relations.items()
        click.echo(published_text(publish_relations(catalog, build, relations, catalogs)))


def _check_complete(build: str, status: BuildStatus) -> None:
    if status.failed:
        failed = ", ".join(node_titles(status.failed))
        raise click.ClickException(
            f"The build `{build}` was not published: {failed} failed or were skipped. Correct "
            f"them and run dbt with ICEBERG_STREAM_BUILD={build} again, or publish it as it is "
            "with --force."
        )
    if not status.has_ended:
        planned = node_titles(status.planned)
        left = f" Not known to have run: {', '.join(planned)}." if planned else ""
        raise click.ClickException(
            f"The build `{build}` was not published: a command still runs, or was interrupted."
            f"{left} Wait for it, or run dbt with ICEBERG_STREAM_BUILD={build} again, or publish "
            "the build as it is with --force."
        )


@click.command()
@click.argument("build")
@project_dir
@profiles_dir
@target
def discard(build: str, project_dir: Path, profiles_dir: Path | None, target: str | None) -> None:
    """Discard BUILD: drop what it has staged. Published tables stay as they are."""
    from dbt.adapters.iceberg_stream.builds.build import discard as discard_relations
    from dbt.adapters.iceberg_stream.builds.build import get_build
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        staged = get_build(catalogs.own, build)
        discard_relations(catalogs.own, staged, catalogs)
    count = len(staged.relations)
    click.echo(
        f"Discarded the build `{build}` with {count} staged relation{'' if count == 1 else 's'}."
    )
