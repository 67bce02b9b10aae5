"""Runs the Flight SQL server of a profile, and authenticates its callers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.identity.token import Token
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings, signs_remotely
from dbt.adapters.iceberg_stream.engines.engine import Engine
from dbt.adapters.iceberg_stream.engines.server_session import quiet_pyspark
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import prepare_home
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.flight.callers import Caller, same_token
from dbt.adapters.iceberg_stream.flight.limits import Limits, Slots
from dbt.adapters.iceberg_stream.flight.server import FlightSqlServer
from dbt.adapters.iceberg_stream.flight.statements import guard_settings, require_guard
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import (
    make_catalog,
    make_engine,
    session_settings,
)
from dbt.adapters.iceberg_stream.sessions.cursor import Handle

# Has the server's token if the catalog has no users; if it is not set, a token is generated.
TOKEN_VARIABLE = "ICEBERG_STREAM_SERVER_TOKEN"
# Rows between two log lines about an ingest.
REPORT_ROWS = 1_000_000

logger = Logger()


@dataclass(frozen=True)
class OpenServer:
    """A listening server.

    Attributes:
        server: the server.
        token_file: file with the server's token, if it generated one.
    """

    server: FlightSqlServer
    token_file: Path | None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server.port)

    def serve(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        self.server.serve()


@contextmanager
def open_server(
    credentials: IcebergStreamCredentials,
    project_root: Path,
    host: str,
    port: int,
    certificate: tuple[bytes, bytes] | None = None,
    limits: Limits | None = None,
) -> Iterator[OpenServer]:
    """Open a server; the engine starts with the first statement that needs it.

    Args:
        credentials: the profile.
        project_root: folder of the dbt project.
        host: address on which to listen.
        port: 0 for a free port.
        certificate: certificate chain and private key (PEM), for TLS.
        limits: of each caller; None for the default ones.

    Raises:
        OSError: the address is in use, or the token cannot be written.
        CatalogError: the catalog signs requests, and so could serve one caller only.
    """
    catalog = credentials.catalog_settings()
    if catalog is not None and signs_remotely(catalog.properties):
        raise CatalogError(
            "`catalog_properties` have remote signing. Iceberg caches signatures for all callers "
            "of a server: remove it, and let the catalog vend credentials."
        )
    quiet_pyspark()
    engine = make_engine(credentials, project_root)
    server_token, token_file = None, None
    if not _uses_caller_token(catalog):
        server_token, token_file = _server_token(credentials.engine_path(project_root))
    limits = limits or Limits()
    authenticator = _Authenticator(credentials, project_root, engine, server_token, limits)
    scheme = "grpc+tls" if certificate else "grpc"
    server = FlightSqlServer(
        f"{scheme}://{host}:{port}",
        authenticator.authenticate,
        engine,
        credentials.schema,
        limits,
        [certificate] if certificate else None,
        _IngestLog().log,
    )
    try:
        yield OpenServer(server, token_file)
    finally:
        server.shutdown()
        engine.release()


@dataclass(frozen=True)
class _Authenticator:
    """Creates the callers of tokens.

    Attributes:
        credentials: the profile.
        project_root: folder of the dbt project.
        engine: Spark's engine.
        server_token: the token that all callers must have; None if the catalog checks the tokens.
        limits: of each caller.
    """

    credentials: IcebergStreamCredentials
    project_root: Path
    engine: Engine
    server_token: str | None
    limits: Limits

    def authenticate(self, token: str) -> Caller:
        """Create the caller of a token.

        Args:
            token: the bearer token.

        Raises:
            CatalogError: the token is not valid.
        """
        if self.server_token is not None:
            if not same_token(token, self.server_token):
                raise CatalogError("This server does not accept the token.")
            catalog = self._catalog(None)
            return Caller(catalog, lambda: self._handle(catalog, None), Slots(self.limits))
        source = LiteralToken(token, "the call", "Connect again with a new token")
        identity = Identity(source)
        catalog = self._catalog(identity)
        try:
            catalog.namespaces()
        except CatalogError as error:
            # A user who may not list namespaces may still write.
            if "refused to" not in str(error):
                raise
        return Caller(catalog, lambda: self._handle(catalog, identity), Slots(self.limits))

    def _catalog(self, identity: Identity | None) -> IcebergCatalog:
        # A caller's table could name any file that this server's account can read.
        profile = self.credentials.own_catalog()
        return make_catalog(profile, self.project_root, identity, confined=True)

    def _handle(self, catalog: IcebergCatalog, identity: Identity | None) -> Handle:
        token = identity.token() if identity else None
        session = Session(self.engine.endpoint(), self._settings(token))
        try:
            require_guard(session)
        except StatementError:
            session.close()
            raise
        renewal, name = None, catalog.name
        if identity and token:
            renewal = Renewal(
                {name: identity}, {name: token}, lambda tokens: self._settings(tokens[name])
            )
        return Handle(
            session,
            one_catalog(catalog),
            False,
            lambda handle: None,
            self.engine.abandon,
            renewal,
        )

    def _settings(self, token: Token | None) -> dict[str, str]:
        # A caller's token is for this catalog, and those of the others are not the caller's.
        profile = self.credentials.own_catalog()
        tokens = {profile.name: token} if token else {}
        settings = session_settings([profile], self.project_root, tokens, confined=True)
        return settings | guard_settings(profile.name)


def _uses_caller_token(catalog: CatalogSettings | None) -> bool:
    """Return whether the catalog gets the caller's token, and no credentials of the server."""
    if catalog is None or catalog.type != "rest" or catalog.ambient:
        return False
    server_credentials = ("rest.sigv4-enabled", "credential", "auth", "header.Authorization")
    return not any(name in catalog.properties for name in server_credentials)


class _IngestLog:
    """Logs one line per REPORT_ROWS rows of an ingest."""

    def __init__(self) -> None:
        self._logged_rows: dict[str, int] = {}

    def log(self, table: str, rows: int) -> None:
        """Log the progress of an ingest, if enough rows were added."""
        if rows < self._logged_rows.get(table, 0):
            self._logged_rows[table] = 0
        if rows - self._logged_rows.get(table, 0) >= REPORT_ROWS:
            self._logged_rows[table] = rows
            logger.info(f"Ingest into {table}: {rows:,} rows so far")


def _server_token(home: Path) -> tuple[str, Path | None]:
    """Return the server's token, and the file to which a generated one was written."""
    configured = os.environ.get(TOKEN_VARIABLE)
    if configured:
        return configured, None
    prepare_home(home)
    token, path = secrets.token_urlsafe(24), home / "flight_token"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token, path
