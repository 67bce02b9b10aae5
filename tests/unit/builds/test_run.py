"""Relations that a command stages again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from dbt.adapters.iceberg_stream.builds.build import get_build, load_status
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict, BuildError
from dbt.adapters.iceberg_stream.builds.names import node_titles, staged_name
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.run import VIEW as VIEW_KIND
from dbt.adapters.iceberg_stream.builds.run import BuildRun
from dbt.adapters.iceberg_stream.builds.settings import BuildSettings
from tests.unit.catalog.test_locations import VIEW
from tests.unit.local_tables import NAME, make_catalog, make_table


@pytest.mark.parametrize("is_table", [False, True])
def test_a_view_is_staged_again(tmp_path: Path, is_table: bool) -> None:
    """It replaces the table that was there when it was staged for the last time, and no other."""
    lake = make_catalog(tmp_path)
    staged = staged_name(NAME, "pr")
    lake.put_view(staged, VIEW)
    if is_table:
        make_table(lake)
        with pytest.raises(BuildConflict, match="was created or changed by another writer"):
            publish(lake, "pr", [(NAME, VIEW_KIND)])
    settings = BuildSettings("pr", publishes=False, continues=True, keep=timedelta(days=1))
    run = BuildRun(settings, lambda: lake, lambda *_: None, lambda _: None)
    assert run.stage(NAME, VIEW_KIND, {})
    lake.put_view(staged, {**VIEW, "properties": dict(run.view_properties(NAME))})
    publish(lake, "pr", [(NAME, VIEW_KIND)])
    assert lake.relations("s") == [("t", "view")]
    lake.close()


def test_the_builds_of_others_do_not_fail_a_published_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may publish or discard its build while this one looks at it."""

    def gone(*_: object) -> None:
        raise BuildError("The build `other` was published or discarded meanwhile.")

    monkeypatch.setattr("dbt.adapters.iceberg_stream.builds.build.discard_abandoned", gone)
    lake = make_catalog(tmp_path)
    settings = BuildSettings("pr", publishes=True, continues=False, keep=timedelta(days=1))
    run = BuildRun(settings, lambda: lake, lambda *_: None, lambda _: None)
    assert run.stage(NAME, VIEW_KIND, {}) is False
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    run.on_event(ended("v", "success"))
    run.finish()
    run.raise_error()
    assert lake.relations("s") == [("t", "view")]
    lake.close()


def ended(node: str, status: str) -> SimpleNamespace:
    """dbt's event of a node that has ended."""
    info = SimpleNamespace(unique_id=f"model.test.{node}")
    data = SimpleNamespace(node_info=info, run_result=SimpleNamespace(status=status))
    return SimpleNamespace(info=SimpleNamespace(name="NodeFinished"), data=data)


def test_a_failure_lasts_until_the_node_succeeds(tmp_path: Path) -> None:
    lake = make_catalog(tmp_path)
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    settings = BuildSettings("pr", publishes=False, continues=True, keep=timedelta(days=1))

    def command(**statuses: str) -> list[str]:
        run = BuildRun(settings, lambda: lake, lambda *_: None, lambda _: None)
        for node, status in statuses.items():
            run.on_event(ended(node, status))
        run.finish()
        return node_titles(load_status(lake, get_build(lake, "pr")).failed)

    assert command(a="success", test_a="fail", b="skipped") == ["test_a", "b"]
    assert command(c="success") == ["test_a", "b"]
    assert command(b="success", c="error") == ["test_a", "c"]
    assert command(test_a="pass", c="success") == []
    versions = {"a.v1": "error", "a.v2": "success"}
    assert command(**versions) == ["a.v1"]
    lake.close()


def test_titles_of_nodes() -> None:
    nodes = ["model.p.a", "model.p.a.v2", "test.p.not_null_a_id.0123456789"]
    hook = "operation.hook.select a.b from c"
    assert node_titles([*nodes, hook]) == ["a", "a.v2", "not_null_a_id", "select a.b from c"]


def test_what_runs_after_the_publication(tmp_path: Path) -> None:
    lake, done = make_catalog(tmp_path), []
    settings = BuildSettings("pr", publishes=True, continues=False, keep=timedelta(days=1))

    def raises(*_: object) -> None:
        raise BuildError("the hook raises")

    run = BuildRun(settings, lambda: lake, raises, lambda _: None)
    run.stage(NAME, VIEW_KIND, {})
    assert run.waits(f"call lake.system.rewrite_data_files(table => '{'.'.join(NAME)}')")
    assert not run.waits("call lake.system.rewrite_data_files('s.another')")
    assert not run.waits(f"select '{'.'.join(NAME)}'")
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    run.defer(lambda: done.append("maintenance"))
    run.on_event(ended("v", "success"))
    run.finish()
    with pytest.raises(BuildError, match="(?s)`pr` is published, but what runs .* the hook raises"):
        run.raise_error()
    assert (done, lake.relations("s")) == (["maintenance"], [("t", "view")])
    lake.close()
