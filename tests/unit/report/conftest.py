"""A catalog of the test's own: some of its tables are damaged on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.unit.local_tables import make_catalog


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A SQLite catalog with the namespace `s`."""
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()
