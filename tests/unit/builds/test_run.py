"""Relations that a command stages again, and what commands of a build record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
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
    run = BuildRun(settings, "c", lambda: lake, lambda *_: None, lambda *_: None)
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
    run = BuildRun(settings, "c", lambda: lake, lambda *_: None, lambda *_: None)
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


def started(node: str) -> SimpleNamespace:
    """dbt's event of a node that begins."""
    return SimpleNamespace(
        info=SimpleNamespace(name="NodeStart"),
        data=SimpleNamespace(node_info=SimpleNamespace(unique_id=f"model.test.{node}")),
    )


@dataclass
class Commands:
    """Commands of a named build that has a view."""

    lake: IcebergCatalog
    project: tuple[str, ...] = ()
    publishes: bool = False
    count: int = 0

    def begin(self, *nodes: str) -> BuildRun:
        """A command that has begun its first node."""
        self.count += 1
        settings = BuildSettings("pr", self.publishes, continues=True, keep=timedelta(days=1))
        ids = [[f"model.test.{node}" for node in all_] for all_ in (nodes, self.project)]
        run = BuildRun(
            settings,
            f"c{self.count}",
            lambda: self.lake,
            lambda *_: None,
            lambda *_: None,
            nodes=lambda: (ids[0], ids[1]),
        )
        run.on_event(started(nodes[0]))
        return run

    def end(self, run: BuildRun, **statuses: str) -> None:
        for node, status in statuses.items():
            run.on_event(ended(node, status))
        run.finish()
        run.raise_error()

    def whole(self, **statuses: str) -> list[str]:
        self.end(self.begin(*statuses), **statuses)
        return self.failed()

    def failed(self) -> list[str]:
        return sorted(node_titles(load_status(self.lake, get_build(self.lake, "pr")).failed))

    @property
    def have_ended(self) -> bool:
        return load_status(self.lake, get_build(self.lake, "pr")).has_ended


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    lake = make_catalog(tmp_path)
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    yield Commands(lake)
    lake.close()


def test_a_failure_lasts_until_the_node_succeeds(commands: Commands) -> None:
    assert commands.whole(a="success", test_a="fail", b="skipped") == ["b", "test_a"]
    assert commands.whole(c="success") == ["b", "test_a"]
    assert commands.whole(b="success", c="error") == ["c", "test_a"]
    assert commands.whole(test_a="pass", c="success") == []
    # Of two versions of a model one succeeds.
    assert commands.whole(**{"d.v1": "error", "d.v2": "success"}) == ["d.v1"]
    assert commands.whole(**{"d.v2": "success"}) == ["d.v1"]


def test_a_command_that_is_killed(commands: Commands) -> None:
    commands.begin("a", "b")
    assert not commands.have_ended
    assert commands.whole(c="success") == []
    assert not commands.have_ended
    assert commands.whole(a="success") == []
    assert not commands.have_ended
    assert commands.whole(b="success") == []
    assert commands.have_ended


def test_two_commands_at_once(commands: Commands) -> None:
    first, second = commands.begin("a", "b"), commands.begin("c")
    commands.end(first, a="success", b="success")
    assert (commands.failed(), commands.have_ended) == ([], False)
    commands.end(second, c="success")
    assert (commands.failed(), commands.have_ended) == ([], True)
    first, second = commands.begin("a", "b"), commands.begin("c")
    commands.end(second, c="error")
    commands.end(first, a="success", b="success")
    assert (commands.failed(), commands.have_ended) == (["c"], True)


def test_batches_of_a_model(commands: Commands) -> None:
    """dbt's events of batches have the id of their model."""
    run = commands.begin("a", "b")
    for _ in range(2):
        run.on_event(started("a"))
        run.on_event(ended("a", "success"))
    run.interrupt()
    commands.whole(b="success")
    assert not commands.have_ended
    assert commands.whole(a="success") == []
    assert commands.have_ended


def test_nodes_that_the_project_has_no_more(commands: Commands) -> None:
    commands.project = ("a", "b", "c")
    assert commands.whole(a="success", b="error") == ["b"]
    commands.begin("c")
    commands.project = ("a",)
    assert commands.whole(a="success") == []
    assert commands.have_ended


def test_not_reached_after_a_failure(commands: Commands) -> None:
    run = commands.begin("a", "b", "c")
    commands.end(run, a="error")
    assert (commands.failed(), commands.have_ended) == (["a", "b", "c"], True)


def test_a_retry_after_a_killed_one(commands: Commands) -> None:
    commands.publishes = True
    commands.begin("a", "b")
    commands.end(commands.begin("b"), b="success")
    assert commands.lake.relations("s") == [(staged_name(NAME, "pr")[1], "view")]
    commands.end(commands.begin("a"), a="success")
    assert commands.lake.relations("s") == [(NAME[1], "view")]


def test_titles_of_nodes() -> None:
    nodes = ["model.p.a", "model.p.a.v2", "test.p.not_null_a_id.0123456789"]
    hook = "operation.hook.select a.b from c"
    assert node_titles([*nodes, hook]) == ["a", "a.v2", "not_null_a_id", "select a.b from c"]


def test_writes_to_what_an_earlier_command_has_staged(tmp_path: Path) -> None:
    """By a command that has not used any relation, such as `dbt run-operation`."""
    lake, name = make_catalog(tmp_path), ".".join(NAME)
    settings = BuildSettings("pr", publishes=False, continues=True, keep=timedelta(days=1))
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    run = BuildRun(settings, "c", lambda: lake, lambda *_: None, lambda *_: None)
    with pytest.raises(BuildError, match=f"A statement writes to {name}, which"):
        run.check_statement(f"insert into {name} values (1)")
    run.check_statement("insert into nowhere.t values (1); insert into t values (1)")
    again = BuildRun(settings, "d", lambda: lake, lambda *_: None, lambda *_: None)
    assert again.waits(f"call lake.system.rewrite_data_files(table => '{name}')")
    lake.close()


def test_what_runs_after_the_publication(tmp_path: Path) -> None:
    lake, done = make_catalog(tmp_path), []
    settings = BuildSettings("pr", publishes=True, continues=False, keep=timedelta(days=1))

    def raises(*_: object) -> None:
        raise BuildError("the hook raises")

    run = BuildRun(settings, "c", lambda: lake, raises, lambda *_: None)
    run.stage(NAME, VIEW_KIND, {})
    assert run.waits(f"call lake.system.rewrite_data_files(table => '{'.'.join(NAME)}')")
    assert not run.waits("call lake.system.rewrite_data_files('s.another')")
    assert not run.waits(f"select '{'.'.join(NAME)}'")
    lake.put_view(staged_name(NAME, "pr"), VIEW)
    run.deferred.add(lambda: done.append("maintenance"))
    run.on_event(ended("v", "success"))
    run.finish()
    with pytest.raises(BuildError, match="(?s)`pr` is published, but what runs .* the hook raises"):
        run.raise_error()
    assert (done, lake.relations("s")) == (["maintenance"], [("t", "view")])
    lake.close()
