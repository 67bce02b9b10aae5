"""Creates what a profile configures: the catalog, the engine, the settings of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from dbt.adapters.iceberg_stream.profile.catalog_profile import CatalogProfile
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.identity.token import Token


def make_catalog(
    profile: CatalogProfile,
    project_root: Path,
    identity: Identity | None = None,
    confined: bool = False,
) -> IcebergCatalog:
    """Open a catalog.

    Args:
        profile: what the profile says of the catalog.
        project_root: folder of the dbt project.
        identity: token for the catalog; the profile's by default.
        confined: keep to files below a local warehouse; see `CatalogSettings`.
    """
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend

    settings, name = profile.settings(), profile.name
    if settings is None:
        folder, ambient = profile.warehouse_path(project_root), profile.ambient_credentials
        return IcebergCatalog(name, SqliteBackend(name, folder, ambient, confined))
    from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend

    settings = replace(settings, confined=confined)
    return IcebergCatalog(name, RemoteBackend(settings, identity or profile.identity(project_root)))


def session_settings(
    profiles: Sequence[CatalogProfile],
    project_root: Path,
    tokens: Mapping[str, Token],
    confined: bool = False,
) -> dict[str, str]:
    """Return the settings of a Spark session with catalogs.

    Args:
        profiles: what the profile says of the catalogs; the first one becomes the default catalog.
        project_root: folder of the dbt project.
        tokens: by the catalog's name, the tokens of those that have one.
        confined: keep to files below a local warehouse; see `CatalogSettings`.
    """
    from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings

    settings: dict[str, str] = {}
    # Each sets the default catalog, the last one for good.
    for profile in reversed(profiles):
        if (catalog := profile.settings()) is None:
            warehouse = profile.warehouse_path(project_root)
            # Spark makes the catalog's file, not its folder.
            warehouse.mkdir(parents=True, exist_ok=True)
            settings |= spark_settings(profile.name, warehouse, confined)
        else:
            token = tokens.get(profile.name)
            catalog = replace(catalog, confined=confined)
            settings |= catalog.spark(token.value if token else None)
    return settings


def make_engine(credentials: IcebergStreamCredentials, project_root: str | Path) -> Engine:
    """Create the profile's engine, without starting it.

    Args:
        credentials: the profile.
        project_root: folder of the dbt project.
    """
    if credentials.method == "connect":
        endpoint = Endpoint(
            str(credentials.host), credentials.port, credentials.server_token, credentials.use_ssl
        )
        return ConnectEngine(endpoint)
    return EmbeddedEngine(engine_settings(credentials, project_root))


def engine_settings(
    credentials: IcebergStreamCredentials, project_root: str | Path
) -> EngineSettings:
    """Return the settings of the profile's embedded engine.

    Args:
        credentials: the profile.
        project_root: folder of the dbt project.
    """
    conf = {str(k): str(v) for k, v in credentials.spark_conf.items()}
    if conf.get("spark.eventLog.enabled", "").lower() == "true":
        # The event log redacts only settings that the server has, too, so it gets empty ones.
        for profile in credentials.all_catalogs():
            if (catalog := profile.settings()) is not None:
                token = "" if profile.identity(project_root) else None
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
