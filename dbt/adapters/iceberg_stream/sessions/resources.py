"""Resources that the connections of one command share, opened on first use."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.profile.factory import make_catalog, make_engine
from dbt.adapters.iceberg_stream.profile.validation import NO_CACHE, in_bytes
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
    from dbt.adapters.iceberg_stream.engines.engine import Engine
    from dbt.adapters.iceberg_stream.profile.catalog_profile import CatalogProfile
    from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
    from dbt.adapters.iceberg_stream.sessions.results import ResultCache
    from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables


class Resources:
    """The engine, the user's token, the catalog and the result cache of a profile. Thread-safe.

    Args:
        credentials: the profile.
        project_root: folder of the dbt project.

    Attributes:
        reach: which tables this process can write in place of Spark.
    """

    def __init__(self, credentials: IcebergStreamCredentials, project_root: Path) -> None:
        self._credentials = credentials
        self._project_root = project_root
        # Reentrant: the cache needs the catalog, and the catalog the token.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._identities: dict[str, Identity] | None = None
        self._catalogs: Catalogs | None = None
        self._results: ResultCache | None = None
        self._results_opened = False
        self._small_tables: SmallTables | None = None
        self.reach = StorageReach(is_remote=credentials.method == "connect")

    @property
    def engine(self) -> Engine:
        """The engine on which Spark runs; it may not be started yet."""
        with self._lock:
            if self._engine is None:
                self._engine = make_engine(self._credentials, self._project_root)
            return self._engine

    @property
    def identities(self) -> Mapping[str, Identity]:
        """The user's tokens for the whole command, by the catalog that gets them.

        The profile's own catalog comes first. Catalogs without a token are left out.
        """
        with self._lock:
            if self._identities is None:
                profiles, root = self._credentials.all_catalogs(), self._project_root
                tokens = {profile.name: profile.identity(root) for profile in profiles}
                self._identities = {name: token for name, token in tokens.items() if token}
            return self._identities

    @property
    def catalogs(self) -> Catalogs:
        """The Iceberg catalogs, each with the user's token for it."""
        with self._lock:
            if self._catalogs is None:
                openers = {p.name: partial(self._open, p) for p in self._credentials.all_catalogs()}
                self._catalogs = Catalogs(self._credentials.database, openers)
            return self._catalogs

    @property
    def catalog(self) -> IcebergCatalog:
        """The profile's own catalog, with the user's token."""
        return self.catalogs.own

    def _open(self, profile: CatalogProfile) -> IcebergCatalog:
        return make_catalog(profile, self._project_root, self.identities.get(profile.name))

    @property
    def results(self) -> ResultCache | None:
        """The cache of query results; None if the profile has none or it cannot be opened."""
        if self._credentials.result_cache in NO_CACHE:
            return None
        with self._lock:
            if not self._results_opened:
                self._results = self._open_results()
                self._results_opened = True
            return self._results

    def _open_results(self) -> ResultCache | None:
        from dbt.adapters.iceberg_stream.sessions.results import catalog_keys, open_results

        credentials = self._credentials
        root, server = self._project_root, f"{credentials.host}:{credentials.port}"
        profiles = self._credentials.all_catalogs()
        key = catalog_keys([(p.settings(), p.warehouse_path(root)) for p in profiles], server)
        home = credentials.engine_path(self._project_root)
        path = home / "results.db" if credentials.result_cache == "disk" else None
        limit = in_bytes(credentials.result_cache_size)
        return open_results(self.catalogs, path, limit, key)

    @property
    def small_tables(self) -> SmallTables | None:
        """What replaces small tables; None if Spark writes all tables."""
        from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables, writes_as_spark
        from dbt.adapters.iceberg_stream.sessions.table_sizes import TableSizes

        profile = self._credentials
        most_rows = profile.most_rows_of_small_tables
        if not most_rows or not writes_as_spark(profile.spark_conf):
            return None
        with self._lock:
            if self._small_tables is None:
                # In a file, metadata costs no request.
                remembers = any(c.settings() is not None for c in profile.all_catalogs())
                sizes = TableSizes(self.catalogs, most_rows, remembers)
                self._small_tables = SmallTables(self.catalogs, sizes, self.reach)
            return self._small_tables

    def close(self) -> None:
        """Close all resources; a later use opens them again."""
        with self._lock:
            self._small_tables = None
            if self._results is not None:
                self._results.close()
            self._results, self._results_opened = None, False
            if self._catalogs is not None:
                self._catalogs.close()
                self._catalogs = None
            if self._engine is not None:
                self._engine.release()
                self._engine = None
