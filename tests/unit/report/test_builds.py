"""The builds of a report: those that are not published, and the published ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField

from dbt.adapters.iceberg_stream.builds.build import get_build, store_record
from dbt.adapters.iceberg_stream.builds.commands import CommandRecord
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.report import runs
from dbt.adapters.iceberg_stream.report.contents import Publication, StagedBuild, StagedChange
from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.render import render
from tests.unit.catalog.test_views import version
from tests.unit.local_tables import SCHEMA, evolve, make_table, set_metadata
from tests.unit.report.lakes import HOSTILE, append, delete, properties, replace_all
from tests.unit.report.pages import Page

ORDERS, STAGED = ("s", "orders"), staged_name(("s", "orders"), "pr-42")


@pytest.fixture
def orders(lake: IcebergCatalog) -> IcebergCatalog:
    """A catalog with the table `orders` of 44 rows, which the build `pr-42` has staged."""
    make_table(lake, name=ORDERS)
    append(lake, ORDERS, 44, **properties("orders"))
    stage_table(lake, ORDERS, "pr-42", {})
    return lake


def only_build(lake: IcebergCatalog) -> StagedBuild:
    (build,) = gather(lake, ["s"]).builds
    return build


def only_change(lake: IcebergCatalog) -> StagedChange:
    (change,) = only_build(lake).tables
    return change


def words(lake: IcebergCatalog) -> str:
    """What the page says of builds."""
    text = Page(render(gather(lake, ["s"]), ["--target", "prod"])).words
    return text.split(" Builds ")[2].split(" Last runs ")[0]


def publish_all(lake: IcebergCatalog, build: str) -> None:
    publish(lake, build, get_build(lake, build).relations.items())


def test_what_a_build_adds(orders: IcebergCatalog) -> None:
    assert only_change(orders).kind == "unchanged"
    append(orders, STAGED, 16)
    append(orders, STAGED, 4, number="2")
    change = only_change(orders)
    assert (change.table, change.kind, change.is_outdated) == (ORDERS, "changed", False)
    assert (change.rows_before, change.rows_after) == (44, 64)
    assert (change.inserted, change.updated, change.removed) == (20, 0, 0)
    assert "s.orders changed 44 64 20 0 0" in words(orders)
    assert "iceberg-stream diff --build pr-42 --target prod" in words(orders)


def test_a_replaced_table_loses_its_rows(orders: IcebergCatalog) -> None:
    replace_all(orders, STAGED, 10)
    change = only_change(orders)
    assert (change.inserted, change.removed) == (10, 44)
    assert (change.rows_before, change.rows_after) == (44, 10)


def test_a_table_that_a_build_replaces_twice(orders: IcebergCatalog) -> None:
    for rows in (10, 12):
        replace_all(orders, STAGED, rows)
    change = only_change(orders)
    assert (change.rows_before, change.inserted, change.removed, change.rows_after) == (
        44,
        12,
        44,
        12,
    )
    append(orders, STAGED, 3)
    change = only_change(orders)
    assert (change.inserted, change.removed, change.rows_after) == (15, 44, 15)


def test_relations_that_change_their_type(orders: IcebergCatalog) -> None:
    orders.put_view(staged_name(("s", "t"), "pr-42"), version("select 1"))
    make_table(orders, name=("s", "t"))
    orders.put_view(("s", "v"), version("select 1"))
    new = staged_name(("s", "v"), "pr-42")
    stage_table(orders, ("s", "v"), "pr-42", {})
    evolve(orders, SCHEMA, name=new)
    append(orders, new, 3)
    build = only_build(orders)
    assert [(change.table[1], change.kind) for change in build.tables] == [
        ("orders", "unchanged"),
        ("v", "replaces a view"),
    ]
    assert build.views == [(("s", "t"), "replaces a table")]
    assert "Views: s.t (replaces a table)." in words(orders)


def test_rows_that_equality_deletes_may_hide_are_unknown(orders: IcebergCatalog) -> None:
    delete(orders, STAGED, 5)
    change = only_change(orders)
    assert (change.rows_before, change.rows_after) == (44, None)
    assert "s.orders changed 44 0 0" in words(orders)


def test_columns(orders: IcebergCatalog) -> None:
    schema = Schema(
        NestedField(1, "number", LongType(), required=False),
        NestedField(3, "added", IntegerType(), required=False),
        schema_id=1,
    )
    evolve(orders, schema, name=STAGED)
    assert only_change(orders).kind == "changed"
    assert "renamed id to number added added int dropped x string" in words(orders)


def test_another_writer_changes_the_published_table(orders: IcebergCatalog) -> None:
    append(orders, STAGED, 16)
    append(orders, ORDERS, 6, **{"engine-name": "flink"})
    change = only_change(orders)
    assert change.is_outdated
    # The build's own rows only.
    assert (change.inserted, change.rows_before, change.rows_after) == (16, 50, 60)
    assert "changed published table changed since 50 60" in words(orders)


def test_a_new_table_and_one_that_is_not_built(lake: IcebergCatalog) -> None:
    stage_table(lake, ("s", "failed"), "pr-42", {})
    stage_table(lake, ("s", "new"), "pr-42", {})
    evolve(lake, SCHEMA, name=staged_name(("s", "new"), "pr-42"))
    append(lake, staged_name(("s", "new"), "pr-42"), 3)
    failed, new = only_build(lake).tables
    assert (failed.table[1], failed.kind) == ("failed", "not built")
    assert (new.kind, new.rows_before, new.rows_after, new.inserted) == ("new", None, 3, 3)
    assert "s.failed not built s.new new 3 3 0 0" in words(lake)


def test_the_last_command(orders: IcebergCatalog) -> None:
    run = CommandRecord("c", "2026-11-23T00:00:00", False, planned=("model.shop.orders",))
    store_record(orders, "pr-42", ORDERS, "table", run)
    assert "A command still runs, or was interrupted." in words(orders)
    failed = replace(run, has_ended=True, failed=("model.shop.orders", HOSTILE), planned=())
    store_record(orders, "pr-42", ORDERS, "table", failed)
    build = only_build(orders)
    assert (build.has_ended, build.failed) == (True, ["orders", HOSTILE])
    assert f"Failed or skipped: orders, {HOSTILE}." in words(orders)
    store_record(orders, "pr-42", ORDERS, "table", replace(failed, failed=()))
    assert "Nothing failed." in words(orders)


def test_staged_tables_are_no_tables_of_the_page(orders: IcebergCatalog) -> None:
    append(orders, STAGED, 16)
    contents = gather(orders, ["s"])
    assert [table.name for table in contents.tables] == [ORDERS]
    assert "__dbt_build_" not in render(contents)


def test_relations_that_the_catalog_refuses(
    orders: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(orders, name=("s", "other"))
    stage_table(orders, ("s", "other"), "pr-42", {})
    load_table = orders.load

    def refusing(name: Name, history: bool = True) -> object:
        if name == STAGED:
            raise CatalogError("The catalog refused to load it.")
        return load_table(name, history)

    monkeypatch.setattr(orders, "load", refusing)
    build = only_build(orders)
    assert [change.table[1] for change in build.tables] == ["other"]
    assert build.unreadable == {"s.orders": "The catalog refused to load it."}
    assert "s.orders: The catalog refused to load it." in words(orders)


@pytest.mark.parametrize(
    "damage",
    [
        {"properties": {"iceberg-stream.build.command.c": "no JSON", "iceberg-stream.build": "p"}},
        {"snapshots": 7},
        {"refs": [1]},
    ],
    ids=str,
)
def test_damaged_metadata(orders: IcebergCatalog, damage: dict[str, object]) -> None:
    set_metadata(orders, STAGED, **damage)
    assert len(only_build(orders).unreadable) == 1
    assert "1 unreadable" in words(orders)


def test_after_the_time_limit(orders: IcebergCatalog) -> None:
    (build,) = gather(orders, ["s"], time_limit=0).builds
    assert build.unreadable == {"s.orders": "Not read within the time limit."}
    assert build.tables == []


def test_published_builds(orders: IcebergCatalog) -> None:
    make_table(orders, name=("s", "totals"))
    append(orders, ("s", "totals"), 1)
    stage_table(orders, ("s", "totals"), "pr-42", {})
    append(orders, STAGED, 16, **properties("orders"))
    replace_all(orders, staged_name(("s", "totals"), "pr-42"), 1, **properties("totals"))
    assert gather(orders, ["s"]).publications == []
    publish_all(orders, "pr-42")
    contents = gather(orders, ["s"])
    assert contents.builds == []
    (publication,) = contents.publications
    assert (publication.build, publication.principals) == ("pr-42", ["ada"])
    first, totals = publication.changes
    assert (first.table, first.inserted, first.deleted) == (ORDERS, 16, 0)
    assert (first.rows_before, first.rows_after) == (44, 60)
    assert (totals.inserted, totals.deleted) == (1, 1)
    text = words(orders)
    assert "Not published" not in text
    assert "2 tables, by ada" in text
    assert "s.orders 16 0 0 44 60 100 bytes s.totals 1 0 1 1 1" in text


def test_a_name_that_two_builds_have(
    orders: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(orders, STAGED, 16)
    publish_all(orders, "pr-42")
    stage_table(orders, ORDERS, "pr-42", {})
    append(orders, STAGED, 5)
    publish_all(orders, "pr-42")
    (one,) = gather(orders, ["s"]).publications
    assert one.changes[0].inserted == 21
    monkeypatch.setattr(runs, "PAUSE_MS", 0)
    later, earlier = gather(orders, ["s"]).publications
    assert (earlier.changes[0].inserted, later.changes[0].inserted) == (16, 5)
    assert later.published_ms > earlier.published_ms


def test_many_builds_are_cut(orders: IcebergCatalog) -> None:
    contents = gather(orders, ["s"])
    build = contents.builds[0]
    change = build.tables[0]
    builds = [replace(build, name=f"b{n:03}", tables=[change] * 101) for n in range(30)]
    published = [Publication(f"p{n:03}", 0, [], []) for n in range(30)]
    html = render(replace(contents, builds=builds, publications=published))
    text = Page(html).words
    assert "b019" in text and "b020" not in text and "p019" in text and "p020" not in text
    assert text.count("10 older builds are left out.") == 2
    assert text.count("1 more tables are left out.") == 20


def test_without_builds(lake: IcebergCatalog) -> None:
    assert words(lake) == "No build is staged, and no snapshot records a published one."
