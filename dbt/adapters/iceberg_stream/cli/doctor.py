"""`iceberg-stream doctor`: list what is worth doing for tables, by the estimated gain."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.cli.options import (
    catalog_options,
    find_catalog,
    get_catalog,
    in_catalog,
    load_table,
    plain_errors,
    profiles_dir,
    project_dir,
    table_names,
    target,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.maintenance.advice import Advice
    from dbt.adapters.iceberg_stream.maintenance.health import TableHealth

WORTH_DOING = 1
Name = tuple[str, str]


@click.command()
@click.argument("name", metavar="[TABLE|NAMESPACE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--min-gain",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Smallest estimated gain to list, in seconds of a full scan.",
)
@click.option(
    "--max-stream-age",
    type=click.FloatRange(min=0),
    default=48.0,
    show_default=True,
    help="Hours without progress after which a stream is late.",
)
@project_dir
@profiles_dir
@target
@in_catalog
def doctor(
    name: str | None,
    as_json: bool,
    min_gain: float,
    max_stream_age: float,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """List what is worth doing for TABLE ([catalog.]schema.name), NAMESPACE or all tables.

    The largest gain comes first. It is an estimate for a full scan with Spark on two cores. Reads
    metadata only, and changes nothing.

    Exit codes: 0 if nothing is worth doing except hints, 1 otherwise, also if a table cannot be
    read.
    """
    from dbt.adapters.iceberg_stream.maintenance.advice import Thresholds, advise
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        if name is not None:
            catalog, name = find_catalog(catalogs, name, catalog_name)
        else:
            catalog = get_catalog(catalogs, catalog_name)
        tables, unreadable = _examine(catalog, name)
        named = None if catalogs.is_own(catalog.name) else catalog.name
    advice = advise(tables, Thresholds(min_gain, max_stream_age))
    options = catalog_options(project_dir, profiles_dir, target, named)
    if as_json:
        click.echo(json.dumps(_document(tables, advice, unreadable, options), indent=2))
    else:
        _print(tables, advice, unreadable, options)
    if unreadable or any(one.urgency != "hint" for one in advice):
        raise SystemExit(WORTH_DOING)


def _examine(
    catalog: IcebergCatalog, name: str | None
) -> tuple[list[TableHealth], dict[Name, str]]:
    """Return the health of tables, and the errors of those that cannot be read."""
    from dbt.adapters.iceberg_stream.maintenance.health import table_health
    from dbt.adapters.iceberg_stream.maintenance.unreadable import UNREADABLE, why_unreadable

    tables: list[TableHealth] = []
    unreadable: dict[Name, str] = {}
    for table in _names(catalog, name):
        try:
            loaded = catalog.load(table)
            if loaded is not None:  # another run may have dropped it
                tables.append(table_health(loaded))
        except UNREADABLE as error:
            unreadable[table] = why_unreadable(error)
    return tables, unreadable


def _names(catalog: IcebergCatalog, name: str | None) -> list[Name]:
    if name is None:
        return [table for n in sorted(catalog.namespaces()) for table in table_names(catalog, n)]
    names = table_names(catalog, name)
    if "." in name and len(names) == 1:
        _require_table(catalog, names[0])
    return names


def _require_table(catalog: IcebergCatalog, name: Name) -> None:
    kind = dict(catalog.relations(name[0])).get(name[1])
    if kind == "view":
        raise click.ClickException(
            f"{'.'.join(name)} is a view, which has no files. Give a table or a namespace."
        )
    if kind is None:
        load_table(catalog, name)


def _document(
    tables: list[TableHealth],
    advice: list[Advice],
    unreadable: dict[Name, str],
    options: tuple[str, ...],
) -> dict[str, Any]:
    return {
        "advice": [one.as_json() | {"command": one.command_line(options)} for one in advice],
        "tables": [_as_json(health) for health in tables],
        "unreadable": [{"table": ".".join(n), "error": error} for n, error in unreadable.items()],
    }


def _as_json(health: TableHealth) -> dict[str, Any]:
    figures = {"table": ".".join(health.name), **asdict(health), **_seconds(health)}
    del figures["name"]
    return figures


def _seconds(health: TableHealth) -> dict[str, float]:
    return {
        name: round(getattr(health, name).seconds, 3)
        for name in ("cost", "cost_after_convert", "cost_after_compact", "cost_after_manifests")
    }


def _print(
    tables: list[TableHealth],
    advice: list[Advice],
    unreadable: dict[Name, str],
    options: tuple[str, ...],
) -> None:
    for name, error in unreadable.items():
        check = shlex.join(("iceberg-stream", "check", ".".join(name), *options))
        click.echo(f"{'.'.join(name)}: unreadable\n  {error}\n  command  {check}")
    costs = {health.name: health.cost.seconds for health in tables}
    for one in advice:
        hint = " (hint)" if one.urgency == "hint" else ""
        click.echo(f"{'.'.join(one.table)}: {one.code}{hint}\n  {one.problem}")
        if gain := one.gain(costs[one.table]):
            click.echo(f"  gain     {gain}")
        click.echo(f"  cure     {one.cure}")
        if command := one.command_line(options):
            click.echo(f"  command  {command}")
    for health in tables:
        if health.branches:
            click.echo(
                f"{'.'.join(health.name)}: only the branch main was examined, not "
                f"{', '.join(health.branches)}."
            )
    hints = sum(one.urgency == "hint" for one in advice)
    click.echo(
        f"Tables: {len(tables)} examined, {len(unreadable)} unreadable. "
        f"Worth doing: {len(advice) - hints}. Hints: {hints}."
    )
