"""`iceberg-stream run`, `streams` and `resume`: run streams, show and reset their progress."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.cli.options import (
    PORT,
    artifacts,
    catalog_options,
    find_catalog,
    in_catalog,
    load_table,
    plain_errors,
    profiles_dir,
    project_dir,
    table_name,
    target,
)
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

if TYPE_CHECKING:
    from dbt_common.events.base_types import EventMsg

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
    from dbt.adapters.iceberg_stream.report.live import LivePage
    from dbt.adapters.iceberg_stream.stream.service import Service
    from dbt.adapters.iceberg_stream.stream.sink.progress import Progress

ONLY_STREAMS = "config.materialized:stream"
FAILED, FENCED = 1, 3
# Consecutive restarts after an engine was lost; a run of this many seconds resets the count.
RESTARTS, STABLE_SECONDS = 5, 300.0


@click.command()
@click.option(
    "--select",
    "-s",
    multiple=True,
    help="Stream models to run, in dbt's selection syntax; repeatable.  [default: all]",
)
@click.option("--exclude", multiple=True, help="Models to exclude, in the same syntax.")
@click.option("--full-refresh", is_flag=True, help="Rebuild the tables from the sources.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address of the page, /health and /metrics.",
)
@click.option(
    "--port",
    type=PORT,
    default=0,
    show_default=True,
    help="Port of the page, /health and /metrics; 0 uses a free port.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="Name by which clients reach the port; repeatable. Addresses are allowed.",
)
@click.option(
    "--page/--no-page",
    "has_page",
    default=True,
    show_default=True,
    help="Serve a page about the project's tables at /.",
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
    allowed_hosts: tuple[str, ...],
    has_page: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Run stream models until SIGTERM or Ctrl-C, which commits the running batches.

    Exit codes: 0 after SIGTERM or Ctrl-C, 3 if another run has taken over, 1 after an error.
    """
    from dbt.adapters.iceberg_stream.stream.service import Service, endpoint, serving
    from dbt.adapters.iceberg_stream.stream.status import StreamStatus

    project = ["--project-dir", str(project_dir)]
    project += ["--profiles-dir", str(profiles_dir)] if profiles_dir else []
    project += ["--target", target] if target else []
    selection = ["--select", *(f"{item},{ONLY_STREAMS}" for item in select or ("*",))]
    selection += ["--exclude", *exclude] if exclude else []
    service = Service()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.end())
    with (
        plain_errors(),
        _report(service, project_dir, profiles_dir, target) if has_page else nullcontext() as page,
        serving(service),
        endpoint(service, host, port, page, allowed_hosts) as listening,
    ):
        models = _listed([*selection, *project])
        if not models:
            raise click.ClickException("No stream model is selected. `dbt ls` lists the models.")
        _require_independent(models)
        service.streams |= {name: StreamStatus(name.split(".")[-1]) for name in models}
        click.echo(f"Health and metrics at http://{host}:{listening}")
        refresh = ["--full-refresh"] if full_refresh else []
        arguments = ["run", *selection, *project, "--threads", str(len(models)), *refresh]
        succeeded = _dbt(arguments, service) or _restarted(arguments, service)
    if service.fenced:
        raise SystemExit(FENCED)
    raise SystemExit(0 if succeeded else FAILED)


@contextmanager
def _report(
    service: Service, project_dir: Path, profiles_dir: Path | None, target: str | None
) -> Iterator[LivePage | None]:
    """Open a catalog for the report; None if that fails, which dbt then reports."""
    from dbt.adapters.iceberg_stream.profile.project import open_catalog
    from dbt.adapters.iceberg_stream.report.live import LivePage

    try:
        # Before dbt runs: reading the profile changes dbt's flags.
        catalog = open_catalog(project_dir, profiles_dir, target)
        target_path = artifacts(project_dir)
    except DbtRuntimeError:
        yield None
        return
    options = catalog_options(project_dir, profiles_dir, target)
    with closing(catalog):
        yield LivePage(catalog, target_path, lambda: list(service.streams.values()), options)


def _restarted(arguments: list[str], service: Service) -> bool:
    """Restart the streams on a new engine each time theirs is lost; return whether they succeed.

    With `--full-refresh`, those restart with it that had no commit yet.
    """
    tries, started = 0, time.monotonic()
    while service.engine_lost or tries:
        # After a stable run the count of restarts begins again.
        tries = 1 if time.monotonic() - started > STABLE_SECONDS else tries + 1
        if service.stop_requested or tries > RESTARTS:
            return False
        wait = float(2**tries)
        click.echo(
            f"The connection to Spark is lost. The streams continue in {wait:.0f} s on a new "
            f"engine (try {tries} of {RESTARTS})."
        )
        service.restart()
        service.stop.wait(wait)
        started = time.monotonic()
        if _dbt(arguments, service):
            return True
    return False


def _listed(arguments: list[str]) -> dict[str, list[str]]:
    """Return the unique ids of the selected models, each with those of its dependencies."""
    from dbt.cli.main import dbtRunner

    output = ["--output", "json", "--output-keys", "unique_id", "depends_on"]
    listing = dbtRunner().invoke(
        ["--quiet", "--log-level", "none", "ls", *arguments, "--resource-type", "model", *output]
    )
    if listing.exception is not None:
        raise click.ClickException(
            f"The models cannot be listed: {without_secrets(str(listing.exception))}"
        )
    models = [json.loads(line) for line in listing.result or []]  # type: ignore[union-attr]
    return {model["unique_id"]: model["depends_on"]["nodes"] for model in models}


def _require_independent(models: dict[str, list[str]]) -> None:
    """Check that no stream reads another: dbt would wait for the end of the first one."""
    for name, parents in models.items():
        if streams_read := [parent for parent in parents if parent in models]:
            raise click.ClickException(
                f"{name} reads {', '.join(streams_read)}, which never ends, so dbt would not run "
                f"{name}. Run them in separate services: iceberg-stream run --select …"
            )


def _dbt(arguments: list[str], service: Service) -> bool:
    """Run dbt, and record models that fail before their stream begins; return its success."""
    from dbt.cli.main import dbtRunner

    def record_failure(event: EventMsg) -> None:
        if event.info.name == "LogModelResult" and event.data.status == "error":
            service.streams[event.data.node_info.unique_id].state = "failed"

    result = dbtRunner(callbacks=[record_failure]).invoke(arguments)
    if result.exception is not None:
        raise click.ClickException(without_secrets(str(result.exception)))
    return bool(result.success)


@click.command()
@click.argument("table")
@click.argument("action", type=click.Choice(["forget", "add"]), required=False)
@click.argument("stream", required=False)
@project_dir
@profiles_dir
@target
@in_catalog
def streams(
    table: str,
    action: str | None,
    stream: str | None,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """Show the progress of the streams that write to TABLE ([catalog.]schema.name).

    `forget STREAM` removes the progress of a stream that does not run any more: snapshots that it
    has not read may expire. `add STREAM` lets a further stream write to the table.
    """
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs
    from dbt.adapters.iceberg_stream.stream.sink.progress import sinks

    if (action is None) != (stream is None):
        raise click.UsageError(f"Name the stream: streams {table} {action} STREAM.")
    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog, rest = find_catalog(catalogs, table, catalog_name)
        name = table_name(rest)
        loaded = load_table(catalog, name)
        if action is not None and stream is not None:
            click.echo(_change_streams(catalog, name, action, stream))
            return
        stream_progress = sinks(loaded.metadata)
    _show_streams(table, stream_progress)


def _change_streams(catalog: IcebergCatalog, name: Name, action: str, stream: str) -> str:
    """Forget or add a stream; return what was done."""
    from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream, forget_stream
    from dbt.adapters.iceberg_stream.stream.sources.source import describe

    if action == "forget":
        forget_stream(catalog, name, stream)
        return f"{'.'.join(name)} has forgotten the progress of {stream}."
    progress = add_stream(catalog, name, stream)
    begin = describe(progress.frontier)
    return f"{stream} may write to {'.'.join(name)}. Its next run reads its source from {begin}."


def _show_streams(table: str, stream_progress: list[Progress]) -> None:
    from dbt.adapters.iceberg_stream.stream.sources.source import describe

    if not stream_progress:
        click.echo(f"No stream writes to {table}.")
    for progress in stream_progress:
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
@in_catalog
def resume(
    table: str,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
    catalog_name: str | None,
) -> None:
    """Resume the streams of TABLE from its current snapshot, after a rollback of the table."""
    from dbt.adapters.iceberg_stream.profile.project import open_catalogs
    from dbt.adapters.iceberg_stream.stream.sink.progress import sinks
    from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
    from dbt.adapters.iceberg_stream.stream.sources.source import describe

    with plain_errors(), closing(open_catalogs(project_dir, profiles_dir, target)) as catalogs:
        catalog, rest = find_catalog(catalogs, table, catalog_name)
        name = table_name(rest)
        loaded = load_table(catalog, name)
        behind = [p.sink_id for p in sinks(loaded.metadata) if is_rolled_back(loaded, p)]
        for sink_id in behind:
            accepted = accept_rollback(catalog, name, sink_id)
            click.echo(f"{accepted.sink_id} resumes from {describe(accepted.frontier)}")
    if not behind:
        click.echo(f"No stream of {table} needs to be resumed: the table was not rolled back.")


def is_rolled_back(table: LoadedTable, progress: Progress) -> bool:
    """Return whether a table was rolled back behind the progress of a stream.

    Args:
        table: the table.
        progress: the stream's progress.
    """
    from dbt.adapters.iceberg_stream.stream.errors import RolledBack
    from dbt.adapters.iceberg_stream.stream.sink.progress import recover

    try:
        recover(table.metadata, progress.sink_id)
    except RolledBack:
        return True
    return False
