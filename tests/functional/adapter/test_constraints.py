from __future__ import annotations

import pytest
from dbt.tests.adapter.constraints import fixtures
from dbt.tests.adapter.constraints.test_constraints import (
    BaseConstraintQuotedColumn,
    BaseConstraintsRollback,
    BaseConstraintsRuntimeDdlEnforcement,
    BaseIncrementalConstraintsColumnsEqual,
    BaseIncrementalConstraintsRollback,
    BaseIncrementalConstraintsRuntimeDdlEnforcement,
    BaseIncrementalContractSqlHeader,
    BaseIncrementalForeignKeyConstraint,
    BaseModelConstraintsRuntimeEnforcement,
    BaseTableConstraintsColumnsEqual,
    BaseTableContractSqlHeader,
    BaseViewConstraintsColumnsEqual,
)

FROM_FOREIGN_KEY = """
    -- depends_on: <foreign_key_model_identifier>
    select 'blue' as color, 1 as id, '2019-01-01' as date_day
"""


def row_check(expression: str, label: str) -> str:
    message = f"Contract of <model_identifier> is broken: a row violates the constraint: {label}"
    return f"if(coalesce(({expression}), true), true, cast(raise_error('{message}') as boolean))"


def checked_table(columns: str, select: str, checks: list[str]) -> str:
    return f"""
        create or replace table <model_identifier> using iceberg as
        select * from (select {columns} from ({select}) as model_subq) as model_contract
        where {" and ".join(checks)}
    """


ID_CHECKS = [
    row_check("`id` is not null", "column id is not null"),
    row_check("(id > 0)", "check (id > 0)"),
    row_check("id >= 1", "check id >= 1"),
]


class SparkTypes:
    """Types as Spark writes them."""

    @pytest.fixture
    def string_type(self):
        return "string"

    @pytest.fixture
    def int_type(self):
        return "int"

    @pytest.fixture
    def data_types(self):
        # What a query says, the type in the contract, the type in the error.
        return [
            ["1", "int", "int"],
            ["'1'", "string", "string"],
            ["true", "boolean", "boolean"],
            ["timestamp '2013-11-03 00:00:00-07'", "timestamp", "timestamp"],
            ["timestamp_ntz '2013-11-03 00:00:00'", "timestamp_ntz", "timestamp_ntz"],
            ["array('a', 'b', 'c')", "array<string>", "array<string>"],
            ["array(1, 2, 3)", "array<int>", "array<int>"],
            ["cast('1' as decimal(10, 2))", "decimal(10,2)", "decimal(10,2)"],
            ["named_struct('bar', 'baz')", "struct<bar:string>", "struct<bar:string>"],
        ]


# Spark's types.
class TestTableConstraintsColumnsEqual(SparkTypes, BaseTableConstraintsColumnsEqual):
    pass


# Spark's types.
class TestViewConstraintsColumnsEqual(SparkTypes, BaseViewConstraintsColumnsEqual):
    pass


# Spark's types.
class TestIncrementalConstraintsColumnsEqual(SparkTypes, BaseIncrementalConstraintsColumnsEqual):
    pass


# Iceberg's tables have no constraints: ours are checked as the rows are written.
class TestConstraintsRuntimeDdlEnforcement(BaseConstraintsRuntimeDdlEnforcement):
    @pytest.fixture(scope="class")
    def expected_sql(self):
        return checked_table("id, color, date_day", FROM_FOREIGN_KEY, ID_CHECKS)


# Iceberg's tables have no constraints: ours are checked as the rows are written.
class TestIncrementalConstraintsRuntimeDdlEnforcement(
    BaseIncrementalConstraintsRuntimeDdlEnforcement
):
    @pytest.fixture(scope="class")
    def expected_sql(self):
        return checked_table("id, color, date_day", FROM_FOREIGN_KEY, ID_CHECKS)


# Iceberg's tables have no constraints: ours are checked as the rows are written.
class TestModelConstraintsRuntimeEnforcement(BaseModelConstraintsRuntimeEnforcement):
    @pytest.fixture(scope="class")
    def expected_sql(self):
        return checked_table("id, color, date_day", FROM_FOREIGN_KEY, ID_CHECKS)


# Backticks quote in Spark; and constraints are checked as the rows are written.
class TestConstraintQuotedColumn(BaseConstraintQuotedColumn):
    @pytest.fixture(scope="class")
    def models(self):
        return {
            "my_model.sql": fixtures.my_model_with_quoted_column_name_sql,
            "constraints_schema.yml": fixtures.model_quoted_column_schema_yml.replace('"', "`"),
        }

    @pytest.fixture(scope="class")
    def expected_sql(self):
        return checked_table(
            "id, `from`, date_day",
            "select 'blue' as `from`, 1 as id, '2019-01-01' as date_day",
            [
                row_check("`id` is not null", "column id is not null"),
                row_check("`from` is not null", "column from is not null"),
                row_check("(`from` = 'blue')", r"check (`from` = \'blue\')"),
            ],
        )


# Our own message.
class TestConstraintsRollback(BaseConstraintsRollback):
    @pytest.fixture(scope="class")
    def expected_error_messages(self):
        return ["Contract of model.test.my_model is broken", "column id is not null"]


# Our own message.
class TestIncrementalConstraintsRollback(BaseIncrementalConstraintsRollback):
    @pytest.fixture(scope="class")
    def expected_error_messages(self):
        return ["Contract of model.test.my_model is broken", "column id is not null"]


def in_spark_sql(model: str) -> str:
    """Spark sets its time zone by a setting."""
    return model.replace(
        "set session time zone 'Asia/Kolkata'", "set spark.sql.session.timeZone = Asia/Kolkata"
    ).replace("current_setting('timezone')", "current_timezone()")


# The header is Postgres's.
class TestTableContractSqlHeader(BaseTableContractSqlHeader):
    @pytest.fixture(scope="class")
    def models(self):
        return {
            "my_model_contract_sql_header.sql": in_spark_sql(
                fixtures.my_model_contract_sql_header_sql
            ),
            "constraints_schema.yml": fixtures.model_contract_header_schema_yml,
        }


# The header is Postgres's.
class TestIncrementalContractSqlHeader(BaseIncrementalContractSqlHeader):
    @pytest.fixture(scope="class")
    def models(self):
        return {
            "my_model_contract_sql_header.sql": in_spark_sql(
                fixtures.my_model_incremental_contract_sql_header_sql
            ),
            "constraints_schema.yml": fixtures.model_contract_header_schema_yml,
        }


class TestIncrementalForeignKeyConstraint(BaseIncrementalForeignKeyConstraint):
    pass
