"""Small tables: written by the adapter, they are what Spark would have written."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from tests.functional.lake import rows, run, table

TYPES = """
select id, cast(id as tinyint) as t, cast(id as smallint) as s, cast(id as int) as i,
  id % 2 = 0 as b, cast(id as float) / 3 as f, id / 7d as d,
  cast(id as decimal(38, 10)) as x, 12345.678 as literal, concat('n', id, ' 🚲') as name,
  cast(concat('b', id) as binary) as bytes, date_add(date '1969-12-30', cast(id as int)) as day,
  timestamp '2024-02-29 10:11:12.123456' + make_interval(0, 0, 0, cast(id as int)) as at,
  timestamp_ntz '1900-01-01 00:00:00' as local, cast('x' as char(3)) as c,
  array(id, null) as list, map('k', id, 'n', null) as pairs,
  named_struct('a', id, 'Inner', named_struct('deep', array(date '2024-01-01'))) as nested,
  if(id = 3, null, id) as some, cast(null as string) as none
from range(7)
"""
# Without any item below them, Spark sends no offsets of lists and texts.
EMPTY = """
select cast(map() as map<string, array<string>>) as m, cast(array() as array<array<string>>) as l,
  cast(array() as array<struct<a: array<string>>>) as s from range({})
"""
# Each version of a model replaces the table of the version before.
VERSIONS = [
    "select id, cast(id as int) as a, 'x' as gone from range(5)",
    "select id, cast(id as bigint) as a, named_struct('x', 1, 'y', 'b') as s from range(3)",
    "select named_struct('x', 1L, 'z', 2.5) as s, id, 'back' as gone from range(4)",
    "select id from range(0)",
]
CONFIG = "{{ config(materialized='table') }}\n"
SORTED = "{{ config(materialized='table', sort_order=['id desc']) }} select id from range(3)"
VERSION = CONFIG + "\n".join(
    f"{{% if var('version', 0) == {number} %}}{sql}{{% endif %}}"
    for number, sql in enumerate(VERSIONS)
)
# What only Spark writes, or refuses.
BY_SPARK = {
    "layout": "{{ config(materialized='table', partition_by='id') }} select id from range(3)",
    "many": CONFIG + "select id from range(101)",
    "wide": CONFIG + "select id, repeat('x', 100000) as text from range(50)",
    "comments_within": CONFIG + "select id, pair from {{ ref('documented') }}",
    "collated": CONFIG + "select id, 'x' collate utf8_lcase as name from range(3)",
}
DOCUMENTED = "{{ config(materialized='table', persist_docs={'columns': true}) }}"
DOCUMENTED += """
select id, 'n' as note, {{ 'id' if var('other', false) else "'x'" }} as more,
  named_struct('a', id) as pair from range(3)
"""
SCHEMA = """
models:
  - name: documented
    columns:
      - {name: note, description: what it says}
      - {name: more, description: "{{ var('more', '') }}"}
"""
REFUSED = {
    "no_type": "select null as nothing",
    "an_interval": "select interval '1' day as period",
    "divided": "select id / (id - id) as broken from range(3)",
    "twice": "select 1 as a, 2 as A",
}


def writer(project: Any, name: str) -> str:
    """Return who wrote the current rows of a table, which Spark says in the snapshot."""
    snapshot = table(project, name).current_snapshot()
    return "spark" if "spark.app.id" in snapshot.summary.additional_properties else "adapter"


def shape(project: Any, name: str, schema: str) -> dict[str, Any]:
    """Return what readers see of a table besides its rows."""
    loaded = table(project, name, schema)
    return {
        "schema": loaded.schema().as_struct(),
        "required": [field.required for field in loaded.schema().fields],
        "identifiers": loaded.schema().identifier_field_ids,
        "spec": loaded.spec().fields,
        "order": loaded.sort_order().fields,
        "version": loaded.format_version,
        # Iceberg's REST server notes when it created the table.
        "properties": {k: v for k, v in loaded.properties.items() if k != "created-at"},
        "rows": loaded.current_snapshot().summary["total-records"],
    }


def without_ids(shape: dict[str, Any]) -> dict[str, Any]:
    """Return a shape without field ids: both writers keep those of columns that stay, and number
    new ones in their own order."""
    fields = [
        (field.name, re.sub(r"\d+: ", "", str(field.field_type)), field.doc)
        for field in shape["schema"].fields
    ]
    return {**shape, "schema": fields}


class SmallTables:
    """Models of two profiles in one warehouse: one whose tables the adapter writes, and Spark's."""

    @pytest.fixture(scope="class")
    def dbt_profile_data(self, dbt_profile_target: Any, unique_schema: str) -> dict[str, Any]:
        ours = {**dbt_profile_target, "schema": unique_schema, "small_table_rows": 100}
        sparks = {**ours, "schema": f"{unique_schema}_spark", "small_table_rows": 0}
        return {"test": {"target": "ours", "outputs": {"ours": ours, "spark": sparks}}}

    @pytest.fixture
    def creator(self, request: pytest.FixtureRequest) -> str:
        """Who writes new tables: on a cluster Spark, whose user owns them."""
        return "spark" if request.config.getoption("--method") == "connect" else "adapter"

    def both(self, project: Any, name: str) -> list[dict[str, Any]]:
        """Return the shapes of a table of both profiles, after a check of their rows."""
        schema = project.test_schema
        first, second = (f"lake.{schema}{suffix}.{name}" for suffix in ("", "_spark"))
        for a, b in ((first, second), (second, first)):
            one, other = (f"(select to_json(struct(*)) as j from {each})" for each in (a, b))
            assert rows(project, f"select j from {one} except all select j from {other}") == []
        return [shape(project, name, schema), shape(project, name, f"{schema}_spark")]


class TestSmallTables(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "types.sql": CONFIG + TYPES,
            "version.sql": VERSION,
            "sorted.sql": SORTED,
            "empty_items.sql": CONFIG + EMPTY.format(1),
            "no_rows.sql": CONFIG + EMPTY.format(0),
            "documented.sql": DOCUMENTED,
            "selected.sql": CONFIG + "select more, note as said, id from {{ ref('documented') }}",
            "schema.yml": SCHEMA,
        }

    def test_every_type_is_what_spark_writes(self, project: Any, creator: str) -> None:
        for expected in (creator, "adapter"):
            for target in ("ours", "spark"):
                run_dbt(["run", "--select", "types", "--target", target])
            ours, sparks = self.both(project, "types")
            assert ours == sparks
            assert writer(project, "types") == expected

    @pytest.mark.parametrize("name", ["empty_items", "no_rows"])
    def test_lists_and_maps_without_items(self, project: Any, creator: str, name: str) -> None:
        for expected in dict.fromkeys((creator, "adapter")):
            for target in ("ours", "spark"):
                run_dbt(["run", "--select", name, "--target", target])
            ours, sparks = self.both(project, name)
            assert ours == sparks
            assert writer(project, name) == expected

    def test_a_sort_order_is_what_spark_sets(self, project: Any) -> None:
        for _ in ("new", "replaced"):
            for target in ("ours", "spark"):
                run_dbt(["run", "--select", "sorted", "--target", target])
            ours, sparks = self.both(project, "sorted")
            assert ours == sparks
            assert rows(project, "select id from {schema}.sorted") == [(2,), (1,), (0,)]

    def test_comments_are_what_spark_sets(self, project: Any, creator: str) -> None:
        comments, expected = [], creator
        for variables in ("{more: first}", "{more: first}", "{more: '', other: true}", "{}"):
            for target in ("ours", "spark"):
                command = ["run", "--select", "documented", "selected", "--target", target]
                run_dbt([*command, "--vars", variables])
            for name in ("documented", "selected"):
                ours, sparks = map(without_ids, self.both(project, name))
                assert ours == sparks
                assert writer(project, name) == expected
            expected = "adapter"
            comments.append([field.doc for field in table(project, "selected").schema().fields])
        note = "what it says"
        assert comments == [["first", note, None]] * 2 + [[None, note, None]] * 2

    def test_replaced_columns_are_what_spark_replaces(self, project: Any, creator: str) -> None:
        for number, expected in zip((0, 1, 2, 3, 0), (creator, *["adapter"] * 4), strict=True):
            arguments = ["run", "--select", "version", "--vars", f"version: {number}"]
            responses = [
                run_dbt([*arguments, "--target", target])[0].adapter_response
                for target in ("ours", "spark")
            ]
            assert responses[0]["rows_affected"] == responses[1]["rows_affected"]
            ours, sparks = map(without_ids, self.both(project, "version"))
            assert ours == sparks
            assert writer(project, "version") == expected


class TestLeftToSpark(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        models = {f"{name}.sql": sql for name, sql in BY_SPARK.items()}
        models |= {f"{name}.sql": CONFIG + sql for name, sql in REFUSED.items()}
        models["plain.sql"] = CONFIG + "select id from range(3)"
        return models | {"documented.sql": DOCUMENTED, "schema.yml": SCHEMA}

    def test_what_only_spark_writes(self, project: Any) -> None:
        run_dbt(["run", "--select", "documented"])
        run(project, "alter table {schema}.documented alter column pair.a comment 'within'")
        for _ in ("new", "replaced"):
            run_dbt(["run", "--select", *BY_SPARK])
            for name in BY_SPARK:
                assert writer(project, name) == "spark", name
        run_dbt(["run", "--select", "documented"])
        assert writer(project, "documented") == "spark"
        assert table(project, "documented").schema().find_field("pair.a").doc is None

    def test_errors_are_those_of_spark(self, project: Any) -> None:
        messages = []
        for target in ("ours", "spark"):
            results = run_dbt(["run", "--select", *REFUSED, "--target", target], expect_pass=False)
            assert {result.status for result in results} == {"error"}
            texts = sorted(str(result.message) for result in results)
            messages.append([text.replace("_spark", "") for text in texts])
        assert messages[0] == messages[1]

    def test_a_storage_that_only_spark_reaches(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> Any:
            raise OSError("no file system for this address")

        monkeypatch.setattr(DataFileWriter, "write", refuse)
        for name in ("new", "replaced"):
            run_dbt(["run", "--select", "plain"])
            assert writer(project, "plain") == "spark", name
        monkeypatch.undo()
        run_dbt(["run", "--select", "plain"])
        assert writer(project, "plain") == "adapter"

    def test_a_table_that_grows_is_written_by_spark(self, project: Any) -> None:
        run(project, "create or replace table {schema}.many as select 1L as id")
        assert run_dbt(["run", "--select", "many"])[0].adapter_response["rows_affected"] == 101
        assert writer(project, "many") == "spark"


BY_KEY = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select id, {{ "'new'" if is_incremental() else "'old'" }} as state, rand() as luck
from range({{ var('first', 0) }}, {{ var('last', 50) }})
{{ 'union all select 3, "twice", 0' if var('twice', false) }}
"""


class TestIncrements(SmallTables):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"by_key.sql": BY_KEY}

    def increment(self, expect_pass: bool = True, **variables: Any) -> Any:
        return run_dbt(["run", "--vars", str(variables)], expect_pass=expect_pass)[0]

    def test_few_rows_and_many(self, project: Any) -> None:
        run_dbt(["run", "--full-refresh"])
        few = self.increment(first=40, last=60).adapter_response
        assert (few["rows_updated"], few["rows_inserted"]) == (10, 10)
        many = self.increment(first=0, last=300).adapter_response
        assert (many["rows_updated"], many["rows_inserted"]) == (60, 240)
        again = self.increment(first=290, last=310).adapter_response
        assert (again["rows_updated"], again["rows_inserted"]) == (10, 10)
        counts = rows(project, "select state, count(*) from {schema}.by_key group by state")
        assert counts == [("new", 310)]

    def test_duplicate_keys_are_named_and_nothing_changes(self, project: Any) -> None:
        run_dbt(["run", "--full-refresh"])
        before = rows(project, "select * from {schema}.by_key order by id")
        result = self.increment(expect_pass=False, twice=True)
        assert "more than one row for a unique_key (id): (3) 2 times" in str(result.message)
        assert rows(project, "select * from {schema}.by_key order by id") == before
