"""The profile's catalog properties, for both clients: Spark and PyIceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.identity.transport import is_loopback
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.reach import OBJECT_STORES, hadoop_reach, reach
from dbt.adapters.iceberg_stream.engines.settings import SECRET
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

# Spark's name of a property by PyIceberg's.
SPARK_NAMES = {"s3.region": "client.region"}
TYPES = ("rest", "glue", "hive", "jdbc")
# PyIceberg's name of a catalog type by Spark's.
PYICEBERG_TYPES = {"jdbc": "sql"}
# SQLAlchemy's driver by the scheme of a JDBC URI.
SQLALCHEMY_DRIVERS = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}
# The property of a client in a process that serves several users.
SHARED = "iceberg-stream.shared"
HDFS = ("hdfs", "viewfs")
DELEGATION = "header.X-Iceberg-Access-Delegation"
# The property of a FileIO that may use the environment's credentials.
AMBIENT = "iceberg-stream.ambient-credentials"
# The property of a client that may send tokens without TLS.
ALLOW_PLAINTEXT = "iceberg-stream.allow-plaintext"
FILE_IO = "dbt.adapters.iceberg_stream.catalog.storage.CatalogFileIO"


@dataclass(frozen=True)
class CatalogSettings:
    """The properties of an Iceberg catalog on a server or in a database.

    Attributes:
        name: the catalog's name in SQL.
        properties: `catalog_properties` of the profile, `type` included; values may be secret.
        ambient: whether clients may search their environment for storage credentials.
        allow_plaintext: whether tokens may be sent to other machines without TLS.
        confined: whether files on this machine must be below a local `warehouse`, because the
            tables' owners may not read this process's other files.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    ambient: bool = False
    allow_plaintext: bool = False
    confined: bool = False

    @property
    def type(self) -> str:
        """The catalog's type, one of TYPES."""
        return self.properties["type"]

    @property
    def uri(self) -> str:
        """The catalog's address for messages, without secrets."""
        return without_secrets(self.properties.get("uri", self.type))

    def spark(self, token: str | None = None) -> dict[str, str]:
        """Return the settings of a Spark session.

        Args:
            token: bearer token of the user, if the adapter manages it.
        """
        renamed = {SPARK_NAMES.get(k, k): v for k, v in self.properties.items()}
        properties = self._with_defaults(renamed)
        # A cached table would be read stale.
        properties.setdefault("cache-enabled", "false")
        if self.type == "rest":
            # Iceberg reports them from a thread for each session, which outlives the session.
            properties.setdefault("rest-metrics-reporting-enabled", "false")
        for key, value in TABLE_DEFAULTS.items():
            properties.setdefault(f"table-default.{key}", value)
        if self.confined:
            properties |= hadoop_reach(self._schemes(), self._folders())
        if token is not None:
            # The catalog cannot exchange tokens of other providers (OAuth2 token exchange).
            properties |= {"token": token, "token-refresh-enabled": "false"}
        prefix = f"spark.sql.catalog.{self.name}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{key}": value for key, value in properties.items()},
            "spark.sql.defaultCatalog": self.name,
        }

    def pyiceberg(self) -> dict[str, str]:
        """Return the properties of PyIceberg's catalog, without a token."""
        properties = self._with_defaults(dict(self.properties))
        properties["type"] = PYICEBERG_TYPES.get(self.type, self.type)
        if self.type == "jdbc":
            properties["uri"] = _sqlalchemy_uri(properties)
        if "client.region" in properties:
            properties.setdefault("s3.region", properties["client.region"])
        properties |= reach(self._schemes(), self._folders())
        if self.confined:
            properties[SHARED] = "true"
        if self.allow_plaintext:
            properties[ALLOW_PLAINTEXT] = "true"
        if self.ambient:
            properties[AMBIENT] = "true"
        properties.setdefault("py-io-impl", FILE_IO)
        return properties

    def _schemes(self) -> tuple[str, ...]:
        """Return the schemes of storages whose own credentials decide what a user may read."""
        warehouse = self.properties.get("warehouse", "")
        # Hadoop's has those of the machine.
        with_hdfs = self.ambient or self.type == "hive" or warehouse.startswith(HDFS)
        return (*OBJECT_STORES, *(HDFS if with_hdfs else ()))

    def _folders(self) -> list[str]:
        """Return the folders of this machine below which the catalog's tables may be."""
        warehouse = self.properties.get("warehouse", "")
        # Anything else may be a name that the catalog knows.
        if warehouse.lower().startswith(("/", "file:")):
            return [str(local_path(warehouse))]
        # A catalog on this machine does not say where it keeps its tables.
        return ["/"] if not self.confined and self._is_on_this_machine() else []

    def _is_on_this_machine(self) -> bool:
        uri = self.properties.get("uri", "").removeprefix("jdbc:")
        return uri.startswith("sqlite:") or is_loopback(urlsplit(uri).hostname)

    def _with_defaults(self, properties: dict[str, str]) -> dict[str, str]:
        if self.type == "rest":
            properties.setdefault(DELEGATION, "vended-credentials")
        return properties


def _sqlalchemy_uri(properties: Mapping[str, str]) -> str:
    """Convert the JDBC URI of a catalog's database to SQLAlchemy's."""
    uri = properties["uri"].removeprefix("jdbc:")
    if uri.startswith("sqlite:"):
        return _sqlite_uri(uri.removeprefix("sqlite:"))
    scheme, _, address = uri.partition("://")
    user, password = (quote(properties.get(f"jdbc.{k}", ""), safe="") for k in ("user", "password"))
    login = f"{user}:{password}@" if user else ""
    return f"{SQLALCHEMY_DRIVERS.get(scheme, scheme)}://{login}{address}"


def _sqlite_uri(database: str) -> str:
    from sqlalchemy import URL

    path = database.partition("?")[0]
    if path.startswith("file:"):
        path = unquote("/" + path.removeprefix("file:").lstrip("/"))
    return URL.create("sqlite", database=path).render_as_string()


def signs_remotely(properties: Mapping[str, Any]) -> bool:
    """Return whether the catalog signs the requests to the storage (`remote-signing`).

    Iceberg caches signatures for all sessions of a JVM, without the user's name in their keys.

    Args:
        properties: of a catalog, or what it vends for a table.
    """
    enabled = str(properties.get("s3.remote-signing-enabled", "")).lower() == "true"
    return enabled or "remote-signing" in str(properties.get(DELEGATION, ""))


def secret_properties(properties: Mapping[str, str]) -> list[str]:
    """Return the names of properties whose values must not be shown."""
    return [name for name in properties if re.search(SECRET, name)]
