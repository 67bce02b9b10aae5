"""The catalog of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.integration.writers import open_catalog


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A catalog with an empty namespace `s`."""
    lake = open_catalog({"folder": str(tmp_path / "warehouse")})
    lake.create_namespace("s")
    yield lake
    lake.close()
