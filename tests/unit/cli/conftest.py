"""A project with a SQLite catalog, for the commands of `iceberg-stream`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.unit.local_tables import make_catalog


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """The catalog of a project in the same folder."""
    profile = {
        "type": "iceberg_stream",
        "schema": "s",
        "database": "lake",
        "warehouse": str(tmp_path / "warehouse"),
        "engine_home": str(tmp_path / "engine"),
    }
    profiles = {"p": {"target": "dev", "outputs": {"dev": profile}}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))
    project = {"name": "p", "profile": "p", "config-version": 2}
    (tmp_path / "dbt_project.yml").write_text(json.dumps(project))
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()
