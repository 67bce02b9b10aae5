"""Whole projects that skip what has not changed, while others write at any time.

After each build without another writer all tables hold what a model in Python says, and all tests
say so. `-k "Atomic and 107"` repeats the history of a seed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from subprocess import TimeoutExpired
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.builds.errors import BuildConflict
from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from tests.functional.dbt_process import dbt_processes
from tests.functional.foreign_writer import ALL, foreign_writer
from tests.functional.lake import rows, run, table
from tests.functional.random_world import (
    DAYS,
    LOSE_CHANGES,
    ZONES,
    Event,
    World,
    project_event,
    source_event,
    target_event,
    values,
)
from tests.functional.test_foreign_writers import foreign_write
from tests.integration.tables import duckdb_connection
from tests.lost_files import assert_nothing_lost
from tests.servers.rest_catalog import RestCatalog

COLUMNS = {
    "of_view": "id, n, k",
    "merged": "id, n, k",
    "snap": "id, n, k",
    "overwritten": "k, c, s",
    "totals": "c, s, plus",
    "streamed": "id, n, k",
    "batched": "id, n, t",
}
OF_TESTS = {"few", "as_before", "plain_id"}
# They are built until a build changes no row, or always.
BUILT_AGAIN = {"appended", "merged", "batched", "days", "streamed"}
VIEWS = {"of_view"}
STEPS = 2
MANY_STEPS = 40


class WholeProject:
    """A project that is built again and again; `skip_unchanged` is on."""

    publish = "immediately"
    users = ("default",)

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        options = {"skip_unchanged": True, "publish": self.publish, "threads": 4}
        return {**dbt_profile_target, **options}

    @pytest.fixture
    def world(self, project: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
        world = World(Random(seed))
        world.zone, world.user = world.rng.choice(ZONES), self.users[0]
        settings = IcebergStreamConnectionManager.session_settings

        def with_zone(manager: Any, tokens: Any) -> dict[str, str]:
            return settings(manager, tokens) | {"spark.sql.session.timeZone": world.zone}

        monkeypatch.setattr(IcebergStreamConnectionManager, "session_settings", with_zone)
        world.rows = world.fixed = world.new_rows()
        run(project, "drop table if exists {schema}.raw")
        run(project, f"create table {{schema}}.raw as {values(world.rows)}")
        run(project, "alter table {schema}.raw create tag fixed")
        self.remember(project, world)
        return world

    def remember(self, project: Any, world: World) -> None:
        """Record the source's version, and forget those that are gone."""
        metadata = table(project, "raw").metadata
        known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        current = metadata.current_snapshot_id
        world.history = {id: rows for id, rows in world.history.items() if id in known - {current}}
        world.history[current] = world.rows

    def happens(self, project: Any, world: World, event: Event) -> None:
        with suppress(*[DbtDatabaseError] if event.may_fail else []):
            for statement in event.statements:
                foreign_write(project, statement)()
        event.apply()
        world.happened.append(event.name)
        self.remember(project, world)

    def build(self, project: Any, world: World) -> dict[str, str]:
        """Run `dbt build`; return the status of each node."""
        results = run_dbt(self.command(project, world), expect_pass=None)
        return {result.node.name: f"{result.status} {result.message or ''}" for result in results}

    def command(self, project: Any, world: World) -> list[str]:
        """Write the project's files, and return the arguments of the command that builds it."""
        for path, text in world.files().items():
            write_file(text, project.project_root, *path.split("/"))
        return ["build", "--target", world.user, "--vars", f"{{plus: {world.plus}}}", *DAYS]

    def kill(self, project: Any, world: World) -> float:
        """Kill a build, in the time zone of this machine; return after how many seconds."""
        seconds = world.rng.uniform(3, 25)
        with dbt_processes(project) as start:
            process = start(*self.command(project, world))
            with suppress(TimeoutExpired):
                process.communicate(timeout=seconds)
        return seconds

    def contents(self, project: Any, name: str) -> Counter[Any]:
        query = f"select {COLUMNS.get(name, '*')} from {{schema}}.{name}"
        if name == "snap":
            query += " where dbt_valid_to is null"
        return Counter(rows(project, query))

    def by_duckdb(self, project: Any, name: str) -> Counter[Any]:
        path = table(project, name).metadata_location.removeprefix("file://")
        query = f"select {COLUMNS.get(name, '*')} from iceberg_scan('{path}')"
        if name == "snap":
            query += " where dbt_valid_to is null"
        return Counter(duckdb_connection().execute(query).fetchall())

    def appended(self, project: Any) -> list[Any]:
        relations = dict(project.adapter.catalog.relations(project.test_schema))
        return [*self.contents(project, "appended").elements()] if "appended" in relations else []

    def check(self, project: Any, world: World, at: str) -> set[str]:
        """Build while nobody else writes, and compare; return the nodes that were built."""
        expected = world.expected(self.appended(project))
        statuses = self.build(project, world)
        if "--full-refresh" in statuses.get("streamed", ""):
            assert (at, LOSE_CHANGES & {*world.happened}) != (at, set()), statuses["streamed"]
            run_dbt(["run", "--select", "streamed", "--full-refresh"])
            statuses = self.build(project, world)
        failed = [text for text in statuses.values() if text.startswith(("error", "fail", "skip"))]
        assert (at, failed) == (at, [])
        for name, truth in expected.items():
            actual = self.contents(project, name)
            assert (at, name, actual) == (at, name, truth), (at, name, statuses)
            if name not in VIEWS and not (name == "plain" and world.is_view):
                assert (at, name, self.by_duckdb(project, name)) == (at, name, truth)
        world.happened.clear()
        warned = {name for name in OF_TESTS if statuses[name].startswith("warn")}
        assert (at, warned) == (at, world.warnings())
        assert_nothing_lost(project.adapter.catalog, [project.test_schema])
        return {name for name, status in statuses.items() if status.startswith("success")}

    def seeds_and_steps() -> Any:
        slow = [pytest.param(n, MANY_STEPS, marks=pytest.mark.slow) for n in range(100, 108)]
        return pytest.mark.parametrize(("seed", "steps"), [(1, STEPS), *slow])

    @seeds_and_steps()
    def test_histories(self, project: Any, world: World, seed: int, steps: int) -> None:
        rng, at = world.rng, f"seed {seed}"
        self.check(project, world, at)
        for step in range(steps):
            kinds = [source_event, source_event, target_event, project_event]
            happened = []
            for _ in range(rng.randint(0, 2)):
                event = rng.choice(kinds)(world)
                happened.append(event.name)
                self.happens(project, world, event)
            at = f"seed {seed}, step {step}: {happened}"
            if rng.random() < 0.5:
                event = rng.choice(kinds[:3])(world)
                call = rng.randrange(100)
                at += f", {event.name} before call {call}"
                write = lambda event=event: self.happens(project, world, event)  # noqa: E731
                # Nothing is published then, and the next build begins again.
                with foreign_writer(write, call, ALL) as calls, suppress(BuildConflict):
                    self.build(project, world)
                if not calls.has_written:
                    write()
            if steps > STEPS and rng.random() < 0.2:
                at += f", killed after {self.kill(project, world):.1f} s"
            world.user = rng.choice(self.users)
            self.check(project, world, f"{at}, {world.user}")
            assert (at, self.check(project, world, at) - BUILT_AGAIN) == (at, set())


class TestAtOnce(WholeProject):
    """Each model is published when it is built."""


class TestAtomic(WholeProject):
    """All models are published when the last one is built."""

    publish = "atomic"


@pytest.mark.slow
class TestUsers(WholeProject):
    """Two users of a REST catalog build in turn."""

    users = ("wanda", "walter")

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self, unique_schema: str, dbt_profile_target: dict[str, Any], catalog: RestCatalog
    ) -> dict[str, Any]:
        common = {key: value for key, value in dbt_profile_target.items() if key != "warehouse"}
        common |= {"schema": unique_schema, "catalog_properties": {"uri": catalog.uri}}
        outputs = {user: common | {"token": catalog.token(user)} for user in self.users}
        return {"test": {"outputs": outputs, "target": self.users[0]}}
