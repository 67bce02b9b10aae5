"""Fixtures that unit tests of several packages need."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from tests.servers.iceberg_parser import refusal
from tests.unit.local_tables import make_catalog


@pytest.fixture
def lake(tmp_path: Path, parser: None) -> Iterator[IcebergCatalog]:
    """A SQLite catalog of the test's own, with the namespace `s`.

    Iceberg's own parser must be able to read what the test leaves there.
    """
    made = make_catalog(tmp_path)
    yield made
    for name, _ in made.relations("s"):
        table = made.load(("s", name))
        assert table is not None
        assert refusal(table.location) is None
    made.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem`, which nobody else has signed, and `key.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder
