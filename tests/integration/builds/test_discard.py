"""Builds that are discarded, and published at the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.builds.build import (
    Build,
    discard,
    discard_abandoned,
    discard_in,
    get_build,
    list_builds,
    store_record,
)
from dbt.adapters.iceberg_stream.builds.commands import CommandRecord
from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import plan_discards, stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.builds.staged_builds import (
    BUILD,
    NEW,
    OLD,
    VIEW,
    Interrupted,
    Interruption,
    assert_clean,
    before_call,
    drop_all,
    publish_all,
    staged,
    staged_build,
    state,
    write,
)


def record(lake: IcebergCatalog, build: Build) -> None:
    """Record the last command of a build, as dbt's commands do, in each namespace."""
    relations = tuple(sorted(build.relations))
    made = CommandRecord("c", "2026-11-27T00:00:00+00:00", True, relations=relations)
    for namespace in {name[0] for name in build.relations}:
        name = min(name for name in build.relations if name[0] == namespace)
        store_record(lake, BUILD, name, build.relations[name], made)


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
        with pytest.raises(BuildError, match="is not complete"):
            publish_all(lake)
        assert lake.metadata(("s", "a")) is lake.metadata(("s2", "a")) is None
        with pytest.raises(BuildError, match="is not complete"):
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
        with suppress(Interrupted):
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


@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
def test_a_killed_publish_and_a_killed_discard(lake: IcebergCatalog) -> None:
    """What a table would have replaced is there again, whenever they end."""

    def killed(action: Callable[[IcebergCatalog], Any], call: int, after: bool) -> bool:
        with suppress(Interrupted):
            action(IcebergCatalog("lake", Interruption(lake._backend, call, after)))
            return False
        return True

    def lost_view(call: int) -> bool:
        """Stage a table for a view, and kill `publish`: whether it has dropped the view."""
        drop_all(lake)
        lake.put_view(("s", "v"), VIEW)
        stage_table(lake, ("s", "v"), BUILD, {})
        write(lake, staged("v"), [1], Mode.REPLACE)
        killed(lambda other: publish(other, BUILD, [(("s", "v"), "table")]), call, True)
        return lake.metadata(("s", "v")) is None

    dropped = next(call for call in range(100) if lost_view(call))
    for call in range(100):
        for after in (False, True):
            assert lost_view(dropped)
            is_killed = killed(lambda other: discard(other, get_build(other, BUILD)), call, after)
            for build in list_builds(lake):
                discard(lake, build)
            assert "versions" in (lake.metadata(("s", "v")) or {})
        if not is_killed:
            break
    assert call > 5


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
