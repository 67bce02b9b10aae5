"""Cached results of queries: as good as asking Spark, or not used.

A result is found by who asks, where, with which settings, what, and the version of each table that
is read. The versions are asked of the catalog for every query, as the user who asks, so that a
write by anybody, and a privilege that was taken away, is seen.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings, secret_properties
from dbt.adapters.iceberg_stream.engines.settings import prepare_home
from dbt.adapters.iceberg_stream.sessions.store import ResultStore, StoreError
from dbt.adapters.iceberg_stream.sql.queries import reads
from dbt.adapters.iceberg_stream.sql.repeatable import normal_form
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet, capture_read_set

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name

# What a catalog or its metadata may raise; Spark gets along with more of them than PyIceberg does.
UNTOLD = (CatalogError, OSError, sqlite3.Error, LookupError, ValueError)
Answer = TypeVar("Answer")
logger = AdapterLogger("Iceberg_Stream")


class ResultCache:
    """Answers queries from the store where that cannot be told from asking Spark. Thread-safe."""

    def __init__(
        self, store: ResultStore, catalog: IcebergCatalog, place: Mapping[str, str]
    ) -> None:
        self._store: ResultStore | None = store
        self._catalog = catalog
        self._place = place

    def find(self, sql: str, asker: Mapping[str, str]) -> CachedQuery | None:
        """A query that may be cached, and its tables as they are now; None for any other.

        `asker` is what else decides its rows: user, version of Spark, settings of the session.
        """
        if self._store is None or (form := normal_form(sql)) is None:
            return None
        read_set = self._read_set(sql)
        if read_set is None or None in map(normal_form, read_set.definitions):
            return None
        return CachedQuery(sql, read_set, self._key(form, read_set, asker))

    def get(self, query: CachedQuery) -> pa.Table | None:
        """Its rows; None if they are not there."""
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
        """Keep the rows that Spark gave, if no table has changed since the query was found."""
        if self._read_set(query.sql) != query.read_set:
            return
        relations = [_text(name) for name in query.read_set.versions]
        self._ask(lambda store: store.put(query.key, _as_bytes(rows), relations))

    def forget(self, name: Name) -> None:
        """Drop all results that read a table or view."""
        self._ask(lambda store: store.forget(_text(name)))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _read_set(self, sql: str) -> ReadSet | None:
        """What the query reads; None if the catalog or PyIceberg cannot tell."""
        try:
            # Temporary views are of one session only, so none is known here.
            return capture_read_set(self._catalog, reads(sql), {})
        except UNTOLD as error:
            logger.debug(f"Not cached: {error}")
            return None

    def _key(self, form: list[str], read_set: ReadSet, asker: Mapping[str, str]) -> str:
        versions = sorted((_text(name), version) for name, version in read_set.versions.items())
        parts = [form, versions, sorted(self._place.items()), sorted(asker.items())]
        return _digest(parts)

    def _ask(self, work: Callable[[ResultStore], Answer]) -> Answer | None:
        """A store that fails is not used any more: every query goes to Spark."""
        if self._store is None:
            return None
        try:
            return work(self._store)
        except StoreError as error:
            logger.warning(f"Results are not cached any more: {error}")
            self._store = None
            return None


@dataclass(frozen=True)
class CachedQuery:
    """A query whose rows may be kept: where they are found, and what they are made from."""

    sql: str
    read_set: ReadSet
    key: str


def open_results(
    catalog: IcebergCatalog, path: Path | None, limit: int, place: Mapping[str, str] | None
) -> ResultCache | None:
    """A cache in a file, or in memory without one; None, with a warning, where there can be none.

    `limit` in bytes; `place` as `place_of` gives it.
    """
    if place is None:
        logger.warning(
            "Results are not cached: with `cache-enabled` Spark itself may read old tables, and "
            "with `ambient_credentials` it is not known whose results they are."
        )
        return None
    try:
        if path is not None:
            prepare_home(path.parent)
        return ResultCache(ResultStore(path, limit), catalog, place)
    except (StoreError, OSError) as error:
        logger.warning(f"Results are not cached: {error}")
        return None


def place_of(
    catalog: CatalogSettings | None, warehouse: Path, server: str
) -> dict[str, str] | None:
    """What tells results of one place from another's, secrets as a digest; None if nothing does.

    Without a catalog it is the SQLite file in the warehouse; `server` is Spark's, where it is not
    the embedded one.
    """
    if catalog is None:
        return {"warehouse": str(warehouse)}
    if catalog.ambient or catalog.properties.get("cache-enabled", "false") != "false":
        return None
    secret = {name: catalog.properties[name] for name in secret_properties(catalog.properties)}
    known = {k: v for k, v in catalog.properties.items() if k not in secret}
    told_apart = {"secrets": _digest(sorted(secret.items())), "server": server}
    return known | told_apart | {"catalog": catalog.name}


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _text(name: Name) -> str:
    return json.dumps(name)


def _as_bytes(rows: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())
