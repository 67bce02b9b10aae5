"""Snapshots: hard deletes, keys of several columns, and no commit without a change."""

from __future__ import annotations

import bisect
import collections
import json
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, run, snapshot_ids
from tests.functional.random_snapshots import KEYS, Snapshot, next_state, table_sql

# 2019-12-31 in seconds since 1970: the first of January 2020 is day 1.
DAY_ZERO = 1577750400

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
                "      snapshot_meta_column_names:\n"
                "        {dbt_valid_to: \"{{ var('until', 'until') }}\", dbt_valid_from: since}",
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
        # The column keeps its name.
        results = run_dbt(["snapshot", "--vars", "until: UNTIL"]).results
        responses = [result.adapter_response for result in results]
        assert [r.get("merge_engine_reason") for r in responses] == [None] * len(names)
        assert {r["merge_engine"] for r in responses} == {"rewrite"}
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


RANDOM = """
snapshots:
  - name: {name}
    relation: source('raw', 'things')
    config: {{unique_key: {key}, strategy: {strategy}, hard_deletes: {deletes}, {more}}}
"""
RENAMED = (
    "dbt_valid_to_current: \"timestamp '9999-12-31'\", "
    "snapshot_meta_column_names: {dbt_valid_from: Since, dbt_valid_to: UNTIL, dbt_is_deleted: Is_Gone}"
)
# Name, key and more config of each snapshot, and its model.
RANDOM_SNAPSHOTS = {
    "check_all": ("K", "check_cols: all", Snapshot("check", "ignore")),
    "check_some": (
        "[ID, part]",
        "check_cols: [VALUE, Attrs]",
        Snapshot("check", "invalidate", ("value", "attrs")),
    ),
    "check_gone": ("[id, PART]", f"check_cols: all, {RENAMED}", Snapshot("check", "new_record")),
    "time_ignore": ("k", "updated_at: AT", Snapshot("timestamp", "ignore")),
    "time_invalid": ("[part, id]", "updated_at: at", Snapshot("timestamp", "invalidate")),
    "time_gone": ("[id, part]", f"updated_at: at, {RENAMED}", Snapshot("timestamp", "new_record")),
    "history": ("[id, part]", "", Snapshot("check", "new_record")),
}


def versions_of(project: Any, name: str, starts: list[int]) -> list[str]:
    """The versions in a table, with the number of the run (negative) in which each time was."""
    _, more, snapshot = RANDOM_SNAPSHOTS[name]
    since, until, gone = (
        ("since", "nullif(until, timestamp '9999-12-31')", "is_gone")
        if RENAMED in more
        else ("dbt_valid_from", "dbt_valid_to", "dbt_is_deleted")
    )
    gone = f"{gone} = 'True'" if snapshot.deletes == "new_record" else "false"
    columns = (
        f"k, id, part, cast(value as string) v, attrs m, at, unix_seconds({since}) s, "
        f"unix_seconds({until}) u, {gone} g, dbt_scd_id i"
    )
    found = rows(
        project,
        f"select to_json(struct(*), map('ignoreNullFields', 'false')) from "
        f"(select {columns} from {{schema}}.{name})",
    )
    versions = [json.loads(row[0]) for row in found]
    ids = collections.Counter(version["i"] for version in versions)
    assert [version for version in versions if ids[version["i"]] > 1] == []

    def moment(seconds: int | None) -> int | None:
        if seconds is None or seconds < starts[0]:
            return seconds and (seconds - DAY_ZERO) // 86400
        return -bisect.bisect_right(starts, seconds)

    return sorted(
        str(
            (
                v["k"],
                v["id"],
                v["part"],
                v["v"],
                v["m"] and dict(sorted(v["m"].items())),
                v["at"][:10],
                moment(v["s"]),
                moment(v["u"]),
                v["g"],
            )
        )
        for v in versions
    )


def expected_versions(snapshot: Snapshot) -> list[str]:
    result = []
    for version in snapshot.versions:
        k, name, part = KEYS[version.index]
        row = version.row
        attrs = None if row.attrs is None else dict(row.attrs)
        key = (k, name and name.replace("''", "'"), part)
        end = (version.since, version.until, version.is_gone)
        result.append(str((*key, row.value, attrs, f"2020-01-0{row.at}", *end)))
    return sorted(result)


class TestRandomSnapshots:
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        texts = {}
        for name, (key, more, snapshot) in RANDOM_SNAPSHOTS.items():
            strategy = "iceberg_history" if name == "history" else snapshot.strategy
            texts[f"{name}.yml"] = RANDOM.format(
                name=name, key=key, strategy=strategy, deletes=snapshot.deletes, more=more
            )
        return texts

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES.replace("people", "things")}

    @pytest.mark.parametrize(
        ("seed", "runs"),
        [(3, 2), *(pytest.param(seed, 8, marks=pytest.mark.slow) for seed in range(5))],
    )
    def test_versions_are_those_of_dbt(self, project: Any, seed: int, runs: int) -> None:
        source, state, starts = random.Random(seed), {}, []
        models = {name: replace(entry[2], versions=[]) for name, entry in RANDOM_SNAPSHOTS.items()}
        for name in (*models, "things"):
            run(project, f"drop table if exists {{schema}}.{name}")
        for number in range(1, runs + 1):
            state = next_state(state, source)
            time.sleep(1 - time.time() % 1)
            starts.append(int(time.time()))
            run(project, f"create or replace table {{schema}}.things as {table_sql(state, source)}")
            run_dbt(["snapshot"])
            for name, model in models.items():
                model.run(state, number)
                actual = versions_of(project, name, starts)
                assert actual == expected_versions(model), f"{name}, run {number}"
        commits = {name: len(snapshot_ids(project, name)) for name in models}
        run_dbt(["snapshot"])
        assert commits == {name: len(snapshot_ids(project, name)) for name in models}


TYPED = """
snapshots:
  - name: {name}
    relation: source('raw', 'typed')
    config: {{strategy: {strategy}, check_cols: all, unique_key: id}}
"""


def few(kinds: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the kinds, of which `make test-slow` tests those that have no name here."""
    return [kind if kind in names else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


# The types of a source's column before and after, with values, and what a snapshot then has.
WIDENED = {
    "int": ("1", "3000000000", "bigint"),
    "float": ("cast(0.5 as float)", "0.1d", "double"),
    "digits": ("cast(1 as decimal(5, 2))", "cast(12345.67 as decimal(9, 2))", "decimal(9,2)"),
    "narrower": ("3000000000", "1", "bigint"),
}
REFUSED = {
    "fraction": ("1", "1.5d"),
    "scale": ("cast(1.25 as decimal(9, 2))", "cast(1.2345 as decimal(9, 4))"),
    "time": ("date'2026-01-01'", "timestamp'2026-01-01 12:00:00'"),
    "fields": ("named_struct('a', 1)", "named_struct('a', 1, 'b', 2)"),
}


class TestTypesThatChange:
    """Once, values were cut without a word, and differed at each run."""

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        strategies = ("check", "iceberg_history")
        return {f"by_{one}.yml": TYPED.format(name=f"by_{one}", strategy=one) for one in strategies}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES.replace("people", "typed")}

    def build(self, project: Any, before: str, after: str, passes: bool) -> list[str]:
        for name in ("by_check", "by_iceberg_history", "typed"):
            run(project, f"drop table if exists {{schema}}.{name}")
        said = []
        for value in (before, after, after):
            run(
                project, f"create or replace table {{schema}}.typed as select 1 as id, {value} as v"
            )
            results = run_dbt(["snapshot"], expect_pass=passes or value is before)
            said += [str(result.message) for result in results]
        return said

    @pytest.mark.parametrize("kind", few(WIDENED, "digits", "narrower"))
    def test_it_is_widened(self, project: Any, kind: str) -> None:
        before, after, dtype = WIDENED[kind]
        self.build(project, before, after, True)
        for name in ("by_check", "by_iceberg_history"):
            query = f"select v, typeof(v) from {{schema}}.{name} order by dbt_valid_from"
            first, second = rows(project, query)
            (value,) = rows(project, f"select cast({after} as {dtype})")
            assert first[1] == second[1] == dtype
            assert second[0] == value[0]

    @pytest.mark.parametrize("kind", few(REFUSED, "scale"))
    def test_it_is_refused(self, project: Any, kind: str) -> None:
        said = self.build(project, *REFUSED[kind], False)
        assert all("Cast the column in the query" in message for message in said[2:])


ENGINE = """
{% snapshot comes_back %}
  {{ config(strategy='timestamp', unique_key='id', updated_at='at', hard_deletes='invalidate',
            merge_engine='rewrite') }}
  select * from {{ target.schema }}.people
{% endsnapshot %}
{% snapshot same_time %}
  {{ config(strategy='check', unique_key='id', updated_at='at', check_cols=['v'],
            merge_engine='rewrite') }}
  select * from {{ target.schema }}.people
{% endsnapshot %}
"""
STORED = """
{% snapshot stored %}
  {{ config(strategy='check', unique_key='id', check_cols=['v'], hard_deletes='new_record') }}
  select id, v, {{ var('w') }} as w from {{ target.schema }}.people
{% endsnapshot %}
"""


class TestIdsInUse:
    """Versions whose ids older ones have get other ids, also where Spark may not merge them."""

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"engine.sql": ENGINE, "stored.sql": STORED}

    def source(self, project: Any, *values: tuple[int, str]) -> None:
        sql = " union all ".join(
            f"select {key} as id, '{v}' as v, date'2026-01-01' as at" for key, v in values
        )
        run(project, f"create or replace table {{schema}}.people as {sql}")

    def test_versions(self, project: Any) -> None:
        for values in (((1, "a"), (2, "b")), ((2, "c"),), ((1, "a"), (2, "d"))):
            self.source(project, *values)
            for result in run_dbt(["snapshot", "-s", "comes_back", "same_time"]):
                engine = result.adapter_response.get("merge_engine")
                assert engine in (None, "rewrite")
        query = "select id, v, dbt_valid_to is null from {schema}.%s order by all"
        back = [(1, "a", False), (1, "a", True), (2, "b", True)]
        assert rows(project, query % "comes_back") == back
        same = [(1, "a", True), (2, "b", False), (2, "c", False), (2, "d", True)]
        assert rows(project, query % "same_time") == same
        for name in ("comes_back", "same_time"):
            count = "select count(*) - count(distinct dbt_scd_id) from {schema}." + name
            assert rows(project, count) == [(0,)]

    def test_a_deletion_has_the_values_that_are_stored(self, project: Any) -> None:
        for values, w in (
            (((1, "a"), (2, "b"), (3, "c")), "if(id = 1, '0012', 'text')"),
            (((3, "d"),), "7"),
        ):
            self.source(project, *values)
            run_dbt(["snapshot", "-s", "stored", "--vars", f'w: "{w}"'])
        query = "select id, v, w, dbt_is_deleted from {schema}.stored order by all"
        assert rows(project, query) == [
            (1, "a", "0012", "False"),
            (1, "a", "0012", "True"),
            (2, "b", "text", "False"),
            (2, "b", "text", "True"),
            (3, "c", "text", "False"),
            (3, "d", "7", "False"),
        ]


ODD_SNAPSHOTS = """
{% snapshot semicolon %}
  {{ config(strategy='check', unique_key='id', check_cols=['dbt_change'], hard_deletes='new_record') }}
  select id, dbt_change, dbt_exists, dbt_new_id, dbt_until, dbt_changed_at
  from {{ target.schema }}.odd;
{% endsnapshot %}
{% snapshot numbers %}
  {{ config(strategy='timestamp', unique_key='id', updated_at='dbt_until') }}
  select * from {{ target.schema }}.odd
{% endsnapshot %}
"""
# Times of other types, and expressions that end with comments.
TIMED = """
{{% snapshot of_{name} %}}
  {{{{ config(strategy='timestamp', unique_key='id -- the key', updated_at='at',
             hard_deletes='{deletes}', dbt_valid_to_current="{current} -- for ever") }}}}
  select id, {at} as at from {{{{ target.schema }}}}.odd
  where id - {{{{ var('least') }}}} in (0, 1)
{{% endsnapshot %}}
"""
TIMED_ROWS = {
    "texts": ("new_record", "'9999'", "'2026-01-02T03:04:05Z'"),
    "dates": ("invalidate", "date'9999-12-31'", "date'2026-01-02'"),
}
TAKEN = """
{% snapshot taken %}
  {{ config(strategy='check', unique_key='id', check_cols='all') }}
  select id, 1 as dbt_unique_key from {{ target.schema }}.odd
{% endsnapshot %}
{% snapshot epochs %}
  {{ config(strategy='timestamp', unique_key='id', updated_at='dbt_until', hard_deletes='invalidate') }}
  select * from {{ target.schema }}.odd
{% endsnapshot %}
"""
DOUBLED = """
{% snapshot doubled %}
  {{ config(strategy='check', unique_key=['id', 'k'], check_cols=['v']) }}
  select {{ var('id', 1) }} as id, 'x' as k, explode(array({{ var('values', 0) }})) as v
{% endsnapshot %}
"""


class TestOddSources:
    """Columns with names that a snapshot's query has, a semicolon, and numbers for times."""

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        timed = "".join(
            TIMED.format(name=name, deletes=deletes, current=current, at=at)
            for name, (deletes, current, at) in TIMED_ROWS.items()
        )
        return {"odd.sql": ODD_SNAPSHOTS + timed, "taken.sql": TAKEN, "doubled.sql": DOUBLED}

    def test_versions(self, project: Any) -> None:
        # The last run has no changes.
        for version in (1, 2, 2):
            run(
                project,
                "create or replace table {schema}.odd as select id, "
                f"{version} as dbt_change, true as dbt_exists, 'x' as dbt_new_id, "
                f"{version}L as dbt_until, id as dbt_changed_at from range(3)",
            )
            # Later versions lack the row 0, and have the row 2.
            arguments = [
                "--vars",
                f"least: {version - 1}",
                "--exclude",
                "taken",
                "epochs",
                "doubled",
            ]
            run_dbt(["snapshot", *arguments])
        for name in ("semicolon", "numbers"):
            query = f"select dbt_change, count(*) from {{schema}}.{name} group by 1 order by 1"
            assert rows(project, query) == [(1, 3), (2, 3)]
        for name, (deletes, current, at) in TIMED_ROWS.items():
            query = (
                f"select id, dbt_valid_from = {at}, dbt_valid_to = {current}, "
                f"typeof(dbt_valid_from) = typeof({at}), typeof(dbt_valid_to) = typeof({at}) "
                f"from {{schema}}.of_{name} order by id, dbt_valid_from"
            )
            deletion = [(0, False, True, True, True)] if deletes == "new_record" else []
            assert rows(project, query) == [
                (0, True, False, True, True),
                *deletion,
                (1, True, True, True, True),
                (2, True, True, True, True),
            ]

    def test_a_key_that_occurs_twice_is_named(self, project: Any) -> None:
        several = "returns more than one row for a unique_key (id, k): (2, x) 3 times. Nothing was"
        for variables, message in (
            ("values: 1", None),
            ("values: '2, 3'", "a unique_key (id, k) occurs more than once: (1, x) 2 times."),
            ("{values: '5, 5, 6', id: 2}", several),
            ("values: 4", None),
        ):
            command = ["snapshot", "-s", "doubled", "--vars", variables]
            (result,) = run_dbt(command, expect_pass=message is None)
            assert message is None or message in result.message
            assert "MERGE_CARD" not in result.message
        query = "select v, dbt_valid_to is null from {schema}.doubled order by v"
        assert rows(project, query) == [(1, False), (4, True)]

    def test_refusals(self, project: Any) -> None:
        run(project, "create or replace table {schema}.odd as select 1 as id, 2L as dbt_until")
        results = run_dbt(["snapshot", "--select", "taken", "epochs"], expect_pass=False)
        epochs, taken = sorted(results, key=lambda result: result.node.name)
        assert "`updated_at` of snapshot.test.epochs is bigint" in epochs.message
        assert "`dbt_unique_key`, a name that snapshots use" in taken.message
