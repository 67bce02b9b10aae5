"""What a command prints of the tables that it changed, and when it warns of lost rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.builds import AtomicProject, build_names, command
from tests.functional.lake import rows, run
from tests.functional.shop_streams import MODELS, land

HEADER = (
    "table",
    "before",
    "after",
    "added",
    "updated",
    "removed",
    "changed",
    "written",
    "seconds",
)
COLOR = re.compile(r"\x1b\[\d+m")
MERGED = """
{{ config(materialized='incremental', unique_key='id') }}
select explode(array({{ var('ids', '1, 2, 3, 4') }})) as id, {{ var('value', 1) }} as value
"""
HOOKED = """
{{ config(
    materialized='incremental', unique_key='id', warn_row_drop=0.5,
    post_hook="delete from {{ this }} where id > {{ var('keep', 8) }}") }}
select explode(sequence(1, 9)) as id
"""
SNAPSHOT = """
{% snapshot snap %}
{{ config(unique_key='id', strategy='check', check_cols='all') }} select * from {{ ref('merged') }}
{% endsnapshot %}
"""
SOME = ["--select", "some", "reader"]
CHANGED = ["--vars", "{ids: '2, 3, 9', value: 2}"]


def printed(log: str) -> list[str]:
    """The lines of the summary, without the header and dbt's times."""
    lines = [COLOR.sub("", line)[10:].rstrip() for line in log.splitlines()]
    headers = [number for number, line in enumerate(lines) if tuple(line.split()) == HEADER]
    assert len(headers) <= 1
    if not headers:
        return [line for line in lines if line.startswith(("Unchanged:", "Failed:", "Skipped:"))]
    assert lines[headers[0] - 1] == ""
    end = lines.index("", headers[0])
    assert lines[end + 1].startswith("Completed")
    return lines[headers[0] + 1 : end]


def figures(log: str) -> dict[str, list[str]]:
    """Rows before, after, added, updated and removed, and what changed, by table."""
    cells = {}
    for line in printed(log):
        table, *numbers = re.split(r"\s{2,}", line)
        if numbers:
            changed = [] if numbers[5].endswith(("bytes", "KiB")) else [numbers[5]]
            cells[table.split(".")[-1]] = numbers[:5] + changed
            assert re.search(r"\d (bytes|KiB)  +\d+\.\d$", line)
    return cells


def order(id: int, value: str) -> dict[str, Any]:
    return {"tbl": "orders", "id": id, "value": value, "deleted": False}


def objects(log: str) -> dict[str, dict[str, Any]]:
    """The summary of a command with `--log-format json`, by table."""
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    notes = [e["info"]["msg"] for e in events if e["info"]["name"] == "Note"]
    summaries = [json.loads(note)["build_summary"] for note in notes if "build_summary" in note]
    return {summary["table"].split(".")[-1]: summary for summary in summaries}


class TestSummary:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "merged.sql": MERGED,
            "a_view.sql": "select * from {{ ref('merged') }}",
            "rebuilt.sql": "{{ config(materialized='table') }} select * from {{ ref('a_view') }}",
            "schema.yml": "models: [{name: merged, columns: [{name: id, data_tests: [unique]}]}]",
        }

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": "id,name\n1,one\n2,two\n"}

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"snap.sql": SNAPSHOT}

    def test_figures(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["build"])
        assert figures(log) == {
            "a_seed": ["0", "2", "2", "0", "0"],
            "merged": ["0", "4", "4", "0", "0"],
            "rebuilt": ["0", "4", "4", "0", "0"],
            "snap": ["0", "4", "4", "0", "0"],
        }
        results, log = run_dbt_and_capture(["build", *CHANGED])
        assert figures(log) == {
            "a_seed": ["2", "2", "2", "0", "2", "rebuilt"],
            "merged": ["4", "5", "1", "2", "0", "50.0%"],
            "rebuilt": ["4", "5", "5", "0", "4", "rebuilt"],
            "snap": ["4", "7", "3", "2", "0", "50.0%"],
        }
        responses = {result.node.name: result.adapter_response for result in results}
        for name, cells in figures(log).items():
            counts = [str(responses[name][key]) for key in ("rows_before", "rows_after")]
            assert counts == cells[:2]
        assert "outcome" not in responses["merged"]
        self.unchanged(project)
        self.full_refresh(project)

    def unchanged(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["run", *CHANGED, "--select", "merged", "a_view"])
        assert printed(log) == [f"Unchanged: {project.test_schema}.merged"]
        _, log = run_dbt_and_capture(["--log-format", "json", "build", *CHANGED])
        assert {name: line["result"] for name, line in objects(log).items()} == {
            **dict.fromkeys(("a_seed", "rebuilt"), "changed"),
            **dict.fromkeys(("merged", "snap"), "unchanged"),
        }
        rebuilt = objects(log)["rebuilt"]
        assert rebuilt["node"] == "model.test.rebuilt"
        assert (rebuilt["rows_before"], rebuilt["rows_after"], rebuilt["rebuilt"]) == (5, 5, True)
        assert rebuilt["bytes_written"] > 0
        assert "table   " not in log

    def full_refresh(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["run", "--full-refresh", "--select", "merged"])
        assert figures(log) == {"merged": ["5", "4", "4", "0", "5", "rebuilt"]}

    def test_commands_that_write_nothing(self, project: Any) -> None:
        run_dbt(["seed"])
        for arguments in (
            ["test"],
            ["compile"],
            ["--quiet", "seed"],
            ["run", "--select", "a_view"],
        ):
            _, log = run_dbt_and_capture([*arguments])
            assert printed(log) == []


class TestSwitchedOff:
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return {**dbt_profile_target, "build_summary": False}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": "id,name\n1,one\n2,two\n"}

    def test_it(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["seed"])
        assert printed(log) == []


class TestAtomicBuilds(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        tests = "[row_drop, {row_drop: {name: strict, arguments: {share: 0}}}]"
        return {
            "merged.sql": MERGED,
            "rebuilt.sql": "{{ config(materialized='table', warn_row_drop=0) }} "
            "select * from {{ ref('merged') }} where id < {{ var('most', 99) }}",
            "schema.yml": f"models: [{{name: merged, data_tests: {tests}}}]",
        }

    def test_tables_have_their_published_names(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["build"])
        assert figures(log) == {
            "merged": ["0", "4", "4", "0", "0"],
            "rebuilt": ["0", "4", "4", "0", "0"],
        }
        _, log = run_dbt_and_capture(["build", "--vars", "{ids: '2, 3, 9', value: 2, most: 4}"])
        assert figures(log) == {
            "merged": ["4", "5", "1", "2", "0", "50.0%"],
            "rebuilt": ["4", "3", "3", "0", "4", "rebuilt"],
        }
        assert printed(log)[-1] == f"Warning: {project.test_schema}.rebuilt lost 25.0% of its rows"
        assert rows(project, "select count(*) from {schema}.rebuilt") == [(3,)]

    def test_data_tests_compare_the_staged_table(self, project: Any) -> None:
        run_dbt(["run", "--full-refresh"])
        shorter = ["build", "--full-refresh", "--select", "merged", "--vars", "{ids: '1'}"]
        results = run_dbt(shorter, expect_pass=False)
        assert [result.status for result in results] == ["success", "fail", "fail"]
        # The build was not published.
        assert rows(project, "select count(*) from {schema}.merged") == [(4,)]
        (build,) = build_names(project)
        assert command(project, "discard", build).exit_code == 0


class TestFailures:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "good.sql": "{{ config(materialized='table') }} select 1 as id",
            "bad.sql": "{{ config(materialized='table') }} select raise_error('no') as id",
            "after.sql": "select * from {{ ref('bad') }}",
            "committed.sql": "{{ config(materialized='table', post_hook='select no_column') }} "
            "select 1 as id",
        }

    def test_failed_and_skipped_nodes(self, project: Any) -> None:
        _, log = run_dbt_and_capture(["run"], expect_pass=False)
        # What a model committed before it failed is in the table.
        assert set(figures(log)) == {"good", "committed"}
        failed = next(line for line in printed(log) if line.startswith("Failed: "))
        names = {name.split(".")[-1] for name in failed.split(": ")[1].split(", ")}
        assert names == {"bad", "committed"}
        assert f"Skipped: {project.test_schema}.after" in printed(log)
        _, log = run_dbt_and_capture(["retry"], expect_pass=False)
        assert figures(log) == {"committed": ["1", "1", "1", "0", "1", "rebuilt"]}


class TestOtherTables:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        hook = "insert into {{ target.schema }}.audit values ('hooked')"
        return {
            "hooked.sql": f"{{{{ config(materialized='table', post_hook=\"{hook}\") }}}} select 1 as id",
            "becomes_a_table.sql": "{{ config(materialized=var('kind', 'view')) }} select 1 as id",
            "schema.yml": "models: [{name: hooked, columns: [{name: id, data_tests: "
            "[{unique: {config: {store_failures: true}}}]}]}]",
        }

    def test_tables_that_hooks_change(self, project: Any) -> None:
        run(project, "create table {schema}.audit (name string) using iceberg")
        _, log = run_dbt_and_capture(["build", "--select", "hooked"])
        lines = printed(log)
        assert [line.split()[0].split(".")[-1] for line in lines] == ["hooked", "audit"]
        # Without a node, there are no seconds.
        assert re.fullmatch(r"\S+ +0 +1 +1 +0 +0 +\S+ (bytes|KiB)", lines[1])

    def test_a_table_in_place_of_a_view(self, project: Any) -> None:
        run_dbt(["run", "--select", "becomes_a_table"])
        _, log = run_dbt_and_capture(
            ["run", "--select", "becomes_a_table", "--vars", "{kind: table}"]
        )
        assert figures(log) == {"becomes_a_table": ["0", "1", "1", "0", "0"]}


class TestMicrobatch:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = (
            "config(materialized='incremental', incremental_strategy='microbatch', "
            "event_time='at', batch_size='day', begin='2026-01-01', concurrent_batches=true)"
        )
        days = "explode(sequence(date'2026-01-01', date'2026-01-05'))"
        return {
            "events.sql": "{{ config(materialized='table', event_time='at') }} "
            f"select cast(day as timestamp) as at from (select {days} as day)",
            "batched.sql": f"{{{{ {config} }}}} select * from {{{{ ref('events') }}}}",
        }

    def test_the_batches_are_one_line(self, project: Any) -> None:
        period = ["--event-time-start", "2026-01-01", "--event-time-end", "2026-01-06"]
        _, log = run_dbt_and_capture(["run", *period])
        assert figures(log)["batched"] == ["0", "5", "5", "0", "0"]
        _, log = run_dbt_and_capture(["run", *period, "--select", "batched"])
        assert figures(log)["batched"][:2] == ["5", "5"]


class TestStream:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {name: MODELS[name] for name in MODELS if name != "items.sql"}

    def test_a_stream(self, project: Any) -> None:
        land(project, "1", order(1, "new"), order(2, "new"))
        _, log = run_dbt_and_capture(["run", "--select", "orders"])
        assert figures(log)["orders"][:3] == ["0", "2", "2"]
        land(project, "2", order(1, "paid"), order(3, "new"))
        (result,), log = run_dbt_and_capture(["run", "--select", "orders"])
        # An update by a stream removes the old row and adds the new one.
        assert figures(log)["orders"] == ["2", "3", "2", "0", "1", "50.0%"]
        response = result.adapter_response
        assert (response["rows_before"], response["rows_after"]) == (2, 3)
        _, log = run_dbt_and_capture(["run", "--select", "orders"])
        assert printed(log) == [f"Unchanged: {project.test_schema}.orders"]


class TestWarnRowDrop:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "some.sql": "{{ config(materialized='table', warn_row_drop=0.25) }} "
            "select explode(sequence(1, {{ var('rows', 8) }})) as id",
            "reader.sql": "{{ config(materialized='table') }} select * from {{ ref('some') }}",
            "hooked.sql": HOOKED,
        }

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": "id\n1\n2\n3\n"}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"seeds": {"+warn_row_drop": 0.3}}

    def test_other_materializations(self, project: Any) -> None:
        selected = ["--select", "a_seed", "hooked"]
        run_dbt(["build", *selected])
        Path(project.project_root, "seeds", "a_seed.csv").write_text("id\n1\n")
        _, log = run_dbt_and_capture(["build", *selected, "--vars", "{keep: 2}"])
        schema = project.test_schema
        # The hook removes rows after the merge.
        assert set(printed(log)[-2:]) == {
            f"Warning: {schema}.a_seed lost 66.7% of its rows",
            f"Warning: {schema}.hooked lost 75.0% of its rows",
        }

    def test_a_warning(self, project: Any) -> None:
        run_dbt(["run", *SOME])
        _, log = run_dbt_and_capture(["run", *SOME, "--vars", "{rows: 6}"])
        assert "of its rows" not in log
        results, log = run_dbt_and_capture(["run", *SOME, "--vars", "{rows: 3}"])
        assert [result.status for result in results] == ["success", "success"]
        assert (
            f"{project.test_schema}.some lost 50.0% of its rows: it had 6 before this run and has "
            "3 now (`warn_row_drop: 0.25` of model.test.some)." in log
        )
        assert "[WARNING]" in COLOR.sub("", log)
        assert printed(log)[-1] == f"Warning: {project.test_schema}.some lost 50.0% of its rows"

    def test_warn_error(self, project: Any) -> None:
        run_dbt(["run", *SOME])
        results, log = run_dbt_and_capture(
            ["--warn-error", "run", *SOME, "--vars", "{rows: 1}"], expect_pass=False
        )
        assert [result.status for result in results] == ["error", "skipped"]
        assert "lost 87.5% of its rows" in results[0].message
        assert figures(log) == {"some": ["8", "1", "1", "0", "8", "rebuilt"]}
        # The table has the new rows: the check comes after the commit.
        assert rows(project, "select count(*) from {schema}.some") == [(1,)]


class TestWrongShare:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"some.sql": "{{ config(materialized='table', warn_row_drop=10) }} select 1 as id"}

    def test_the_message(self, project: Any) -> None:
        (result,) = run_dbt(["run"], expect_pass=False)
        assert "`warn_row_drop` must be a share of the rows" in result.message
