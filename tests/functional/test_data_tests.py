"""Data tests that read and compare versions of a table."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.tests.util import run_dbt, run_dbt_and_capture
from dbt_common.invocation import reset_invocation_id

from tests.functional.lake import run, snapshot_ids, table

ORDERS = """
{{ config(materialized='table') }}
select id, day, status, map('a', id) as extra, current_timestamp() as loaded
from (
  select explode(sequence({{ var('first', 1) }}, {{ var('last', 10) }})) as id
) as ids
cross join (select date'2020-01-01' as day, '{{ var('status', 'paid') }}' as status)
union all select null, current_date(), 'open', map('b', null), current_timestamp()
"""
WITHOUT = "exclude_columns: [loaded]"


def change(project: Any, sql: str) -> None:
    """Run a statement as a run of its own."""
    reset_invocation_id()
    run(project, sql)


class Project:
    """A project with one model and the data tests of one test case."""

    def __init__(self, project: Any) -> None:
        self.project = project

    def build(self, **variables: Any) -> None:
        self.write()
        run_dbt(["run", "--vars", json.dumps(variables)])

    def write(self, *tests: str, model: str = "orders") -> None:
        named: list[Any] = []
        for number, text in enumerate(tests):
            test = yaml.safe_load(text)
            name, config = next(iter(test.items())) if isinstance(test, dict) else (test, {})
            named.append({name: {"name": f"t{number}", **(config or {})}})
        content = {"models": [{"name": model, "data_tests": named}]}
        path = Path(self.project.project_root) / "models" / "schema.yml"
        path.write_text(yaml.safe_dump(content))

    def test(self, *tests: str, model: str = "orders") -> list[str]:
        """Run data tests; return their results in order."""
        self.write(*tests, model=model)
        results = run_dbt(["test"], expect_pass=None)
        statuses = {r.node.name: r.status for r in results}
        self.messages = {r.node.name: r.message or "" for r in results}
        return [str(statuses[f"t{number}"]) for number in range(len(tests))]

    def error(self, test: str, model: str = "orders") -> str:
        assert self.test(test, model=model) == ["error"]
        return self.messages["t0"]


@pytest.fixture
def shop(project: Any) -> Project:
    run(project, "drop table if exists {schema}.orders")
    return Project(project)


class TestDataTests:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "a_view.sql": "select * from {{ ref('orders') }}"}

    def test_row_drop(self, shop: Project, project: Any) -> None:
        shop.build(last=100)
        assert shop.test("row_drop") == ["pass"]
        shop.build(last=70)
        change(project, "alter table {schema}.orders create tag small")
        tests = (
            "row_drop",
            "row_drop: {arguments: {share: 0.3}}",
            "row_drop: {arguments: {share: 0.29}}",
            "row_drop: {config: {where: id > 60}}",
            "row_drop: {config: {where: id < 50}}",
            "row_drop: {config: {severity: warn}}",
        )
        assert shop.test(*tests) == ["fail", "pass", "fail", "fail", "pass", "warn"]
        shop.build(last=60)
        first = snapshot_ids(project, "orders")[0]
        tests = (
            "row_drop: {arguments: {share: 0.2}}",
            f"row_drop: {{arguments: {{share: 0.2, since: {first}}}}}",
            "row_drop: {arguments: {share: 0.2, since: small}}",
            f"row_drop: {{arguments: {{since: {first}}}, config: {{at: small}}}}",
            f"row_drop: {{arguments: {{share: 0.3, since: {first}}}, config: {{at: small}}}}",
        )
        assert shop.test(*tests) == ["pass", "fail", "pass", "fail", "pass"]

    def test_row_drop_with_delete_files(self, shop: Project, project: Any) -> None:
        """Metadata alone do not tell the rows, so they are counted."""
        shop.build(last=100)
        change(
            project,
            "alter table {schema}.orders set tblproperties ('write.delete.mode'='merge-on-read')",
        )
        change(project, "delete from {schema}.orders where id > 80")
        assert (
            "total-delete-files"
            in table(project, "orders").current_snapshot().summary.additional_properties
        )
        assert shop.test("row_drop", "row_drop: {arguments: {share: 0.2}}") == ["fail", "pass"]

    def test_unchanged_history(self, shop: Project, project: Any) -> None:
        shop.build()
        frozen = f"unchanged_history: {{arguments: {{{WITHOUT}}}}}"
        closed = (
            f"unchanged_history: {{arguments: {{column: day, older_than: 90 days, {WITHOUT}}}}}"
        )
        assert shop.test(frozen, closed) == ["pass", "pass"]
        shop.build()
        # `loaded` differs; nulls and maps are the same.
        assert shop.test("unchanged_history", frozen, closed) == ["fail", "pass", "pass"]
        # An open row changes.
        change(project, "update {schema}.orders set status = 'sent' where id is null")
        assert shop.test(frozen, closed) == ["fail", "pass"]
        assert "2 results" in shop.messages["t0"]
        # A second row like another one is a change of closed rows.
        change(project, "insert into {schema}.orders select * from {schema}.orders where id = 1")
        assert shop.test(closed) == ["fail"]
        assert "1 result" in shop.messages["t0"]
        where = "config: {where: id > 1}"
        tests = (
            f"unchanged_history: {{arguments: {{{WITHOUT}}}, {where}}}",
            f"unchanged_history: {{arguments: {{{WITHOUT}}}, config: {{where: id <= 1}}}}",
            f"unchanged_history: {{arguments: {{since: {snapshot_ids(project, 'orders')[0]}, "
            f"column: day, older_than: 1 year, {WITHOUT}}}, {where}}}",
        )
        assert shop.test(*tests) == ["pass", "fail", "pass"]

    def test_a_column_that_is_new_or_renamed(self, shop: Project, project: Any) -> None:
        shop.build()
        change(project, "alter table {schema}.orders rename column status to state")
        change(project, "alter table {schema}.orders add column coupon string")
        change(
            project,
            "insert into {schema}.orders values (99, current_date(), 'x', null, now(), 'c')",
        )
        closed = "unchanged_history: {arguments: {column: day, older_than: 1 month}}"
        assert shop.test(closed, "unchanged_history") == ["pass", "fail"]

    def test_stored_failures(self, shop: Project) -> None:
        shop.build()
        shop.build(status="sent")
        stored = (
            f"unchanged_history: {{arguments: {{{WITHOUT}}}, config: {{store_failures: true}}}}"
        )
        assert shop.test(stored) == ["fail"]

    def test_at(self, shop: Project, project: Any) -> None:
        shop.build()
        first = snapshot_ids(project, "orders")[0]
        change(project, "alter table {schema}.orders create tag `month end`")
        change(project, "insert into {schema}.orders select * from {schema}.orders where id = 1")
        moment = table(project, "orders").metadata.snapshot_by_id(first).timestamp_ms
        time = datetime.fromtimestamp(moment / 1000, timezone.utc).isoformat()
        unique = "unique: {arguments: {column_name: id}, config: {%s}}"
        tests = (
            unique % "tags: []",
            unique % "at: month end",
            unique % f"at: {first}",
            unique % f"at: '{time}'",
            unique % "at: main",
            unique % "at: main, where: id > 1",
            unique % "at: \"{{ var('tag', 'month end') }}\"",
        )
        assert shop.test(*tests) == ["fail", "pass", "pass", "pass", "fail", "pass", "pass"]

    def test_errors(self, shop: Project, project: Any) -> None:
        shop.build()
        not_null = "not_null: {arguments: {column_name: id}, config: {at: %s}}"
        message = shop.error(not_null % "v1")
        assert "`at`: `v1` is not a version of" in message
        assert "It has the tags and branches main" in message
        assert "put a time in quotes, such as `at: '2026-01-31'`" in shop.error(
            not_null % "2026-01-31"
        )
        assert "it did not exist yet" in shop.error(not_null % "'2020-01-31'")
        assert "a_view is a view, which has no snapshots" in shop.error(not_null % "main", "a_view")
        row_drop = "row_drop: {arguments: {%s}}"
        assert "`since`: `v1` is not a version" in shop.error(row_drop % "since: v1")
        assert "put a time in quotes" in shop.error(row_drop % "since: 2026-01-31")
        assert "`share` must be a number of at least 0 and less than 1; got 10" in shop.error(
            row_drop % "share: 10"
        )
        assert "is a view" in shop.error("row_drop", "a_view")
        history = "unchanged_history: {arguments: {%s}}"
        assert "`older_than` is missing: `column` needs it" in shop.error(history % "column: day")
        assert "`column` is missing: `older_than` needs it" in shop.error(
            history % "older_than: 1 day"
        )
        assert "`older_than` must be an interval such as 90 days; got 90" in shop.error(
            history % "column: day, older_than: 90"
        )
        error = shop.error(history % "exclude_columns: [nothing]")
        assert "`exclude_columns` names `nothing`, which" in error

    def test_an_expired_version(self, shop: Project, project: Any) -> None:
        shop.build()
        shop.build(last=2)
        change(
            project,
            "call lake.system.expire_snapshots(table => '{schema}.orders', older_than => current_timestamp(), retain_last => 1)",
        )
        shop.write("row_drop", "unchanged_history")
        results, log = run_dbt_and_capture(["test"])
        assert [r.status for r in results] == ["pass", "pass"]
        assert log.count("so the version before its last run is unknown") == 2
        run_dbt(["--warn-error", "test"], expect_pass=False)


class TestNames:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        source = "sources: [{name: raw, schema: '{{ target.schema }}', tables: [{name: orders, data_tests: [%s]}]}]"
        drop = "row_drop: {config: {where: id > 1}}"
        at = "unique: {arguments: {column_name: id}, config: {at: main}}"
        theirs = "unchanged_history: {config: {where: id > 1}}"
        return {
            "orders.sql": "{{ config(materialized='table') }} select explode(array(1, 2)) as id",
            "sources.yml": source % f"{{{drop}}}, {{{at}}}, {{{theirs}}}",
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, Any]:
        theirs = "{% test unchanged_history(model) %} select * from {{ model }} where id = 1 {% endtest %}"
        return {"generic": {"theirs.sql": theirs}}

    def test_a_source_and_a_test_of_the_project(self, project: Any) -> None:
        run_dbt(["run"])
        results = run_dbt(["test"])
        # The project's own test of the same name reads its rows with `where`, as every test.
        assert [result.status for result in results] == ["pass"] * 3
