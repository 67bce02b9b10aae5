from dbt.tests.adapter.python_model.test_python_model import BasePythonModelTests as _BasePythonModelTests
from dbt.tests.adapter.python_model.test_python_model import BasePythonIncrementalTests as _BasePythonIncrementalTests
from dbt.tests.adapter.python_model.test_python_model import BasePythonMetaGetTests as _BasePythonMetaGetTests
from dbt.tests.adapter.python_model.test_python_model import BasePythonEmptyTests as _BasePythonEmptyTests
from dbt.tests.adapter.python_model.test_python_model import BasePythonSampleTests as _BasePythonSampleTests
from dbt.tests.adapter.python_model.test_spark import BasePySparkTests as _BasePySparkTests


class TestPythonModelTests(_BasePythonModelTests):
    pass


class TestPythonIncrementalTests(_BasePythonIncrementalTests):
    pass


class TestPythonMetaGetTests(_BasePythonMetaGetTests):
    pass


class TestPythonEmptyTests(_BasePythonEmptyTests):
    pass


class TestPythonSampleTests(_BasePythonSampleTests):
    pass


class TestPySparkTests(_BasePySparkTests):
    pass
