"""One set of catalog properties for both clients, Spark and PyIceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.engines.settings import SECRET
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

# PyIceberg's name of a property, and Spark's.
SPARK_NAMES = {"s3.region": "client.region"}
TYPES = ("rest", "glue", "hive", "jdbc")
# Spark's name of a type, and PyIceberg's.
PYICEBERG_TYPES = {"jdbc": "sql"}
# A database in the words of JDBC, and of SQLAlchemy.
SQLALCHEMY_DRIVERS = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}
DELEGATION = "header.X-Iceberg-Access-Delegation"
FILE_IO = "dbt.adapters.iceberg_stream.catalog.storage.CatalogFileIO"


@dataclass(frozen=True)
class CatalogSettings:
    """An Iceberg catalog that is somewhere else.

    Attributes:
        name: the catalog's name in SQL.
        properties: as the profile has them, `type` included; values may be secret.
        ambient: whether clients may look for storage credentials in their environment.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    ambient: bool = False

    @property
    def type(self) -> str:
        return self.properties["type"]

    @property
    def uri(self) -> str:
        """Where it is, for messages."""
        return without_secrets(self.properties.get("uri", self.type))

    def spark(self, token: str | None = None) -> dict[str, str]:
        """Settings of a Spark session. It never caches tables: a cached one is read stale."""
        named = {SPARK_NAMES.get(k, k): v for k, v in self.properties.items()}
        properties = self._with_defaults(named)
        properties.setdefault("cache-enabled", "false")
        for key, value in TABLE_DEFAULTS.items():
            properties.setdefault(f"table-default.{key}", value)
        if token is not None:
            # The catalog's own exchange of tokens is not for those of other providers.
            properties |= {"token": token, "token-refresh-enabled": "false"}
        prefix = f"spark.sql.catalog.{self.name}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{key}": value for key, value in properties.items()},
            "spark.sql.defaultCatalog": self.name,
        }

    def pyiceberg(self) -> dict[str, str]:
        """Properties of PyIceberg's catalog, without a token."""
        properties = self._with_defaults(dict(self.properties))
        properties["type"] = PYICEBERG_TYPES.get(self.type, self.type)
        if self.type == "jdbc":
            properties["uri"] = _sqlalchemy_uri(properties)
        if "client.region" in properties:
            properties.setdefault("s3.region", properties["client.region"])
        if not self.ambient:
            properties.setdefault("py-io-impl", FILE_IO)
        return properties

    def _with_defaults(self, properties: dict[str, str]) -> dict[str, str]:
        if self.type == "rest":
            properties.setdefault(DELEGATION, "vended-credentials")
        return properties


def _sqlalchemy_uri(properties: Mapping[str, str]) -> str:
    """The database of a JDBC catalog in PyIceberg's words."""
    uri = properties["uri"].removeprefix("jdbc:")
    if uri.startswith("sqlite:"):
        return f"sqlite:///{uri.removeprefix('sqlite:').partition('?')[0]}"
    scheme, _, place = uri.partition("://")
    user, password = (quote(properties.get(f"jdbc.{k}", ""), safe="") for k in ("user", "password"))
    login = f"{user}:{password}@" if user else ""
    return f"{SQLALCHEMY_DRIVERS.get(scheme, scheme)}://{login}{place}"


def secret_properties(properties: Mapping[str, str]) -> list[str]:
    """Names of properties whose values must not be shown."""
    return [name for name in properties if re.search(SECRET, name)]
