"""Another writer changes the layout of a table and takes it back while a build changes it, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType

from dbt.adapters.iceberg_stream.builds.build import discard, get_build, list_builds
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict
from dbt.adapters.iceberg_stream.builds.replaced import Replacement
from dbt.adapters.iceberg_stream.builds.run import BuildRun
from dbt.adapters.iceberg_stream.builds.settings import BuildSettings
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from tests.integration.builds.staged_builds import (
    BUILD,
    VIEW,
    Interrupted,
    Interruption,
    assert_clean,
    fail,
    publish_all,
    read,
    staged,
    widened,
    write,
)
from tests.lost_files import assert_nothing_lost


def renamed(table: Any) -> None:
    for before, after in (("id", "number"), ("number", "id")):
        with table.update_schema() as update:
            update.rename_column(before, after)


def added_column(table: Any) -> None:
    with table.update_schema() as update:
        update.add_column("other", IntegerType())
    with table.update_schema() as update:
        update.delete_column("other")


def partitioned(table: Any) -> None:
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "by_bucket")
    with table.update_spec() as update:
        update.remove_field("by_bucket")


def ordered(table: Any) -> None:
    with table.update_sort_order() as update:
        update.desc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    with table.update_sort_order() as update:
        update.asc("id", IdentityTransform(), NullOrder.NULLS_FIRST)


def new_partitions(lake: IcebergCatalog) -> None:
    with lake.table(("s", staged("t"))).update_spec() as update:
        update.add_field("id", IdentityTransform(), "by_id")
    write(lake, staged("t"), [7], Mode.APPEND)


def new_order(lake: IcebergCatalog) -> None:
    with lake.table(("s", staged("t"))).update_sort_order() as update:
        update.asc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    write(lake, staged("t"), [7], Mode.APPEND)


FOREIGN = [renamed, added_column, partitioned, ordered]
OURS: dict[str, Callable[[IcebergCatalog], None]] = {
    "columns": lambda lake: widened(lake, staged("t"), [1, 2, 7]),
    "partitions": new_partitions,
    "order": new_order,
    "rows": lambda lake: write(lake, staged("t"), [7], Mode.APPEND),
}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.variants(10)
def test_ids_are_not_given_twice(lake: IcebergCatalog, ours: str, foreign: Any) -> None:
    """The table is published with the build's layout, or it is a conflict."""
    write(lake, "t", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "t"), BUILD, {})
    OURS[ours](lake)
    wanted = layout(lake, staged("t"))
    foreign(lake.table(("s", "t")))
    before = layout(lake, "t")
    try:
        publish_all(lake)
    except BuildConflict as error:
        assert ours != "rows" and "another layout" in str(error)
        assert (layout(lake, "t"), read(lake, "t")) == (before, [(1,), (2,)])
        discard(lake, get_build(lake, BUILD))
    else:
        assert [row[0] for row in read(lake, "t") or []] == [1, 2, 7]
        assert layout(lake, "t") == (before if ours == "rows" else wanted)
    table = lake.load(("s", "t"))
    assert table is not None and list(check_table(table, data=True).findings) == []
    assert_clean(lake, ["t"])


def layout(lake: IcebergCatalog, name: str) -> list[str]:
    table = lake.table(("s", name))
    return [str(table.schema().fields), str(table.spec().fields), str(table.sort_order().fields)]


def test_properties_beside_rows_of_another_writer(lake: IcebergCatalog) -> None:
    """Each has what it has changed."""
    write(lake, "t", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "t"), BUILD, {})
    write(lake, staged("t"), [3], Mode.APPEND)
    for name, key in (("t", "theirs"), (staged("t"), "ours")):
        with lake.table(("s", name)).transaction() as transaction:
            transaction.set_properties({key: "1"})
    write(lake, "t", [4], Mode.APPEND)
    publish_all(lake)
    assert read(lake, "t") == [(1,), (2,), (3,), (4,)]
    assert {"ours", "theirs"} <= lake.table(("s", "t")).properties.keys()
    assert_clean(lake, ["t"])


def test_a_commit_that_is_refused_although_it_was_made(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy repeats a request. The manifests of the rebased rows stay."""
    write(lake, "t", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "t"), BUILD, {})
    write(lake, staged("t"), [3], Mode.APPEND)
    write(lake, "t", [4], Mode.APPEND)
    fail(lake, monkeypatch, [CommitConflict("refused")], committed=True)
    publish_all(lake)
    assert read(lake, "t") == [(1,), (2,), (3,), (4,)]
    assert_clean(lake, ["t"])


def test_staged_tables_that_cannot_be_dropped(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are published: an error would say that nothing was."""
    write(lake, "t", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "t"), BUILD, {})
    write(lake, staged("t"), [3], Mode.APPEND)

    def refuse(*_: Any) -> None:
        raise CatalogError("no")

    with monkeypatch.context() as patch:
        patch.setattr(lake._backend, "unregister", refuse)
        assert publish_all(lake).tables.keys() == {("s", "t")}
    assert read(lake, "t") == [(1,), (2,), (3,)]
    publish_all(lake)
    assert_clean(lake, ["t"])


@pytest.mark.parametrize(
    "second",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("run", "discard")), "publish"],
)
@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_a_second_kill(lake: IcebergCatalog, second: str) -> None:
    """Servers create new tables before the commit. After both kills `discard` leaves nothing."""

    def killed(action: Callable[[IcebergCatalog], Any], call: int) -> bool:
        backend = Interruption(lake._backend, call, after=False)
        try:
            action(IcebergCatalog("lake", backend))
        except Interrupted:
            return True
        return False

    def run(catalog: IcebergCatalog) -> None:
        settings = BuildSettings(BUILD, publishes=False, continues=True, keep=timedelta(days=1))
        build = BuildRun(settings, "c", lambda: catalog, lambda *_: None, lambda _: None)
        for name in ("viewed", "created"):
            build.stage(("s", name), "table", {})

    actions: dict[str, Callable[[IcebergCatalog], Any]] = {
        "run": run,
        "discard": lambda catalog: discard(catalog, get_build(catalog, BUILD)),
        "publish": publish_all,
    }
    is_killed, call = True, 0
    while is_killed:
        lake.put_view(("s", "viewed"), VIEW)
        for name in ("viewed", "created"):
            stage_table(lake, ("s", name), BUILD, {})
            write(lake, staged(name), [8], Mode.REPLACE)
        with pytest.MonkeyPatch.context() as patch:

            def end(_: Any) -> None:
                raise Interrupted

            patch.setattr(lake._backend, "commit_all", end)
            # What is to be undone is left.
            patch.setattr(Replacement, "undo", lambda _: None)
            with pytest.raises(Interrupted):
                publish_all(lake)
        assert dict(lake.relations("s"))["viewed"] == "table"
        is_killed = killed(actions[second], call)
        is_published = read(lake, "created") == [(8,)]
        for build in list_builds(lake):
            discard(lake, build)
        expected = {"viewed": "table", "created": "table"} if is_published else {"viewed": "view"}
        assert (call, dict(lake.relations("s"))) == (call, expected)
        assert_nothing_lost(lake, ["s"])
        for name, _ in lake.relations("s"):
            lake.unregister(("s", name))
        call += 1
    assert call > 5
