"""The catalogs of a profile: which one a name means, and when each is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError


class Catalog:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    def metadata(self, name: tuple[str, str], history: bool = True) -> Any:
        return {"in": self.name, "name": name}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def opened() -> list[str]:
    return []


@pytest.fixture
def catalogs(opened: list[str]) -> Catalogs:
    def opener(name: str) -> Callable[[], Any]:
        def open_catalog() -> Catalog:
            opened.append(name)
            return Catalog(name)

        return open_catalog

    return Catalogs("lake", {name: opener(name) for name in ("lake", "North")})


def test_a_catalog_is_opened_when_it_is_used_first(catalogs: Catalogs, opened: list[str]) -> None:
    assert opened == []
    north = catalogs.get("NORTH")
    assert catalogs.get("north") is north
    assert opened == ["North"]
    catalogs.close()
    assert north.is_closed  # type: ignore[attr-defined]
    assert catalogs.get("north") is not north


def test_without_a_name_it_is_the_own_one(catalogs: Catalogs) -> None:
    assert catalogs.get(None) is catalogs.get("Lake") is catalogs.own
    assert catalogs.is_own("LAKE")
    assert catalogs.is_own(None)
    assert not catalogs.is_own("north")


def test_a_catalog_that_the_profile_does_not_have(catalogs: Catalogs) -> None:
    message = "has no catalog `west`. It has lake, North. Correct `database`, or define"
    with pytest.raises(CatalogError, match=message):
        catalogs.get("west")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("s", "t"), ("s", "t")),
        (("lake", "s", "t"), ("s", "t")),
        (("LAKE", "s", "t"), ("s", "t")),
        (("north", "s", "t"), ("North", "s", "t")),
        (("north", "a.b", "t"), ("North", "a.b", "t")),
        # Spark reads the first part as a catalog.
        (("north", "t"), None),
        (("west", "s", "t"), None),
        (("north", "s", "t", "files"), None),
        (("t",), None),
        ((), None),
    ],
)
def test_names_in_statements(
    catalogs: Catalogs, parts: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    assert catalogs.find_qualified(parts) == expected


def test_metadata_comes_from_the_catalog_of_the_name(catalogs: Catalogs) -> None:
    assert catalogs.metadata(("s", "t")) == {"in": "lake", "name": ("s", "t")}
    assert catalogs.metadata(("North", "s", "t")) == {"in": "North", "name": ("s", "t")}
    for catalog in ("lake", "North"):
        name = catalogs.qualified(catalog.lower(), ("s", "t"))
        assert catalogs.metadata(name) == {"in": catalog, "name": ("s", "t")}
