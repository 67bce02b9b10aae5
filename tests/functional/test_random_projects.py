"""Random histories of a project: whoever writes and however it is published, tables are the same.

A failure begins with its seed, which is in the test's name, too: `-k "Writers and 107"` repeats it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from dbt.artifacts.schemas.run import RunExecutionResult, RunResult
from dbt.cli.main import dbtRunner
from dbt.tests.util import write_file

from tests.functional.builds import AtomicProject, build_names, command
from tests.functional.lake import rows, table
from tests.functional.random_projects import RandomProject, Step
from tests.functional.table_contents import Contents, differences, read_tables, read_version
from tests.lost_files import assert_nothing_lost

# Seeds, steps and incremental models of short histories; the others are long.
SHORT = (3, 2)
LONG = (8, 5)
MANY = range(100, 110)

BRANCH = "dev"
# Of each node its status, its message if it failed, and the rows that it changed.
Results = Mapping[str, tuple[str, str, Any]]


def seeds(*short: int) -> list[Any]:
    """Return the seeds of a test: a few in each run of the suite, many by `make test-slow`."""
    return [*short, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]


class Histories:
    """A project whose profile has a target for each schema that is compared."""

    # What the targets differ in. The first one's schema is that of the project.
    targets: Mapping[str, Mapping[str, Any]]

    @pytest.fixture(scope="class")
    def seed(self, request: pytest.FixtureRequest) -> int:
        number: int = request.param
        return number

    @pytest.fixture(scope="class")
    def unique_schema(self, prefix: str, seed: int) -> str:
        return f"{prefix}_{seed}"

    @pytest.fixture(scope="class")
    def dbt_profile_data(self, dbt_profile_target: Any, unique_schema: str) -> dict[str, Any]:
        outputs = {
            # With one thread, models run in the same order.
            target: {**dbt_profile_target, "threads": 1, **own, "schema": unique_schema + suffix}
            for (target, own), suffix in zip(self.targets.items(), self.suffixes(), strict=True)
        }
        return {"test": {"target": next(iter(outputs)), "outputs": outputs}}

    @pytest.fixture
    def size(self, seed: int) -> tuple[int, int]:
        """The steps of the history, and its incremental models."""
        return LONG if seed in MANY else SHORT

    def suffixes(self) -> list[str]:
        return ["", *(f"_{target}" for target in [*self.targets][1:])]

    def schema(self, project: Any, target: str) -> str:
        schema: str = project.test_schema + self.suffixes()[[*self.targets].index(target)]
        return schema

    def contents(self, project: Any, target: str, branch: str = "main") -> dict[str, Contents]:
        tables = read_tables(project, self.schema(project, target), branch)
        assert not [name for name in tables if "__dbt_" in name]
        assert_nothing_lost(project.adapter.catalog, [self.schema(project, target)])
        return tables

    def build(self, project: Any, step: Step, target: str, *arguments: str) -> Results:
        """Build a step's project in the schema of a target."""
        for path, text in step.files.items():
            write_file(text, project.project_root, *path.split("/"))
        return self.dbt(project, target, *step.arguments, *arguments)

    def dbt(self, project: Any, target: str, *arguments: str) -> Results:
        # With the same folder for all targets, dbt parses the project again each time.
        places = ["--target", target, "--target-path", f"target_{target}"]
        places += ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
        done = dbtRunner().invoke([*arguments, "--quiet", *map(str, places)])
        if not isinstance(done.result, RunExecutionResult):
            raise done.exception or AssertionError(f"no results: {done.result}")
        schema = self.schema(project, target)
        return {result.node.name: _outcome(result, schema) for result in done.result}


def _outcome(result: RunResult, schema: str) -> tuple[str, str, Any]:
    # The message of a success has the time.
    failed = result.status not in ("success", "pass")
    message = (result.message or "").split("\n")[0].replace(schema, "SCHEMA") if failed else ""
    return str(result.status), message, result.adapter_response.get("rows_affected")


def statuses(results: Results) -> dict[str, str]:
    return {name: status for name, (status, _, _) in results.items()}


class TestWriters(Histories):
    """The adapter's writer and merges, and Spark's own; all earlier versions stay readable."""

    targets = {"ours": {}, "spark": {"small_table_rows": 0}}

    @pytest.mark.parametrize("seed", seeds(32), indirect=True, scope="class")
    def test_tables_are_those_of_spark(
        self, project: Any, seed: int, size: tuple[int, int]
    ) -> None:
        random = RandomProject(seed, incremental=size[1])
        versions: dict[tuple[str, int], Counter[str]] = {}
        for number in range(size[0]):
            at = f"seed {seed}, step {number}"
            step = random.next_step()
            ours = self.build(project, step, "ours")
            sparks = self.build(project, step, "spark", "--vars", "merge_engine: spark")
            assert (at, ours) == (at, sparks)
            tables, expected = (self.contents(project, target) for target in self.targets)
            assert (at, differences(expected, tables)) == (at, [])
            # A view that takes a table's place drops the table, with its versions.
            versions = {key: old for key, old in versions.items() if key[0] in tables}
            for name in tables:
                loaded = table(project, name)
                if (current := loaded.current_snapshot()) is not None:
                    key = (name, current.snapshot_id)
                    versions.setdefault(key, read_version(loaded, current.snapshot_id))
        for (name, snapshot_id), expected_rows in versions.items():
            read = read_version(table(project, name), snapshot_id)
            assert (seed, name, snapshot_id, read) == (seed, name, snapshot_id, expected_rows)
        counts = " union all ".join(
            f"select '{name}', {snapshot_id}, count(*) from {{schema}}.{name} version as of {snapshot_id}"
            for name, snapshot_id in versions
        )
        expected_counts = {(*key, count.total()) for key, count in versions.items()}
        assert (seed, {*rows(project, counts)}) == (seed, expected_counts)


class TestBranches(Histories):
    """Runs on a branch and on main: each is as if the other one were a schema of its own."""

    apart = ("of_branch", "of_main")
    targets: Mapping[str, Mapping[str, Any]] = {"ours": {}, **{name: {} for name in apart}}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        branch = {"+write_branch": "{{ var('branch', '') }}"}
        return {"models": branch, "snapshots": branch}

    @pytest.mark.parametrize("seed", seeds(), indirect=True, scope="class")
    def test_neither_changes_the_other(
        self, project: Any, seed: int, size: tuple[int, int]
    ) -> None:
        # A table's branches share its columns.
        random = RandomProject(seed, incremental=size[1], evolves=False)
        onto = Random(seed)
        for number in range(size[0]):
            at = f"seed {seed}, step {number}"
            step = random.next_step()
            # A branch begins as main, and is there after its first run.
            started, on_branch = number > 0, number == 1 or (number > 1 and onto.random() < 0.6)
            variables = ["--vars", f"branch: {BRANCH}"] if on_branch else []
            actual = self.build(project, step, "ours", *variables)
            for target in ["of_branch"] if on_branch else ["of_main"] if started else self.apart:
                expected = self.build(project, step, target)
                assert (at, statuses(actual)) == (at, statuses(expected))
            for target, branch in {"of_main": "main", "of_branch": BRANCH}.items():
                tables = self.contents(project, "ours", branch)
                different = differences(self.contents(project, target), tables)
                assert (at, branch, different) == (at, branch, [])


class TestAtomic(AtomicProject, Histories):
    """`publish: atomic` has the results of a run that publishes at once, or changes nothing."""

    targets = {"ours": {}, "at_once": {"publish": "immediately"}}

    @pytest.mark.parametrize("seed", seeds(41), indirect=True, scope="class")
    def test_all_or_nothing(self, project: Any, seed: int, size: tuple[int, int]) -> None:
        random = RandomProject(seed, incremental=size[1], fails=0.35)
        before: dict[str, Contents] = {}
        for number in range(size[0]):
            at = f"seed {seed}, step {number}"
            step = random.next_step()
            actual = self.build(project, step, "ours")
            if failed := [name for name, status in statuses(actual).items() if status != "success"]:
                assert (at, differences(before, self.contents(project, "ours"))) == (at, [])
            if failed == ["failing"]:
                step = step.corrected()
                retried = self.build(project, replace(step, arguments=["retry"]), "ours")
                actual = {**actual, **retried}
            if failed in ([], ["failing"]):
                expected = self.build(project, step, "at_once")
                assert (at, actual) == (at, expected)
                before = self.contents(project, "at_once")
                assert (at, differences(before, self.contents(project, "ours"))) == (at, [])
        for name in build_names(project):
            assert command(project, "discard", name).exit_code == 0
