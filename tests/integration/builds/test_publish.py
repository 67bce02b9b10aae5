"""Publishing a build: all tables or none, whenever it is interrupted, on both kinds of catalog."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.builds.build import (
    discard,
    get_build,
    list_builds,
)
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict, BuildError
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import (
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import READS_TARGET
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from tests.integration.builds.staged_builds import (
    BUILD,
    CREATED,
    EACH_ENDING,
    NAMES,
    NEW,
    OLD,
    Interrupted,
    Interruption,
    assert_clean,
    before_call,
    drop_all,
    expire_old,
    fail,
    killed_after_the_commit,
    publish_all,
    read,
    stage_view,
    staged,
    staged_build,
    state,
    write,
)
from tests.integration.mart_readers import assert_one_time, read_while_publishing
from tests.lost_files import assert_nothing_lost
from tests.servers.rest_catalog import RestCatalog


def test_publish(lake: IcebergCatalog) -> None:
    build = staged_build(lake)
    assert state(lake) == OLD
    publication = publish(lake, BUILD, build.relations.items())
    assert state(lake) == NEW
    assert sorted(publication.tables) == [("s", n) for n in ("appended", "created", "replaced")]
    assert publication.unchanged == [("s", "unchanged")]
    assert_clean(lake)


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_one_transaction(lake: IcebergCatalog, server: RestCatalog) -> None:
    """The access log of the server has one commit, of all tables."""
    build = staged_build(lake)
    before = len(server.requests())
    publish(lake, BUILD, build.relations.items())
    writes = [
        (method, path)
        for _, method, path, _ in server.requests()[before:]
        if method == "POST" and "register" not in path
    ]
    assert [path for _, path in writes] == ["/v1/transactions/commit"]


@pytest.mark.variants(2)
@EACH_ENDING
def test_interrupted_at_every_call(
    lake: IcebergCatalog, endings: Sequence[Callable[[IcebergCatalog], Any]]
) -> None:
    """Readers see all tables as before or all as after; whoever comes next can end it."""
    interrupted = 0
    is_local = isinstance(lake._backend, SqliteBackend)
    for call in range(0, 100, 1 if is_local else 5):
        for after in (False, True):
            ending = endings[(call + after) % len(endings)]
            build = staged_build(lake)
            backend = Interruption(lake._backend, call, after)
            try:
                publish(IcebergCatalog("lake", backend), BUILD, build.relations.items())
            except Interrupted:
                interrupted += 1
            published = state(lake)
            assert published in (OLD, NEW, CREATED)
            if list_builds(lake):
                ending(lake)
            assert state(lake) in ([NEW] if ending is publish_all else [OLD, NEW])
            if published == NEW:
                assert state(lake) == NEW
            assert_clean(lake, [name for name in NAMES if read(lake, name) is not None])
            drop_all(lake)
        if backend.calls <= call:
            break
    assert interrupted > (10 if is_local else 4)


@pytest.mark.parametrize("error", [CommitConflict, CommitStateUnknown])
@pytest.mark.parametrize("committed", [True, False])
def test_an_answer_that_is_lost(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, error: type[Exception], committed: bool
) -> None:
    """A commit whose answer says that it failed is repeated, unless the tables show it."""
    build = staged_build(lake)
    commit_all, failures = lake._backend.commit_all, iter([error("lost")])

    def fail_once(commits: Any) -> None:
        if committed:
            commit_all(commits)
        if (failure := next(failures, None)) is not None:
            raise failure
        if not committed:
            commit_all(commits)

    monkeypatch.setattr(lake._backend, "commit_all", fail_once)
    publish(lake, BUILD, build.relations.items())
    assert state(lake) == NEW
    assert_clean(lake)


def test_other_writers(lake: IcebergCatalog) -> None:
    """Appends are added to what others have committed; another change is refused."""
    staged_build(lake)
    write(lake, "appended", [10], Mode.APPEND)
    publish_all(lake)
    assert read(lake, "appended") == [(1,), (2,), (3,), (4,), (10,)]
    assert_clean(lake)
    drop_all(lake)
    build = staged_build(lake)
    write(lake, "replaced", [10], Mode.APPEND)
    with pytest.raises(BuildConflict, match=r"s\.replaced has the new snapshot \d+ \(append"):
        publish(lake, BUILD, build.relations.items())
    assert state(lake)[0] == OLD[0]
    discard(lake, build)
    assert read(lake, "replaced") == [(1,), (2,), (10,)]
    assert_clean(lake, ["appended", "replaced", "unchanged"])


def test_appended_rows_that_were_computed_from_the_table(lake: IcebergCatalog) -> None:
    """Another writer may have appended the same rows."""
    write(lake, "appended", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "appended"), BUILD, {})
    write(lake, staged("appended"), [3], Mode.APPEND, snapshot_properties={READS_TARGET: "true"})
    write(lake, "appended", [3], Mode.APPEND)
    with pytest.raises(BuildConflict, match=r"s\.appended has the new snapshot \d+ \(append"):
        publish_all(lake)
    assert read(lake, "appended") == [(1,), (2,), (3,)]


def test_what_cannot_be_published(lake: IcebergCatalog) -> None:
    stage_table(lake, ("s", "created"), BUILD, {})
    with pytest.raises(BuildError, match=r"s\.created failed before it had rows"):
        publish_all(lake)
    lake.unregister(("s", staged("created")))
    write(lake, staged("created"), [1], Mode.CREATE)
    with pytest.raises(BuildError, match=r"dropped and created s\.created again"):
        publish_all(lake)
    discard(lake, get_build(lake, BUILD))
    with pytest.raises(BuildError, match="There is no build `pr-1`"):
        get_build(lake, BUILD)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.variants(2)
def test_random_builds(lake: IcebergCatalog, seed: int) -> None:
    """Builds, other writers, interruptions and ends in any order, against a model."""
    choose = random.Random(seed)
    published: dict[str, list[int]] = {}
    for step in range(12):
        build: dict[str, tuple[list[int], str]] = {}
        for name in choose.sample(NAMES, choose.randint(1, 4)):
            exists = stage_table(lake, ("s", name), BUILD, {})
            assert exists == (name in published)
            kind = choose.choice(["append", "replace"]) if exists else "replace"
            mode = Mode.APPEND if kind == "append" else Mode.REPLACE
            write(lake, staged(name), [step], mode)
            old = published.get(name, []) if kind == "append" else []
            build[name] = ([*old, step], kind)
        conflict = None
        if choose.random() < 0.4 and published:
            other = choose.choice(sorted(published))
            write(lake, other, [-step], Mode.APPEND)
            published[other] = [*published[other], -step]
            if other in build and build[other][1] == "append":
                build[other][0].append(-step)
            elif other in build:
                conflict = other
        if choose.random() < 0.3:
            broken = IcebergCatalog(
                "lake", Interruption(lake._backend, choose.randint(0, 25), choose.random() < 0.5)
            )
            relations = {("s", name): "table" for name in build}
            with suppress(Interrupted, BuildConflict):
                publish(broken, BUILD, relations.items())
        if conflict is not None:
            with pytest.raises(BuildConflict):
                publish_all(lake)
            discard(lake, get_build(lake, BUILD))
        elif list_builds(lake):
            publish_all(lake)
        if conflict is None:
            published |= {name: rows for name, (rows, _) in build.items()}
        for name, rows in published.items():
            assert read(lake, name) == sorted((row,) for row in rows)
        assert_clean(lake, sorted(published))


def test_readers_of_several_tables(lake: IcebergCatalog) -> None:
    """Who loads tables one after the other never finds a later one at an older build."""
    problems, times = read_while_publishing(lake)
    assert_one_time(lake, times)
    if isinstance(lake._backend, SqliteBackend):
        assert problems == []


@pytest.mark.parametrize("kind", ["unchanged", "appended", "replaced"])
def test_published_snapshots_were_expired(lake: IcebergCatalog, kind: str) -> None:
    """Once, publishing added them again, without their files."""
    for _ in range(2):
        write(lake, kind, [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", kind), BUILD, {})
    if kind != "unchanged":
        mode = Mode.APPEND if kind == "appended" else Mode.REPLACE
        write(lake, staged(kind), [3], mode)
    expire_old(lake, kind)
    before = lake.load(("s", kind))
    publication = publish_all(lake)
    after = lake.load(("s", kind))
    assert before is not None and after is not None
    assert len(after.metadata["snapshots"]) == (1 if kind == "unchanged" else 2)
    if kind == "unchanged":
        assert publication.unchanged == [("s", kind)]
        assert after.location == before.location
    assert_clean(lake, [kind])


def test_published_before_another_writer_and_an_expiry(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the rows were added again, and the manifests of the first time removed."""
    write(lake, "appended", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "appended"), BUILD, {})
    write(lake, staged("appended"), [3], Mode.APPEND)
    killed_after_the_commit(lake, monkeypatch, [(("s", "appended"), "table")])
    write(lake, "appended", [4], Mode.APPEND)
    expire_old(lake, "appended")
    assert publish_all(lake).tables.keys() == {("s", "appended")}
    assert read(lake, "appended") == [(1,), (2,), (3,), (4,)]
    assert_clean(lake, ["appended"])


def test_what_was_rebased_leaves_files_that_others_have(lake: IcebergCatalog) -> None:
    """A copy of the staged table has its manifests."""
    write(lake, "appended", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "appended"), BUILD, {})
    write(lake, staged("appended"), [3], Mode.APPEND)
    table = lake.load(("s", staged("appended")))
    assert table is not None
    lake.register(("s", "copy"), table.location)
    write(lake, "appended", [4], Mode.APPEND)
    publish_all(lake)
    assert read(lake, "appended") == [(1,), (2,), (3,), (4,)]
    assert read(lake, "copy") == [(1,), (2,), (3,)]
    assert_nothing_lost(lake, ["s"])


@pytest.mark.parametrize("change", ["columns", "properties", "created"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_published_without_a_snapshot(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, change: str, is_killed: bool
) -> None:
    """Once, the next attempt found a conflict with the first one."""
    if change != "created":
        write(lake, "changed", [1], Mode.REPLACE)
    stage_table(lake, ("s", "changed"), BUILD, {})
    table = lake.load(("s", staged("changed")))
    assert table is not None
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "text", LongType(), required=False),
        schema_id=1,
    )
    columns = (
        AddSchemaUpdate(schema=schema),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
    )
    properties = (SetPropertiesUpdate(updates={"comment": "new"}),)
    lake.commit(table, (), properties if change == "properties" else columns)
    stage_view(lake, "viewed")
    relations = get_build(lake, BUILD).relations
    if is_killed:
        killed_after_the_commit(lake, monkeypatch, relations.items())
    else:
        fail(lake, monkeypatch, [CommitStateUnknown("lost")], committed=True)
    assert publish(lake, BUILD, relations.items()).tables.keys() == {("s", "changed")}
    assert lake.metadata(("s", "viewed")) is not None
    published = lake.load(("s", "changed"))
    assert published is not None
    if change == "properties":
        assert published.metadata["properties"]["comment"] == "new"
    else:
        assert [column.name for column in lake.columns(("s", "changed"))] == ["id", "text"]
    assert_clean(lake, ["changed"])


def test_what_is_staged_on_top_of_what_was_published(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only properties were published, so the build goes on with the staged table."""
    write(lake, "appended", [1], Mode.REPLACE)
    stage_table(lake, ("s", "appended"), BUILD, {})
    table = lake.load(("s", staged("appended")))
    assert table is not None
    lake.commit(table, (), (SetPropertiesUpdate(updates={"comment": "new"}),))
    killed_after_the_commit(lake, monkeypatch, get_build(lake, BUILD).relations.items())
    stage_table(lake, ("s", "appended"), BUILD, {})
    write(lake, staged("appended"), [2], Mode.APPEND)
    publish_all(lake)
    assert read(lake, "appended") == [(1,), (2,)]
    assert_clean(lake, ["appended"])


@pytest.mark.parametrize("is_staged_again", [False, True])
def test_what_is_staged_after_the_publication_stays(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_staged_again: bool
) -> None:
    """Once, `publish` dropped the rows that a run of the build had committed meanwhile."""
    write(lake, "replaced", [1, 2], Mode.REPLACE)
    stage_table(lake, ("s", "replaced"), BUILD, {})
    write(lake, staged("replaced"), [7], Mode.REPLACE)
    build = get_build(lake, BUILD)

    def run() -> None:
        if is_staged_again:
            stage_table(lake, ("s", "replaced"), BUILD, {})
        write(lake, staged("replaced"), [10], Mode.APPEND)

    before_call(lake, monkeypatch, "unregister", run)
    publish(lake, BUILD, build.relations.items())
    assert read(lake, "replaced") == [(7,)]
    assert read(lake, staged("replaced")) == [(7,), (10,)]


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
@pytest.mark.parametrize("is_conflict", [False, True])
def test_a_new_table_before_its_rows(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_conflict: bool
) -> None:
    """A server lists it. It stays if another writer has filled it, and no longer than that."""
    build, commit_all = staged_build(lake), lake._backend.commit_all

    def write_then_commit(commits: Any) -> None:
        monkeypatch.undo()
        write(lake, "replaced" if is_conflict else "created", [9], Mode.APPEND)
        commit_all(commits)

    monkeypatch.setattr(lake._backend, "commit_all", write_then_commit)
    with pytest.raises(BuildConflict):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "created") == (None if is_conflict else [(9,)])
    discard(lake, get_build(lake, BUILD))
    assert read(lake, "created") == (None if is_conflict else [(9,)])
