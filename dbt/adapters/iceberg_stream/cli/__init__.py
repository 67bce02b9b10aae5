"""`iceberg-stream`: what dbt's own commands cannot say."""

from __future__ import annotations

import click

from dbt.adapters.iceberg_stream.cli.check import check
from dbt.adapters.iceberg_stream.cli.engine import status, stop
from dbt.adapters.iceberg_stream.cli.orphans import orphans
from dbt.adapters.iceberg_stream.cli.serve import serve
from dbt.adapters.iceberg_stream.cli.streams import resume, run, streams


@click.group()
def main() -> None:
    """Look after the engine and the tables of a dbt project."""


for command in (stop, status, orphans, check, run, streams, resume, serve):
    main.add_command(command)
