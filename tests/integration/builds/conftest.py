"""The catalogs of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from tests.integration.builds.staged_builds import (
    drop_all,
)
from tests.lost_files import ForeignFiles
from tests.servers.rest_catalog import RestCatalog, rest_catalog


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(params=["sqlite", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[IcebergCatalog]:
    """A catalog with an empty namespace `s`."""
    foreign = ForeignFiles.create(tmp_path / "warehouse")
    if request.param == "sqlite":
        backend: Any = SqliteBackend("lake", tmp_path / "warehouse")
    else:
        server: RestCatalog = request.getfixturevalue("server")
        settings = CatalogSettings("lake", {"type": "rest", "uri": server.uri})
        backend = RemoteBackend(settings, Identity(LiteralToken(server.token("wanda"))))
    backend.create_namespace("s")
    lake = IcebergCatalog("lake", backend)
    yield lake
    drop_all(lake)
    foreign.assert_unchanged()
