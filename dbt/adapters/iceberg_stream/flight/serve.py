"""The Flight SQL server of a profile: who may call it, and as whom it works."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.identity.token import Token
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.engines.engine import Engine
from dbt.adapters.iceberg_stream.engines.session import Session, quiet_pyspark
from dbt.adapters.iceberg_stream.flight.callers import Caller, same_token
from dbt.adapters.iceberg_stream.flight.server import FlightSqlServer
from dbt.adapters.iceberg_stream.flight.statements import SESSION_SETTINGS
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import (
    make_catalog,
    make_engine,
    session_settings,
)
from dbt.adapters.iceberg_stream.sessions.cursor import Handle

# Holds the server's own token, where the catalog knows no users; else a new one is made.
TOKEN_VARIABLE = "ICEBERG_STREAM_SERVER_TOKEN"
# Rows between two lines about an ingest.
REPORT_ROWS = 1_000_000

logger = AdapterLogger("Iceberg_Stream")


@dataclass(frozen=True)
class OpenServer:
    """A server that listens; `token_file` where it has a token of its own."""

    server: FlightSqlServer
    token_file: Path | None

    @property
    def port(self) -> int:
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
) -> Iterator[OpenServer]:
    """Listen for Flight SQL; the engine starts with the first statement that needs it.

    Raises:
        OSError: the address is taken, or the token cannot be written.
    """
    quiet_pyspark()
    engine = make_engine(credentials, project_root)
    own, token_file = None, None
    if not _knows_users(credentials.catalog_settings()):
        own, token_file = _own_token(credentials.engine_path(project_root))
    door = _Door(credentials, project_root, engine, own)
    scheme = "grpc+tls" if certificate else "grpc"
    server = FlightSqlServer(
        f"{scheme}://{host}:{port}",
        door.admit,
        credentials.schema,
        [certificate] if certificate else None,
        _Reports().tell,
    )
    try:
        yield OpenServer(server, token_file)
    finally:
        server.shutdown()
        engine.release()


@dataclass(frozen=True)
class _Door:
    """Makes callers of tokens: their catalog as them, or the local one for who knows the token."""

    credentials: IcebergStreamCredentials
    project_root: Path
    engine: Engine
    own_token: str | None

    def admit(self, token: str) -> Caller:
        """The owner of a token.

        Raises:
            CatalogError: the token is not accepted.
        """
        if self.own_token is not None:
            if not same_token(token, self.own_token):
                raise CatalogError("This server does not accept the token.")
            catalog = make_catalog(self.credentials, self.project_root)
            return Caller(catalog, lambda: self._handle(catalog, None))
        identity = Identity(LiteralToken(token))
        catalog = make_catalog(self.credentials, self.project_root, identity)
        try:
            catalog.namespaces()
        except CatalogError as error:
            # Who may not list may still write.
            if "refused to" not in str(error):
                raise
        return Caller(catalog, lambda: self._handle(catalog, identity))

    def _handle(self, catalog: IcebergCatalog, identity: Identity | None) -> Handle:
        token = identity.token() if identity else None
        session = Session(self.engine.endpoint().url, self._settings(token))
        renewal = Renewal(identity, token, self._settings) if identity and token else None
        return Handle(session, catalog, False, lambda handle: None, self.engine.abandon, renewal)

    def _settings(self, token: Token | None) -> dict[str, str]:
        settings = session_settings(self.credentials, self.project_root, token)
        return settings | SESSION_SETTINGS


def _knows_users(catalog: CatalogSettings | None) -> bool:
    """Whether the catalog is asked with the caller's token, and with nothing of the server's."""
    if catalog is None or catalog.type != "rest" or catalog.ambient:
        return False
    own = ("rest.sigv4-enabled", "credential", "auth", "header.Authorization")
    return not any(name in catalog.properties for name in own)


class _Reports:
    """One line a million rows."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def tell(self, table: str, rows: int) -> None:
        if rows < self._told.get(table, 0):
            self._told[table] = 0
        if rows - self._told.get(table, 0) >= REPORT_ROWS:
            self._told[table] = rows
            logger.info(f"Ingest into {table}: {rows:,} rows so far")


def _own_token(home: Path) -> tuple[str, Path | None]:
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given, None
    home.mkdir(parents=True, exist_ok=True)
    token, path = secrets.token_urlsafe(24), home / "flight_token"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token, path
