"""A named build collects what several commands stage, until it is published or discarded."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file
from dbt_common.exceptions import DbtRuntimeError

from tests.functional.builds import (
    AtomicProject,
    Shop,
    build_names,
    command,
    published,
    relations,
    run_as_another,
    variables,
)
from tests.functional.lake import rows, snapshot_ids, table


@pytest.fixture
def pr(monkeypatch: pytest.MonkeyPatch) -> str:
    """Commands of dbt stage in the build `pr-42`."""
    monkeypatch.setenv("ICEBERG_STREAM_BUILD", "pr-42")
    return "pr-42"


class TestNamedBuild(Shop):
    def test_commands_share_a_build(self, project: Any, pr: str) -> None:
        run_dbt(["run", "--select", "orders"])
        assert published_relations(project) == []
        run_dbt(["run", "--select", "totals"])
        run_dbt(["test"])
        run_dbt(["run", "--select", "large"])
        assert published_relations(project) == []
        # What reads the build at last, and even fails, is no part of it.
        shown = run_dbt(["show", "--inline", "select orders from {{ ref('totals') }}"])
        assert shown.results[0].agate_table.rows[0][0] == 3
        with pytest.raises(DbtRuntimeError):
            run_dbt(["show", "--inline", "select no_such_column"])
        listing = json.loads(command(project, "builds", "--json").output)
        (build,) = (b for b in listing if b["name"] == pr)
        kinds = {name.split(".")[1]: kind for name, kind in build["relations"].items()}
        assert kinds == {"orders": "table", "totals": "table", "large": "view"}
        assert command(project, "publish", pr).exit_code == 0
        assert published_relations(project) == ["large", "orders", "totals"]
        assert published(project, "large") == [(1, 1), (2, 1)]
        assert command(project, "publish", pr).exit_code == 1

    def test_diff(self, project: Any, pr: str) -> None:
        run_dbt(["run", *variables(version=2, rows=4, least=2)])
        shown = json.loads(command(project, "diff", "--build", pr, "--format", "json").output)
        orders, totals, view = shown
        assert (orders["rows"]["added"], orders["rows"]["changed"]) == (1, 3)
        assert orders["rows"]["key"] == ["id"]
        assert (totals["rows"]["added"], totals["rows"]["removed"]) == (1, 1)
        assert view["change"] == "changed"
        text = command(project, "diff", "orders", "--build", pr)
        assert "1 added, 0 removed, 3 changed, by key `id`" in text.output
        assert "totals" not in text.output
        markdown = command(project, "diff", "--build", pr, "--format", "markdown")
        assert markdown.output.count("### ") == 3
        # A second run goes on from the staged table.
        run_dbt(["run", "--select", "orders", *variables(version=3, rows=5)])
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "orders") == [(n, 3) for n in range(5)]

    @pytest.mark.slow
    def test_several_processes(self, project: Any, pr: str) -> None:
        """Two commands at the same time stage different models of one build."""
        before = published(project, "orders")
        commands = [
            ["run", "--select", name, *variables(version=4)] for name in ("orders", "large")
        ]
        threads = [threading.Thread(target=dbt_process, args=(project, c)) for c in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert published(project, "orders") == before
        assert command(project, "publish", pr).exit_code == 0
        assert {version for _, version in published(project, "orders")} == {4, 3}

    def test_a_test_that_fails_later_refuses_the_publication(self, project: Any, pr: str) -> None:
        run_dbt(["run", *variables(version=5)])
        run_dbt(["test", *variables(most=0)], expect_pass=False)
        refused = command(project, "publish", pr)
        assert refused.exit_code == 1
        assert "few_orders" in refused.output
        # Another command does not forget it; only the same test can.
        run_dbt(["run", "--select", "totals", *variables(version=5)])
        assert "few_orders" in command(project, "publish", pr).output
        run_dbt(["test", *variables(most=9)])
        run_dbt(["test", "--select", "few_orders", *variables(most=0)], expect_pass=False)
        assert command(project, "publish", pr).exit_code == 1
        assert command(project, "publish", pr, "--force").exit_code == 0
        assert (0, 5) in published(project, "orders")

    def test_switch_of_materialization(self, project: Any, pr: str) -> None:
        models = Path(project.project_root) / "models"
        write_file(
            f"{{{{ config(materialized='table') }}}} {SELECT_LARGE}", str(models / "large.sql")
        )
        write_file(
            "{{ config(materialized='view') }} select 1 as orders", str(models / "totals.sql")
        )
        run_dbt(["run", *variables(version=6)])
        # Within the build, too.
        write_file(
            "{{ config(materialized='table') }} select 2 as orders", str(models / "totals.sql")
        )
        run_dbt(["run", "--select", "totals"])
        write_file(
            "{{ config(materialized='view') }} select 3 as orders", str(models / "totals.sql")
        )
        run_dbt(["run", "--select", "totals"])
        kinds = dict(project.adapter.catalog.relations(project.test_schema))
        assert (kinds["large"], kinds["totals"]) == ("view", "table")
        assert command(project, "publish", pr).exit_code == 0
        kinds = dict(project.adapter.catalog.relations(project.test_schema))
        assert (kinds["large"], kinds["totals"]) == ("table", "view")
        assert published(project, "totals") == [(3,)]


SELECT_LARGE = "select id, version from {{ ref('orders') }} where id > 1"


def dbt_process(project: Any, arguments: list[str]) -> None:
    """Run dbt in a process of its own, with this process's environment."""
    import subprocess
    import sys

    folders = ["--project-dir", str(project.project_root), "--profiles-dir", project.profiles_dir]
    program = "import sys; from dbt.cli.main import cli; cli(sys.argv[1:])"
    target = ["--target-path", f"target-{threading.get_ident()}"]
    subprocess.run([sys.executable, "-c", program, *arguments, *folders, *target], check=True)


def published_relations(project: Any) -> list[str]:
    return [name for name in relations(project) if "__dbt_build_" not in name]


class TestOtherWriters(AtomicProject):
    """Other writers change published tables while a build has staged them."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = "materialized='incremental'"
        return {
            "appended.sql": f"{{{{ config({config}) }}}} select 1 as id, 'ours' as who",
            "merged.sql": f"{{{{ config({config}, unique_key='id') }}}} select 1 as id, "
            "{{ var('version', 1) }} as version",
            "rebuilt.sql": "{{ config(materialized='table') }} select 1 as id",
        }

    def test_appends_are_added_to_theirs(self, project: Any, pr: str) -> None:
        run_dbt(["run", "--select", "appended"])
        assert command(project, "publish", pr).exit_code == 0
        run_dbt(["run", "--select", "appended"])
        run_as_another(project, "insert into {schema}.appended values (7, 'theirs')")
        assert published(project, "appended") == [(1, "ours"), (7, "theirs")]
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "appended") == [(1, "ours"), (1, "ours"), (7, "theirs")]
        assert rows(project, "select count(*) from {schema}.appended.all_data_files") == [(3,)]

    def test_other_changes_conflict(self, project: Any, pr: str) -> None:
        run_dbt(["run"])
        assert command(project, "publish", pr).exit_code == 0
        run_dbt(["run", *variables(version=2)])
        run_as_another(project, "insert into {schema}.merged values (7, 7)")
        before = snapshot_ids(project, "appended"), snapshot_ids(project, "merged")
        refused = command(project, "publish", pr)
        assert refused.exit_code == 1
        assert f"{project.test_schema}.merged has the new snapshot" in refused.output
        # Nothing of the build is published, not even what has no conflict.
        assert (snapshot_ids(project, "appended"), snapshot_ids(project, "merged")) == before
        # Building the model again begins with the current table.
        run_dbt(["run", "--select", "merged", *variables(version=3)])
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "merged") == [(1, 3), (7, 7)]

    def test_a_table_that_is_replaced_is_not_appended(self, project: Any, pr: str) -> None:
        run_dbt(["run", "--select", "rebuilt"])
        run_as_another(project, "insert into {schema}.rebuilt values (7)")
        refused = command(project, "publish", pr)
        assert f"{project.test_schema}.rebuilt has the new snapshot" in refused.output
        assert published(project, "rebuilt") == [(1,), (7,)]
        assert command(project, "discard", pr).exit_code == 0

    def test_a_table_without_changes_has_no_conflict(self, project: Any, pr: str) -> None:
        run_dbt(["run", "--select", "merged", *variables(version=3)])
        run_as_another(project, "insert into {schema}.merged values (8, 8)")
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "merged") == [(1, 3), (7, 7), (8, 8)]
        run_as_another(project, "delete from {schema}.merged where id = 8")

    def test_expiry_meanwhile(self, project: Any, pr: str) -> None:
        run_dbt(["run", *variables(version=4)])
        name = f"'{project.test_schema}.merged'"
        run_as_another(
            project,
            "call lake.system.expire_snapshots(table => " + name + ", retain_last => 1, "
            "older_than => timestamp '2999-01-01 00:00:00')",
        )
        assert len(snapshot_ids(project, "merged")) == 1
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "merged") == [(1, 4), (7, 7)]

    def test_properties_and_tags_of_others_stay(self, project: Any, pr: str) -> None:
        run_dbt(["run", *variables(version=5)])
        run_as_another(project, "alter table {schema}.merged set tblproperties ('their' = 'value')")
        run_as_another(project, "alter table {schema}.merged create tag theirs")
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "merged") == [(1, 5), (7, 7)]
        assert table(project, "merged").properties["their"] == "value"
        assert "theirs" in table(project, "merged").metadata.refs

    def test_a_dropped_table(self, project: Any, pr: str) -> None:
        run_dbt(["run", *variables(version=6)])
        run_as_another(project, "drop table {schema}.merged")
        refused = command(project, "publish", pr)
        assert f"{project.test_schema}.merged was dropped" in refused.output
        run_dbt(["run", "--select", "merged", *variables(version=7)])
        assert command(project, "publish", pr).exit_code == 0
        assert published(project, "merged") == [(1, 7)]

    def test_a_table_that_another_writer_created(self, project: Any, pr: str) -> None:
        run_as_another(project, "drop table {schema}.merged")
        run_dbt(["run", "--select", "merged"])
        run_as_another(project, "create table {schema}.merged as select 8 as id, 8 as version")
        refused = command(project, "publish", pr)
        assert f"{project.test_schema}.merged was created by another writer" in refused.output
        assert published(project, "merged") == [(8, 8)]
        assert command(project, "discard", pr).exit_code == 0
        assert published(project, "merged") == [(8, 8)]
        assert build_names(project) == []
