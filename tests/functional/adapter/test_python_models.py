import pytest
from dbt.tests.adapter.python_model.test_python_model import (
    BasePythonEmptyTests,
    BasePythonIncrementalTests,
    BasePythonMetaGetTests,
    BasePythonModelTests,
    BasePythonSampleTests,
)
from dbt.tests.adapter.python_model.test_spark import BasePySparkTests
from dbt.tests.util import run_dbt


class TestPythonModelTests(BasePythonModelTests):
    pass


class TestPythonIncrementalTests(BasePythonIncrementalTests):
    pass


class TestPythonMetaGetTests(BasePythonMetaGetTests):
    pass


class TestPythonEmptyTests(BasePythonEmptyTests):
    pass


class TestPythonSampleTests(BasePythonSampleTests):
    pass


# Koalas has become `pyspark.pandas`.
# pandas on Spark gives advice as warnings.
@pytest.mark.filterwarnings("ignore")
class TestPySpark(BasePySparkTests):
    @pytest.fixture(scope="class")
    def models(self):
        models = BasePySparkTests.models.__wrapped__(self)
        del models["koalas_df.py"]
        return models

    def test_different_dataframes(self, project, models):
        assert len(run_dbt(["run"])) == len(models) == 3
