"""The profile: parsed and checked once, with all errors in one message."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import Credentials
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings, secret_properties
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES, EngineError
from dbt.adapters.iceberg_stream.errors.redaction import HIDDEN, without_secrets
from dbt.adapters.iceberg_stream.profile.catalog_profile import CatalogProfile
from dbt.adapters.iceberg_stream.profile.validation import (
    CATALOG_KEYS,
    catalog_errors,
    plaintext_to_server,
    profile_errors,
)

WARM_SECONDS = 300
CONNECT_PORT = 15002
# The rows of a cluster come to this process, and go back to the storage, through the network.
SMALL_TABLE_ROWS = 100_000
SMALL_TABLE_ROWS_OF_CLUSTER = 10_000


def default_keep_alive() -> int:
    """Return the default of `keep_alive`: some minutes in a terminal, 0 in CI and jobs."""
    interactive = sys.stderr.isatty() and not os.environ.get("CI")
    return WARM_SECONDS if interactive else 0


@dataclass
class IcebergStreamCredentials(Credentials):
    """The keys of a profile. Only `schema` is required.

    Attributes:
        schema: namespace of the models.
        database: name of the Iceberg catalog; the SQLite catalog stores it with each table.
        method: where Spark runs: `embedded` on this machine, `connect` on a cluster.
        warehouse: folder of tables and catalog; relative to the project.
        keep_alive: seconds an idle engine stays warm; 0 stops it with its last user.
        driver_memory: heap of the engine, e.g. `2g`.
        spark_conf: settings of the engine, e.g. `{spark.sql.shuffle.partitions: 8}`.
        packages: Maven coordinates added to the engine's class path.
        maven_repository: mirror from which the engine's jars are downloaded.
        java_home: Java 17 or 21 for the engine.
        engine_home: folder of the engine's state; projects with the same folder share the engine.
        start_timeout: seconds the engine may take to start.
        result_cache: cache the rows of queries: `off`, in `memory` for one command, or on `disk`.
        result_cache_size: maximum size of the cache, e.g. `256m`.
        small_table_rows: tables of at most so many rows are written by this process instead of
            Spark, by default 100,000, and 10,000 with a cluster; 0 lets Spark write all tables.
        publish: when readers see what a run has built: each model `immediately`, or all of them in
            one commit at the end of the run (`atomic`).
        build: name of a build in which runs stage their models until it is published.
        keep_builds_days: days after which a build that is not published is discarded.
        rebuild_on_conflict: build models again, before an atomic run publishes them, whose
            published tables another writer has changed.
        skip_unchanged: leave models as they are whose code and inputs have not changed.
        progress: show the progress of long statements; by default in a terminal.
        build_summary: print what each command changed, by table.
        catalog_properties: the Iceberg catalog, e.g. `{type: rest, uri: …, warehouse: …}`; without
            it a SQLite file in the warehouse folder.
        catalogs: further catalogs by name, each with its own `catalog_properties` or `warehouse`,
            and its own token, e.g. `{partner: {catalog_properties: {uri: …}, token_file: …}}`.
        token: the user's bearer token for the catalog.
        token_file: file with the token, read again when it changes.
        token_command: command that prints the token, run again before it expires.
        oauth2: client credentials that get the token: `token_uri`, `client_id`, `client_secret`,
            and further parameters of the server (`scope`, `audience`, …).
        kafka: options of Kafka's clients and of schema registries, by the connection's name in
            sources, e.g. `{shop: {bootstrap.servers: …, sasl.password: …}}`.
        postgres: options of connections to Postgres, by their names in sources and with libpq's
            names, e.g. `{shop: {host: …, dbname: …, user: …, password: …}}`.
        ambient_credentials: let clients search the environment for storage credentials.
        allow_plaintext: let secrets be sent to other machines without TLS, in a closed network.
        host: host of the Spark Connect server, for `method: connect`.
        port: port of the Spark Connect server.
        use_ssl: whether the Spark Connect server uses TLS.
        server_token: token of the Spark Connect server; independent of the catalog's token.
    """

    database: str = "lake"
    schema: str = ""
    method: str = "embedded"
    warehouse: str = "lakehouse"
    keep_alive: int = field(default_factory=default_keep_alive)
    driver_memory: str = "2g"
    spark_conf: dict[str, Any] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    maven_repository: str | None = field(default=None, repr=False)
    java_home: str | None = None
    engine_home: str = ".iceberg_stream"
    start_timeout: int = 120
    result_cache: str | bool = "off"
    result_cache_size: str = "256m"
    small_table_rows: int | None = None
    publish: str = "immediately"
    build: str | None = None
    keep_builds_days: float = 2
    rebuild_on_conflict: bool = False
    skip_unchanged: bool = False
    progress: bool = True
    build_summary: bool = True
    catalog_properties: dict[str, Any] = field(default_factory=dict, repr=False)
    catalogs: dict[str, Any] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_command: str | None = field(default=None, repr=False)
    oauth2: dict[str, Any] = field(default_factory=dict, repr=False)
    kafka: dict[str, Any] = field(default_factory=dict, repr=False)
    postgres: dict[str, Any] = field(default_factory=dict, repr=False)
    ambient_credentials: bool = False
    allow_plaintext: bool = False
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
        """The adapter's type in dbt."""
        return "iceberg_stream"

    @property
    def unique_field(self) -> str:
        """The value that dbt hashes for anonymous usage statistics."""
        address = self.catalog_properties.get("uri", self.database)
        return f"{self.method}/{without_secrets(str(address))}"

    def _connection_keys(self) -> tuple[str, ...]:
        if self.method == "connect":
            return ("method", "host", "port", "use_ssl", "database", "schema")
        keys = ("method", "database", "schema", "keep_alive", "driver_memory")
        return keys if self.catalog_properties else (*keys, "warehouse")

    def connection_info(self, *, with_aliases: bool = False) -> Iterable[tuple[str, Any]]:
        """Iterate over what `dbt debug` shows: the profile, the user, and versions.

        Args:
            with_aliases: include aliases, and only the profile.
        """
        yield from super().connection_info(with_aliases=with_aliases)
        if with_aliases:
            # dbt calls this for `target` in every macro: run no commands here.
            return
        yield from self._identity_info()
        yield from versions(self.java_home, embedded=self.method == "embedded")

    @classmethod
    def validate(cls, data: Any) -> None:
        """Check the profile's output before it is parsed.

        Args:
            data: the output of the profile.

        Raises:
            DbtRuntimeError: with one line for each error.
        """
        keys = {f.name for f in fields(cls)} | set(cls._ALIASES) | {"type", "threads"}
        errors = profile_errors(data, keys - {"_ALIASES"})
        if errors:
            lines = "\n".join(f"  - {without_secrets(error)}" for error in errors)
            raise DbtRuntimeError(f"The profile of type iceberg_stream has errors:\n{lines}")
        super().validate(data)

    def own_catalog(self) -> CatalogProfile:
        """Return the catalog of the profile itself, which is `database` where none is named."""
        return CatalogProfile(
            self.database,
            **{key: getattr(self, key) for key in CATALOG_KEYS},
        )

    def all_catalogs(self) -> list[CatalogProfile]:
        """Return the profile's own catalog, and then the others."""
        return [self.own_catalog(), *self.other_catalogs()]

    def other_catalogs(self) -> list[CatalogProfile]:
        """Return the catalogs of the profile's `catalogs`."""
        return [CatalogProfile(str(name), **keys) for name, keys in self.catalogs.items()]

    def add_catalog(self, name: str, keys: Mapping[str, Any]) -> None:
        """Add a catalog of catalogs.yml to the profile's `catalogs`.

        Args:
            name: the catalog's name.
            keys: as in `catalogs`.

        Raises:
            DbtRuntimeError: the keys have errors, or the profile has a catalog of this name.
        """
        errors = catalog_errors({name: keys}, self.database, self.method)
        errors += plaintext_to_server(
            {
                "method": self.method,
                "host": self.host,
                "use_ssl": self.use_ssl,
                "allow_plaintext": self.allow_plaintext,
                "catalogs": {name: keys},
            }
        )
        if name in self.catalogs:
            errors.append(f"`catalogs: {name}` of the profile defines it, too: remove one of them")
        if errors:
            lines = "\n".join(f"  - {without_secrets(error)}" for error in errors)
            raise DbtRuntimeError(f"The catalog `{name}` of catalogs.yml has errors:\n{lines}")
        # dbt may share the mapping with the profile that it has parsed.
        self.catalogs = {**self.catalogs, name: dict(keys)}

    def identity(self, project_root: str | Path) -> Identity | None:
        """Return the user's token for the profile's own catalog; None if there is none.

        Args:
            project_root: folder of the dbt project, for a relative `token_file`.
        """
        return self.own_catalog().identity(project_root)

    def catalog_settings(self) -> CatalogSettings | None:
        """Return the settings of the profile's own catalog; None for a SQLite catalog."""
        return self.own_catalog().settings()

    def _identity_info(self) -> Iterable[tuple[str, Any]]:
        yield from _catalog_info(self.own_catalog())
        for other in self.other_catalogs():
            if other.settings() is None:
                yield f"{other.name}: warehouse", other.warehouse
            for key, value in _catalog_info(other):
                yield f"{other.name}: {key}", value

    def warehouse_path(self, project_root: str | Path) -> Path:
        """Return the absolute path of the folder of tables and catalog."""
        return self.own_catalog().warehouse_path(project_root)

    @property
    def most_rows_of_small_tables(self) -> int:
        """The most rows of a table that this process writes; 0 if Spark writes all tables."""
        if self.small_table_rows is not None:
            return self.small_table_rows
        return SMALL_TABLE_ROWS_OF_CLUSTER if self.method == "connect" else SMALL_TABLE_ROWS

    def engine_path(self, project_root: str | Path) -> Path:
        """Return the absolute path of the folder of the engine's state."""
        return (Path(project_root) / Path(self.engine_home).expanduser()).resolve()


def _catalog_info(profile: CatalogProfile) -> Iterable[tuple[str, Any]]:
    """Iterate over what `dbt debug` shows of a catalog and its user; nothing for a SQLite file."""
    catalog = profile.settings()
    if catalog is None:
        return
    secret = secret_properties(catalog.properties)
    for key, value in catalog.properties.items():
        yield f"catalog {key}", HIDDEN if key in secret else without_secrets(value)
    identity = profile.identity(Path.cwd())
    if identity is None:
        yield "principal", "none: the profile has no token"
        return
    try:
        token = identity.token()
    except IdentityError as error:
        yield "principal", str(error)
        return
    yield "principal", identity.principal
    expires = token.expires.strftime("%Y-%m-%d %H:%M:%S UTC") if token.expires else "unknown"
    yield "token expires", expires


def versions(java_home: str | None, embedded: bool) -> Iterable[tuple[str, str]]:
    """Iterate over the components on this machine, and their versions.

    Args:
        java_home: the profile's Java, if it has one.
        embedded: whether Spark runs on this machine.
    """
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
