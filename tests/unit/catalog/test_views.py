"""View metadata after a view is created or replaced."""

from __future__ import annotations

from typing import Any

from dbt.adapters.iceberg_stream.catalog.views import (
    VERSIONS_KEPT,
    new_view,
    same_view,
    view_location,
    view_query,
    with_query,
)

COLUMN = {"id": 1, "name": "id", "type": "long", "required": False}


def version(sql: str, *columns: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a view that was just created, as a catalog returns them."""
    representation = {"type": "sql", "sql": sql, "dialect": "spark"}
    return {
        "view-uuid": "other",
        "location": "file:/elsewhere",
        "schemas": [{"type": "struct", "schema-id": 0, "fields": list(columns)}],
        "current-version-id": 1,
        "versions": [
            {
                "version-id": 1,
                "schema-id": 0,
                "timestamp-ms": 1,
                "summary": {},
                "representations": [representation],
            }
        ],
        "version-log": [{"timestamp-ms": 1, "version-id": 1}],
        "properties": {"comment": "new"},
    }


def test_create() -> None:
    view = new_view(version("select 1", COLUMN), None, "file:/v")
    assert view_query(view) == "select 1"
    assert view["location"] == "file:/v"
    assert view["view-uuid"] != "other"
    assert view["properties"] == {"comment": "new"}
    assert view_location(view).startswith("file:/v/metadata/00001-")


def test_replace_keeps_identity_and_history() -> None:
    first = new_view(version("select 1", COLUMN), None, "file:/v")
    second = new_view(version("select 2"), first, "file:/w")
    assert (second["view-uuid"], second["location"]) == (first["view-uuid"], "file:/v")
    assert view_query(second) == "select 2"
    assert [v["schema-id"] for v in second["versions"]] == [0, 1]
    assert [len(s["fields"]) for s in second["schemas"]] == [1, 0]


def test_history_is_bounded() -> None:
    view = new_view(version("select 0", COLUMN), None, "file:/v")
    for number in range(2 * VERSIONS_KEPT):
        view = new_view(version(f"select {number}", COLUMN), view, "file:/v")
    assert len(view["versions"]) == len(view["version-log"]) == VERSIONS_KEPT
    assert {s["schema-id"] for s in view["schemas"]} == {v["schema-id"] for v in view["versions"]}


def test_another_query() -> None:
    view = version("select 1", COLUMN)
    assert view_query(with_query(view, "select 2")) == "select 2"
    assert view_query(view) == "select 1"


def test_same_view() -> None:
    view = new_view(version("select 1", COLUMN), None, "file:/v")
    assert same_view(version("select 1", COLUMN), view)
    assert not same_view(version("select 2", COLUMN), view)
    assert not same_view(version("select 1", {**COLUMN, "doc": "a key"}), view)
    assert not same_view({**version("select 1", COLUMN), "properties": {}}, view)
    assert not same_view(view, {"schemas": []})
