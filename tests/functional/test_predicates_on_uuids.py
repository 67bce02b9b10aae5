"""A predicate on a column of UUIDs, which Spark shows as strings: Spark decides it."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, UUIDType

from tests.functional.lake import rows, run, table

KEY = "00000000-0000-0000-0000-00000000000{}"
MODEL = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    merge_update_columns=['x'], skip_not_matched_step=true,
    incremental_predicates=["DBT_INTERNAL_DEST.u <> '%s'"]) }}
select * from (values (1, '%s', 10), (2, '%s', 20)) as t (id, u, x)
""" % tuple(KEY.format(n) for n in (2, 1, 3))  # noqa: UP031


class TestUuids:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"uuids.sql": MODEL, "other.sql": "{{ config(materialized='table') }} select 1 as a"}

    def test_only_rows_of_the_predicate_are_updated(self, project: Any) -> None:
        run_dbt(["run", "--select", "other"])
        schema = Schema(
            NestedField(1, "id", IntegerType(), required=False),
            NestedField(2, "u", UUIDType(), required=False),
            NestedField(3, "x", IntegerType(), required=False),
        )
        table(project, "other").catalog.create_table((project.test_schema, "uuids"), schema)
        values = f"(1, '{KEY.format(1)}', 0), (2, '{KEY.format(2)}', 0)"
        run(project, f"insert into {{schema}}.uuids values {values}")
        run_dbt(["run", "--select", "uuids"])
        expected = [(1, KEY.format(1), 10), (2, KEY.format(2), 0)]
        assert rows(project, "select id, u, x from {schema}.uuids order by id, u") == expected
