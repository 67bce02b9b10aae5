"""`iceberg-stream`: what dbt's own commands cannot say."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from dbt.adapters.iceberg_stream import cli_check, cli_streams
from dbt.adapters.iceberg_stream.cli_options import (
    PORT,
    profiles_dir,
    project_dir,
    table_name,
    target,
    told_plainly,
)
from dbt.adapters.iceberg_stream.engines import embedded

# Of programs without a project.
HOME = ".iceberg_stream"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

engine_home = click.option(
    "--engine-home",
    type=click.Path(path_type=Path),
    help="The folder of the engine's state.  [default: as the profile says]",
)


@click.group()
def main() -> None:
    """Look after the engine and the tables of a dbt project."""


def _home(
    project_dir: Path, profiles_dir: Path | None, target: str | None, given: Path | None
) -> Path:
    """The folder of the engine's state."""
    from dbt.adapters.iceberg_stream.projects import load_credentials

    if given is not None:
        return project_dir / given
    if not (project_dir / "dbt_project.yml").exists():
        return project_dir / HOME
    with told_plainly():
        return load_credentials(project_dir, profiles_dir, target).engine_path(project_dir)


@main.command()
@project_dir
@profiles_dir
@target
@engine_home
def stop(
    project_dir: Path, profiles_dir: Path | None, target: str | None, engine_home: Path | None
) -> None:
    """Stop the engine of a project."""
    stopped = embedded.stop(_home(project_dir, profiles_dir, target, engine_home))
    click.echo("The engine has stopped." if stopped else "No engine is running here.")


@main.command()
@project_dir
@profiles_dir
@target
@engine_home
def status(
    project_dir: Path, profiles_dir: Path | None, target: str | None, engine_home: Path | None
) -> None:
    """Tell whether the engine of a project is running, and who uses it."""
    engine = embedded.status(_home(project_dir, profiles_dir, target, engine_home))
    if engine is None:
        click.echo("No engine is running here.")
        return
    clients = ", ".join(str(pid) for pid in engine.clients) or "none"
    click.echo(
        f"The engine is {'ready' if engine.ready else 'starting'}.\n"
        f"  up for    {time.time() - engine.started:.0f} s\n"
        f"  port      {engine.port}\n"
        f"  process   {engine.jvm.pid}\n"
        f"  versions  Spark {engine.spark}, Java {engine.java}\n"
        f"  settings  {engine.settings}\n"
        f"  clients   {clients}"
    )


@main.command()
@click.argument("table")
@click.option(
    "--older-than",
    type=float,
    default=72.0,
    show_default=True,
    help="Hours. A file of a write that is under way is no orphan, but looks like one.",
)
@click.option("--remove", is_flag=True, help="Remove the files.")
@project_dir
@profiles_dir
@target
def orphans(
    table: str,
    older_than: float,
    remove: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """List the files of TABLE (schema.name) that belong to no snapshot of it."""
    from dbt.adapters.iceberg_stream.maintenance.orphans import (
        find_orphans,
        remove_orphans,
        shares_folder,
    )
    from dbt.adapters.iceberg_stream.projects import open_lake

    with told_plainly(), closing(open_lake(project_dir, profiles_dir, target)) as lake:
        loaded = lake.load(table_name(table))
        if loaded is None:
            raise click.ClickException(f"There is no table {table}.")
        names = [(s, n) for s in lake.namespaces() for n, _ in lake.relations(s) if remove]
        others = (each for name in names if (each := lake.load(name)) is not None)
        if (other := shares_folder(loaded, others)) is not None:
            raise click.ClickException(f"{'.'.join(other.name)} has its files in the same folder.")
        if remove:
            lake.check_write(loaded.name)
        before = datetime.now(timezone.utc) - timedelta(hours=older_than)
        found = find_orphans(loaded, before)
        for orphan in found:
            click.echo(f"{orphan.size:>14,}  {orphan.modified:%Y-%m-%d %H:%M:%S}  {orphan.path}")
        total = sum(orphan.size for orphan in found)
        click.echo(f"{len(found)} orphans, {total:,} bytes.")
        if remove:
            click.echo(f"{remove_orphans(loaded, found)} removed.")


main.add_command(cli_check.check)
main.add_command(cli_streams.run)
main.add_command(cli_streams.streams)
main.add_command(cli_streams.resume)


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=0, show_default=True, help="0 takes a free one.")
@click.option("--tls-cert", type=click.Path(exists=True, path_type=Path), help="Chain in PEM.")
@click.option("--tls-key", type=click.Path(exists=True, path_type=Path), help="Its key in PEM.")
@click.option("--insecure", is_flag=True, help="Allow other machines to send tokens in clear.")
@project_dir
@profiles_dir
@target
def serve(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Serve Flight SQL: queries and bulk ingest of ADBC clients, each as the owner of its token."""
    from dbt.adapters.iceberg_stream.ingest.serve import open_server
    from dbt.adapters.iceberg_stream.projects import load_credentials

    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    if host not in LOOPBACK and not tls_cert and not insecure:
        raise click.UsageError(
            f"Tokens would go to {host} in clear: give --tls-cert and --tls-key, or --insecure."
        )
    pair = (tls_cert.read_bytes(), tls_key.read_bytes()) if tls_cert and tls_key else None
    with told_plainly():
        credentials = load_credentials(project_dir, profiles_dir, target)
        with open_server(credentials, project_dir, host, port, pair) as server:
            scheme = "grpc+tls" if pair else "grpc"
            click.echo(f"Serving {credentials.database} at {scheme}://{host}:{server.port}")
            if server.token_file is not None:
                click.echo(f"The token that it accepts is in {server.token_file}")
            server.serve()
