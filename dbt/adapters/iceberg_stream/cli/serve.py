"""`iceberg-stream serve`: a Flight SQL server for ADBC clients."""

from __future__ import annotations

from pathlib import Path

import click

from dbt.adapters.iceberg_stream.cli.options import (
    PORT,
    plain_errors,
    profiles_dir,
    project_dir,
    target,
)
from dbt.adapters.iceberg_stream.flight.limits import MB, Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=0, show_default=True, help="0 uses a free port.")
@click.option(
    "--tls-cert", type=click.Path(exists=True, path_type=Path), help="Certificate chain (PEM)."
)
@click.option("--tls-key", type=click.Path(exists=True, path_type=Path), help="Private key (PEM).")
@click.option(
    "--max-statements",
    type=click.IntRange(1),
    default=Limits.statements,
    show_default=True,
    help="Statements that a caller may run at a time.",
)
@click.option(
    "--max-seconds",
    type=click.IntRange(1),
    default=Limits.seconds,
    show_default=True,
    help="Seconds that a statement may take.",
)
@click.option(
    "--max-result-mb",
    type=click.IntRange(1),
    default=Limits.result_bytes // MB,
    show_default=True,
    help="Size of a statement's rows.",
)
@click.option("--insecure", is_flag=True, help="Accept tokens of other machines without TLS.")
@project_dir
@profiles_dir
@target
def serve(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_statements: int,
    max_seconds: int,
    max_result_mb: int,
    insecure: bool,
    project_dir: Path,
    profiles_dir: Path | None,
    target: str | None,
) -> None:
    """Serve Flight SQL to ADBC clients: queries and bulk ingest, with each client's token."""
    from dbt.adapters.iceberg_stream.flight.serve import open_server
    from dbt.adapters.iceberg_stream.profile.project import load_credentials

    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key must be used together.")
    if host not in LOOPBACK and not tls_cert and not insecure:
        raise click.UsageError(
            f"Clients would send tokens to {host} without TLS: use --tls-cert and --tls-key, or "
            "--insecure."
        )
    pair = (tls_cert.read_bytes(), tls_key.read_bytes()) if tls_cert and tls_key else None
    with plain_errors():
        credentials = load_credentials(project_dir, profiles_dir, target)
        limits = Limits(max_statements, max_seconds, max_result_mb * MB)
        with open_server(credentials, project_dir, host, port, pair, limits) as server:
            scheme = "grpc+tls" if pair else "grpc"
            click.echo(f"Serving {credentials.database} at {scheme}://{host}:{server.port}")
            if server.token_file is not None:
                click.echo(f"The token that it accepts is in {server.token_file}")
            server.serve()
