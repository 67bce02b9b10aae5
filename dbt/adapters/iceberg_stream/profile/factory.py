"""What a profile asks for: the catalog, the engine and the settings of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.settings import secret_properties
from dbt.adapters.iceberg_stream.engines.connect import ConnectEngine
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.engine import Engine
from dbt.adapters.iceberg_stream.engines.settings import (
    DEFAULT_PACKAGES,
    Endpoint,
    EngineSettings,
)
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.identity.token import Token


def make_catalog(
    credentials: IcebergStreamCredentials, project_root: Path, identity: Identity | None = None
) -> IcebergCatalog:
    """The profile's catalog, as the owner of the identity; without one, as the profile's user."""
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend

    catalog, name = credentials.catalog_settings(), credentials.database
    if catalog is None:
        return IcebergCatalog(name, SqliteBackend(name, credentials.warehouse_path(project_root)))
    from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend

    return IcebergCatalog(
        name, RemoteBackend(catalog, identity or credentials.identity(project_root))
    )


def session_settings(
    credentials: IcebergStreamCredentials, project_root: Path, token: Token | None
) -> dict[str, str]:
    """Settings of a Spark session: the profile's catalog, as the owner of the token."""
    from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings

    catalog = credentials.catalog_settings()
    if catalog is None:
        return spark_settings(credentials.database, credentials.warehouse_path(project_root))
    return catalog.spark(token.value if token else None)


def make_engine(credentials: IcebergStreamCredentials, project_root: str | Path) -> Engine:
    """Where the profile has Spark run."""
    if credentials.method == "connect":
        endpoint = Endpoint(
            str(credentials.host), credentials.port, credentials.server_token, credentials.use_ssl
        )
        return ConnectEngine(endpoint)
    return EmbeddedEngine(engine_settings(credentials, project_root))


def engine_settings(
    credentials: IcebergStreamCredentials, project_root: str | Path
) -> EngineSettings:
    """The engine that a profile asks for."""
    conf = {str(k): str(v) for k, v in credentials.spark_conf.items()}
    catalog = credentials.catalog_settings()
    if catalog and conf.get("spark.eventLog.enabled", "").lower() == "true":
        # Of a session's settings, the event log hides those only that the server has as well.
        token = "" if credentials.identity(project_root) else None
        conf = dict.fromkeys(secret_properties(catalog.spark(token)), "") | conf
    return EngineSettings(
        home=credentials.engine_path(project_root),
        driver_memory=credentials.driver_memory,
        keep_alive=float(credentials.keep_alive),
        packages=(*DEFAULT_PACKAGES, *credentials.packages),
        maven_repository=credentials.maven_repository,
        spark_conf=tuple(sorted(conf.items())),
        start_timeout=float(credentials.start_timeout),
        java_home=Path(credentials.java_home) if credentials.java_home else None,
        ambient_credentials=credentials.ambient_credentials,
    )
