"""Seeds: what stands in the file stands in the table."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, run, snapshot_ids, table

VALUES = "\n".join(
    [
        "id,name,big,day,at,flag,price,note",
        "1,O'Brien,9007199254740993,2024-02-29,2024-02-29 10:11:12,true,1.50,back\\slash",
        '2,,3,,,false,,"two, ""quoted"""',
        "3,Zoë 🚲,-1,1969-12-31,1969-12-31 23:59:59,,0.25,None",
    ]
)
TYPES = """zip,amount,wide
00123,1.10,123456789012345678901234567
"""
EMPTY = "id,name\n"
# Texts that Arrow reads, and a row that only Spark does.
TYPED = """i,l,d,x,b,day,at,zip
5,-6000000000,1.5,2.25,true,2024-02-29,2024-02-29 10:11:12.5,007
,,,,,,,
0,0,1e3,-0.01,0,1969-12-31,1969-12-31,
"""
ODD = TYPED + " 7 ,7,7,7,yes,2024-2-9,2024-02-29 10:11:12+02:00,x\n"
SCHEMA = """
version: 2
seeds:
  - name: typed
    config: &types
      column_types: {i: int, l: bigint, d: double, x: "decimal(9,2)", b: boolean, day: date, at: timestamp, zip: string}
  - name: odd
    config: *types
  - name: overrides
    config:
      column_types: {zip: string, amount: "decimal(10,2)"}
"""


class TestSeeds:
    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {
            "seed_values.csv": VALUES,
            "overrides.csv": TYPES,
            "empty.csv": EMPTY,
            "typed.csv": TYPED,
            "odd.csv": ODD,
            "schema.yml": SCHEMA,
        }

    @pytest.fixture(scope="class", autouse=True)
    def seeded(self, project: Any) -> None:
        run_dbt(["seed"])

    def test_values(self, project: Any) -> None:
        actual = rows(project, "select * from {schema}.seed_values order by id")
        utc = timezone.utc
        assert [tuple(row) for row in actual] == [
            (1, "O'Brien", 9007199254740993, date(2024, 2, 29),
             datetime(2024, 2, 29, 10, 11, 12, tzinfo=utc), True, 1.5, "back\\slash"),
            (2, None, 3, None, None, False, None, 'two, "quoted"'),
            (3, "Zoë 🚲", -1, date(1969, 12, 31),
             datetime(1969, 12, 31, 23, 59, 59, tzinfo=utc), None, 0.25, "None"),
        ]  # fmt: skip

    def test_types(self, project: Any) -> None:
        types = {f.name: str(f.field_type) for f in table(project, "seed_values").schema().fields}
        assert types["big"] == "long"
        assert types["day"] == "date"
        assert types["at"] == "timestamptz"
        assert types["flag"] == "boolean"

    def test_overrides_keep_the_text(self, project: Any) -> None:
        actual = rows(
            project,
            "select zip, cast(amount as string), cast(wide as string) from {schema}.overrides",
        )
        assert actual == [("00123", "1.10", "123456789012345678901234567")]
        fields = table(project, "overrides").schema().fields
        assert str(fields[1].field_type) == "decimal(10, 2)"

    def test_texts_mean_the_same_to_both_writers(
        self, project: Any, request: pytest.FixtureRequest
    ) -> None:
        typed, odd = (
            rows(project, f"select * from {{schema}}.{name} where i is null or i <> 7")
            for name in ("typed", "odd")
        )
        assert sorted(typed, key=str) == sorted(odd, key=str)
        assert len(typed) == 3
        schemas = [table(project, name).schema() for name in ("typed", "odd")]
        assert schemas[0].as_struct() == schemas[1].as_struct()
        if request.config.getoption("--method") == "embedded":
            assert [self.written_by_us(project, n) for n in ("typed", "odd")] == [True, False]

    def written_by_us(self, project: Any, name: str) -> bool:
        files = [task.file.file_path for task in table(project, name).scan().plan_files()]
        return all("/seed-" in path for path in files)

    def test_nothing_of_the_replaced_table_stays(self, project: Any) -> None:
        run(project, "drop table {schema}.seed_values")
        run(
            project,
            "create table {schema}.seed_values (id bigint, name string comment 'old', gone int) "
            "partitioned by (id)",
        )
        run_dbt(["seed", "--select", "seed_values"])
        actual = table(project, "seed_values")
        assert actual.spec().fields == ()
        assert [f.doc for f in actual.schema().fields] == [None] * 8
        assert rows(project, "select count(*) from {schema}.seed_values") == [(3,)]

    def test_an_empty_seed_is_an_empty_table(self, project: Any) -> None:
        assert rows(project, "select * from {schema}.empty") == []
        assert [f.name for f in table(project, "empty").schema().fields] == ["id", "name"]

    def test_a_second_seed_is_one_commit(self, project: Any) -> None:
        before = snapshot_ids(project, "seed_values")
        run_dbt(["seed", "--select", "seed_values"])
        assert len(snapshot_ids(project, "seed_values")) == len(before) + 1
        assert rows(project, "select count(*) from {schema}.seed_values") == [(3,)]
