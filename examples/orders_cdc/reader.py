"""Read the lakehouse's tables with DuckDB while streams write them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import duckdb

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog

SCHEMA = "shop"
# Columns to compare with the shop's rows; times in milliseconds.
COLUMNS = {
    "customers_history": "customer_id, name, city, epoch_ms(__START_AT), epoch_ms(__END_AT)",
    "orders": "order_id, customer_id, status, epoch_ms(updated_at)",
    "order_items": "item_id, order_id, product, quantity, price, epoch_ms(updated_at)",
    "revenue_by_status": "status, orders, revenue",
}


class Reader:
    """Reads with DuckDB, which is independent of the adapter."""

    def __init__(self, lake: IcebergCatalog) -> None:
        self._lake = lake
        self._duckdb = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        for extension in ("avro", "iceberg"):
            package = importlib.util.find_spec(f"duckdb_extension_{extension}")
            assert package is not None and package.origin is not None
            (extension,) = Path(package.origin).parent.rglob("*.duckdb_extension")
            self._duckdb.execute(f"load '{extension}'")

    def rows(self, table: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Return the rows of a table's current snapshot; none if there is no table yet."""
        loaded = self._lake.load((SCHEMA, table))
        if loaded is None or loaded.metadata.get("current-snapshot-id") in (None, -1):
            return []
        location = loaded.location.removeprefix("file://")
        query = f"select {columns} from iceberg_scan('{location}') where {where}"
        return self._duckdb.execute(query).fetchall()
