"""Which properties configure PyIceberg's clients: the catalog's, never those of a table.

The owner of a table chooses its properties. PyIceberg merges them into those of the client, where
they could name Python code, another endpoint or other credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.storage import catalog_io

if TYPE_CHECKING:
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.table import Table

# Where a table's files are written (PyIceberg's documentation, "Write options").
LOCATION_SETTINGS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.enabled",
    "write.object-storage.partitioned-paths",
)
# Table properties that name a class, which Spark or PyIceberg loads and calls.
CODE_SETTINGS = ("write.location-provider.impl", "write.py-location-provider.impl")


def location_provider(location: str, properties: Mapping[str, str]) -> LocationProvider:
    """Return PyIceberg's location provider of a table, which is not code that the table names.

    Args:
        location: the table's.
        properties: the table's.
    """
    settings = {k: properties[k] for k in LOCATION_SETTINGS if k in properties}
    return load_location_provider(location, settings)


def code_settings(properties: Mapping[str, Any]) -> list[str]:
    """Return the names of a table's properties that make its readers run code.

    Args:
        properties: the table's.
    """
    return [name for name in CODE_SETTINGS if properties.get(name)]


def is_own(name: str) -> bool:
    """Return whether only the profile, not the server of the catalog, may set a property.

    These are the names of code, how requests are authenticated, and this package's own.
    """
    return name.endswith("impl") or name.startswith(("auth", "iceberg-stream."))


def from_server(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a catalog's server may configure.

    Args:
        properties: from its configuration or with a table.
    """
    return {k: v for k, v in properties.items() if not is_own(k)}


def ignore_table_properties(client: MetastoreCatalog) -> MetastoreCatalog:
    """Keep the properties of tables from configuring a PyIceberg client.

    Args:
        client: of a catalog whose tables the client itself loads, such as Hive's.
    """
    stage = client._update_and_stage_table

    def load_file_io(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        # `properties` are the table's.
        return catalog_io(client.properties, location or "")

    def update_and_stage_table(current: Table | None, name: Identifier, *changes: Any) -> Any:
        if current and (code := code_settings(current.properties)):
            raise CatalogError(
                f"{'.'.join(name)} has the property {code[0]}, which names code to run in each "
                "writer. Remove it with `alter table … unset tblproperties`."
            )
        return stage(current, name, *changes)

    client._load_file_io = load_file_io  # type: ignore[method-assign]
    client._update_and_stage_table = update_and_stage_table  # type: ignore[method-assign, assignment]
    return client
