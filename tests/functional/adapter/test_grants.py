import pytest
from dbt.tests.adapter.grants.test_model_grants import my_model_sql
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.materializations.model_config import GRANTS_REFUSED

WITH_GRANTS = """
models:
  - name: my_model
    config:
      materialized: table
      grants:
        select: [somebody]
"""


# Spark has no GRANT: instead of the suite's grants, that they are refused before the model runs.
class TestGrantsRefused:
    @pytest.fixture(scope="class")
    def models(self):
        return {"my_model.sql": my_model_sql, "schema.yml": WITH_GRANTS}

    def test_grants_are_refused(self, project):
        results = run_dbt(["run"], expect_pass=False)
        assert GRANTS_REFUSED in results[0].message
        with project.adapter.connection_named("__test"):
            actual = project.adapter.get_relation(project.database, project.test_schema, "my_model")
        assert actual is None
