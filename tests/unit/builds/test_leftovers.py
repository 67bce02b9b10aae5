"""What killed runs leave between the drop of a relation and the rename of its new version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.builds.leftovers import (
    clear_leftovers,
    drop_unfinished,
    list_leftovers,
)
from dbt.adapters.iceberg_stream.builds.names import replaced_name
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from tests.unit.catalog.test_locations import VIEW
from tests.unit.local_tables import NAME, load, make_catalog, make_table, set_metadata

STAGED, OLDER = ("s", "t__dbt_staged_0123456789ab"), ("s", "t__dbt_staged_ffffffffffff")
HOUR_MS = 60 * 60 * 1000


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def make_old(lake: IcebergCatalog, name: Name, hours: float) -> str:
    uuid = make_table(lake, name=name).metadata["table-uuid"]
    set_metadata(lake, name, last_updated_ms=int(time.time() * 1000 - hours * HOUR_MS))
    return str(uuid)


def test_names() -> None:
    assert replaced_name(STAGED[1]) == "t"
    others = ("t", "t__dbt_staged_", "__dbt_staged_0123456789ab", "t__dbt_staged_0123456789abc")
    assert [replaced_name(name) for name in others] == [None] * 4


def test_a_young_one_may_belong_to_a_run(lake: IcebergCatalog) -> None:
    make_old(lake, STAGED, 0.9)
    assert list_leftovers(lake, ["s"]) == clear_leftovers(lake, NAME) == []
    assert lake.relations("s") == [(STAGED[1], "table")]


def test_the_last_one_gets_a_free_name(lake: IcebergCatalog) -> None:
    make_old(lake, OLDER, 3)
    uuid = make_old(lake, STAGED, 2)
    make_old(lake, ("s", "other__dbt_staged_0123456789ab"), 2)
    assert [leftover.is_missing for leftover in list_leftovers(lake, ["s"])] == [True] * 3
    assert [leftover.name for leftover in clear_leftovers(lake, NAME)] == [STAGED, OLDER]
    assert [name for name, _ in lake.relations("s")] == ["other__dbt_staged_0123456789ab", "t"]
    assert (lake.metadata(NAME) or {})["table-uuid"] == uuid


def test_those_before_the_drop_are_dropped(lake: IcebergCatalog) -> None:
    uuid = make_table(lake).metadata["table-uuid"]
    make_old(lake, STAGED, 2)
    assert [leftover.is_missing for leftover in clear_leftovers(lake, NAME)] == [False]
    assert lake.relations("s") == [("t", "table")]
    assert (lake.metadata(NAME) or {})["table-uuid"] == uuid


def test_a_new_table_may_be_incomplete(lake: IcebergCatalog) -> None:
    """Such as one whose rows go to a branch."""
    make_old(lake, ("s", "t__dbt_new_0123456789ab"), 2)
    clear_leftovers(lake, NAME)
    assert lake.relations("s") == []


@pytest.mark.parametrize("mark", ["staged", "new"])
@pytest.mark.parametrize("exists", [True, False])
def test_after_a_failure(lake: IcebergCatalog, mark: str, exists: bool) -> None:
    """The answer to the drop of the old version may be lost: the new one is the only one then."""
    staged = ("s", f"t__dbt_{mark}_0123456789ab")
    make_table(lake, name=staged)
    if exists:
        make_table(lake)
    stays = mark == "staged" and not exists
    assert drop_unfinished(lake, staged) is not stays
    assert ((staged[1], "table") in lake.relations("s")) is stays


def test_a_view(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    lake.put_view(STAGED, VIEW)
    monkeypatch.undo()
    clear_leftovers(lake, NAME)
    assert lake.relations("s") == [("t", "view")]


def test_a_table_of_another_catalog_keeps_its_files(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    make_old(lake, STAGED, 2)
    other = make_catalog(tmp_path / "other")
    other.register(("s", "copy"), load(lake, STAGED).location)
    catalogs = Catalogs("lake", {"lake": lambda: lake, "other": lambda: other})
    assert [leftover.name for leftover in clear_leftovers(lake, NAME, catalogs)] == [STAGED]
    assert lake.relations("s") == [("t", "table")]
    assert other.load(("s", "copy")) is not None
    other.close()
