"""What the connections of one command share, made when first asked for."""

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
    """The engine, the user's token, the catalog and the cache of a profile. Thread-safe."""

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
        """Where Spark runs; it is not started yet."""
        with self._lock:
            if self._engine is None:
                self._engine = make_engine(self._credentials, self._project_root)
            return self._engine

    @property
    def identity(self) -> Identity | None:
        """The user's token, one for the whole command; None where the profile has none."""
        with self._lock:
            if self._identity is None:
                self._identity = self._credentials.identity(self._project_root)
            return self._identity

    @property
    def catalog(self) -> IcebergCatalog:
        """The Iceberg catalog, as the user."""
        with self._lock:
            if self._catalog is None:
                self._catalog = make_catalog(self._credentials, self._project_root, self.identity)
            return self._catalog

    @property
    def results(self) -> ResultCache | None:
        """The cache of query results; None where the profile wants none, or it cannot be opened."""
        if self._credentials.result_cache in NO_CACHE:
            return None
        with self._lock:
            if not self._results_opened:
                self._results = self._open_results()
                self._results_opened = True
            return self._results

    def _open_results(self) -> ResultCache | None:
        from dbt.adapters.iceberg_stream.sessions.results import open_results, place_of

        credentials = self._credentials
        place = place_of(
            credentials.catalog_settings(),
            credentials.warehouse_path(self._project_root),
            f"{credentials.host}:{credentials.port}",
        )
        home = credentials.engine_path(self._project_root)
        path = home / "results.db" if credentials.result_cache == "disk" else None
        limit = in_bytes(credentials.result_cache_size)
        return open_results(self.catalog, path, limit, place)

    def close(self) -> None:
        """Close what was opened; a later use opens it again."""
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
