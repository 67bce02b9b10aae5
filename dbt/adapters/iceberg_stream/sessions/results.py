"""Cached results of queries, which are used only if Spark would return the same rows.

The key of a result has the user, the catalog, the session's settings, the query, and the version
of each table that it reads. The versions are read from the catalog for every query, with the
user's token, so that writes and revoked privileges take effect.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings, secret_properties
from dbt.adapters.iceberg_stream.engines.settings import prepare_home
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.sessions.store import ResultStore, StoreError
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet, capture_read_set

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# Errors of a catalog or its metadata; Spark may still be able to run the query.
CATALOG_ERRORS = (CatalogError, OSError, sqlite3.Error, LookupError, ValueError)
Answer = TypeVar("Answer")
logger = Logger()


class ResultCache:
    """Returns cached rows of queries if Spark would return the same. Thread-safe.

    Args:
        store: the store of results.
        catalogs: the catalogs, with the user's tokens.
        key: identifies the catalogs and Spark's server; see `catalog_keys`.
    """

    def __init__(self, store: ResultStore, catalogs: Catalogs, key: Mapping[str, str]) -> None:
        self._store: ResultStore | None = store
        self._catalogs = catalogs
        self._catalog_key = key

    def find(self, sql: str, context: Mapping[str, str]) -> CachedQuery | None:
        """Return the cache's entry for a query, with the current versions of its tables.

        Args:
            sql: the query.
            context: what else determines its rows: user, Spark's version, settings of the session.

        Returns:
            The entry; None if the query's rows must not be cached.
        """
        if self._store is None:
            return None
        from dbt.adapters.iceberg_stream.sql.repeatable import normal_form

        if (form := normal_form(sql)) is None:
            return None
        read_set = self._read_set(sql)
        if read_set is None or None in map(normal_form, read_set.definitions):
            return None
        return CachedQuery(sql, read_set, self._key(form, read_set, context))

    def get(self, query: CachedQuery) -> pa.Table | None:
        """Return the cached rows of a query; None if there are none.

        Args:
            query: the entry that `find` returned.
        """
        import pyarrow as pa

        body = self._ask(lambda store: store.get(query.key))
        if body is None:
            return None
        try:
            return pa.ipc.open_stream(body).read_all()
        except (ValueError, OSError) as error:
            logger.debug(f"A cached result cannot be read: {error}")
            return None

    def put(self, query: CachedQuery, rows: pa.Table) -> None:
        """Cache the rows of a query, unless a table has changed since `find`.

        Args:
            query: the entry that `find` returned.
            rows: the rows that Spark returned.
        """
        if self._read_set(query.sql) != query.read_set:
            return
        relations = [_text(name) for name in query.read_set.versions]
        self._ask(lambda store: store.put(query.key, _as_bytes(rows), relations))

    def forget(self, name: QualifiedName) -> None:
        """Drop all results that read a table or view.

        Args:
            name: the relation.
        """
        self._ask(lambda store: store.forget(_text(name)))

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _read_set(self, sql: str) -> ReadSet | None:
        """Return the query's read set; None if it is unknown."""
        from dbt.adapters.iceberg_stream.sql.queries import reads

        try:
            # Temporary views belong to one session, so queries of them are not cached.
            read_set = capture_read_set(self._catalogs, reads(sql), {})
        except CATALOG_ERRORS as error:
            logger.debug(f"Not cached: {error}")
            return None
        return read_set if read_set.is_complete else None

    def _key(self, form: list[str], read_set: ReadSet, context: Mapping[str, str]) -> str:
        # The rows of a tag are those of its snapshot, whatever else changes in the table, and those
        # of a view, which has no schema here, are those of its tables.
        fixed = {name for name, versions in read_set.as_of.items() if None not in versions}
        versions = sorted(
            (_text(name), version[:3] if name in fixed or version[2] is None else version)
            for name, version in read_set.versions.items()
        )
        parts = [form, versions, sorted(self._catalog_key.items()), sorted(context.items())]
        return _digest(parts)

    def _ask(self, work: Callable[[ResultStore], Answer]) -> Answer | None:
        """Call the store; after an error it is not used again, and all queries go to Spark."""
        if self._store is None:
            return None
        try:
            return work(self._store)
        except StoreError as error:
            logger.warning(f"Results are no longer cached: {error}")
            self._store = None
            return None


@dataclass(frozen=True)
class CachedQuery:
    """A query whose rows may be cached.

    Attributes:
        sql: the query.
        read_set: versions of the tables that it reads.
        key: of the result in the store.
    """

    sql: str
    read_set: ReadSet
    key: str


def open_results(
    catalogs: Catalogs, path: Path | None, limit: int, key: Mapping[str, str] | None
) -> ResultCache | None:
    """Open a result cache.

    Args:
        catalogs: the catalogs, with the user's tokens.
        path: of the file; None for a cache in memory.
        limit: size of all results, in bytes.
        key: the result of `catalog_keys`.

    Returns:
        The cache; None, after a warning, if it cannot be used.
    """
    if key is None:
        logger.warning(
            "Results are not cached: with `cache-enabled` Spark itself may read old versions of "
            "tables, and with `ambient_credentials` the user is unknown."
        )
        return None
    try:
        if path is not None:
            prepare_home(path.parent)
        return ResultCache(ResultStore(path, limit), catalogs, key)
    except (StoreError, OSError) as error:
        logger.warning(f"Results are not cached: {error}")
        return None


def catalog_keys(
    catalogs: Sequence[tuple[CatalogSettings | None, Path]], server: str
) -> dict[str, str] | None:
    """Return what identifies the catalogs of a profile and Spark's server.

    Args:
        catalogs: settings and warehouse folder of each, the profile's own catalog first.
        server: address of Spark's server, if it is not the embedded engine.

    Returns:
        The key; None if results must not be cached with these settings.
    """
    keys: list[dict[str, str]] = []
    for settings, warehouse in catalogs:
        if (key := catalog_key(settings, warehouse, server)) is None:
            return None
        keys.append(key)
    own, *others = keys
    return own | ({"others": _digest([sorted(key.items()) for key in others])} if others else {})


def catalog_key(
    catalog: CatalogSettings | None, warehouse: Path, server: str
) -> dict[str, str] | None:
    """Return what identifies the catalog and Spark's server; secrets as a digest.

    Args:
        catalog: the profile's catalog; None for the SQLite file in the warehouse.
        warehouse: folder of the SQLite catalog.
        server: address of Spark's server, if it is not the embedded engine.

    Returns:
        The key; None if results must not be cached with these settings.
    """
    if catalog is None:
        return {"warehouse": str(warehouse)}
    if catalog.ambient or reads_old_versions(catalog):
        return None
    secret = {name: catalog.properties[name] for name in secret_properties(catalog.properties)}
    public = {k: v for k, v in catalog.properties.items() if k not in secret}
    digests = {"secrets": _digest(sorted(secret.items())), "server": server}
    return public | digests | {"catalog": catalog.name}


def reads_old_versions(catalog: CatalogSettings | None) -> bool:
    """Return whether Spark may read old versions of a catalog's tables.

    Args:
        catalog: its settings; None for the SQLite file in the warehouse.
    """
    return catalog is not None and catalog.properties.get("cache-enabled", "false") != "false"


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _text(name: QualifiedName) -> str:
    return json.dumps(name)


def _as_bytes(rows: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())
