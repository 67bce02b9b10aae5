"""What a profile says of one Iceberg catalog: where it is, and whose token it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import (
    ClientCredentials,
    LiteralToken,
    TokenCommand,
    TokenFile,
)
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.profile.validation import OAUTH2_KEYS


@dataclass(frozen=True)
class CatalogProfile:
    """One catalog of a profile; the attributes are keys of the profile.

    Attributes:
        name: the catalog's name in SQL: `database` in dbt.
        catalog_properties: of a catalog on a server or in a database; without them it is a SQLite
            file in the warehouse folder.
        warehouse: folder of a SQLite catalog; relative to the project.
        token: the user's bearer token for the catalog.
        token_file: file with the token.
        token_command: command that prints the token.
        oauth2: client credentials that get the token.
        ambient_credentials: let clients search the environment for storage credentials.
        allow_plaintext: let secrets be sent to other machines without TLS, in a closed network.
    """

    name: str
    catalog_properties: Mapping[str, Any] = field(default_factory=dict, repr=False)
    warehouse: str = ""
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_command: str | None = field(default=None, repr=False)
    oauth2: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ambient_credentials: bool = False
    allow_plaintext: bool = False

    def settings(self) -> CatalogSettings | None:
        """Return the catalog's settings; None for a SQLite catalog."""
        if not self.catalog_properties:
            return None
        properties = {str(k): _text(v) for k, v in self.catalog_properties.items()}
        return CatalogSettings(
            self.name,
            {"type": "rest"} | properties,
            self.ambient_credentials,
            self.allow_plaintext,
        )

    def identity(self, project_root: str | Path) -> Identity | None:
        """Return the user's token for the catalog; None if the profile has none.

        Args:
            project_root: folder of the dbt project, for a relative `token_file`.
        """
        if self.token:
            return Identity(LiteralToken(self.token))
        if self.token_file:
            return Identity(TokenFile(Path(project_root) / Path(self.token_file).expanduser()))
        if self.token_command:
            return Identity(TokenCommand(self.token_command))
        if self.oauth2:
            parameters = {str(k): str(v) for k, v in self.oauth2.items()}
            uri, client, secret = (parameters.pop(key) for key in OAUTH2_KEYS)
            return Identity(ClientCredentials(uri, client, secret, parameters))
        return None

    def warehouse_path(self, project_root: str | Path) -> Path:
        """Return the absolute path of the folder of a SQLite catalog and its tables."""
        return (Path(project_root) / Path(self.warehouse).expanduser()).resolve()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
