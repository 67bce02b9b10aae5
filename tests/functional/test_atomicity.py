"""Readers see the old table or the new one, and two runs at once do not harm each other."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows

READER = Path(__file__).parent / "reader.py"
TABLE = """
{{ config(materialized='table') }}
select id, '{{ var("version", "0") }}' as version from range({{ var('rows', 1000) }})
"""
INCREMENTAL = """
{{ config(materialized='incremental', unique_key='id') }}
select id, '{{ var("version", "0") }}' as version from range(1000)
"""
SEED = "id,version\n" + "".join(f"{n},1\n" for n in range(1000))


def reads_so_far(stop: Path) -> int:
    counts = (file.read_text() for file in stop.parent.glob(f"{stop.name}.*"))
    return sum(int(count) for count in counts if count)


def pyiceberg_properties(target: dict[str, Any]) -> dict[str, str]:
    """The profile's catalog for a client that is not ours."""
    if properties := target.get("catalog_properties"):
        return properties | {"token": target["token"]}
    warehouse = Path(target["warehouse"])
    uri = f"sqlite:///{warehouse / 'catalog.db'}"
    return {"type": "sql", "uri": uri, "warehouse": warehouse.as_uri()}


class TestReaders:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"a_table.sql": TABLE, "an_incremental.sql": INCREMENTAL}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": SEED}

    @pytest.mark.parametrize("reads", [400, pytest.param(2000, marks=pytest.mark.slow)])
    def test_no_bad_read(
        self, project: Any, dbt_profile_target: dict[str, Any], reads: int
    ) -> None:
        run_dbt(["build"])
        stop = Path(project.project_root) / f"stop{reads}"
        catalog = json.dumps(pyiceberg_properties(dbt_profile_target))
        readers = [
            subprocess.Popen(
                [sys.executable, READER, catalog, project.test_schema, name, counts, stop],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, counts in (
                ("a_table", "1000,2000"),
                ("an_incremental", "1000"),
                ("a_seed", "1000"),
            )
        ]
        for version in itertools.count(1):
            if version > reads / 100 and reads_so_far(stop) >= reads:
                break
            assert not any(reader.poll() for reader in readers)
            size = 1000 * (1 + version % 2)
            refresh = ["--full-refresh"] if version % 2 else []
            run_dbt(["build", *refresh, "--vars", f"{{version: '{version}', rows: {size}}}"])
        stop.touch()
        assert [reader.communicate()[0] for reader in readers] == ["", "", ""]


class TestTwoRuns:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "a_table.sql": TABLE,
            "an_incremental.sql": INCREMENTAL.replace("range(1000)", "range(500)"),
            "depends.sql": "{{ config(materialized='table') }} select * from {{ ref('a_table') }}",
        }

    def test_both_end_well_or_one_says_why(self, project: Any, profiles_root: Any) -> None:
        run_dbt(["run"])
        command = [
            sys.executable, "-m", "dbt.cli.main", "run", "--profiles-dir", str(profiles_root),
            "--project-dir", str(project.project_root), "--no-partial-parse",
        ]  # fmt: skip
        runs = [
            subprocess.Popen(
                [*command, "--vars", f"version: '{n}'", "--target-path", f"target{n}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for n in (1, 2)
        ]
        outputs = [run.communicate(timeout=300)[0] for run in runs]
        assert 0 in [run.returncode for run in runs], outputs
        for run, output in zip(runs, outputs, strict=True):
            assert run.returncode == 0 or "Another writer" in output, output
        for name, count in (("a_table", 1000), ("an_incremental", 500), ("depends", 1000)):
            actual = rows(
                project, f"select version, count(*) from {{schema}}.{name} group by version"
            )
            assert [row[1] for row in actual] == [count]
