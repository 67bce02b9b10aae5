"""One engine and one warehouse for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.embedded import stop

pytest_plugins = ["dbt.tests.fixtures.project"]


@pytest.fixture(scope="session")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the warehouse and the engine's state; the engine stops with the session."""
    folder = tmp_path_factory.mktemp("lakehouse")
    yield folder
    stop(folder / "engine")


@pytest.fixture(scope="class")
def dbt_profile_target(lakehouse: Path) -> dict[str, object]:
    return {
        "type": "iceberg_stream",
        "threads": 4,
        "warehouse": str(lakehouse / "warehouse"),
        "engine_home": str(lakehouse / "engine"),
        "keep_alive": 120,
        "progress": False,
    }
