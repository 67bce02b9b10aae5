"""Publishing a build: all tables or none, whenever it is interrupted, on both kinds of catalog."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.builds.build import (
    Build,
    discard,
    discard_abandoned,
    discard_in,
    get_build,
    list_builds,
    record_run,
)
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict, BuildError
from dbt.adapters.iceberg_stream.builds.leftovers import drop_unfinished
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import Publication, publish
from dbt.adapters.iceberg_stream.builds.staged import plan_discards, stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import TableCommit
from dbt.adapters.iceberg_stream.catalog.views import view_query
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.references import references
from tests.integration.mart_readers import assert_one_time, read_while_publishing
from tests.lost_files import ForeignFiles, assert_nothing_lost
from tests.servers.rest_catalog import RestCatalog, rest_catalog

BUILD = "pr-1"
VIEW = {
    "current-version-id": 1,
    "versions": [
        {
            "version-id": 1,
            "schema-id": 0,
            "timestamp-ms": 0,
            "summary": {},
            "default-namespace": ["s"],
            "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "spark"}],
        }
    ],
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 0, "name": "id", "required": False, "type": "int"}],
        }
    ],
}
NAMES = ("appended", "replaced", "created", "unchanged")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(params=["sqlite", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[IcebergCatalog]:
    """A catalog with an empty namespace `s`."""
    foreign = ForeignFiles.create(tmp_path / "warehouse")
    if request.param == "sqlite":
        backend: Any = SqliteBackend("lake", tmp_path / "warehouse")
    else:
        server: RestCatalog = request.getfixturevalue("server")
        settings = CatalogSettings("lake", {"type": "rest", "uri": server.uri})
        backend = RemoteBackend(settings, Identity(LiteralToken(server.token("wanda"))))
    backend.create_namespace("s")
    lake = IcebergCatalog("lake", backend)
    yield lake
    drop_all(lake)
    foreign.assert_unchanged()


def drop_all(lake: IcebergCatalog) -> None:
    for name, _ in lake.relations("s"):
        drop_table(lake, ("s", name))


class Interrupted(BaseException):
    """A process that ends here."""


class Interruption:
    """A backend whose process ends before or after one of its calls, counted from 0."""

    def __init__(self, backend: Any, call: int, after: bool) -> None:
        self._backend, self._call, self._after = backend, call, after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number >= self._call and not (self._after and number == self._call):
                raise Interrupted
            result = method(*arguments, **options)
            if number == self._call:
                raise Interrupted
            return result

        return call


def write(lake: IcebergCatalog, name: str, ids: Sequence[int], mode: Mode) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    ingest(lake, ("s", name), rows.to_reader(), mode)


def widened(lake: IcebergCatalog, name: str, ids: Sequence[int]) -> None:
    """Replace rows and columns."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "text": [str(i) for i in ids]})
    ingest(lake, ("s", name), rows.to_reader(), Mode.REPLACE)


def read(lake: IcebergCatalog, name: str) -> list[tuple[Any, ...]] | None:
    """Rows of a table, by PyIceberg; None if there is no table."""
    if dict(lake.relations("s")).get(name) is None:
        return None
    rows = lake.table(("s", name)).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def state(lake: IcebergCatalog) -> list[Any]:
    return [read(lake, name) for name in NAMES]


def staged_build(lake: IcebergCatalog) -> Build:
    """A build that appends to a table, replaces one, creates one and leaves one as it is."""
    for name in ("appended", "replaced", "unchanged"):
        write(lake, name, [1, 2], Mode.REPLACE)
    for name in NAMES:
        stage_table(lake, ("s", name), BUILD, {})
    write(lake, staged("appended"), [3], Mode.APPEND)
    write(lake, staged("appended"), [4], Mode.APPEND)
    widened(lake, staged("replaced"), [7])
    write(lake, staged("created"), [8], Mode.REPLACE)
    return get_build(lake, BUILD)


def staged(name: str) -> str:
    return staged_name(("s", name), BUILD)[1]


OLD = [[(1,), (2,)], [(1,), (2,)], None, [(1,), (2,)]]
NEW = [[(1,), (2,), (3,), (4,)], [(7, "7")], [(8,)], [(1,), (2,)]]
# A server creates tables before the transaction, without rows.
CREATED = [*OLD[:2], [], OLD[3]]


def publish_all(lake: IcebergCatalog) -> Publication:
    return publish(lake, BUILD, get_build(lake, BUILD).relations.items())


def assert_clean(lake: IcebergCatalog, names: Sequence[str] = NAMES) -> None:
    """Nothing of a build is left, and the tables are sound."""
    assert list_builds(lake) == []
    assert_nothing_lost(lake, ["s"])
    for name in names:
        table = lake.load(("s", name))
        assert table is not None
        assert list(check_table(table, data=True).findings) == []
        assert not [k for k in table.metadata.get("properties", {}) if "iceberg-stream" in k]
        assert "gc.enabled" not in table.metadata.get("properties", {})


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


@pytest.mark.parametrize(
    "ending", [publish_all, lambda lake: discard(lake, get_build(lake, BUILD))]
)
def test_interrupted_at_every_call(
    lake: IcebergCatalog, ending: Callable[[IcebergCatalog], Any]
) -> None:
    """Readers see all tables as before or all as after; whoever comes next can end it."""
    interrupted = 0
    is_local = isinstance(lake._backend, SqliteBackend)
    for call in range(0, 100, 1 if is_local else 3):
        for after in (False, True):
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
    assert interrupted > (10 if is_local else 5)


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
            with _ignored(Interrupted, BuildConflict):
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
    # Iceberg's reference server checks all tables of a transaction, then commits one after the
    # other, so its readers may find tables at different builds for a moment.


class _ignored:
    """`contextlib.suppress`, for errors that are no exceptions, too."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


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


def test_a_table_stays_if_its_view_is_refused(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "viewed", [1, 2], Mode.CREATE)
    lake.put_view(("s", staged("viewed")), VIEW)
    build = get_build(lake, BUILD)

    def refuse(*_: Any) -> None:
        raise CatalogError("no views")

    with monkeypatch.context() as patch, pytest.raises(BuildError, match="no views"):
        patch.setattr(lake._backend, "put_view", refuse)
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "viewed") == [(1,), (2,)]
    publish_all(lake)
    assert dict(lake.relations("s")) == {"viewed": "view"}


def fail(
    lake: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    errors: Sequence[Exception],
    committed: bool,
) -> None:
    """Have the first commits fail, before or after they were made."""
    failures = iter(errors)
    for method in ("commit", "commit_all"):
        original = getattr(lake._backend, method)

        def commit(*arguments: Any, original: Any = original) -> None:
            failure = next(failures, None)
            if committed or failure is None:
                original(*arguments)
            if failure is not None:
                raise failure

        monkeypatch.setattr(lake._backend, method, commit)


def expire_old(lake: IcebergCatalog, name: str) -> None:
    """Expire all snapshots but the current one with their files, as Spark does."""
    table: Any = lake.load(("s", name))
    current = table.metadata["current-snapshot-id"]
    old = [s for s in table.metadata["snapshots"] if s["snapshot-id"] != current]
    kept = set(references(replace(table, metadata=_only(table.metadata, current))))
    gone = set(references(table)) - kept - {table.location}
    gone -= {entry["metadata-file"] for entry in table.metadata.get("metadata-log") or []}
    ids = [s["snapshot-id"] for s in old]
    lake.commit(table, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),))
    for location in gone:
        table.io.delete(location)


def _only(metadata: Any, snapshot_id: int) -> Any:
    snapshots = [s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id]
    return {**metadata, "snapshots": snapshots}


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


def record(lake: IcebergCatalog, build: Build) -> None:
    """Record the last command of a build, as dbt's commands do, in each namespace."""
    run = {"at": "2026-11-27T00:00:00+00:00", "failed": [], "has_ended": True}
    run["relations"] = sorted(build.relations)
    for namespace in {name[0] for name in build.relations}:
        name = min(name for name in build.relations if name[0] == namespace)
        record_run(lake, BUILD, name, build.relations[name], run)


def two_schemas(lake: IcebergCatalog) -> Build:
    """A build with a table and a view in each of two namespaces."""
    lake.create_namespace("s2")
    for namespace in ("s", "s2"):
        stage_table(lake, (namespace, "a"), BUILD, {})
        rows = pa.table({"id": pa.array([1], pa.int64())})
        ingest(lake, staged_name((namespace, "a"), BUILD), rows.to_reader(), Mode.REPLACE)
        lake.put_view(staged_name((namespace, "v"), BUILD), VIEW)
    build = get_build(lake, BUILD)
    record(lake, build)
    return build


def drop_two_schemas(lake: IcebergCatalog) -> None:
    for namespace in ("s", "s2"):
        for name, _ in lake.relations(namespace):
            drop_table(lake, (namespace, name))


def test_an_abandoned_build_is_discarded_whole(lake: IcebergCatalog) -> None:
    """Once, only the half in the schema of the command was discarded, and the rest published."""
    two_schemas(lake)
    assert discard_abandoned(lake, ["other"], timedelta(0)) == []
    assert discard_abandoned(lake, ["s"], timedelta(0)) == [BUILD]
    assert list_builds(lake) == []
    two_schemas(lake)
    discard_in(lake, "s2")
    assert list_builds(lake) == []


@pytest.mark.parametrize("lost", [("s", "a"), ("s", "v"), ("s2", "a"), ("s2", "v"), "s", "s2"])
def test_a_build_that_is_not_whole(lake: IcebergCatalog, lost: Any) -> None:
    build = two_schemas(lake)
    for name in [name for name in build.relations if lost in (name, name[0])]:
        lake.unregister(staged_name(name, BUILD))
    try:
        with pytest.raises(BuildError, match="is not whole"):
            publish_all(lake)
        assert lake.metadata(("s", "a")) is lake.metadata(("s2", "a")) is None
        with pytest.raises(BuildError, match="is not whole"):
            publish(lake, BUILD, build.relations.items())
        discard(lake, get_build(lake, BUILD))
        assert list_builds(lake) == []
    finally:
        drop_two_schemas(lake)


@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
@pytest.mark.parametrize("end", ["publish", "discard"])
def test_a_recorded_build_is_interrupted(lake: IcebergCatalog, end: str) -> None:
    """All is published, or nothing: `publish` ends what one began, and refuses a discarded one."""
    for call in range(100):
        build = two_schemas(lake)
        backend = Interruption(lake._backend, call, after=True)
        broken = IcebergCatalog("lake", backend)
        with _ignored(Interrupted):
            if end == "publish":
                publish(broken, BUILD, build.relations.items())
            else:
                discard(broken, build)
        refused = False
        if left := list_builds(lake):
            try:
                publish(lake, BUILD, left[0].relations.items())
            except BuildError:
                refused = True
        published = [lake.metadata((n, r)) is not None for n in ("s", "s2") for r in ("a", "v")]
        if end == "publish":
            assert all(published) and not refused
        else:
            assert not any(published) or (all(published) and not refused)
        if refused:
            discard(lake, get_build(lake, BUILD))
        drop_two_schemas(lake)
        if backend.calls <= call:
            break
    assert call > 5


def killed_after_the_commit(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, relations: Any
) -> None:
    """A `publish` that ends after the tables are published."""

    def end(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dbt.adapters.iceberg_stream.builds.publish._forget_relations", end)
        publish(lake, BUILD, relations)


def before_call(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, method: str, action: Callable[[], Any]
) -> None:
    """Have another process act before the next call of a method of the catalog."""
    original = getattr(lake._backend, method)

    def call(*arguments: Any) -> Any:
        monkeypatch.undo()
        action()
        return original(*arguments)

    monkeypatch.setattr(lake._backend, method, call)


def test_a_discard_before_the_commit(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the published tables lost their files."""
    build = staged_build(lake)
    before_call(lake, monkeypatch, "commit_all", lambda: discard(lake, build))
    with pytest.raises(BuildError, match="was published or discarded by another process"):
        publish(lake, BUILD, build.relations.items())
    assert state(lake) == OLD
    assert_clean(lake, ["appended", "replaced", "unchanged"])


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_a_publish_while_a_discard_drops(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_abandoned: bool
) -> None:
    """Once, the discard removed the files that it had chosen before."""
    build = staged_build(lake)

    def plan_then_publish(*arguments: Any) -> Any:
        drops = plan_discards(*arguments)
        monkeypatch.undo()
        publish(lake, BUILD, build.relations.items())
        return drops

    monkeypatch.setattr("dbt.adapters.iceberg_stream.builds.build.plan_discards", plan_then_publish)
    if is_abandoned:
        assert discard_abandoned(lake, ["s"], timedelta(0)) == [BUILD]
    else:
        discard(lake, build)
    assert state(lake) == NEW
    assert_clean(lake)


def test_an_abandoned_build_is_published_meanwhile(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = staged_build(lake)
    with monkeypatch.context() as patch:

        def status(*_: Any) -> None:
            publish(lake, BUILD, build.relations.items())
            raise BuildError("published meanwhile")

        patch.setattr("dbt.adapters.iceberg_stream.builds.build.load_status", status)
        assert discard_abandoned(lake, ["s"], timedelta(0)) == []
    assert state(lake) == NEW


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
    lake.put_view(("s", staged("viewed")), VIEW)
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


@pytest.mark.parametrize("exists", [False, True])
def test_a_table_that_another_writer_changed_stays(lake: IcebergCatalog, exists: bool) -> None:
    """Once, the view of a build replaced it."""
    if exists:
        write(lake, "viewed", [1], Mode.CREATE)
    staged_build(lake)
    lake.put_view(("s", staged("viewed")), VIEW)
    time.sleep(0.01)
    write(lake, "viewed", [2], Mode.APPEND if exists else Mode.CREATE)
    build = get_build(lake, BUILD)
    with pytest.raises(BuildConflict, match=r"s\.viewed was created or changed by another writer"):
        publish(lake, BUILD, build.relations.items())
    assert state(lake) == OLD
    assert read(lake, "viewed") == ([(1,), (2,)] if exists else [(2,)])
    lake.put_view(("s", staged("viewed")), VIEW)
    publish_all(lake)
    assert dict(lake.relations("s"))["viewed"] == "view"


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_table_that_changes_while_a_view_replaces_it(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Once, the other writer's commit was lost when the view was refused."""
    write(lake, "viewed", [1], Mode.CREATE)
    lake.put_view(("s", staged("viewed")), VIEW)
    build = get_build(lake, BUILD)
    load, loads = lake._backend.load, iter([False, True])

    def change_then_load(namespace: str, name: str, history: bool = True) -> Any:
        if name == "viewed" and next(loads, False) is is_refused:
            monkeypatch.undo()
            time.sleep(0.01)
            write(lake, "viewed", [2], Mode.APPEND)
            if is_refused:
                before_call(lake, monkeypatch, "put_view", refuse)
        return load(namespace, name, history)

    def refuse() -> None:
        raise CatalogError("no views")

    monkeypatch.setattr(lake._backend, "load", change_then_load)
    expected = "no views" if is_refused else "another writer has changed"
    with pytest.raises(BuildError, match=expected):
        publish(lake, BUILD, build.relations.items())
    assert read(lake, "viewed") == [(1,), (2,)]


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
    lake.put_view(("s", staged("viewed")), VIEW)
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
