"""What a statement reads: tables behind views, as they were, and which of them has changed."""

from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, one_catalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.sql.queries import Reads, reads
from dbt.adapters.iceberg_stream.tables.commit.read_set import capture_read_set


def table(
    snapshot: int | None = 1, schema: int = 0, uuid: str = "t", at: int = 5
) -> dict[str, Any]:
    made = [] if snapshot is None else [{"snapshot-id": snapshot, "timestamp-ms": 1}]
    return {
        "table-uuid": uuid,
        "current-schema-id": schema,
        "schemas": [
            {"schema-id": number, "fields": [{"id": number, "name": "x"}]} for number in (0, 1, 3)
        ],
        "current-snapshot-id": snapshot,
        "snapshots": made,
        "last-updated-ms": at,
    }


def view(sql: str, **more: Any) -> dict[str, Any]:
    texts = more.pop("texts", [{"dialect": "trino", "sql": "?"}, {"dialect": "spark", "sql": sql}])
    named = {key.replace("_", "-"): value for key, value in more.items()}
    versions = [
        {"version-id": 1, "representations": [{"dialect": "spark", "sql": "select * from s.old"}]},
        {"version-id": 2, "representations": texts, **named},
    ]
    return {"view-uuid": "v", "versions": versions, "current-version-id": 2}


class Catalog:
    name = "Lake"

    def __init__(self, **relations: Any) -> None:
        self.relations: dict[tuple[str, str], Any] = {
            ("s", name): each for name, each in relations.items()
        }

    def metadata(self, name: tuple[str, str], history: bool = True) -> Any:
        actual = self.relations.get(name)
        if actual == "away":
            raise CatalogError("away")
        return actual


def pinned(catalog: Catalog, sql: str, views: dict[str, Reads | None] | None = None) -> Any:
    return capture_read_set(one_catalog(catalog), reads(sql), views or {})  # type: ignore[arg-type]


def test_tables() -> None:
    actual = pinned(Catalog(a=table(), b=table(None, 3, "u", 9)), "select * from s.a join lake.s.b")
    x, y = ([{"id": number, "name": "x"}] for number in (0, 3))
    assert actual.versions == {
        ("s", "a"): ("t", (), x, 1, None, 5),
        ("s", "b"): ("u", (), y, None, None, 9),
    }
    assert actual.definitions == ()
    assert actual.is_complete


@pytest.mark.parametrize(
    "sql",
    [
        "select * from s.gone",
        "select * from s.away",
        "select * from other.s.a",
        "select * from x.lake.s.a",
        "select * from temporary",
        "select * from s.a, s.gone",
    ],
)
def test_what_cannot_be_told(sql: str) -> None:
    """What is known counts: the table to which rows are written may be among it."""
    read_set = pinned(Catalog(a=table(), away="away"), sql)
    assert not read_set.is_complete
    assert set(read_set.versions) == ({("s", "a")} if "s.a," in sql else set())


def test_a_statement_that_is_not_understood() -> None:
    actual = capture_read_set(one_catalog(Catalog()), None, {})  # type: ignore[arg-type]
    assert (actual.versions, actual.is_complete) == ({}, False)


def test_views_are_looked_through() -> None:
    catalog = Catalog(
        a=table(),
        b=table(),
        v=view("select * from s.w, s.a"),
        w=view("select * from b, s.v", default_namespace=["s"]),
    )
    actual = pinned(catalog, "select * from s.v")
    assert set(actual.versions) == {("s", name) for name in "abvw"}
    assert actual.versions["s", "v"] == ("v", (2,), None, None, 0, None)
    assert actual.definitions == ("select * from b, s.v", "select * from s.w, s.a")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {("s", "v"), ("s", "a")}),
        ({"default_namespace": []}, {("s", "v"), ("s", "a")}),
        ({"default_namespace": ["o", "p"]}, {("s", "v"), ("o.p", "a")}),
        ({"default_catalog": "LAKE"}, {("s", "v"), ("s", "a")}),
        ({"default_catalog": "other"}, None),
        ({"texts": [{"dialect": "trino", "sql": "select 1"}]}, None),
        ({"texts": [{"dialect": "spark", "sql": "not a query at all ("}]}, None),
    ],
)
def test_names_in_views(more: dict[str, Any], expected: set[tuple[str, str]] | None) -> None:
    catalog = Catalog(a=table(), v=view("select * from a", **more))
    catalog.relations["o.p", "a"] = table()
    actual = pinned(catalog, "select * from s.v")
    assert (set(actual.versions) if actual.is_complete else None) == expected


def test_temporary_views() -> None:
    views = {"tmp": Reads(frozenset({("s", "a"), ("second",)})), "second": None}
    catalog = Catalog(a=table())
    assert not pinned(catalog, "select * from TMP", views).is_complete
    views["second"] = Reads(frozenset())
    assert set(pinned(catalog, "select * from TMP", views).versions) == {("s", "a")}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (table(), False),
        (table(at=6), False),
        (table(2), True),
        (table(None), True),
        (table(schema=1), True),
        (table() | {"properties": {"schema.name-mapping.default": "[]"}}, True),
        (table(uuid="u"), True),
        (None, True),
    ],
)
def test_what_has_changed(now: Any, changed: bool) -> None:
    catalog = Catalog(a=table(), b=table())
    actual = pinned(catalog, "select * from s.a, s.b")
    assert actual.changed(catalog) is None
    catalog.relations["s", "b"] = now
    assert actual.changed(catalog) == (("s", "b") if changed else None)


def tagged(tag: int, snapshot: int = 2, column: str = "x", **more: Any) -> dict[str, Any]:
    both = [{"snapshot-id": number, "timestamp-ms": 1} for number in (1, 2)]
    refs = {"closing": {"type": "tag", "snapshot-id": tag}}
    schemas = [{"schema-id": 0, "fields": [{"id": 1, "name": column}]}]
    return {**table(snapshot, **more), "snapshots": both, "refs": refs, "schemas": schemas}


@pytest.mark.parametrize(
    ("sql", "now", "changed"),
    [
        ("select * from s.a version as of 'closing'", tagged(1, 2, at=9), False),
        ("select * from s.a version as of 'closing'", tagged(2), True),
        ("select * from s.a version as of 'closing'", {**tagged(1), "refs": {}}, True),
        ("select * from s.a version as of 'closing'", tagged(1, uuid="u"), True),
        # A schema that has expired may have had the same id.
        ("select * from s.a version as of 'closing'", tagged(1, column="y"), True),
        ("select * from s.a version as of 1", tagged(2, 2, at=9), False),
        ("select * from s.a version as of 1", {**tagged(2), "snapshots": []}, True),
        ("select * from s.a version as of 1 join s.a", tagged(1, 2), True),
        ("select * from s.a timestamp as of '2026-01-01'", tagged(1, 2), True),
        ("select * from s.v", tagged(1, 2), False),
        ("select * from s.v", tagged(2), True),
        ("select * from s.a join s.v", tagged(2, 1), True),
        ("select * from s.v join s.a", tagged(1, 2), True),
    ],
)
def test_versions(sql: str, now: Any, changed: bool) -> None:
    """Commits do not change what a fixed version reads; a tag that moves does."""
    view_of_tag = view("select * from a version as of 'closing'")
    catalog = Catalog(a=tagged(1, 1), v=view_of_tag)
    actual = pinned(catalog, sql)
    assert actual.changed(catalog) is None
    catalog.relations["s", "a"] = now
    assert actual.changed(catalog) == (("s", "a") if changed else None)
    # Without the time of the last change, by which a tag that moved and came back is noticed.
    then, later = (
        {name: version[:4] for name, version in read.versions.items()}
        for read in (actual, pinned(catalog, sql))
    )
    assert (later != then) == changed


def test_versions_of_some_relations() -> None:
    """What is read of them is still of a fixed version; the names may come from a generator."""
    catalog = Catalog(a=tagged(1, 1), b=tagged(1, 1))
    both = pinned(catalog, "select * from s.a version as of 1 join s.b")
    one = both.only(name for name in both.versions if name[1] == "a")
    catalog.relations |= {("s", "a"): tagged(2, 2, at=9), ("s", "b"): tagged(2, 2, at=9)}
    assert one.changed(catalog) is None
    assert both.changed(catalog) == ("s", "b")


def test_several_catalogs() -> None:
    """Views of another catalog read its tables, and those of the catalog that they name."""
    north = Catalog(a=table(7), v=view("select * from a, lake.s.b"), w=view("select 1 from s.a"))
    north.name = "north"
    lake = Catalog(a=table(1), b=table(2))
    catalogs = Catalogs("Lake", {"Lake": lambda: lake, "north": lambda: north})  # type: ignore[dict-item, return-value]
    actual = capture_read_set(catalogs, reads("select * from NORTH.s.v, s.a, north.s.w"), {})
    assert {
        name: (version.fixed, version.current) for name, version in actual.versions.items()
    } == {
        ("s", "a"): ((), 1),
        ("s", "b"): ((), 2),
        ("north", "s", "a"): ((), 7),
        ("north", "s", "v"): ((2,), None),
        ("north", "s", "w"): ((2,), None),
    }
    assert actual.changed(catalogs) is None
    north.relations["s", "a"] = table(8)
    assert actual.changed(catalogs) == ("north", "s", "a")
    # Spark reads the first of two parts as a catalog, and so does not find a namespace of its name.
    assert not capture_read_set(catalogs, reads("select * from north.a"), {}).is_complete


def test_cached_views_keep_the_versions_of_their_rows() -> None:
    catalog = Catalog(a=table(1), b=table(5, uuid="u"))
    catalogs, views = one_catalog(catalog), {"new": reads("select * from s.a")}  # type: ignore[arg-type]
    cached = {"new": capture_read_set(catalogs, views["new"], {})}
    catalog.relations["s", "a"] = table(2)
    sql = reads("select * from NEW join s.b")
    actual = capture_read_set(catalogs, sql, views, cached=cached)
    x = [{"id": 0, "name": "x"}]
    assert actual.versions == {
        ("s", "a"): ("t", (), x, 1, None, 5),
        ("s", "b"): ("u", (), x, 5, None, 5),
    }
    assert actual.changed(catalogs) == ("s", "a")
    assert actual.has_changed(("s", "a"), None)
    assert not actual.has_changed(("s", "other"), None)
    # The reader's own change of the columns changes no row, and hides no other writer's.
    widened = table(1, schema=1)
    assert not actual.with_schema(("s", "a"), widened).has_changed(("s", "a"), widened)
    assert actual.with_schema(("s", "a"), table(2, schema=1)).changed(catalogs) == ("s", "a")
    assert not capture_read_set(catalogs, sql, views, cached={"new": None}).is_complete


def logged(*snapshots: int, at: int = 5) -> dict[str, Any]:
    """A table whose snapshots became current one after the other."""
    made = [{"snapshot-id": number, "timestamp-ms": number} for number in set(snapshots)]
    log = [{"snapshot-id": n, "timestamp-ms": at} for at, n in enumerate(snapshots)]
    return {**table(snapshots[-1], at=at), "snapshots": made, "snapshot-log": log}


def test_a_version_that_was_there_in_between() -> None:
    """Rows may have been read of it; a change of a property is no change of rows."""
    read_set = pinned(Catalog(a=logged(1)), "select * from s.a")
    also_fixed = pinned(Catalog(a=logged(1)), "select * from s.a join s.a version as of 1")
    assert also_fixed.has_changed(("s", "a"), logged(1, 2, 1))
    assert not also_fixed.has_changed(("s", "a"), logged(1, at=6))
    assert not read_set.has_changed(("s", "a"), logged(1, at=6))
    assert read_set.has_changed(("s", "a"), logged(1, 2, 1))
    # The catalog may leave out snapshots that are not current.
    only_current = logged(1, 2, 1)["snapshot-log"][2:]
    assert read_set.has_changed(("s", "a"), {**logged(1), "snapshot-log": only_current})


def test_a_view_that_was_another_one_in_between() -> None:
    first, again = ({**view("select 1"), "version-log": [{}] * n} for n in (1, 3))
    read_set = pinned(Catalog(v=first), "select * from s.v")
    assert not read_set.has_changed(("s", "v"), first)
    assert read_set.has_changed(("s", "v"), again)
