"""Snapshots: hard deletes, keys of several columns, and no commit without a change."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, run, snapshot_ids

SNAPSHOT = """
snapshots:
  - name: {name}
    relation: source('raw', 'people')
    config:
      unique_key: {key}
      strategy: check
      check_cols: [city]
      {more}
"""
SOURCES = """
sources:
  - name: raw
    schema: "{{ target.schema }}"
    tables: [{name: people}]
"""
CHANGES = (
    "insert into {schema}.people values (4, 'd', 'Delft')",
    "update {schema}.people set city = 'Basel' where id = 1",
    "delete from {schema}.people where id = 2",
)


class TestSnapshots:
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {
            "ignore.yml": SNAPSHOT.format(name="ignores", key="id", more=""),
            "invalidate.yml": SNAPSHOT.format(
                name="invalidates", key="id", more="hard_deletes: invalidate"
            ),
            "new_record.yml": SNAPSHOT.format(
                name="records", key="id", more="hard_deletes: new_record"
            ),
            "two_keys.yml": SNAPSHOT.format(
                name="two_keys", key="[id, part]", more="hard_deletes: new_record"
            ),
            "renamed.yml": SNAPSHOT.format(
                name="renamed",
                key="id",
                more="dbt_valid_to_current: \"to_timestamp('9999-12-31')\"\n"
                "      snapshot_meta_column_names: {dbt_valid_to: until, dbt_valid_from: since}",
            ),
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES}

    @pytest.fixture(scope="class")
    def unchanged(self, project: Any) -> dict[str, tuple[int, int]]:
        """Runs three snapshots, the middle one without a change; snapshot counts around it."""
        people = "select * from values (1, 'a', 'Bern'), (2, 'b', 'Oslo'), (3, 'c', null)"
        run(
            project,
            f"create table {{schema}}.people using iceberg as {people} as t(id, part, city)",
        )
        run_dbt(["snapshot"])
        names = ("ignores", "invalidates", "records", "two_keys", "renamed")
        first = {name: len(snapshot_ids(project, name)) for name in names}
        run_dbt(["snapshot"])
        second = {name: len(snapshot_ids(project, name)) for name in names}
        for change in CHANGES:
            run(project, change)
        run_dbt(["snapshot"])
        return {name: (first[name], second[name]) for name in names}

    @pytest.mark.parametrize("name", ["ignores", "invalidates", "records", "two_keys", "renamed"])
    def test_no_change_no_commit(self, project: Any, unchanged: Any, name: str) -> None:
        first, second = unchanged[name]
        assert first == second == 1

    def test_ignore(self, project: Any, unchanged: Any) -> None:
        actual = rows(
            project,
            "select id, city, dbt_valid_to is null from {schema}.ignores order by id, dbt_valid_from",
        )
        assert actual == [
            (1, "Bern", False),
            (1, "Basel", True),
            (2, "Oslo", True),
            (3, None, True),
            (4, "Delft", True),
        ]

    def test_invalidate(self, project: Any, unchanged: Any) -> None:
        actual = rows(
            project, "select id from {schema}.invalidates where dbt_valid_to is null order by id"
        )
        assert actual == [(1,), (3,), (4,)]

    @pytest.mark.parametrize("name", ["records", "two_keys"])
    def test_new_record_keeps_the_columns(self, project: Any, unchanged: Any, name: str) -> None:
        actual = rows(
            project,
            f"select id, part, city from {{schema}}.{name} where dbt_is_deleted = 'True'",
        )
        assert actual == [(2, "b", "Oslo")]

    def test_renamed_columns_and_a_date_for_current(self, project: Any, unchanged: Any) -> None:
        actual = rows(
            project,
            "select id, city, year(until) from {schema}.renamed where year(until) = 9999 order by id",
        )
        assert [row[0] for row in actual] == [1, 2, 3, 4]
