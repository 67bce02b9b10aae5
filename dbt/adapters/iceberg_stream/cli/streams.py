"""Commands for streams: run them as a service, look at them, set them right."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbt.adapters.iceberg_stream.cli.options import (
    PORT,
    profiles_dir,
    project_dir,
    table_name,
    target,
    told_plainly,
)

if TYPE_CHECKING:
    from dbt_common.events.base_types import EventMsg

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
    from dbt.adapters.iceberg_stream.stream.service import Service
    from dbt.adapters.iceberg_stream.stream.sink.progress import Progress

ONLY_STREAMS = "config.materialized:stream"
FAILED, FENCED = 1, 3
# How often in a row streams are run again on a new engine, and after how long it is no row.
RESTARTS, GOOD_SECONDS = 5, 300.0


@click.command()
@click.option(
    "--select",
    "-s",
    multiple=True,
    help="A model, or models as dbt selects them; may be given again.  [default: all]",
)
@click.option("--exclude", multiple=True, help="Those to leave out, in the same way.")
@click.option("--full-refresh", is_flag=True, help="Rebuild the tables from the sources.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Of /health and /metrics.")
@click.option(
    "--port", type=PORT, default=0, show_default=True, help="Of the same; 0 takes a free one."
)
@project_dir
@profiles_dir
@target
def run(
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    full_refresh: bool,
    host: str,
    port: int,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Run stream models until SIGTERM or Ctrl-C: what was begun is committed then.

    Exit codes: 0 for a stop that was asked for, 3 where another run has taken over, else 1.
    """
    from dbt.adapters.iceberg_stream.stream.service import Service, endpoint, serving
    from dbt.adapters.iceberg_stream.stream.status import StreamStatus

    place = ["--project-dir", str(project_dir)]
    place += ["--profiles-dir", str(profiles_dir)] if profiles_dir else []
    place += ["--target", target] if target else []
    chosen = ["--select", *(f"{one},{ONLY_STREAMS}" for one in select or ("*",))]
    chosen += ["--exclude", *exclude] if exclude else []
    service = Service()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.end())
    with told_plainly(), serving(service), endpoint(service, host, port) as listening:
        models = _listed([*chosen, *place])
        if not models:
            raise click.ClickException("No stream model is selected: dbt ls shows the models.")
        _require_independent(models)
        service.streams |= {name: StreamStatus(name.split(".")[-1]) for name in models}
        click.echo(f"Health and metrics at http://{host}:{listening}")
        refresh = ["--full-refresh"] if full_refresh else []
        arguments = ["run", *chosen, *place, "--threads", str(len(models))]
        done = _dbt([*arguments, *refresh], service)
        done = done or _restarted(arguments, service)
    if service.fenced:
        raise SystemExit(FENCED)
    raise SystemExit(0 if done else FAILED)


def _restarted(arguments: list[str], service: Service) -> bool:
    """Run the streams again, with a new engine, as long as they end because theirs is lost."""
    tries, begun = 0, time.monotonic()
    while service.engine_lost or tries:
        # What ran for a while before it lost its engine begins to count anew.
        tries = 1 if time.monotonic() - begun > GOOD_SECONDS else tries + 1
        if service.stop_requested or tries > RESTARTS:
            return False
        wait = float(2**tries)
        click.echo(
            f"Spark is lost. The streams continue from their tables in {wait:.0f} s, on a new "
            f"engine (try {tries} of {RESTARTS})."
        )
        service.restart()
        service.stop.wait(wait)
        begun = time.monotonic()
        if _dbt(arguments, service):
            return True
    return False


def _listed(arguments: list[str]) -> dict[str, list[str]]:
    """The models by their unique ids, each with what it depends on."""
    from dbt.cli.main import dbtRunner

    form = ["--output", "json", "--output-keys", "unique_id", "depends_on"]
    found = dbtRunner().invoke(
        ["--quiet", "--log-level", "none", "ls", *arguments, "--resource-type", "model", *form]
    )
    if found.exception is not None:
        raise click.ClickException(str(found.exception))
    models = [json.loads(line) for line in found.result or []]  # type: ignore[union-attr]
    return {model["unique_id"]: model["depends_on"]["nodes"] for model in models}


def _require_independent(models: dict[str, list[str]]) -> None:
    """dbt begins a model when those before it have ended, and streams do not end."""
    for name, before in models.items():
        if waits := [other for other in before if other in models]:
            raise click.ClickException(
                f"{name} reads {', '.join(waits)}, which would have to end first. Run them as "
                "services of their own: iceberg-stream run --select …"
            )


def _dbt(arguments: list[str], service: Service) -> bool:
    """Run dbt; models that fail before their stream begins are told as well."""
    from dbt.cli.main import dbtRunner

    def told(event: EventMsg) -> None:
        if event.info.name == "LogModelResult" and event.data.status == "error":
            service.streams[event.data.node_info.unique_id].state = "failed"

    done = dbtRunner(callbacks=[told]).invoke(arguments)
    if done.exception is not None:
        raise click.ClickException(str(done.exception))
    return bool(done.success)


@click.command()
@click.argument("table")
@project_dir
@profiles_dir
@target
def streams(table: str, project_dir: Path, profiles_dir: Path | None, target: str | None) -> None:
    """Tell how far the streams are that write to TABLE (schema.name)."""
    from dbt.adapters.iceberg_stream.profile.project import open_catalog
    from dbt.adapters.iceberg_stream.stream.sink.progress import sinks
    from dbt.adapters.iceberg_stream.stream.sources.source import describe

    with told_plainly(), closing(open_catalog(project_dir, profiles_dir, target)) as catalog:
        loaded = catalog.load(table_name(table))
        if loaded is None:
            raise click.ClickException(f"There is no table {table}.")
        found = sinks(loaded.metadata)
    if not found:
        click.echo(f"No stream writes to {table}.")
    for progress in found:
        at = datetime.fromtimestamp(progress.recorded / 1000, tz=timezone.utc)
        click.echo(
            f"{progress.sink_id}\n"
            f"  progress  {describe(progress.frontier)}\n"
            f"  recorded  {at:%Y-%m-%d %H:%M:%S} UTC\n"
            f"  run       {progress.run}, version {progress.version}"
        )


@click.command()
@click.argument("table")
@project_dir
@profiles_dir
@target
def resume(table: str, project_dir: Path, profiles_dir: Path | None, target: str | None) -> None:
    """Have the streams into TABLE go on from what it holds, after it was rolled back."""
    from dbt.adapters.iceberg_stream.profile.project import open_catalog
    from dbt.adapters.iceberg_stream.stream.sink.progress import sinks
    from dbt.adapters.iceberg_stream.stream.sink.sink import accept_rollback
    from dbt.adapters.iceberg_stream.stream.sources.source import describe

    with told_plainly(), closing(open_catalog(project_dir, profiles_dir, target)) as catalog:
        name = table_name(table)
        loaded = catalog.load(name)
        if loaded is None:
            raise click.ClickException(f"There is no table {table}.")
        behind = [one.sink_id for one in sinks(loaded.metadata) if is_rolled_back(loaded, one)]
        for sink_id in behind:
            accepted = accept_rollback(catalog, name, sink_id)
            click.echo(f"{accepted.sink_id} goes on from {describe(accepted.frontier)}")
    if not behind:
        click.echo(f"{table} is not behind any of its streams.")


def is_rolled_back(table: LoadedTable, progress: Progress) -> bool:
    """Whether a table was set back behind what a stream has committed."""
    from dbt.adapters.iceberg_stream.stream.errors import RolledBack
    from dbt.adapters.iceberg_stream.stream.sink.progress import recover

    try:
        recover(table.metadata, progress.sink_id)
    except RolledBack:
        return True
    return False
