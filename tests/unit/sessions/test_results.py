"""Cached results over a catalog whose tables are written by others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.sessions.results import ResultCache, catalog_key
from dbt.adapters.iceberg_stream.sessions.store import ResultStore
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

ROWS = pa.table({"a": [1, 2]})
QUERY = "select a from s.t"
UMA = {"owner": "uma", "version": "4.1.1"}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    ingest(lake, ("s", "t"), ROWS.to_reader(), Mode.CREATE)
    yield lake
    lake.close()


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "r.db", 1 << 20)


@pytest.fixture
def cache(lake: IcebergCatalog, store: ResultStore) -> ResultCache:
    cache = ResultCache(store, one_catalog(lake), {"warehouse": "here"})
    keep(cache)
    return cache


def keep(cache: ResultCache, sql: str = QUERY) -> None:
    query = cache.find(sql, UMA)
    assert query is not None
    cache.put(query, ROWS)


def actual(cache: ResultCache, sql: str = QUERY, context: dict[str, str] = UMA) -> pa.Table | None:
    query = cache.find(sql, context)
    assert query is not None
    return cache.get(query)


def test_a_result_is_found(cache: ResultCache) -> None:
    assert actual(cache, "select a -- again\nfrom s.t") == ROWS


@pytest.mark.parametrize("other", [{"owner": "ugo"}, {"version": "4.2.0"}, {"setting": "x"}])
def test_not_by_another_asker(cache: ResultCache, other: dict[str, str]) -> None:
    assert actual(cache, context=UMA | other) is None


def test_not_in_another_catalog(
    cache: ResultCache, store: ResultStore, lake: IcebergCatalog
) -> None:
    assert actual(ResultCache(store, one_catalog(lake), {"warehouse": "there"})) is None


def test_not_with_other_secrets() -> None:
    """Users may be told apart by a header or a key, too."""

    def place(**properties: str) -> dict[str, str] | None:
        settings = CatalogSettings("lake", {"type": "rest", "uri": "u", **properties})
        return catalog_key(settings, Path("w"), "localhost:1")

    uma, ugo = place(**{"header.X-User": "uma"}), place(**{"header.X-User": "ugo"})
    assert uma and ugo and uma != ugo
    assert "uma" not in str(uma)
    assert place(**{"cache-enabled": "true"}) is None
    ambient = CatalogSettings("lake", {"type": "glue"}, ambient=True)
    assert catalog_key(ambient, Path("w"), "localhost:1") is None


def test_not_after_a_write(cache: ResultCache, lake: IcebergCatalog) -> None:
    ingest(lake, ("s", "t"), ROWS.to_reader())
    assert actual(cache) is None


def test_not_after_the_schema_has_changed(cache: ResultCache, lake: IcebergCatalog) -> None:
    with lake.table(("s", "t")).update_schema() as update:
        update.rename_column("a", "b")
    assert actual(cache) is None


def test_not_when_the_table_was_rolled_back(cache: ResultCache, lake: IcebergCatalog) -> None:
    table = lake.table(("s", "t"))
    before = table.current_snapshot().snapshot_id
    table.append(ROWS)
    table.manage_snapshots().set_current_snapshot(before).commit()
    assert lake.table(("s", "t")).current_snapshot().snapshot_id == before
    assert actual(cache) is None


def test_not_when_it_was_dropped_and_made_anew(cache: ResultCache, lake: IcebergCatalog) -> None:
    drop_table(lake, ("s", "t"))
    assert cache.find(QUERY, UMA) is None
    ingest(lake, ("s", "t"), ROWS.to_reader(), Mode.CREATE)
    assert actual(cache) is None


def test_rows_are_not_kept_when_a_table_has_changed_meanwhile(
    cache: ResultCache, lake: IcebergCatalog
) -> None:
    query = cache.find("select max(a) from s.t", UMA)
    assert query is not None
    ingest(lake, ("s", "t"), ROWS.to_reader())
    cache.put(query, ROWS)
    assert cache.get(query) is None


def test_the_relation_is_forgotten(cache: ResultCache) -> None:
    query = cache.find(QUERY, UMA)
    assert query is not None
    cache.forget(("s", "u"))
    assert cache.get(query) == ROWS
    cache.forget(("s", "t"))
    assert cache.get(query) is None


@pytest.mark.parametrize(
    "sql",
    ["select * from s.none", "select * from a_view", "select * from other.s.t", "select rand()"],
)
def test_what_cannot_be_known_is_not_cached(cache: ResultCache, sql: str) -> None:
    assert cache.find(sql, UMA) is None


def test_metadata_that_cannot_be_read(
    store: ResultStore, lake: IcebergCatalog, tmp_path: Path
) -> None:
    table = lake.load(("s", "t"))
    assert table is not None
    Path(table.location.removeprefix("file://")).write_text("{}")
    another = IcebergCatalog("lake", SqliteBackend("lake", tmp_path))
    assert ResultCache(store, one_catalog(another), {}).find(QUERY, UMA) is None


def test_a_store_that_fails_is_left(cache: ResultCache, store: ResultStore) -> None:
    query = cache.find(QUERY, UMA)
    assert query is not None
    store._db.execute("drop table results")
    assert cache.get(query) is None
    assert cache.find(QUERY, UMA) is None


def test_a_version_is_cached_until_its_tag_moves(cache: ResultCache, lake: IcebergCatalog) -> None:
    def tag(name: str) -> None:
        table = lake.table(("s", "t"))
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, name).commit()

    tag("closing")
    first = lake.table(("s", "t")).current_snapshot().snapshot_id
    fixed = [
        f"select a from s.t version as of {first}",
        "select a from s.t version as of 'closing'",
    ]
    for sql in fixed:
        keep(cache, sql)
    ingest(lake, ("s", "t"), ROWS.to_reader(), Mode.APPEND)
    for sql in fixed:
        assert actual(cache, sql) == ROWS
    assert actual(cache) is None
    query = cache.find(fixed[1], {"setting": "x"})
    assert query is not None
    table = lake.table(("s", "t"))
    table.manage_snapshots().remove_tag("closing").commit()
    tag("closing")
    second = lake.table(("s", "t")).current_snapshot().snapshot_id
    assert actual(cache, fixed[0]) == ROWS
    assert actual(cache, fixed[1]) is None
    keep_both = lake.table(("s", "t"))
    keep_both.manage_snapshots().create_tag(first, "closing").commit()
    # The rows may be those that the tag had meanwhile.
    cache.put(query, ROWS)
    assert cache.get(query) is None
    assert second != first
