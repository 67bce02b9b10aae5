"""Resources that the connections of one command share, opened on first use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.profile.factory import make_catalog, make_engine
from dbt.adapters.iceberg_stream.profile.validation import NO_CACHE, in_bytes

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
    from dbt.adapters.iceberg_stream.engines.engine import Engine
    from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
    from dbt.adapters.iceberg_stream.sessions.results import ResultCache


class Resources:
    """The engine, the user's token, the catalog and the result cache of a profile. Thread-safe.

    Args:
        credentials: the profile.
        project_root: folder of the dbt project.
    """

    def __init__(self, credentials: IcebergStreamCredentials, project_root: Path) -> None:
        self._credentials = credentials
        self._project_root = project_root
        # Reentrant: the cache needs the catalog, and the catalog the token.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._identity: Identity | None = None
        self._catalog: IcebergCatalog | None = None
        self._results: ResultCache | None = None
        self._results_opened = False

    @property
    def engine(self) -> Engine:
        """The engine on which Spark runs; it may not be started yet."""
        with self._lock:
            if self._engine is None:
                self._engine = make_engine(self._credentials, self._project_root)
            return self._engine

    @property
    def identity(self) -> Identity | None:
        """The user's token for the whole command; None if the profile has none."""
        with self._lock:
            if self._identity is None:
                self._identity = self._credentials.identity(self._project_root)
            return self._identity

    @property
    def catalog(self) -> IcebergCatalog:
        """The Iceberg catalog, with the user's token."""
        with self._lock:
            if self._catalog is None:
                self._catalog = make_catalog(self._credentials, self._project_root, self.identity)
            return self._catalog

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
        from dbt.adapters.iceberg_stream.sessions.results import catalog_key, open_results

        credentials = self._credentials
        key = catalog_key(
            credentials.catalog_settings(),
            credentials.warehouse_path(self._project_root),
            f"{credentials.host}:{credentials.port}",
        )
        home = credentials.engine_path(self._project_root)
        path = home / "results.db" if credentials.result_cache == "disk" else None
        limit = in_bytes(credentials.result_cache_size)
        return open_results(self.catalog, path, limit, key)

    def close(self) -> None:
        """Close all resources; a later use opens them again."""
        with self._lock:
            if self._results is not None:
                self._results.close()
            self._results, self._results_opened = None, False
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None
            if self._engine is not None:
                self._engine.release()
                self._engine = None
