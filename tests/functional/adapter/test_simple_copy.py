import pytest
from dbt.tests.adapter.simple_copy.test_copy_uppercase import BaseSimpleCopyUppercase
from dbt.tests.adapter.simple_copy.test_simple_copy import EmptyModelsArentRunBase, SimpleCopyBase
from dbt.tests.util import run_dbt

from tests.conftest import dbt_profile_target


# The suite's target is Postgres.
class TestSimpleCopyUppercase(BaseSimpleCopyUppercase):
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, request, engine_home):
        return dbt_profile_target.__wrapped__(request, engine_home)


# Iceberg has no materialized views: other relations of the schema are tables and views.
class TestSimpleCopy(SimpleCopyBase):
    def test_simple_copy_with_materialized_views(self, project):
        schema = project.test_schema
        project.run_sql(f"create table {schema}.unrelated_table (id int)")
        select = f"select * from {schema}.unrelated_table"
        project.run_sql(f"create view {schema}.unrelated_view as {select}")
        assert len(run_dbt(["seed"])) == 1
        assert len(run_dbt()) == 7


class TestEmptyModelsArentRun(EmptyModelsArentRunBase):
    pass
