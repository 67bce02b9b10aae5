"""Tables that are published in the places of views, and views in those of tables."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.builds.build import (
    Build,
    discard,
    discard_abandoned,
    get_build,
    list_builds,
)
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict, BuildError
from dbt.adapters.iceberg_stream.builds.leftovers import drop_unfinished
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import TableCommit
from dbt.adapters.iceberg_stream.catalog.views import view_query, with_query
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from tests.integration.builds.staged_builds import (
    BUILD,
    EACH_ENDING,
    OLD,
    VIEW,
    Interrupted,
    Interruption,
    assert_clean,
    before_call,
    discard_all,
    drop_all,
    fail,
    publish_all,
    read,
    stage_view,
    staged,
    staged_build,
    state,
    write,
)
from tests.lost_files import assert_nothing_lost


def view_and_build(lake: IcebergCatalog) -> Build:
    """A build whose table `created` replaces a view."""
    lake.put_view(("s", "created"), VIEW)
    stage_table(lake, ("s", "created"), BUILD, {})
    write(lake, staged("created"), [8], Mode.REPLACE)
    return get_build(lake, BUILD)


@pytest.mark.parametrize("error", [CommitConflict, CommitStateUnknown])
@pytest.mark.parametrize("committed", [True, False])
def test_a_view_becomes_a_table_and_the_answer_is_lost(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, error: type[Exception], committed: bool
) -> None:
    """Once, the second attempt dropped the table that the first one had published."""
    build = view_and_build(lake)
    fail(lake, monkeypatch, [error("lost")], committed)
    publish(lake, BUILD, build.relations.items())
    assert read(lake, "created") == [(8,)]
    assert_clean(lake, ["created"])


@pytest.mark.parametrize("error", [CommitConflict, CatalogError])
def test_a_view_stays_if_the_commit_is_refused(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    build = view_and_build(lake)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    with monkeypatch.context() as patch, pytest.raises(error):
        fail(lake, patch, [error("no")] * 20, committed=False)
        publish(lake, BUILD, build.relations.items())
    assert dict(lake.relations("s"))["created"] == "view"
    metadata = lake.metadata(("s", "created"))
    assert metadata is not None and view_query(metadata) == "select 1 as id"
    publish_all(lake)
    assert read(lake, "created") == [(8,)]


def test_a_view_stays_if_a_later_attempt_finds_a_conflict(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "replaced", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "replaced"), BUILD, {})
    write(lake, staged("replaced"), [7], Mode.REPLACE)
    build = view_and_build(lake)
    commit_all = lake._backend.commit_all
    appended: list[str] = []

    def append_then_commit(commits: Any) -> None:
        if not appended:
            appended.append("replaced")
            write(lake, "replaced", [9], Mode.APPEND)
            raise CommitConflict("lost")
        commit_all(commits)

    monkeypatch.setattr(lake._backend, "commit_all", append_then_commit)
    monkeypatch.setattr(SqliteBackend, "commit", lambda self, *c: commit_all([TableCommit(*c)]))
    with pytest.raises(BuildConflict, match=r"s\.replaced has the new snapshot"):
        publish(lake, BUILD, build.relations.items())
    assert dict(lake.relations("s"))["created"] == "view"


def test_a_view_that_another_writer_replaced_stays(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = view_and_build(lake)
    metadata = lake._backend.metadata
    replaced: list[str] = []

    def metadata_then_replace(namespace: str, name: str, history: bool = True) -> Any:
        result = metadata(namespace, name, history)
        if name == "created" and not replaced:
            replaced.append(name)
            lake.unregister(("s", "created"))
            write(lake, "created", [1], Mode.CREATE)
        return result

    monkeypatch.setattr(lake._backend, "metadata", metadata_then_replace)
    with pytest.raises(BuildConflict, match=r"s\.created was created by another writer"):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "created") == [(1,)]


def test_two_publish_a_table_in_the_place_of_a_view(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the slower one took the table that the faster one had published for the view."""
    build = view_and_build(lake)
    unregister = lake._backend.unregister

    def publish_first(*arguments: Any) -> bool:
        monkeypatch.undo()
        publish(lake, BUILD, build.relations.items())
        return unregister(*arguments)

    monkeypatch.setattr(lake._backend, "unregister", publish_first)
    with pytest.raises(BuildError, match="published or discarded by another process"):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "created") == [(8,)]


def test_a_table_stays_if_its_view_is_refused(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "viewed", [1, 2], Mode.CREATE)
    stage_view(lake, "viewed")
    build = get_build(lake, BUILD)

    def refuse(*_: Any) -> None:
        raise CatalogError("no views")

    with monkeypatch.context() as patch, pytest.raises(BuildError, match="no views"):
        patch.setattr(lake._backend, "put_view", refuse)
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "viewed") == [(1,), (2,)]
    publish_all(lake)
    assert dict(lake.relations("s")) == {"viewed": "view"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_table_that_another_writer_changed_stays(lake: IcebergCatalog, exists: bool) -> None:
    """Once, the view of a build replaced it."""
    if exists:
        write(lake, "viewed", [1], Mode.CREATE)
    staged_build(lake)
    stage_view(lake, "viewed")
    time.sleep(0.01)
    write(lake, "viewed", [2], Mode.APPEND if exists else Mode.CREATE)
    build = get_build(lake, BUILD)
    with pytest.raises(BuildConflict, match=r"s\.viewed was created or changed by another writer"):
        publish(lake, BUILD, build.relations.items())
    assert state(lake) == OLD
    assert read(lake, "viewed") == ([(1,), (2,)] if exists else [(2,)])
    stage_view(lake, "viewed")
    publish_all(lake)
    assert dict(lake.relations("s"))["viewed"] == "view"


@pytest.mark.parametrize("loads_before", [0, 1])
def test_a_table_that_changes_while_a_view_replaces_it(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, loads_before: int
) -> None:
    """Once, the other writer's commit was lost."""
    write(lake, "viewed", [1], Mode.CREATE)
    stage_view(lake, "viewed")
    build = get_build(lake, BUILD)
    load, loads = lake._backend.load, itertools.count()

    def change_then_load(namespace: str, name: str, history: bool = True) -> Any:
        if name == "viewed" and next(loads) == loads_before:
            monkeypatch.undo()
            time.sleep(0.01)
            write(lake, "viewed", [2], Mode.APPEND)
        return load(namespace, name, history)

    monkeypatch.setattr(lake._backend, "load", change_then_load)
    with pytest.raises(BuildError, match="another writer has changed"):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "viewed") == [(1,), (2,)]


def test_rows_of_another_writer_in_a_new_table(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's table is created before it is filled, with all others at once."""
    stage_table(lake, ("s", "created"), BUILD, {})
    write(lake, staged("created"), [8], Mode.REPLACE)
    build = get_build(lake, BUILD)

    def write_first() -> None:
        exists = "created" in dict(lake.relations("s"))
        write(lake, "created", [9], Mode.APPEND if exists else Mode.CREATE)

    before_call(lake, monkeypatch, "commit_all", write_first)
    with pytest.raises(BuildConflict, match=r"s\.created was created by another writer"):
        publish(lake, BUILD, build.relations.items())
    discard(lake, get_build(lake, BUILD))
    assert read(lake, "created") == [(9,)]


def test_a_table_that_another_writer_creates_stays(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before a view gets its name; in SQLite, after the look at what has the name."""
    stage_view(lake, "viewed")
    build = get_build(lake, BUILD)
    put, backend = lake._backend.put_view, lake._backend

    def put_late(*arguments: Any) -> None:
        monkeypatch.undo()
        if isinstance(backend, SqliteBackend):
            location = backend._location

            def look_then_write(*name: str) -> str | None:
                found = location(*name)
                monkeypatch.undo()
                write(lake, "viewed", [9], Mode.CREATE)
                return found

            monkeypatch.setattr(backend, "_location", look_then_write)
        else:
            write(lake, "viewed", [9], Mode.CREATE)
        put(*arguments)

    monkeypatch.setattr(backend, "put_view", put_late)
    with pytest.raises(BuildError, match=r"another writer .*s\.viewed"):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "viewed") == [(9,)]


def test_a_table_of_another_catalog_keeps_its_files(lake: IcebergCatalog, tmp_path: Path) -> None:
    """It has files of a table that a view replaces, of staged tables, and of leftovers."""
    partner = IcebergCatalog("partner", SqliteBackend("partner", tmp_path / "partner"))
    partner.create_namespace("s")
    catalogs = Catalogs("lake", {"lake": lambda: lake, "partner": lambda: partner})

    def copied(name: str) -> None:
        table = lake.load(("s", name))
        assert table is not None
        partner.register(("s", f"copy_{name}"), table.location)

    write(lake, "viewed", [1], Mode.CREATE)
    copied("viewed")
    stage_view(lake, "viewed")
    publish(lake, BUILD, get_build(lake, BUILD).relations.items(), catalogs)
    staged_build(lake)
    copied(staged("appended"))
    discard(lake, get_build(lake, BUILD), catalogs)
    staged_build(lake)
    copied(staged("replaced"))
    assert discard_abandoned(lake, ["s"], timedelta(0), catalogs) == [BUILD]
    write(lake, "t__dbt_new_0123456789ab", [2], Mode.CREATE)
    copied("t__dbt_new_0123456789ab")
    assert drop_unfinished(lake, ("s", "t__dbt_new_0123456789ab"), catalogs)
    assert_nothing_lost(partner)
    assert len(partner.relations("s")) == 4
    partner.close()


NEWER = with_query(VIEW, "select 2 as id")


def swaps(lake: IcebergCatalog) -> Build:
    """A build whose table replaces a view, and whose view replaces a table."""
    write(lake, "viewed", [1], Mode.CREATE)
    stage_view(lake, "viewed")
    return view_and_build(lake)


def kinds(lake: IcebergCatalog) -> dict[str, str]:
    return dict(lake.relations("s"))


@EACH_ENDING
def test_a_swap_interrupted_at_every_call(
    lake: IcebergCatalog, endings: Sequence[Callable[[IcebergCatalog], Any]]
) -> None:
    """Once, `discard` left no version of what `publish` had dropped when it was killed."""
    interrupted, is_local = 0, isinstance(lake._backend, SqliteBackend)
    for call in range(0, 100, 1 if is_local else 5):
        for after in (False, True):
            ending = endings[(call + after) % len(endings)]
            build = swaps(lake)
            backend = Interruption(lake._backend, call, after)
            try:
                publish(IcebergCatalog("lake", backend), BUILD, build.relations.items())
            except Interrupted:
                interrupted += 1
            published = read(lake, "created") if kinds(lake).get("created") == "table" else None
            if list_builds(lake):
                ending(lake)
            assert set(kinds(lake)) == {"created", "viewed"}
            if ending is publish_all or published:
                assert read(lake, "created") == [(8,)]
            if ending is publish_all:
                assert kinds(lake)["viewed"] == "view"
            if kinds(lake)["viewed"] == "table":
                assert read(lake, "viewed") == [(1,)]
            assert_nothing_lost(lake, ["s"])
            drop_all(lake)
        if backend.calls <= call:
            break
    assert interrupted > (20 if is_local else 8)


@pytest.mark.parametrize("error", [CatalogError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["created", "viewed"])
@pytest.mark.parametrize("is_dropped_later", [False, True])
def test_a_drop_whose_answer_is_lost(
    lake: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[BaseException],
    is_dropped_later: bool,
) -> None:
    """What was dropped is back, but what a user drops later is not."""
    build, unregister = swaps(lake), lake._backend.unregister

    def lose(namespace: str, dropped: str, *condition: Any) -> Any:
        result = unregister(namespace, dropped, *condition)
        if dropped == name:
            raise error("does not answer")
        return result

    with monkeypatch.context() as patch, pytest.raises((CatalogError, BuildError, error)):
        patch.setattr(lake._backend, "unregister", lose)
        publish(lake, BUILD, build.relations.items())
    assert kinds(lake)[name] == ("view" if name == "created" else "table")
    if is_dropped_later:
        drop_table(lake, ("s", name))
        discard_all(lake)
        assert name not in kinds(lake)
    else:
        publish_all(lake)
        assert kinds(lake) == {"created": "table", "viewed": "view"}


def test_a_view_whose_answer_is_lost(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    build, put_view = swaps(lake), lake._backend.put_view

    def lose(*arguments: Any) -> None:
        put_view(*arguments)
        raise CatalogError("does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(lake._backend, "put_view", lose)
        publish(lake, BUILD, build.relations.items())
    assert kinds(lake) == {"created": "table", "viewed": "view"}
    assert_nothing_lost(lake, ["s"])


@pytest.mark.parametrize("existed", [False, True])
def test_a_view_that_another_writer_created_or_changed_stays(
    lake: IcebergCatalog, existed: bool
) -> None:
    """Once, a table of a build replaced a view that nobody had looked at."""
    if existed:
        view_and_build(lake)
    else:
        stage_table(lake, ("s", "created"), BUILD, {})
        write(lake, staged("created"), [8], Mode.REPLACE)
    lake.put_view(("s", "created"), NEWER)
    with pytest.raises(BuildConflict, match=r"s\.created is a view that another writer"):
        publish_all(lake)
    assert kinds(lake)["created"] == "view"
    stage_table(lake, ("s", "created"), BUILD, {})
    write(lake, staged("created"), [8], Mode.REPLACE)
    publish_all(lake)
    assert read(lake, "created") == [(8,)]


def test_a_view_that_changes_just_before_its_drop_stays(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, its older definition was restored."""
    build = view_and_build(lake)
    change = partial(lake.put_view, ("s", "created"), NEWER)
    before_call(lake, monkeypatch, "unregister", change)
    with pytest.raises(BuildConflict, match=r"s\.created is a view that another writer"):
        publish(lake, BUILD, build.relations.items())
    metadata = lake.metadata(("s", "created"))
    assert metadata is not None and view_query(metadata) == "select 2 as id"


@pytest.mark.parametrize("is_moved", [False, True])
def test_an_old_table_that_another_writer_put_there_stays(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    """Its times say nothing: it was renamed, or the writer's clock is behind. Once, it was lost."""
    write(lake, "archive" if is_moved else "viewed", [5], Mode.CREATE)
    stage_view(lake, "viewed")
    table = lake.load(("s", "archive"))
    if table is not None:
        lake.register(("s", "viewed"), table.location)
        lake.unregister(("s", "archive"))
    else:
        now = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now() - 10)
            write(lake, "viewed", [6], Mode.APPEND)
    with pytest.raises(BuildConflict, match=r"s\.viewed was created or changed"):
        publish_all(lake)
    assert read(lake, "viewed") == ([(5,)] if is_moved else [(5,), (6,)])


def test_a_name_that_is_taken_does_not_keep_others_from_being_restored(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        lake.put_view(("s", name), VIEW)
        stage_table(lake, ("s", name), BUILD, {})
        write(lake, staged(name), [8], Mode.REPLACE)
    build = get_build(lake, BUILD)
    put_view, commit_all = lake._backend.put_view, lake._backend.commit_all

    def refuse(commits: Any) -> None:
        if len(commits) > 1:
            raise CatalogError("the commit is refused")
        commit_all(commits)

    def take(namespace: str, name: str, version: Any) -> None:
        monkeypatch.setattr(lake._backend, "put_view", put_view)
        write(lake, name, [99], Mode.CREATE)
        put_view(namespace, name, version)

    monkeypatch.setattr(lake._backend, "put_view", take)
    with monkeypatch.context() as patch, pytest.raises(CatalogError, match="commit is refused"):
        patch.setattr(lake._backend, "commit_all", refuse)
        publish(lake, BUILD, build.relations.items())
    published = [kinds(lake).get(name) for name in ("one", "two")]
    assert sorted(map(str, published)) == ["table", "view"]


@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
def test_a_locked_catalog(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the error was SQLite's own, and the table was lost."""
    build, put_view = swaps(lake), lake._backend.put_view
    monkeypatch.setattr("dbt.adapters.iceberg_stream.catalog.sqlite.BUSY_SECONDS", 0.1)
    lock = sqlite3.connect(lake._backend._path, isolation_level=None)

    def lock_then_put(*arguments: Any) -> None:
        lock.execute("begin immediate")
        put_view(*arguments)

    with monkeypatch.context() as patch, pytest.raises(BuildError, match="does not answer"):
        patch.setattr(lake._backend, "put_view", lock_then_put)
        publish(lake, BUILD, build.relations.items())
    lock.close()
    discard_all(lake)
    assert read(lake, "viewed") == [(1,)]


def test_a_view_that_is_staged_again_meanwhile_is_not_published(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`publish` has not checked it. Once, it was published, or dropped unpublished."""
    stage_view(lake, "v")
    build = get_build(lake, BUILD)
    before_call(lake, monkeypatch, "put_view", partial(stage_view, lake, "v", NEWER))
    publish(lake, BUILD, build.relations.items())
    metadata = lake.metadata(("s", "v"))
    assert metadata is not None and view_query(metadata) == "select 1 as id"
    assert staged("v") in kinds(lake)


def test_a_build_that_is_discarded_after_the_commit_is_published_whole(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the command ended well without its views."""
    stage_view(lake, "v")
    build = get_build(lake, BUILD)
    before_call(lake, monkeypatch, "put_view", partial(discard_all, lake))
    publish(lake, BUILD, build.relations.items())
    assert kinds(lake) == {"v": "view"}
