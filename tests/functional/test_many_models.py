"""Forty models of all kinds, built by processes that are killed, or that run at once."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from tests.functional.builds import build_names, command, relations, variables
from tests.functional.dbt_process import Start, dbt_processes
from tests.functional.lake import rows
from tests.functional.random_projects import model
from tests.lost_files import assert_nothing_lost

MODELS, IDS = 40, 8
KINDS: list[dict[str, str]] = [
    {"materialized": "table"},
    {"materialized": "view"},
    {"materialized": "incremental", "unique_key": "id"},
    {"materialized": "incremental", "unique_key": "id", "merge_engine": "spark"},
    {"materialized": "incremental", "incremental_strategy": "insert_overwrite"},
    {"materialized": "incremental", "incremental_strategy": "delete+insert", "unique_key": "id"},
]
# What a process says that meets another one, or that is refused.
EXPECTED_ERRORS = re.compile(
    r"[Aa]nother (writer|process|run)|has changed|changed since|at the same time"
)


class Project:
    """Models that add up what they read, so that each row shows the version of all before."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self.kinds = [rng.choice(KINDS) for _ in range(MODELS)]
        self.parents = [
            sorted(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2, 3]))))
            for number in range(MODELS)
        ]

    def files(self) -> dict[str, str]:
        return {f"m{number:02}.sql": self._model(number) for number in range(MODELS)}

    def _model(self, number: int) -> str:
        parents = self.parents[number]
        joins = "".join(
            f" join {{{{ ref('m{p:02}') }}}} as p{p} on p{p}.id = ids.id" for p in parents
        )
        total = " + ".join(
            [f"{number} * {{{{ var('version', 0) }}}}", *(f"p{p}.n" for p in parents)]
        )
        sql = f"select ids.id, {total} as n from range({IDS}) as ids{joins}"
        return model(self.kinds[number], sql)

    def expected(self, version: int) -> list[int]:
        """The number in all rows of each model."""
        numbers: list[int] = []
        for number, parents in enumerate(self.parents):
            numbers.append(number * version + sum(numbers[parent] for parent in parents))
        return numbers


class ManyModels:
    project_of_models = Project(38)

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return {**dbt_profile_target, "threads": 16, "publish": self.publish}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return self.project_of_models.files()

    publish = "immediately"

    @pytest.fixture
    def start(self, project: Any) -> Iterator[Start]:
        """Starts dbt with a folder for its artifacts."""
        with dbt_processes(project) as run:

            def start(version: int, place: str = "target") -> subprocess.Popen[str]:
                places = ["--target-path", place, "--log-path", f"logs_{place}"]
                return run("run", *variables(version=version), *places)

            yield start

    def actual(self, project: Any) -> list[Any]:
        query = " union all ".join(
            f"select {number} as m, min(n), max(n), count(*), count(distinct id) from {{schema}}.m{number:02}"
            for number in range(MODELS)
        )
        return sorted(rows(project, query))

    def check(self, project: Any, version: int) -> None:
        """Build while no other process runs: every table is right, and nothing is left behind."""
        for name in build_names(project):
            assert command(project, "discard", name).exit_code == 0
        run_dbt(["run", *variables(version=version)])
        expected = self.project_of_models.expected(version)
        assert self.actual(project) == [(m, n, n, IDS, IDS) for m, n in enumerate(expected)]
        assert sorted(relations(project)) == [f"m{number:02}" for number in range(MODELS)]
        assert_nothing_lost(project.adapter.catalog, [project.test_schema])

    def check_files(self, project: Any) -> None:
        for name, kind in project.adapter.catalog.relations(project.test_schema):
            if kind == "table":
                loaded = project.adapter.catalog.load((project.test_schema, name))
                assert list(check_table(loaded, data=True).findings) == []

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_kills(self, project: Any, start: Any) -> None:
        rng = Random(20)
        begin = time.monotonic()
        assert start(1).wait(timeout=300) == 0
        seconds = time.monotonic() - begin
        for version in range(2, 22):
            process = start(version)
            time.sleep(seconds * rng.uniform(0.2, 1))
            process.kill()
            process.wait()
            if rng.random() < 0.5:
                self.check(project, version)
        self.check(project, 22)
        self.check_files(project)

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_two_at_once(self, project: Any, start: Any) -> None:
        for version in range(31, 51, 2):
            pair = [start(version, "one"), start(version + 1, "two")]
            for process in pair:
                output = process.communicate(timeout=300)[0]
                assert "Traceback" not in output, output
                assert process.returncode == 0 or EXPECTED_ERRORS.search(output), output
            self.check(project, version + 1)
        self.check_files(project)


class TestAtOnce(ManyModels):
    """Each model is published when it is built."""


class TestAtomic(ManyModels):
    """All models are published when the last one is built."""

    publish = "atomic"
