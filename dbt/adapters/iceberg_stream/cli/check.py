"""`iceberg-stream check`: check the files of tables against their metadata."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.cli.options import (
    find_catalog,
    in_catalog,
    load_table,
    plain_errors,
    profiles_dir,
    project_dir,
    table_names,
    target,
)
from dbt.adapters.iceberg_stream.maintenance.check.finding import KINDS

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.maintenance.check.check import Report

WRONG = 1
SEVERITIES = ("error", "warning", "note")
# Findings of each kind that are printed.
EXAMPLES = 5


@click.command()
@click.argument("name", metavar="TABLE|NAMESPACE")
@click.option("--data", is_flag=True, help="Also read the rows of all live files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@project_dir
@profiles_dir
@target
@in_catalog
def check(
    name: str,
    data: bool,
    as_json: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """Check TABLE ([catalog.]schema.name), or all tables of NAMESPACE, for damage.

    Reads the metadata of all snapshots and looks up every file in the storage; changes nothing.
    Each finding says what is wrong, what readers notice, and how to cure it.

    Exit codes: 0 if there are no findings except notes, 1 if there are errors or warnings.
    """
    from dbt.adapters.iceberg_stream.maintenance.check.check import (
        LOST,
        check_table,
        lost_report,
    )
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs

    reports: list[Report] = []
    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog, name = find_catalog(catalogs, name, catalog_name)
        for table in table_names(catalog, name):
            try:
                loaded = load_table(catalog, table)
            except LOST as error:
                report = lost_report(table, error)
            else:
                report = check_table(loaded, data, _progress)
            reports.append(report)
            if not as_json:
                _print(report)
    if as_json:
        click.echo(json.dumps({"tables": [report.as_json() for report in reports]}, indent=2))
    if any(report.count("error") + report.count("warning") for report in reports):
        raise SystemExit(WRONG)


def _progress(items: Sequence[Any], label: str) -> Iterable[Any]:
    return _bar(items, label) if sys.stderr.isatty() and len(items) > 1 else items


def _bar(items: Sequence[Any], label: str) -> Iterator[Any]:
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield from bar


def _print(report: Report) -> None:
    click.echo(".".join(report.table))
    codes = dict.fromkeys(finding.code for finding in report.findings)
    for code in sorted(codes, key=lambda c: SEVERITIES.index(KINDS[c].severity)):
        kind = KINDS[code]
        findings = [finding for finding in report.findings if finding.code == code]
        click.echo(f"  {kind.severity}: {code}")
        for finding in findings[:EXAMPLES]:
            click.echo(f"    {finding.where}\n      {finding.problem}")
        if len(findings) > EXAMPLES:
            click.echo(f"    {len(findings) - EXAMPLES} more; --json lists all.")
        click.echo(f"    effect  {kind.effect}\n    cure    {kind.cure}")
    read = "" if report.contents is None else f", {report.contents} read"
    counts = ", ".join(_count(report.count(severity), severity) for severity in SEVERITIES)
    click.echo(
        f"  {report.snapshots} snapshots, {report.manifests} manifests, {report.files} files"
        f"{read}: {counts}"
    )


def _count(number: int, severity: str) -> str:
    return f"{number} {severity}" if number == 1 else f"{number} {severity}s"
