from dbt.tests.adapter.python_model.test_python_model import (
    BasePythonEmptyTests,
    BasePythonIncrementalTests,
    BasePythonMetaGetTests,
    BasePythonModelTests,
    BasePythonSampleTests,
)
from dbt.tests.adapter.python_model.test_spark import BasePySparkTests


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


class TestPySparkTests(BasePySparkTests):
    pass
