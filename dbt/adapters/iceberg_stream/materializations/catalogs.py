"""What dbt asks of the catalogs, and those that catalogs.yml adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.meta import AdapterMeta
from dbt.adapters.catalogs import CatalogIntegration, CatalogIntegrationConfig
from dbt.adapters.contracts.connection import AdapterResponse
from dbt_common.exceptions import DbtConfigError

from dbt.adapters.iceberg_stream.relation import published_name, table_name

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName

ICEBERG, DEFAULT, PARQUET = "iceberg", "default", "parquet"
SQLITE = "sqlite"
# `type` in `catalog_properties` by `catalog_type` in catalogs.yml; a SQLite catalog has none.
CATALOG_TYPES = {"iceberg_rest": "rest", "glue": "glue", "hive": "hive", "jdbc": "jdbc"}
CATALOGS_FILE = "catalogs.yml"


@dataclass
class CatalogRelation:
    """What a model with `catalog_name` gets: `catalog_database` becomes its database."""

    catalog_name: str | None
    catalog_database: str | None
    table_format: str | None = ICEBERG
    external_volume: str | None = None
    file_format: str | None = None


class IcebergCatalogIntegration(CatalogIntegration):
    """A catalog of catalogs.yml."""

    table_format = ICEBERG
    allows_writes = True

    def build_relation(self, config: Any) -> CatalogRelation:
        """Return where a model of this catalog is built."""
        return CatalogRelation(self.name, self.name)


class CatalogHooks(metaclass=AdapterMeta):
    """The part of the adapter that reads catalogs for dbt."""

    config: Any
    connections: Any
    bridge_v2_catalog: Any
    _integrations: dict[str, CatalogIntegration]
    CATALOG_INTEGRATIONS: Iterable[type[CatalogIntegration]] = [
        type(f"{kind}_integration", (IcebergCatalogIntegration,), {"catalog_type": kind})
        for kind in (*CATALOG_TYPES, SQLITE)
    ]

    @property
    def catalog(self) -> IcebergCatalog:
        """The profile's own catalog."""
        return self.catalogs.own

    @property
    def catalogs(self) -> Catalogs:
        """The profile's catalogs."""
        catalogs: Catalogs = self.connections.resources.catalogs
        return catalogs

    def catalog_of(self, relation: BaseRelation) -> IcebergCatalog:
        """Return the catalog of a relation, or the profile's own for a query in its place."""
        return self.catalogs.get(getattr(relation, "database", None))

    def qualified_name(self, relation: BaseRelation) -> QualifiedName:
        """Return where a relation is read and written, with its catalog if it is another one."""
        return self.catalogs.qualified(relation.database, table_name(relation))

    def open_catalogs(self) -> None:
        """Add the catalogs of catalogs.yml, which dbt itself reads only in some commands."""
        self._integrations = {}
        if not (self.connections.project_root / CATALOGS_FILE).is_file():
            return
        from dbt.config import catalogs as catalogs_yml
        from dbt.flags import get_flags

        config = self.config
        place = (config.project_root, config.project_name, getattr(config, "cli_vars", None) or {})
        if getattr(get_flags(), "USE_CATALOGS_V2", False):
            # dbt 1.12, which is not the dbt that types are checked with.
            load_v2: Any = catalogs_yml.load_catalogs_v2  # type: ignore[attr-defined]
            integrations = [self.bridge_v2_catalog(each) for each in load_v2(*place)]
        else:
            active = catalogs_yml.get_active_write_integration
            integrations = [active(each) for each in catalogs_yml.load_catalogs(*place)]
        for integration in filter(None, integrations):
            self.add_catalog_integration(integration)

    def add_catalog_integration(
        self, catalog_integration: CatalogIntegrationConfig
    ) -> CatalogIntegration:
        """Add a catalog of catalogs.yml; it may only name one that the profile defines."""
        name = catalog_integration.name
        if name in self._integrations:
            return self._integrations[name]
        integration: CatalogIntegration = super().add_catalog_integration(  # type: ignore[misc]
            catalog_integration
        )
        credentials, keys = self.connections.credentials, catalog_keys(catalog_integration)
        if keys or not (name == credentials.database or name in credentials.catalogs):
            credentials.add_catalog(name, keys)
        self._integrations[name] = integration
        return integration

    def list_schemas(self, database: str) -> list[str]:
        """Return the namespaces of a catalog."""
        return self.catalogs.get(database).namespaces()

    @available.parse(lambda *a, **k: False)
    def check_schema_exists(self, database: str, schema: str) -> bool:
        """Return whether a catalog has a namespace."""
        return self.catalogs.get(database).namespace_exists(schema)

    def _get_one_catalog(
        self, information_schema: Any, schemas: set[str], used_schemas: frozenset[tuple[str, str]]
    ) -> agate.Table:
        from dbt.adapters.iceberg_stream.catalog.docs import catalog_table

        catalog = self.catalogs.find_catalog(information_schema.database)
        described = (catalog.describe(schema) for schema in sorted(schemas)) if catalog else ()
        tables = (item for items in described for item in items)
        return self._filtered(catalog_table(information_schema.database, tables), used_schemas)

    def _get_one_catalog_by_relations(
        self,
        information_schema: Any,
        relations: list[BaseRelation],
        used_schemas: frozenset[tuple[str, str]],
    ) -> agate.Table:
        from dbt.adapters.iceberg_stream.catalog.docs import catalog_table, describe

        catalog = self.catalogs.find_catalog(information_schema.database)
        names = (published_name(relation) for relation in relations)
        described = describe(catalog, names) if catalog else ()
        return self._filtered(catalog_table(information_schema.database, described), used_schemas)

    def _filtered(self, table: agate.Table, used_schemas: frozenset[tuple[str, str]]) -> Any:
        return self._catalog_filter_table(table, used_schemas)  # type: ignore[attr-defined]

    def get_catalog_for_single_relation(self, relation: BaseRelation) -> Any:
        """Return what `dbt docs` shows of one relation; None if there is none."""
        from dbt.adapters.iceberg_stream.catalog.docs import describe, single_relation

        if (catalog := self.catalogs.find_catalog(relation.database)) is None:
            return None
        described = describe(catalog, [published_name(relation)])
        return single_relation(catalog.name, described[0]) if described else None

    def calculate_freshness(
        self, source: Any, loaded_at_field: str, filter: str | None, macro_resolver: Any = None
    ) -> Any:
        """Return the freshness of a source by a column, also of one that is no table."""
        return super().calculate_freshness(  # type: ignore[misc]
            source.as_read(), loaded_at_field, filter, macro_resolver
        )

    def calculate_freshness_from_metadata_batch(
        self, sources: list[BaseRelation], macro_resolver: Any = None
    ) -> tuple[list[AdapterResponse | None], dict[BaseRelation, Any]]:
        """Return the freshness of tables from their current snapshots, without a statement."""
        now = datetime.now(timezone.utc)
        freshness = {
            source: self._create_freshness_response(  # type: ignore[attr-defined]
                self.catalog_of(source).last_modified(table_name(source)), now
            )
            for source in sources
        }
        return [AdapterResponse("OK")], freshness


def catalog_keys(config: CatalogIntegrationConfig) -> dict[str, Any]:
    """Return the keys of `catalogs` that a catalog of catalogs.yml stands for.

    Args:
        config: its active write integration.

    Raises:
        DbtConfigError: it asks for what this adapter does not have.
    """
    place = f"The write integration `{config.catalog_name}` of `{config.name}` in {CATALOGS_FILE}"
    if (config.table_format or ICEBERG).lower() not in (ICEBERG, DEFAULT):
        raise DbtConfigError(
            f"{place} has `table_format: {config.table_format}`. The adapter writes only Iceberg "
            "tables: remove the key."
        )
    if (config.file_format or PARQUET).lower() != PARQUET:
        raise DbtConfigError(
            f"{place} has `file_format: {config.file_format}`. Remove the key. To choose the "
            "format of a model's files, set `table_properties: {write.format.default: orc}`."
        )
    if config.external_volume:
        raise DbtConfigError(
            f"{place} has `external_volume`, which this adapter does not use. Remove the key; "
            "`warehouse` in `catalog_properties` says where the catalog keeps its tables."
        )
    keys = dict(config.adapter_properties or {})
    kind = CATALOG_TYPES.get(config.catalog_type.lower())
    properties = keys.get("catalog_properties")
    if kind and keys and isinstance(properties, Mapping | None):
        keys["catalog_properties"] = {"type": kind, **(properties or {})}
    return keys
