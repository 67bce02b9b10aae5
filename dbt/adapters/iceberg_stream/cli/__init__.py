"""`iceberg-stream`: commands for engines, streams and tables, beside those of dbt."""

from __future__ import annotations

import click

from dbt.adapters.iceberg_stream.cli.builds import builds, discard, publish
from dbt.adapters.iceberg_stream.cli.check import check
from dbt.adapters.iceberg_stream.cli.diff import diff
from dbt.adapters.iceberg_stream.cli.doctor import doctor
from dbt.adapters.iceberg_stream.cli.engine import status, stop
from dbt.adapters.iceberg_stream.cli.maintain import maintain
from dbt.adapters.iceberg_stream.cli.orphans import orphans
from dbt.adapters.iceberg_stream.cli.report import report
from dbt.adapters.iceberg_stream.cli.serve import serve
from dbt.adapters.iceberg_stream.cli.shell import shell
from dbt.adapters.iceberg_stream.cli.streams import resume, run, streams
from dbt.adapters.iceberg_stream.cli.why import why


@click.group()
def main() -> None:
    """Manage the engine, the streams and the tables of a dbt project."""


for command in (
    *(stop, status, orphans, check, diff, doctor, report),
    *(builds, publish, discard, why),
    *(maintain, run, streams, resume, serve, shell),
):
    main.add_command(command)
