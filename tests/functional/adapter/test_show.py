import pytest
from dbt.tests.adapter.dbt_show.test_dbt_show import (
    BaseShowDoesNotHandleDoubleLimit,
    BaseShowLimit,
    BaseShowSqlHeader,
)
from dbt.tests.util import run_dbt
from dbt_common.exceptions import DbtRuntimeError


class TestShowLimit(BaseShowLimit):
    pass


class TestShowSqlHeader(BaseShowSqlHeader):
    pass


# Spark's words for the same error, read in the exception: pytest shortens what it shows of it.
class TestShowDoesNotHandleDoubleLimit(BaseShowDoesNotHandleDoubleLimit):
    DATABASE_ERROR_MESSAGE = "Syntax error at or near 'limit'"

    def test_double_limit_throws_syntax_error(self, project):
        with pytest.raises(DbtRuntimeError) as error:
            run_dbt(["show", "--limit", "1", "--inline", "select 1 limit 1"])
        assert self.DATABASE_ERROR_MESSAGE in str(error.value)


class TestShowRowsOfCommands:
    """Statements that give rows take no `limit`."""

    @pytest.fixture(scope="class")
    def models(self):
        return {"t.sql": "{{ config(materialized='table') }} select 1 as id"}

    def test_procedures_and_commands(self, project):
        run_dbt(["run"])
        call = "call {{ target.database }}.system.ancestors_of('{{ target.schema }}.t')"
        shown = run_dbt(["show", "--inline", f"-- whence\n{call}"])
        assert shown.results[0].agate_table.column_names == ("snapshot_id", "timestamp")
        assert len(shown.results[0].agate_table) == 1
        shown = run_dbt(["show", "--inline", "describe {{ target.schema }}.t", "--limit", "1"])
        assert shown.results[0].agate_table.rows[0]["col_name"] == "id"
