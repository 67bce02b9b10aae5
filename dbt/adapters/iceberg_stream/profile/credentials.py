"""The profile: parsed and checked once, with every fault listed at once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import Credentials
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import (
    ClientCredentials,
    LiteralToken,
    TokenCommand,
    TokenFile,
)
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings, secret_properties
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES, EngineError
from dbt.adapters.iceberg_stream.errors.redaction import HIDDEN, without_secrets
from dbt.adapters.iceberg_stream.profile.validation import OAUTH2_KEYS, faults

WARM_SECONDS = 300
CONNECT_PORT = 15002


def default_keep_alive() -> int:
    """Seconds an idle engine stays warm: some minutes for a person, none in CI and jobs."""
    interactive = sys.stderr.isatty() and not os.environ.get("CI")
    return WARM_SECONDS if interactive else 0


@dataclass
class IcebergStreamCredentials(Credentials):
    """What a profile may say. Only `schema` has no sensible default.

    Attributes:
        schema: namespace that models are built into.
        database: name of the Iceberg catalog; part of the SQLite catalog's key.
        method: where Spark runs: `embedded` on this machine, `connect` on a cluster.
        warehouse: folder of tables and catalog; relative to the project.
        keep_alive: seconds an idle engine stays warm; 0 stops it with its last user.
        driver_memory: heap of the engine, e.g. `2g`.
        spark_conf: settings of the engine, e.g. `{spark.sql.shuffle.partitions: 8}`.
        packages: Maven coordinates added to the engine's class path.
        maven_repository: mirror to fetch the engine's jars from.
        java_home: Java 17 or 21 to run the engine on.
        engine_home: folder of the engine's state; projects that name one share its engine.
        start_timeout: seconds the engine may take to start.
        result_cache: keep the rows of queries: `off`, in `memory` for one command, or on `disk`.
        result_cache_size: the most that they take, e.g. `256m`.
        progress: show the progress of long statements; by default in a terminal.
        catalog_properties: the Iceberg catalog, e.g. `{type: rest, uri: …, warehouse: …}`; without
            it a SQLite file in the warehouse folder.
        token: the user's bearer token for the catalog.
        token_file: file that holds it, read again when it changes.
        token_command: command that prints it, run again before it expires.
        oauth2: client credentials to get it with: `token_uri`, `client_id`, `client_secret`, and
            whatever else the server wants (`scope`, `audience`, …).
        kafka: options of Kafka's clients, as librdkafka names them, of each connection that sources
            name, e.g. `{shop: {bootstrap.servers: …, sasl.password: …}}`.
        ambient_credentials: let clients look for storage credentials in environment and machine.
        host: Spark Connect server of `method: connect`.
        port: its port.
        use_ssl: whether it speaks TLS.
        server_token: what opens it; nothing to do with the catalog's token.
    """

    database: str = "lake"
    schema: str = ""
    method: str = "embedded"
    warehouse: str = "lakehouse"
    keep_alive: int = field(default_factory=default_keep_alive)
    driver_memory: str = "2g"
    spark_conf: dict[str, Any] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    maven_repository: str | None = None
    java_home: str | None = None
    engine_home: str = ".iceberg_stream"
    start_timeout: int = 120
    result_cache: str | bool = "off"
    result_cache_size: str = "256m"
    progress: bool = True
    catalog_properties: dict[str, Any] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_command: str | None = field(default=None, repr=False)
    oauth2: dict[str, Any] = field(default_factory=dict, repr=False)
    kafka: dict[str, Any] = field(default_factory=dict, repr=False)
    ambient_credentials: bool = False
    host: str | None = None
    port: int = CONNECT_PORT
    use_ssl: bool = False
    server_token: str | None = field(default=None, repr=False)

    _ALIASES: ClassVar[dict[str, str]] = {
        "catalog": "database",
        "server_side_parameters": "spark_conf",
    }

    @property
    def type(self) -> str:
        return "iceberg_stream"

    @property
    def unique_field(self) -> str:
        place = self.catalog_properties.get("uri", self.database)
        return f"{self.method}/{without_secrets(str(place))}"

    def _connection_keys(self) -> tuple[str, ...]:
        if self.method == "connect":
            return ("method", "host", "port", "use_ssl", "database", "schema")
        here = ("method", "database", "schema", "keep_alive", "driver_memory")
        return here if self.catalog_properties else (*here, "warehouse")

    def connection_info(self, *, with_aliases: bool = False) -> Iterable[tuple[str, Any]]:
        """What `dbt debug` shows: the profile, then what runs where, with versions."""
        yield from super().connection_info(with_aliases=with_aliases)
        if with_aliases:
            # `target` in Jinja, made anew for every macro: neither commands nor versions there.
            return
        yield from self._identity_info()
        yield from versions(self.java_home, embedded=self.method == "embedded")

    @classmethod
    def validate(cls, data: Any) -> None:
        """Check the profile's output before it is turned into an object.

        Raises:
            DbtRuntimeError: with one line for each fault.
        """
        known = {f.name for f in fields(cls)} | set(cls._ALIASES) | {"type", "threads"}
        found = faults(data, known - {"_ALIASES"})
        if found:
            lines = "\n".join(f"  - {fault}" for fault in found)
            raise DbtRuntimeError(f"The profile of type iceberg_stream has errors:\n{lines}")
        super().validate(data)

    def identity(self, project_root: str | Path) -> Identity | None:
        """Who the user is to the catalog; None for a catalog that knows no users."""
        if self.token:
            return Identity(LiteralToken(self.token))
        if self.token_file:
            return Identity(TokenFile(Path(project_root) / Path(self.token_file).expanduser()))
        if self.token_command:
            return Identity(TokenCommand(self.token_command))
        if self.oauth2:
            given = {str(k): str(v) for k, v in self.oauth2.items()}
            uri, client, secret = (given.pop(key) for key in OAUTH2_KEYS)
            return Identity(ClientCredentials(uri, client, secret, given))
        return None

    def catalog_settings(self) -> CatalogSettings | None:
        """The catalog of the profile; None for the SQLite file."""
        if not self.catalog_properties:
            return None
        given = {str(k): _text(v) for k, v in self.catalog_properties.items()}
        return CatalogSettings(self.database, {"type": "rest"} | given, self.ambient_credentials)

    def _identity_info(self) -> Iterable[tuple[str, Any]]:
        catalog = self.catalog_settings()
        if catalog is None:
            return
        secret = secret_properties(catalog.properties)
        for key, value in catalog.properties.items():
            yield f"catalog {key}", HIDDEN if key in secret else without_secrets(value)
        identity = self.identity(Path.cwd())
        if identity is None:
            yield "principal", "nobody: the profile has no token"
            return
        try:
            token = identity.token()
        except IdentityError as error:
            yield "principal", str(error)
            return
        yield "principal", identity.principal
        ends = token.expires.strftime("%Y-%m-%d %H:%M:%S UTC") if token.expires else "not said"
        yield "token expires", ends

    def warehouse_path(self, project_root: str | Path) -> Path:
        """The folder of tables and catalog, as an absolute path."""
        return (Path(project_root) / Path(self.warehouse).expanduser()).resolve()

    def engine_path(self, project_root: str | Path) -> Path:
        """The folder of the engine's state, as an absolute path."""
        return (Path(project_root) / Path(self.engine_home).expanduser()).resolve()


def versions(java_home: str | None, embedded: bool) -> Iterable[tuple[str, str]]:
    """The parts that run here, and their versions."""
    if embedded:
        try:
            java = find_java(Path(java_home) if java_home else None)
            yield "java", f"{java.version} ({java.executable})"
        except EngineError as error:
            yield "java", str(error)
    for package in ("pyspark", "pyspark-client", "pyiceberg", "pyarrow"):
        with contextlib.suppress(PackageNotFoundError):
            yield package, version(package)
    if embedded:
        yield "jars", ", ".join(DEFAULT_PACKAGES)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
