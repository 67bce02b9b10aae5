"""The snapshot strategy `iceberg_history`, compared with the states after each commit of the source."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

from tests.functional.lake import rows, run, snapshot_ids, table

SNAPSHOT = """
snapshots:
  - name: {name}
    relation: source('raw', '{source}')
    config:
      unique_key: {key}
      strategy: iceberg_history
      hard_deletes: {deletes}
      {more}
"""
SOURCES = """
sources:
  - name: raw
    schema: "{{ target.schema }}"
    tables: [{name: people}, {name: short}, {name: twice}]
"""
RENAMED = """dbt_valid_to_current: "timestamp '9999-12-31'"
      snapshot_meta_column_names: {dbt_valid_to: until, dbt_valid_from: since, dbt_is_deleted: gone}"""
JOINED = """
{{ config(materialized='ephemeral') }}
select a.id from {{ ref('over') }} as a join {{ ref('other') }} as b using (id)
"""
State = Mapping[int, tuple[Any, ...]]
Version = tuple[int, tuple[Any, ...], int, int | None, bool]
DELETES = ("ignore", "invalidate", "new_record")


def expected_versions(states: list[tuple[int, State]], deletes: str) -> set[Version]:
    """Return the versions of each key, from the states of the source and their times."""
    current: dict[int, tuple[tuple[Any, ...], int, bool]] = {}
    versions: set[Version] = set()

    def end(key: int, at: int) -> None:
        row, since, gone = current.pop(key)
        versions.add((key, row, since, at, gone))

    for at, state in states:
        for key, row in state.items():
            if key not in current or current[key][2] or current[key][0] != row:
                if key in current:
                    end(key, at)
                current[key] = (row, at, False)
        for key in set(current) - set(state):
            row, _, gone = current[key]
            if deletes == "ignore" or gone:
                continue
            end(key, at)
            if deletes == "new_record":
                current[key] = (row, at, True)
    return versions | {(key, row, since, None, gone) for key, (row, since, gone) in current.items()}


class Source:
    """A table that is changed at random, with its states."""

    def __init__(self, project: Any, seed: int) -> None:
        self.project, self.random = project, random.Random(seed)
        self.states: list[tuple[int, State]] = []
        run(
            project, "create table {schema}.people (id int, name string, city string) using iceberg"
        )

    def change(self) -> None:
        """Commit a random change, and note the state if a reader could see another one."""
        ids = [self.random.randrange(8) for _ in range(2)]
        city = self.random.choice(["'Bern'", "'Oslo'", "null"])
        live = dict(self.states[-1][1]) if self.states else {}
        new = next(number for number in range(100) if number not in live)
        ids_sql = ", ".join(map(str, ids))
        earlier = snapshot_ids(self.project, "people")[:-1]
        changes = [
            f"insert into {{schema}}.people values ({new}, 'n', {city})",
            f"update {{schema}}.people set city = {city} where id in ({ids_sql})",
            f"delete from {{schema}}.people where id in ({ids_sql})",
            f"insert overwrite {{schema}}.people select id, 'again', {city} from values ({ids[0]}), (50) as t(id)",
            "call lake.system.rewrite_data_files(table => '{schema}.people', options => map('rewrite-all', 'true'))",
        ]
        if earlier:
            back = self.random.choice(earlier)
            changes.append(f"call lake.system.set_current_snapshot('{{schema}}.people', {back})")
        run(self.project, self.random.choice(changes))
        self.note()

    def note(self) -> None:
        log = table(self.project, "people").metadata.snapshot_log
        state = {row[0]: row[1:] for row in rows(self.project, "select * from {schema}.people")}
        if log:
            self.states.append((log[-1].timestamp_ms, state))


def actual_versions(project: Any, name: str, deletes: str, since: str, until: str) -> set[Version]:
    gone = {"recorded": "gone", "history_new_record": "dbt_is_deleted"}.get(name, "'False'")
    result = rows(
        project,
        f"select id, name, city, unix_millis({since}), "
        f"unix_millis(nullif({until}, timestamp '9999-12-31')), {gone} = 'True' from {{schema}}.{name}",
    )
    versions = {(row[0], row[1:3], *row[3:]) for row in result}
    assert len(versions) == len(result)
    return versions


class TestRandomHistory:
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        texts = {
            f"history_{deletes}.yml": SNAPSHOT.format(
                name=f"history_{deletes}", source="people", key="id", deletes=deletes, more=""
            )
            for deletes in DELETES
        }
        recorded = SNAPSHOT.format(
            name="recorded", source="people", key="[id]", deletes="new_record", more=RENAMED
        )
        return {**texts, "recorded.yml": recorded}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES}

    @pytest.mark.parametrize(
        "seed", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4))]
    )
    def test_each_commit_of_the_source_counts(self, project: Any, seed: int) -> None:
        source = Source(project, seed)
        for changes in (2, 0, 4) if seed == 7 else (3, 1, 6, 0, 5):
            for _ in range(changes):
                source.change()
            run_dbt(["snapshot"])
            for deletes in DELETES:
                actual = actual_versions(
                    project, f"history_{deletes}", deletes, "dbt_valid_from", "dbt_valid_to"
                )
                assert actual == expected_versions(source.states, deletes)
            actual = actual_versions(project, "recorded", "new_record", "since", "until")
            assert actual == expected_versions(source.states, "new_record")
        commits = len(snapshot_ids(project, "history_ignore"))
        run_dbt(["snapshot"])
        assert len(snapshot_ids(project, "history_ignore")) == commits


class TestChangedSources:
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        history = SNAPSHOT.format(
            name="history", source="short", key="id", deletes="invalidate", more=""
        )
        twice = SNAPSHOT.format(
            name="of_twice", source="twice", key="id", deletes="ignore", more=""
        )
        return {"history.yml": history, "twice.yml": twice}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "sources.yml": SOURCES,
            "over.sql": "select 1 as id, 'x' as name",
            "other.sql": "select 1 as id",
            "joined.sql": JOINED,
        }

    def test_columns_and_expired_versions(self, project: Any) -> None:
        """A new column is null before; versions that have expired are dated by the next one."""
        run(project, "create table {schema}.short using iceberg as select 1 as id, 'a' as name")
        run_dbt(["snapshot", "-s", "history"])
        run(project, "update {schema}.short set name = 'b'")
        run(project, "alter table {schema}.short add column city string")
        run(project, "update {schema}.short set city = 'Bern'")
        run_dbt(["snapshot", "-s", "history"])
        query = (
            "select name, city, dbt_valid_to is null from {schema}.history order by dbt_valid_from"
        )
        versions = [("a", None, False), ("b", None, False), ("b", "Bern", True)]
        assert rows(project, query) == versions
        run(project, "update {schema}.short set name = 'c'")
        run(project, "update {schema}.short set name = 'd'")
        run(
            project,
            "call lake.system.expire_snapshots(table => '{schema}.short', retain_last => 1, "
            "older_than => timestamp '2999-01-01')",
        )
        run_dbt(["snapshot", "-s", "history"])
        assert rows(project, query) == [*versions[:2], ("b", "Bern", False), ("d", "Bern", True)]

    def test_a_key_that_occurs_twice_in_an_earlier_version(self, project: Any) -> None:
        run(project, "create table {schema}.twice using iceberg as select 1 as id, 'a' as name")
        run(project, "insert into {schema}.twice values (1, 'b')")
        run(project, "delete from {schema}.twice where name = 'b'")
        (result,) = run_dbt(["snapshot", "-s", "of_twice"], expect_pass=False)
        assert 'The unique_key occurs twice in a version of the source: {"id":1}' in result.message

    @pytest.mark.parametrize(
        ("relation", "message"),
        [
            ("ref('over')", "over has no history, because it is no Iceberg table"),
            ("ref('joined')", "the query must read one table, without `.at(…)`"),
        ],
    )
    def test_what_has_no_history(self, project: Any, relation: str, message: str) -> None:
        run_dbt(["run"])
        text = SNAPSHOT.format(name="wrong", source="x", key="id", deletes="ignore", more="")
        text = text.replace("source('raw', 'x')", relation)
        write_file(text, project.project_root, "snapshots", "wrong.yml")
        (result,) = run_dbt(["snapshot", "-s", "wrong"], expect_pass=False)
        assert message in result.message
